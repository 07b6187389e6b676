"""What stands where forgetting does not reach, where there is any: so that the answer names it."""

from __future__ import annotations

from pathlib import Path

from agent.memory.erasure.scope_files import OWN_FILES
from agent.memory.scopes import scope_folder

DOWNLOADS = "downloads"  # in the home: what the chat in the terminal saved, beside the scopes


def untouched_folders(home: Path, scope: str, *, saves_files: bool, is_all: bool = False) -> list[str]:
    """Return which folders stay as they are when something of *scope* is forgotten, or *is_all*. Blocks.

    *saves_files*: the scope has a chat on a platform that saves files in the downloads folder.
    """
    found = []
    if not is_all and _holds(scope_folder(home, scope) / OWN_FILES):  # with everything they go, too
        found.append(OWN_FILES)
    if saves_files and _holds(home / DOWNLOADS):
        found.append(DOWNLOADS)
    return found


def _holds(folder: Path) -> bool:
    return any(path.is_file() for path in folder.rglob("*"))
