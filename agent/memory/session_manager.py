"""`Session` and `SessionManager` of [000] and [002] over transcript files, for programs that use memory as a library.

The workspace is a folder of its own, or a scope of a home. Where a gateway has the memory, it can be read only.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from base64 import b32encode
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import structlog

from agent.base import transcript_lines as build
from agent.base.disk import Disk, save_corrupt
from agent.base.scopes import quote
from agent.base.transcript_lines import decode, encode, from_user, kind_of, parse_time, replayable
from agent.memory.history.folder_store import hold_unowned, is_mirrored
from agent.memory.storage.transcript_files import archive_path, read_head, read_transcript
from gateway.ports.journal import Line, MessageOutcome

log = structlog.get_logger(__name__)

SESSIONS_IN_MEMORY = 256
_LONGEST_NAME = 200  # bytes
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

    transcript: str
    messages: list[dict[str, Any]]  # the very list that was saved, or that was loaded
    size: int = 0  # of the file's complete turns; what is behind them is torn
    torn: bytes = b""
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
            try:
                if not _continues(saved, session):
                    saved = self._begin_anew(session, saved)
                self._append(session, saved)
            except OSError:
                # The next save reads the file again; the session in memory is unchanged.
                self._saved.pop(session.key, None)
                raise
            self._cache[session.key] = session
            self._cache.move_to_end(session.key)

    def invalidate(self, key: str) -> None:
        """Drop the session *key* from the cache; unsaved messages are lost, as in the seeds."""
        self._cache.pop(key, None)
        self._saved.pop(key, None)

    # -- files -------------------------------------------------------------------------------------

    def _path(self, key: str) -> Path:
        return self.sessions_dir / f"{quote(key)}.jsonl"

    def _load(self, key: str) -> Session:
        path = self._path(key)
        size = self._disk.size(path)
        if not size:
            return self._import(key)
        head, parsed = read_head(self._disk, path), read_transcript(self._disk, path)
        if parsed.bad and not is_mirrored(self.workspace):
            save_corrupt(self._disk, path, parsed.bad)
        session = Session(key)
        moments = []
        for block in parsed.blocks:
            for line in block.lines:
                if kind_of(line) == "message":
                    session.messages.append(_message(line))
                elif kind_of(line) == "pointer":
                    session.last_consolidated = int(line["last_consolidated"])
            moments.append(parse_time(block.lines[-1].get("at")))
        session.created_at = parse_time(head.get("created")) or session.created_at
        session.updated_at = next((at for at in reversed(moments) if at), session.created_at)
        saved = _SavedState(
            str(head.get("transcript") or _new_id(16)), [], max(size - len(parsed.torn), 0), parsed.torn
        )
        self._remember(session, saved)
        return session

    def _import(self, key: str) -> Session:
        """Return the session *key* from an older system's file, to be written by the first save; else a new session."""
        name = key.replace(":", "_")
        if "/" in name or "\0" in name or len(name.encode("utf-8", "surrogatepass")) > _LONGEST_NAME:
            return Session(key)
        for ending, parse in ((".json", _parse_document), (".jsonl", _parse_lines)):
            data = self._disk.load(self.sessions_dir / f"{name}{ending}")
            session = parse(data, key) if data is not None else None
            if session is not None:
                return session
        return Session(key)

    def _open(self, key: str) -> _SavedState:
        """Open the file of a session that this manager did not load; it must be continued, not overwritten."""
        self._load(key)
        return self._saved.setdefault(key, _SavedState(_new_id(16), []))

    def _remember(self, session: Session, saved: _SavedState) -> None:
        saved.messages = messages = session.messages
        saved.count, saved.pointer = len(messages), session.last_consolidated
        saved.first, saved.last = (messages[0], messages[-1]) if messages else (None, None)
        self._saved[session.key] = saved

    def _begin_anew(self, session: Session, saved: _SavedState) -> _SavedState:
        path = self._path(session.key)
        if self._disk.size(path) is not None:
            self._cut_torn(path, saved)
            self._disk.rename(path, archive_path(path, saved.transcript, f"t{_new_id(16)}"))
        return _SavedState(_new_id(16), session.messages)

    def _cut_torn(self, path: Path, saved: _SavedState) -> None:
        """Set what a crash has left behind the complete turns aside."""
        if saved.torn:
            save_corrupt(self._disk, path, [saved.torn])
            self._truncate(path, saved.size)
            saved.torn = b""

    def _truncate(self, path: Path, size: int) -> None:
        with self._disk.open_briefly(path) as fd:
            self._disk.truncate(fd, size)
            self._disk.sync(fd)

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
        path = self._path(session.key)
        self._cut_torn(path, saved)
        head = [] if saved.size else [build.head_line(saved.transcript, session.key, session.created_at)]
        data = b"".join(map(encode, (*head, *lines, end)))
        try:
            self._disk.append(path, data)
        except OSError:
            with contextlib.suppress(OSError):  # the next load finds what is torn
                self._truncate(path, saved.size)
            raise
        saved.size += len(data)
        self._remember(session, saved)


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


# -- files of older systems: [000]'s JSON document, and nanobot's JSONL with the same content ----------


def _parse_document(data: bytes, key: str) -> Session | None:
    """Parse a JSON document; return None if it is not a session of *key*."""
    try:
        document = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        log.warning("session.import_unreadable")
        return None
    if not isinstance(document, dict) or document.get("key", key) != key:
        return None
    messages = document.get("messages")
    return _to_session(key, document, messages if isinstance(messages, list) else [])


def _parse_lines(data: bytes, key: str) -> Session | None:
    """Parse a metadata line and one message per line, skipping damaged lines; None if it is not a session of *key*."""
    lines = [line for raw in data.splitlines() if (line := decode(raw)) is not None]
    if not lines or lines[0].get("_type") != "metadata" or lines[0].get("key", key) != key:
        return None
    return _to_session(key, lines[0], lines[1:])


def _to_session(key: str, metadata: Mapping[str, Any], lines: Sequence[Any]) -> Session:
    messages = [dict(each) for each in lines if isinstance(each, Mapping) and isinstance(each.get("role"), str)]
    pointer = metadata.get("last_consolidated", 0)
    session = Session(key, messages, min(pointer, len(messages)) if isinstance(pointer, int) and pointer > 0 else 0)
    session.created_at = parse_time(metadata.get("created_at")) or session.created_at
    session.updated_at = parse_time(metadata.get("updated_at")) or session.created_at
    return session


def _new_id(length: int) -> str:
    return b32encode(secrets.token_bytes(length)).decode("ascii").lower()[:length]
