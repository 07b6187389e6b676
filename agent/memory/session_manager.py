"""`Session` and `SessionManager` of [000] and [002] over transcript files, for programs that use memory as a library.

The workspace is a folder of its own, or a scope of a home. Where a gateway has the memory, it can be read only.
"""

from __future__ import annotations

import secrets
from base64 import b32encode
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from agent.memory.scopes import quote
from agent.memory.storage import transcript_lines as build
from agent.memory.storage.disk import Disk, save_corrupt
from agent.memory.storage.legacy_sessions import find_legacy
from agent.memory.storage.segments import SegmentChain
from agent.memory.storage.transcript_lines import from_user, kind_of, replayable
from agent.memory.storage.transcript_reader import read_all
from agent.memory.storage.transcript_writer import TranscriptEntry, TranscriptWriter
from agent.memory.storage.unowned_folder import hold_unowned, is_mirrored
from gateway.ports import Line, MessageOutcome

SESSIONS_IN_MEMORY = 256
_OURS = frozenset({"i", "turn", "kind", "v"})  # a message that carries such a key itself keeps it under `own`


@dataclass
class Session:
    """A conversation; `messages` are in the chat format of [000] and only ever appended to."""

    key: str  # "channel:chat_id"
    messages: list[dict[str, Any]] = field(default_factory=list)
    last_consolidated: int = 0  # messages before it are in a summary
    created_at: datetime = field(default_factory=build.utc_now)
    updated_at: datetime = field(default_factory=build.utc_now)

    def get_history(self, max_messages: int = 50) -> list[dict[str, Any]]:
        """Return the newest messages, replayable: from a user's on, no orphan result, no call without its result."""
        recent = self.messages[-max_messages:] if max_messages > 0 else []
        return replayable(from_user(recent))

    def add_message(self, role: str, content: Any, **fields: Any) -> None:
        """Append a message, stamped with the present moment."""
        now = build.utc_now()
        self.messages.append({"role": role, "content": content, "timestamp": build.format_time(now), **fields})
        self.updated_at = now

    def clear(self) -> None:
        """Start a new conversation; the next save archives the transcript."""
        self.messages = []
        self.last_consolidated = 0
        self.updated_at = build.utc_now()


@dataclass(slots=True)
class _SavedState:
    """The part of a session that is in its file."""

    file: TranscriptWriter
    messages: list[dict[str, Any]]  # the very list that was saved, or that was loaded
    count: int = 0
    first: dict[str, Any] | None = None
    last: dict[str, Any] | None = None
    pointer: int = 0


