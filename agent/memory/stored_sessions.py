"""Read access to conversations for channels, commands and the CLI, from the journal, the inbox and transcript files."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from cachetools import LRUCache

from agent.memory.displayed_messages import DisplayedTurn, build_divider, order_messages, with_buttons
from agent.memory.scopes import AREAS, quote, rebase_reference, scope_folder, transcript_path
from agent.memory.storage.disk import Disk
from agent.memory.storage.segments import SegmentChain, read_head, transcript_of_archive
from agent.memory.storage.transcript_lines import format_time, kind_of
from agent.memory.storage.transcript_reader import TranscriptBlock, anchor_index, read_before, read_tail
from gateway.events import SessionKey
from gateway.ports import (
    DisplayedMessage,
    DisplayedPage,
    Journal,
    Line,
    Outbox,
    SessionInfo,
    SessionRow,
    TurnRecord,
    TurnRecordStore,
)

T = TypeVar("T")

_READ_ATTEMPTS = 3
_MOST_HEADS = 10_000
_TURNS_AT_ONCE = 200
_TURNS_WITH_BUTTONS = 30  # the newest ones of a conversation


class StoredSessions:
    """Implements `SessionReader`."""

    def __init__(
        self, home: Path, records: TurnRecordStore, journal: Journal, outbox: Outbox, *, disk: Disk | None = None
    ) -> None:
        self._home = home
        self._records = records
        self._journal = journal
        self._outbox = outbox
        self._disk = disk or Disk()
        self._fetch: Callable[[str], Awaitable[object]] | None = None
        self._scopes: dict[SessionKey, str] = {}
        self._heads: LRUCache[str, tuple[str, str]] = LRUCache(_MOST_HEADS)  # key and time of each archive

    def share(self, fetch: Callable[[str], Awaitable[object]]) -> None:
        """Have `displayed_page` read what other gateways have written: *fetch* brings the files of a scope."""
        self._fetch = fetch

    async def displayed_messages(self, key: SessionKey, *, limit: int) -> tuple[DisplayedMessage, ...]:
        """Return the newest *limit* messages as people saw them, oldest first, including pending and queued ones."""
        # In this order: messages move from the inbox to the journal to the file.
        queued_rows = await self._journal.waiting_rows(key)
        scope, blocks, pending = await self._load(key, limit)
        turns = list(_turns(blocks, pending).items())
        lines = await asyncio.to_thread(order_messages, turns, queued_rows)
        if limit <= 0:
            return ()
        return tuple(line if scope is None else _anchored(line, scope) for line in lines[-limit:])

    async def displayed_page(self, key: SessionKey, before: str = "", *, turns: int) -> DisplayedPage | None:
        """Return the messages of *turns* turns before the position *before*; see `SessionReader.displayed_page`."""
        queued_rows = () if before else await self._journal.waiting_rows(key)
        pending = () if before else [each.record for each in await self._records.pending(key)]
        scope = pending[-1].scope if pending else await self._scope(key)
        if scope is None:
            return None if before else DisplayedPage(tuple(order_messages((), queued_rows)))
        if self._fetch is not None:
            # After the journal was asked: turns that another gateway has written since are in the files then.
            await self._fetch(scope)
        read = await asyncio.to_thread(self._read_back, key, scope, before, turns)
        if read is None:
            return None
        history, start = read
        known = {turn for turn, _ in history}
        for record in pending:
            ended = [build_divider(record.transcript, format_time(record.at))] if record.new_transcript else []
            # What was written to the file since it was read from the journal is there already.
            history += [each for each in ((record.turn, record.lines), *ended) if each[0] not in known]
        lines = await asyncio.to_thread(order_messages, history, queued_rows)
        if not before:
            newest = list(dict.fromkeys(line.turn for line in reversed(lines)))[:_TURNS_WITH_BUTTONS]
            lines = with_buttons(lines, key, await self._outbox.messages_of_all(newest))
        return DisplayedPage(tuple(_anchored(line, scope) for line in lines), start)

    async def recent_turns(self, key: SessionKey, *, limit: int) -> Sequence[Sequence[Line]]:
        """Return the lines of the newest *limit* turns of the current transcript, oldest first.

        A command is a turn too; queued messages are not.
        """
        _, blocks, pending = await self._load(key, limit)
        return list(_turns(blocks, pending).values())[-limit:]

    async def find_turn(self, key: SessionKey, scope: str, turn: str) -> RecordedTurn | None:
        """Return a turn that is in a transcript file, and the window before it; None if it is in none.

        The window is complete from its last replay start and snapshot on.
        """
        return await asyncio.to_thread(self._find_turn, key, scope, turn)

    def _find_turn(self, key: SessionKey, scope: str, turn: str) -> RecordedTurn | None:
        def find() -> RecordedTurn | None:
            found = (_find_in_chain(chain, turn) for chain, _ in self.chains(key, scope))
            return next(filter(None, found), None)

        return _read_again(find, None)

    async def _load(
        self, key: SessionKey, limit: int
    ) -> tuple[str | None, Sequence[TranscriptBlock], Sequence[TurnRecord]]:
        """Return the scope, at least *limit* turns of the transcript's end, and the turns not written to it yet."""
        pending = [each.record for each in await self._records.pending(key)]
        scope = pending[-1].scope if pending else await self._scope(key)
        blocks = await asyncio.to_thread(self._read, key, scope, limit) if scope is not None else []
        return scope, blocks, pending

    async def all(self) -> tuple[SessionInfo, ...]:
        """Return every session, the most recently used first."""
        rows = await self._records.sessions()
        return await asyncio.to_thread(lambda: tuple(self._info(row) for row in rows))

    def _info(self, row: SessionRow) -> SessionInfo:
        path = transcript_path(self._home, row.scope, str(row.key))
        at = row.created_at
        if self._disk.size(path) is not None:
            at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        return SessionInfo(key=row.key, transcript=row.transcript, messages=row.next_index, updated_at=at)

    def _read_back(self, key: SessionKey, scope: str, before: str, most: int) -> tuple[list[DisplayedTurn], str] | None:
        """Return at most *most* turns before a position, a divider for each /new among them, and where they begin.

        None if the position is unknown.
        """
        transcript, _, offset = before.partition(":")
        if (offset and not offset.isdecimal()) or (before and not transcript):
            return None

        def read() -> tuple[list[DisplayedTurn], str] | None:
            chains = self.chains(key, scope)
            while chains and transcript not in ("", chains[0][0].transcript):
                chains.pop(0)
            if before and not chains:
                return None
            return _read_chains(chains, int(offset) if offset else None, most)

        nothing: list[DisplayedTurn] = []
        return _read_again(read, None if before else (nothing, ""))

    def chains(self, key: SessionKey, scope: str) -> list[tuple[SegmentChain, bool]]:
        """Return the transcripts of *key*, the newest first, each with True if /new has ended it. Blocks."""
        return self.open_chains(key, scope, self.archives(scope))

    def open_chains(
        self, key: SessionKey, scope: str, archives: Mapping[str, Sequence[Path]]
    ) -> list[tuple[SegmentChain, bool]]:
        """Return `chains` of a session whose archives were listed with those of others. Blocks."""
        path = transcript_path(self._home, scope, str(key))
        chains = [(SegmentChain(self._disk, each), True) for each in reversed(archives.get(str(key), ()))]
        current = SegmentChain(self._disk, path)
        return [(current, False), *chains] if current.end else chains

    def archives(self, scope: str) -> Mapping[str, Sequence[Path]]:
        """Return the files of the transcripts that /new ended, by session key, the oldest first. Blocks."""
        found: list[tuple[str, int, Path, str]] = []
        for path in (scope_folder(self._home, scope) / "sessions").glob("*.t*.jsonl"):
            if transcript_of_archive(path):
                head = self._heads.get(path.name)
                if head is None:
                    line = read_head(self._disk, path)
                    head = self._heads[path.name] = (str(line.get("key")), str(line.get("created")))
                found.append((head[1], path.stat().st_mtime_ns, path, head[0]))
        archives: dict[str, list[Path]] = {}
        for _, _, path, key in sorted(found):
            archives.setdefault(key, []).append(path)
        return archives

    def _read(self, key: SessionKey, scope: str, limit: int) -> list[TranscriptBlock]:
        path = transcript_path(self._home, scope, str(key))
        return _read_again(lambda: read_tail(SegmentChain(self._disk, path), limit), [])

    def forget_scope(self, scope: str) -> None:
        """Drop cached locations of the conversations of *scope*."""
        self._scopes = {key: each for key, each in self._scopes.items() if each != scope}

    async def _scope(self, key: SessionKey) -> str | None:
        """Return the scope of *key*, None when it has no transcript yet."""
        if key not in self._scopes:
            self._scopes = {row.key: row.scope for row in await self._records.sessions()}
        scope = self._scopes.get(key)
        if scope:
            return scope
        # Older journals and one-person homes do not name the scope: look for the file.
        located = await asyncio.to_thread(self._find, key)
        if located is not None:
            self._scopes[key] = located
        return located

    def _find(self, key: SessionKey) -> str | None:
        name = f"sessions/{quote(str(key))}.jsonl"
        if self._disk.size(self._home / name) is not None:
            return ""
        path = next((path for area in AREAS for path in self._home.glob(f"{area}/*/{name}")), None)
        return f"{path.parents[2].name}/{path.parents[1].name}" if path else None


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """A turn in a transcript file, and the turns before it that its prompt was made from."""

    block: TranscriptBlock
    earlier: Sequence[TranscriptBlock]


