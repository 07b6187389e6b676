"""Tools that the settings turn off, or whose package is missing. Nothing of a tool is imported."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from gateway.installation import HOW_TO_INSTALL
from gateway.settings.settings_model import ToolSettings

_INTERPRETER = "pydantic_monty"
_FILE_TOOLS = frozenset({"files_list", "file_read", "file_write", "file_delete"})
_REMINDER_TOOLS = frozenset({"remind", "reminders", "reminder_change"})


def disabled_tools(settings: ToolSettings) -> Mapping[str, str]:
    """Return the reason of each tool that is off, by name."""
    disabled: dict[str, str] = {}
    if not settings.files:
        disabled |= dict.fromkeys(_FILE_TOOLS, "PARLOUR_TOOLS__FILES is false")
    if not settings.reminders:
        disabled |= dict.fromkeys(_REMINDER_TOOLS, "PARLOUR_TOOLS__REMINDERS is false")
    if not settings.code.compute:
        disabled["compute"] = "PARLOUR_TOOLS__CODE__COMPUTE is false"
    elif find_spec(_INTERPRETER) is None:
        disabled["compute"] = f"its package pydantic-monty is not installed: {HOW_TO_INSTALL}"
    return disabled
