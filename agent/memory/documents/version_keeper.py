"""Keeps every change of a document as a version: our own changes with their cause, other edits as made by hand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import structlog

from agent.memory.documents.version_store import BY_HAND, TRACKED, VersionStore
from agent.memory.scopes import scope_folder
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import decode

log = structlog.get_logger(__name__)

_NOTE = ".writing"  # the announced write, so that after a crash our change is not taken for an edit by hand


class VersionKeeper:
    """Saves versions beside the files. Call it under the scope's lock. Methods block and never fail a write.

    If a version cannot be written, only that version is lost: the next change includes it.
    """

    def __init__(self, home: Path, disk: Disk, versions: VersionStore, *, now: Callable[[], datetime]) -> None:
        self._home = home
        self._disk = disk
        self._versions = versions
        self._now = now

    def notice(self, scope: str, name: str, data: bytes | None) -> None:
        """Save the file as a version if it differs from the last one: edited by hand, or an interrupted write."""
        if name not in TRACKED:
            return
        try:
            if self._versions.texts(scope).get(name, b"") == (data or b""):
                return
            why, by = self._announced(scope, name, data or b"")
            self._versions.save_version(scope, {name: data or b""}, why=why, by=by, at=self._now())
        except OSError as error:
            log.warning("versions.not_kept", scope=scope, name=name, error=error.strerror)

    def announce(self, scope: str, name: str, data: bytes, *, why: str, by: str) -> None:
        """Record what is about to be written, and its cause."""
        if name not in TRACKED:
            return
        note = json.dumps({"name": name, "sha256": _digest(data), "why": why, "by": by}).encode()
        try:
            self._disk.replace(self._note(scope), note)
        except OSError as error:
            log.warning("versions.not_announced", scope=scope, name=name, error=error.strerror)

    def _announced(self, scope: str, name: str, data: bytes) -> tuple[str, str]:
        """Return cause and person of a text that was announced, else those of an edit by hand."""
        note = decode(self._disk.load(self._note(scope)) or b"") or {}
        if note.get("name") == name and note.get("sha256") == _digest(data):
            return str(note.get("why", "")), str(note.get("by", ""))
        return BY_HAND, ""

    def _note(self, scope: str) -> Path:
        return scope_folder(self._home, scope) / "memory" / _NOTE


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
