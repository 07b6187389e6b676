"""The workspaces of all scopes of a home."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import structlog

from agent.files.file_workspace import FileWorkspace
from agent.memory.scopes import scope_folder

log = structlog.get_logger(__name__)

FOLDER = "files"


class ScopeWorkspaces:
    """Gives each scope its own workspace, and expires deleted files in all of them."""

    def __init__(self, home: Path, *, most_mb: int, now: Callable[[], datetime]) -> None:
        """Keep at most *most_mb* megabytes in each scope."""
        self._home = home
        self._most_bytes = most_mb * 1_000_000
        self._now = now

    def of(self, scope: str) -> FileWorkspace:
        """Return the workspace of *scope*, which need not exist yet. Raises ValueError for an invalid scope."""
        return FileWorkspace(scope_folder(self._home, scope) / FOLDER, most_bytes=self._most_bytes, now=self._now)

    async def expire_trash(self) -> int:
        """Remove for good what was deleted more than a week ago; return the number of files."""
        return await asyncio.to_thread(self._expire_trash)

    def _expire_trash(self) -> int:
        removed = 0
        for pattern in (FOLDER, f"shared/{FOLDER}", f"people/*/{FOLDER}", f"chats/*/{FOLDER}"):
            for root in self._home.glob(pattern):
                workspace = FileWorkspace(root, most_bytes=self._most_bytes, now=self._now)
                try:
                    removed += workspace.expire_trash()
                except OSError as error:
                    log.warning("workspace.not_expired", error=error.strerror)
        return removed
