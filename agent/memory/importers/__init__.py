"""Taking over what another bot remembered: its sessions and its memory files; the originals stay as they are."""

from collections.abc import Callable, Mapping
from pathlib import Path

from agent.memory.importers.import_data import ImportData
from agent.memory.importers.nanobot import read_nanobot
from agent.memory.importers.openclaw import read_openclaw

SYSTEMS: Mapping[str, Callable[[Path, str], ImportData]] = {
    "nanobot": read_nanobot,
    "autobot": read_nanobot,  # a workspace of the same shape
    "openclaw": read_openclaw,
}