class SessionManager:
    """Loads sessions when they are asked for and saves what is new.

    `save` raises HomeInUse in a folder that a gateway has the memory of; reading works there.
    """

    def __init__(self, workspace: Path, *, capacity: int = SESSIONS_IN_MEMORY, disk: Disk | None = None) -> None:
        self.workspace = Path(workspace)
        self.sessions_dir = self.workspace / "sessions"
        self._capacity = capacity
        self._disk = disk or Disk()
        self._cache: OrderedDict[str, Session] = OrderedDict()
        self._saved: dict[str, _SavedState] = {}
        if not is_mirrored(self.workspace):
            self._disk.make_folder(self.sessions_dir)

    def get_or_create(self, key: str) -> Session:
        """Return the session of *key*, from memory, from its file, from an older system's file, or new."""
        session = self._cache.get(key)
        if session is None:
            session = self._load(key)
            self._cache[key] = session
        self._cache.move_to_end(key)
        while len(self._cache) > self._capacity:
            self.invalidate(next(iter(self._cache)))
        return session

    def save(self, session: Session) -> None:
        """Append what is new, durably; the cost does not depend on the session's length.

        A list that was shortened or replaced (`clear`) ends the transcript: the old one is archived.
        """
        with hold_unowned(self.workspace):
            saved = self._saved.get(session.key)
            if saved is None:
                saved = self._open(session.key)
            if not _continues(saved, session):
                saved = self._begin_anew(session, saved)
            self._append(session, saved)
            self._cache[session.key] = session
            self._cache.move_to_end(session.key)

    def invalidate(self, key: str) -> None:
        """Drop the session *key* from the cache; unsaved messages are lost, as in the seeds."""
        self._cache.pop(key, None)
        saved = self._saved.pop(key, None)
        if saved is not None:
            saved.file.close()

    # -- files -------------------------------------------------------------------------------------

    def _path(self, key: str) -> Path:
        return self.sessions_dir / f"{quote(key)}.jsonl"

    def _load(self, key: str) -> Session:
        chain = SegmentChain(self._disk, self._path(key))
        if not chain.end:
            return self._import(key)
        parsed = read_all(chain)
        if parsed.bad and not is_mirrored(self.workspace):
            save_corrupt(self._disk, self._path(key), parsed.bad)
        session = Session(key)
        moments = []
        for block in parsed.blocks:
            for line in block.lines:
                if kind_of(line) == "message":
                    session.messages.append(_message(line))
                elif kind_of(line) == "pointer":
                    session.last_consolidated = int(line["last_consolidated"])
            moments.append(build.parse_time(block.lines[-1].get("at")))
        created = build.parse_time(chain.head.get("created")) if chain.head else None
        session.created_at = created or session.created_at
        session.updated_at = next((at for at in reversed(moments) if at), session.created_at)
        self._remember(session, self._file(key, chain.transcript))
        return session

    def _import(self, key: str) -> Session:
        """Return the session *key* from an older system's file, to be written by the first save; else a new session."""
        found = find_legacy(self._disk, self.sessions_dir, key)
        if found is None:
            return Session(key)
        session = Session(key, found.messages, found.last_consolidated)
        session.created_at = found.created_at or session.created_at
        session.updated_at = found.updated_at or session.created_at
        return session

    def _open(self, key: str) -> _SavedState:
        """Open the file of a session that this manager did not load; it must be continued, not overwritten."""
        loaded = self._load(key)
        if key not in self._saved:
            loaded.messages = []
            loaded.last_consolidated = 0
            self._remember(loaded, self._file(key, ""))
        return self._saved[key]

    def _file(self, key: str, transcript: str) -> TranscriptWriter:
        return TranscriptWriter(self._disk, self._path(key), transcript or _new_id(16), key)

    def _remember(self, session: Session, file: TranscriptWriter) -> None:
        messages = session.messages
        first, last = (messages[0], messages[-1]) if messages else (None, None)
        self._saved[session.key] = _SavedState(file, messages, len(messages), first, last, session.last_consolidated)

    def _begin_anew(self, session: Session, saved: _SavedState) -> _SavedState:
        saved.file.archive(f"t{_new_id(16)}")
        fresh = _SavedState(self._file(session.key, _new_id(16)), session.messages)
        self._saved[session.key] = fresh
        return fresh

    def _append(self, session: Session, saved: _SavedState) -> None:
        new = session.messages[saved.count :]
        turn = f"t{_new_id(16)}"
        lines: list[Line] = [_line(saved.count + n, turn, message) for n, message in enumerate(new)]
        if session.last_consolidated != saved.pointer:
            lines.append(build.pointer(session.last_consolidated))
        if not lines:
            return
        stop = len(session.messages)
        end = build.end_line(
            turn,
            from_index=saved.count,
            to_index=stop,
            inbox=[],
            outcome=MessageOutcome.ANSWERED,
            at=session.updated_at,
        )
        try:
            saved.file.append(TranscriptEntry(lines=[*lines, end], at=session.created_at))
            saved.file.sync()
        except OSError:
            # The next save reads the file again; the session in memory is unchanged.
            self._saved.pop(session.key, None)
            raise
        saved.file.close()
        self._remember(session, saved.file)


def _continues(saved: _SavedState, session: Session) -> bool:
    """Return True if the session begins with the saved messages."""
    messages = session.messages
    if not saved.count:
        return True
    if len(messages) < saved.count or messages[0] != saved.first:
        return False
    return saved.messages is messages or messages[saved.count - 1] == saved.last


def _line(i: int, turn: str, message: dict[str, Any]) -> Line:
    reserved = {name: message[name] for name in message.keys() & _OURS}
    plain = {name: value for name, value in message.items() if name not in _OURS}
    line: dict[str, Any] = {"i": i, "turn": turn, "role": "", **plain}
    return line | ({"own": reserved} if reserved else {})


def _message(line: Line) -> dict[str, Any]:
    own = line.get("own")
    message = {name: value for name, value in line.items() if name not in ("i", "turn", "own")}
    if not message["role"]:
        del message["role"]
    return message | (own if isinstance(own, dict) else {})


def _new_id(length: int) -> str:
    return b32encode(secrets.token_bytes(length)).decode("ascii").lower()[:length]