def _read_again(read: Callable[[], T], default: T) -> T:
    """Return the result of *read*, tried again while the writer renames the file: /new ends it, or it is full."""
    for _ in range(_READ_ATTEMPTS):
        with suppress(FileNotFoundError):
            return read()
    return default


def _find_in_chain(chain: SegmentChain, turn: str) -> RecordedTurn | None:
    blocks: list[TranscriptBlock] = []
    start = chain.end
    at: int | None = None
    while start and (at is None or not _is_window(blocks[:at])):
        found, start = read_before(chain, start, _TURNS_AT_ONCE)
        blocks = [*found, *blocks]
        at = next((n for n, block in enumerate(blocks) if block.turn == turn), None)
        if at is None:
            blocks = []  # only what is before the turn is needed
    return None if at is None else RecordedTurn(blocks[at], blocks[:at])


def _is_window(blocks: Sequence[TranscriptBlock]) -> bool:
    """Return True if *blocks* hold the last snapshot, and all turns from the last replay start on."""
    lines = [line for block in blocks for line in block.lines]
    anchors = [anchor_index(line) for line in lines if kind_of(line) in ("pointer", "mark")]
    first = next((block.from_index for block in blocks if block.to_index > block.from_index), None)
    has_snapshot = any(kind_of(line) == "snapshot" for line in lines)
    return has_snapshot and first is not None and bool(anchors) and first <= anchors[-1]


