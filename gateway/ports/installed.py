"""What the installed distributions bring: channels, stores, models, tools and commands, by entry point group."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoints, entry_points


@cache
def installed(group: str) -> EntryPoints:
    """Return the entry points of *group*, read once a process: a reading opens a file of every package there is."""
    return entry_points(group=group)
