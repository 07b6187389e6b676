"""Findings of `parlour init` and `parlour doctor`, and libraries that are not installed."""

from __future__ import annotations

from importlib.util import find_spec

from gateway.ports import SetupFinding, SetupLevel
from gateway.ports.entry_points import HOW_TO_INSTALL


def good(text: str) -> SetupFinding:
    """Return a finding that needs no action."""
    return SetupFinding(level=SetupLevel.GOOD, text=text)


def warning(text: str) -> SetupFinding:
    """Return a finding that limits what the channel can do."""
    return SetupFinding(level=SetupLevel.WARNING, text=text)


def failed(text: str) -> SetupFinding:
    """Return a finding that keeps the channel from working."""
    return SetupFinding(level=SetupLevel.WRONG, text=text)


def missing_library(*modules: str) -> str:
    """Return installation instructions for the first missing module, "" if all are installed."""
    missing = [name for name in modules if find_spec(name) is None]
    return f"{missing[0]} is not installed; {HOW_TO_INSTALL}" if missing else ""