def _anchored(line: DisplayedMessage, scope: str) -> DisplayedMessage:
    """Return *line* with its attachments located in *scope*, which may have been renamed since."""
    if not line.attachments:
        return line
    return replace(
        line, attachments=tuple(replace(each, blob=rebase_reference(scope, each.blob)) for each in line.attachments)
    )


def _turns(blocks: Sequence[TranscriptBlock], pending: Iterable[TurnRecord]) -> dict[str, list[Line]]:
    """Return the lines of each turn of the current transcript, oldest first, each turn once."""
    turns = {block.turn: list(block.lines) for block in blocks}
    for record in pending:
        turns[record.turn] = list(record.lines)
        if record.new_transcript:
            turns = {record.turn: list(record.lines)}  # the reply to /new is the first message of the new transcript
    return turns


def _read_chains(
    chains: Sequence[tuple[SegmentChain, bool]], end: int | None, most: int
) -> tuple[list[DisplayedTurn], str]:
    """Return at most *most* turns of transcripts, the first of which is read up to *end*, and where they begin."""
    turns: list[DisplayedTurn] = []
    for chain, is_ended in chains:
        if len(turns) >= most:
            return turns, f"{chain.transcript}:"
        blocks, start = read_before(chain, chain.end if end is None else end, most - len(turns))
        if is_ended and end is None and blocks:
            turns.insert(0, build_divider(chain.transcript, str(blocks[-1].lines[-1].get("at", ""))))
        turns[:0] = [(block.turn, block.lines) for block in blocks]
        if start:
            return turns, f"{chain.transcript}:{start}"
        end = None
    return turns, ""
