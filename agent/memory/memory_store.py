"""`MemoryStore` of [000] and [001]: a workspace's MEMORY.md and its history, for programs that use memory as a library.

It consolidates with the gateway's `Consolidator`. In a folder that a gateway has the memory of, it reads and refuses to
write.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import secrets
from base64 import b32encode
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary
from zoneinfo import ZoneInfo

import structlog

from agent.base import transcript_lines as build
from agent.base.disk import Disk, save_corrupt
from agent.base.scopes import quote
from agent.base.transcript_lines import (
    decode,
    encode,
    entry_id,
    format_time,
    from_user,
    kind_of,
    parse_time,
    replayable,
    utc_now,
)
from agent.llm.model_calls import LlmProvider, UnusableAnswer, outage_delay
from agent.memory.editing.edit_simulation import BUDGET
from agent.memory.editing.memory_archive import MemoryArchive
from agent.memory.editing.staged_changes import MEMORY, save_conflicts
from agent.memory.editing.three_way_merge import three_way
from agent.memory.history.folder_store import (
    FileDocumentStore,
    FolderHistory,
    hold_unowned,
    is_mirrored,
    require_unowned,
)
from agent.memory.storage.messages import KeepPolicy, Message, TranscriptRange, conversation, next_range
from agent.memory.storage.transcript_files import archive_path, read_head, read_transcript
from agent.memory.update.consolidator import (
    DEADLINE,
    FAILURE_LINE,
    FAILURES_BEFORE_RAW,
    Consolidator,
    StoredAnswer,
)
from gateway.ports.journal import Line, MessageOutcome
from gateway.ports.memory import HISTORY_MD, HistoryEntry, ScopeDocument

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


_SCOPE = ""  # a workspace is a home with one scope
_WAITS = (timedelta(0), timedelta(minutes=5))  # after the first failure, after the second


class MemoryStore:
    """`memory/MEMORY.md` and `memory/HISTORY.md` of a workspace; the latter is derived from `history.jsonl`.

    Every method except `consolidate` blocks. Those that write raise HomeInUse in a folder of a gateway's memory. Times
    in the history are in *zone*; *budget* is the maximum length of MEMORY.md after a consolidation, in characters.
    """

    def __init__(
        self,
        workspace: Path,
        *,
        zone: str = "UTC",
        budget: int = BUDGET,
        keep: KeepPolicy = KeepPolicy.HALF,
        deadline: timedelta = DEADLINE,
        disk: Disk | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._workspace = Path(workspace)
        self.memory_dir = self._workspace / "memory"
        self.memory_file = self.memory_dir / MEMORY
        self.history_file = self.memory_dir / HISTORY_MD
        self._disk = disk or Disk()
        self._zone, self._keep, self._now = zone, keep, now
        if not is_mirrored(self._workspace):
            self._disk.make_folder(self.memory_dir)
        self._documents = FileDocumentStore(Path(workspace), disk=self._disk)
        history = FolderHistory(self._workspace, self._disk, now=lambda: now().astimezone(ZoneInfo(zone)))
        self._history = history
        archive = MemoryArchive(max_chars=budget, history=history, now=now)
        self._consolidator = Consolidator(
            home=Path(workspace),
            documents=FileDocumentStore(Path(workspace), disk=self._disk, fit=archive.fit, history=history),
            history=history,
            staging=None,
            archive=archive,
            zone=lambda _: zone,
            now=now,
            budget=budget,
            deadline=deadline,
            disk=self._disk,
            asks_edits=False,
        )
        self._pending = ConsolidationStateStore(self.memory_dir, self._disk)
        self._read: ScopeDocument | None = None  # as the last caller of `read_long_term` knew it
        self._busy: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    # -- the methods of [001] ----------------------------------------------------------------------

    def read_long_term(self) -> str:
        """Return MEMORY.md, or an empty string."""
        self._read = self._documents.read_now(_SCOPE, MEMORY)
        return self._read.text

    def write_long_term(self, content: str) -> None:
        """Replace MEMORY.md by *content*, keeping what others wrote since it was last read. Raises OSError.

        If both changed the same entry, theirs stays in MEMORY.md and ours goes to a conflict copy.
        """
        with hold_unowned(self._workspace):
            self._write(content)

    def _write(self, content: str) -> None:
        while True:
            current = self._documents.read_now(_SCOPE, MEMORY)
            text = content
            if self._read is not None and self._read.rev != current.rev:
                both = three_way(self._read.text, content, current.text)
                text = both.text
                save_conflicts(self.memory_dir, self._disk, both.conflicts, MEMORY)
            written = self._documents.write_now(_SCOPE, MEMORY, text, was=current.rev)
            if written is not None:
                self._read = written
                return

    def append_history(self, entry: str) -> None:
        """Append an entry to the history, with the current time unless it begins with one. Raises OSError."""
        content = entry.strip()
        if not content:
            return
        with hold_unowned(self._workspace):
            now = self._now()
            made = entry_id(f"{content} {now.isoformat()}", 0, self._disk.size(self.history_file) or 0)
            self._history.append_now(
                HistoryEntry(timestamp=self._time(now), content=content, origin="owner", entry=made)
            )

    def get_memory_context(self) -> str:
        """Return MEMORY.md under a heading, for a system prompt, or an empty string if it is empty."""
        long_term = self._documents.read_now(_SCOPE, MEMORY).text
        return f"## Long-term Memory\n{long_term}" if long_term else ""

    async def consolidate(
        self,
        session: Session,
        provider: LlmProvider,
        model: str,
        *,
        archive_all: bool = False,
        memory_window: int = 50,
    ) -> bool:
        """Summarise the session's older messages; return True if they are stored outside the session now.

        On False nothing was changed; a later call retries and does not pay for the same answer twice. After three
        failures the messages go to a raw archive, and the call returns True. Messages that arrive during the call are
        not touched. The pointer moves in *session*; the caller saves it. One call per session runs at a time.
        """
        lock = self._busy.setdefault(session.key, asyncio.Lock())
        async with lock:
            require_unowned(self._workspace)
            try:
                return await self._consolidate(session, provider, model, archive_all, memory_window)
            except OSError as error:
                log.warning("consolidation.cannot_write", session=session.key, error=error.strerror)
                return False

    # -- one consolidation -------------------------------------------------------------------------

    async def _consolidate(
        self, session: Session, provider: LlmProvider, model: str, archive_all: bool, window: int
    ) -> bool:
        state = await self._resume(session.key)
        if self._follow(session, state.done) and not archive_all:
            return True
        total = len(session.messages)
        taken = next_range(total, session.last_consolidated, window, self._keep, archive_all=archive_all)
        if taken is None:
            return True
        if state.waits(self._now(), total) and not archive_all:
            log.info("consolidation.deferred", session=session.key, failures=state.failures)
            return False
        # Copied before the model is called: messages that arrive during the call stay behind the pointer.
        old = [dict(message) for message in session.messages[taken.start : taken.end]]
        span = TranscriptRange(name_of(session.key, old), taken.start, taken.end)
        lines = conversation(old, zone=self._zone)
        if not lines:  # tool results alone, or erased
            return await self._keep_raw(session, span, old)
        base = await self._consolidator.current_memory(_SCOPE)
        answer = await self._consolidator.ask(_SCOPE, provider, model, base, lines)
        if isinstance(answer, UnusableAnswer):
            add_failure = state.unanswered if answer.is_outage else state.failed
            state = add_failure(self._now(), total)
            log.warning(
                "consolidation.failed",
                what=FAILURE_LINE,
                session=session.key,
                reason=answer.reason,
                failures=state.failures,
            )
            if state.failures >= FAILURES_BEFORE_RAW:
                return await self._keep_raw(session, span, old)
            await asyncio.to_thread(self._pending.save, session.key, state)
            return False
        stored = self._consolidator.stored_answer(_SCOPE, span, old, base, answer)
        await asyncio.to_thread(self._pending.save, session.key, ConsolidationState(answer=stored))
        self._follow(session, (await self._apply(session.key, stored)).done)
        log.info("consolidation.done", session=session.key, start=taken.start, end=taken.end)
        return True

    async def _resume(self, session: str) -> ConsolidationState:
        """Apply an answer that a killed process had stored; return the session's state."""
        state = await asyncio.to_thread(self._pending.load, session)
        return await self._apply(session, state.answer) if state.answer is not None else state

    async def _apply(self, session: str, answer: StoredAnswer) -> ConsolidationState:
        await self._consolidator.apply(_SCOPE, session, answer)
        return await self._store_done(session, TranscriptRange(answer.transcript, answer.start, answer.end))

    async def _keep_raw(self, session: Session, span: TranscriptRange, messages: Sequence[Message]) -> bool:
        await self._consolidator.keep_raw(_SCOPE, session.key, span, messages)
        state = await self._store_done(session.key, span)
        return self._follow(session, state.done)

    async def _store_done(self, session: str, consolidated: TranscriptRange) -> ConsolidationState:
        state = ConsolidationState(done=consolidated)
        await asyncio.to_thread(self._pending.save, session, state)
        return state

    @staticmethod
    def _follow(session: Session, consolidated: TranscriptRange | None) -> bool:
        """Move the session's pointer past *consolidated* if it is about these messages; return True if it moved."""
        if (
            consolidated is None
            or session.last_consolidated != consolidated.start
            or len(session.messages) < consolidated.end
        ):
            return False
        if name_of(session.key, session.messages[consolidated.start : consolidated.end]) != consolidated.transcript:
            return False
        session.last_consolidated = consolidated.end
        return True

    def _time(self, at: datetime) -> str:
        return f"{at.astimezone(ZoneInfo(self._zone)):%Y-%m-%d %H:%M}"


