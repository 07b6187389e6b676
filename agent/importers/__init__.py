"""Import another bot's sessions and memory files; the source folder is never changed.

Only `gateway.app` imports this package; the memory does not depend on it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from agent.importers.import_data import ImportData
from agent.importers.nanobot import read_nanobot
from agent.importers.openclaw import read_openclaw

SYSTEMS: Mapping[str, Callable[[Path, str], ImportData]] = {
    "nanobot": read_nanobot,
    "autobot": read_nanobot,  # a workspace of the same layout
    "openclaw": read_openclaw,
}
