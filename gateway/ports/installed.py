"""What the installed distributions bring: channels, stores, models, tools and commands, by entry point group."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoints, entry_points
from importlib.metadata import version as version_of


@cache
def installed(group: str) -> EntryPoints:
    """Return the entry points of *group*, read once a process: a reading opens a file of every package there is."""
    return entry_points(group=group)


@cache
def version() -> str:
    """Return Parlour's own version, read once a process: a reading parses a page of metadata."""
    return version_of("parlour")