# -- progress: one file per session, so that a crash does not make an answer be paid for twice -----


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidationState:
    """Progress of the consolidation of one session."""

    failures: int = 0  # bad answers in a row
    outages: int = 0  # calls in a row that the model did not answer
    length: int = 0  # messages there were at the last failure
    retry_at: datetime | None = None
    answer: StoredAnswer | None = None
    done: TranscriptRange | None = None  # in the history or the raw archive; the session's pointer follows

    def failed(self, at: datetime, length: int) -> ConsolidationState:
        """Return the state after one more failure."""
        wait = _WAITS[min(self.failures, len(_WAITS) - 1)]
        return dataclasses.replace(self, failures=self.failures + 1, outages=0, length=length, retry_at=at + wait)

    def unanswered(self, at: datetime, length: int) -> ConsolidationState:
        """Return the state after one more call that the model did not answer, which is not a failure of its answers."""
        retry_at = at + outage_delay(self.outages + 1)
        return dataclasses.replace(self, outages=self.outages + 1, length=length, retry_at=retry_at)

    def waits(self, at: datetime, length: int) -> bool:
        """Return True if the next attempt is not due yet; a call about the same messages is a deliberate retry."""
        return self.retry_at is not None and at < self.retry_at and length != self.length


class ConsolidationStateStore:
    """The states of a scope's sessions, on the disk. Blocks."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._folder = folder
        self._disk = disk

    def load(self, session: str) -> ConsolidationState:
        """Return the session's state; a file that cannot be read is an empty one, which costs one call."""
        data = self._disk.load(self._path(session))
        record = decode(data) if data is not None else None
        if record is None or record.get("session") != session:
            return ConsolidationState()
        try:
            answer, done = record.get("answer"), record.get("done")
            return ConsolidationState(
                failures=int(record.get("failures", 0)),
                outages=int(record.get("outages", 0)),
                length=int(record.get("length", 0)),
                retry_at=parse_time(record.get("retry_at")),
                answer=StoredAnswer(**answer) if answer else None,
                done=TranscriptRange(**done) if done else None,
            )
        except (TypeError, ValueError):
            return ConsolidationState()

    def save(self, session: str, state: ConsolidationState) -> None:
        """Store the state, durably and whole. Raises OSError."""
        line: dict[str, Any] = {"v": 1, "session": session, **dataclasses.asdict(state)}
        line["retry_at"] = format_time(state.retry_at) if state.retry_at else None
        self._disk.replace(self._path(session), json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def _path(self, session: str) -> Path:
        return self._folder / ".pending" / f"{quote(session)}.json"


def name_of(session: str, messages: Sequence[Message]) -> str:
    """Return a name for exactly these messages of a session, where no transcript has given it one."""
    said = json.dumps([session, [dict(message) for message in messages]], sort_keys=True, default=str)
    return "m" + sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:32]
