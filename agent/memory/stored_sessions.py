"""Read access to conversations for channels, commands and the CLI, from the journal, the inbox and transcript files."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from cachetools import LRUCache

from agent.attachments.file_facts import (
    TAINTED,
    UNTRUSTED,
    Fact,
    attachment_of,
    fact_of,
    facts_for_display,
    facts_in,
)
from agent.memory.scopes import AREAS, quote, rebase_reference, scope_folder, transcript_path
from agent.memory.storage.disk import Disk
from agent.memory.storage.segments import SegmentChain, read_head, transcript_of_archive
from agent.memory.storage.transcript_lines import FORGOTTEN, format_time, kind_of, parse_time
from agent.memory.storage.transcript_reader import TranscriptBlock, anchor_index, read_before, read_tail
from gateway.events import AnswerSource, InboundKind, SessionKey, turn_id
from gateway.ports import (
    DisplayedMessage,
    DisplayedPage,
    InboxRow,
    Journal,
    Line,
    Outbox,
    PendingDelivery,
    SessionInfo,
    SessionRow,
    TurnRecord,
    TurnRecordStore,
)
from gateway.text import append_commands

_READ_ATTEMPTS = 3
_MOST_HEADS = 10_000
_TURNS_AT_ONCE = 200
_TURNS_WITH_BUTTONS = 30  # the newest ones of a conversation
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_Turn: TypeAlias = tuple[str, Sequence[Line]]  # its id and lines, the `end` line last


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
        lines = await asyncio.to_thread(_in_order, turns, queued_rows, datetime.now(UTC))
        if limit <= 0:
            return ()
        return tuple(line if scope is None else _anchored(line, scope) for line in lines[-limit:])

    async def displayed_page(self, key: SessionKey, before: str = "", *, turns: int) -> DisplayedPage | None:
        """Return the messages of *turns* turns before the position *before*; see `SessionReader.displayed_page`."""
        queued_rows = () if before else await self._journal.waiting_rows(key)
        pending = () if before else [each.record for each in await self._records.pending(key)]
        scope = pending[-1].scope if pending else await self._scope(key)
        if scope is None:
            return None if before else DisplayedPage(tuple(_in_order((), queued_rows, datetime.now(UTC))))
        if self._fetch is not None:
            # After the journal was asked: turns that another gateway has written since are in the files then.
            await self._fetch(scope)
        read = await asyncio.to_thread(self._read_back, key, scope, before, turns)
        if read is None:
            return None
        history, start = read
        known = {turn for turn, _ in history}
        for record in pending:
            ended = [_divider(record.transcript, format_time(record.at))] if record.new_transcript else []
            # What was written to the file since it was read from the journal is there already.
            history += [each for each in ((record.turn, record.lines), *ended) if each[0] not in known]
        lines = await asyncio.to_thread(_in_order, history, queued_rows, datetime.now(UTC))
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
        for _ in range(_READ_ATTEMPTS):
            # The writer renames the file while it is read, when /new ends it or it is full.
            with suppress(FileNotFoundError):
                found = (_find_in_chain(chain, turn) for chain, _ in self.chains(key, scope))
                return next(filter(None, found), None)
        return None

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

    def _read_back(self, key: SessionKey, scope: str, before: str, most: int) -> tuple[list[_Turn], str] | None:
        """Return at most *most* turns before a position, a divider for each /new among them, and where they begin.

        None if the position is unknown.
        """
        transcript, _, offset = before.partition(":")
        if (offset and not offset.isdecimal()) or (before and not transcript):
            return None
        for _ in range(_READ_ATTEMPTS):
            # The writer renames the file while it is read, when /new ends it or it is full.
            with suppress(FileNotFoundError):
                chains = self.chains(key, scope)
                while chains and transcript not in ("", chains[0][0].transcript):
                    chains.pop(0)
                if before and not chains:
                    return None
                return _read_chains(chains, int(offset) if offset else None, most)
        return None if before else ([], "")

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
        for _ in range(_READ_ATTEMPTS):
            # The writer renames the file while it is read, when /new ends it or it is full.
            with suppress(FileNotFoundError):
                return read_tail(SegmentChain(self._disk, path), limit)
        return []

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


def _read_chains(chains: Sequence[tuple[SegmentChain, bool]], end: int | None, most: int) -> tuple[list[_Turn], str]:
    """Return at most *most* turns of transcripts, the first of which is read up to *end*, and where they begin."""
    turns: list[_Turn] = []
    for chain, is_ended in chains:
        if len(turns) >= most:
            return turns, f"{chain.transcript}:"
        blocks, start = read_before(chain, chain.end if end is None else end, most - len(turns))
        if is_ended and end is None and blocks:
            turns.insert(0, _divider(chain.transcript, str(blocks[-1].lines[-1].get("at", ""))))
        turns[:0] = [(block.turn, block.lines) for block in blocks]
        if start:
            return turns, f"{chain.transcript}:{start}"
        end = None
    return turns, ""


def _divider(transcript: str, at: str) -> _Turn:
    """Return the line that is shown where /new ended *transcript*, as a turn."""
    return f"{transcript}.end", ({"kind": "divider", "timestamp": at},)


@dataclass(frozen=True, slots=True)
class _SeenLine:
    """A message, the time when it appeared in the chat, and the end of its turn; None if unknown."""

    line: DisplayedMessage
    since: datetime | None = None
    ended: datetime | None = None

    def stands_before(self, other: _SeenLine) -> bool:
        """Return True if people saw this line before *other*, whose record came earlier.

        A clock that was set back tells nothing: then this turn seems to have ended before the other one.
        """
        if self.since is None or self.ended is None or other.since is None or other.ended is None:
            return False
        return self.since < other.since and other.ended <= self.ended


def _in_order(turns: Sequence[_Turn], queued_rows: Sequence[InboxRow], now: datetime) -> list[DisplayedMessage]:
    """Return the messages in the order in which people saw them; turns are in the order of their commits.

    A command answered during a turn is committed before it, and a message may be queued behind an answer.
    """
    ordered: list[_SeenLine] = []
    for each in (*_displayed(turns), *_queued_lines(queued_rows, turns, now)):
        place = len(ordered)
        while place and each.stands_before(ordered[place - 1]):
            place -= 1
        ordered.insert(place, each)
    return [each.line for each in ordered]


def _displayed(turns: Sequence[_Turn]) -> list[_SeenLine]:
    deleted = {line.get("mid") for _, lines in turns for line in lines if kind_of(line) == "forgotten"}
    shown: list[_SeenLine] = []
    for turn, lines in turns:
        # Records of earlier versions say nothing of when their lines were seen, and stay in the order of their commits.
        ended = parse_time(lines[-1].get("at")) if any("seen" in line for line in lines) else None
        seen = [(each, _since(line, each.role)) for line in lines for each in visible_lines(turn, line, deleted)]
        shown += [_SeenLine(_numbered(each, n), since, ended) for n, (each, since) in enumerate(seen)]
    return shown


def _since(line: Line, role: str) -> datetime | None:
    """Return the time when the part of *role* in a transcript line appeared in the chat, by our own clock."""
    seen = parse_time(line.get("seen"))
    # In a command or a rejected message, `seen` is the user's part; a reply appears when it was given.
    return seen if role == "user" or (seen and "mid" not in line) else parse_time(line.get("timestamp"))


def with_buttons(
    lines: Sequence[DisplayedMessage], key: SessionKey, messages: Mapping[str, Sequence[PendingDelivery]]
) -> list[DisplayedMessage]:
    """Return *lines* with the buttons that can still be pressed, by the *messages* of each turn.

    A press whose answer settles it takes its row of buttons away; the line of a press is its command.
    """
    settling = {turn for turn, each in messages.items() if any(one.message.settles for one in each)}
    commands = {line.text for line in lines if line.turn in settling and line.role == "user"}
    found = [_add_buttons(line, key, messages.get(line.turn, ()), commands) for line in reversed(lines)]
    return found[::-1]


def _add_buttons(
    line: DisplayedMessage, key: SessionKey, messages: Sequence[PendingDelivery], commands: AbstractSet[str]
) -> DisplayedMessage:
    if line.role in ("user", "divider"):
        return line
    for each in messages:
        parts = [one.part for one in each.parts if one.part.choices]
        if each.message.key == key and parts:
            over = {button.row for button in parts[-1].choices if button.command in commands}
            left = tuple(button for button in parts[-1].choices if button.row not in over)
            # The stored line names the commands in its text, for readers without buttons.
            text = line.text.removesuffix(append_commands("", parts[-1].choices).lstrip()).rstrip()
            return replace(line, part=parts[-1].id, choices=left, text=text) if left else line
    return line


def visible_lines(turn: str, line: Line, deleted: AbstractSet[object]) -> list[DisplayedMessage]:
    """Return the visible messages of one transcript line. Text beside a tool call was never sent."""
    kind, role = kind_of(line), line.get("role")
    if kind == "divider":
        return [_line(turn, "divider", line, "")]
    if kind in ("command", "notice"):
        asked, told = ("content", "reply") if kind == "command" else ("asked", "content")
        is_gone = line.get("mid") and line.get("mid") in deleted
        # With a message id, files came with the user's message; otherwise they were sent with the reply.
        came, sent = (facts_in(line), ()) if line.get("mid") else ((), facts_in(line))
        said = _line(turn, "user", line, FORGOTTEN) if is_gone else _line(turn, "user", line, line.get(asked), came)
        said = replace(said, at=_since(line, "user") or said.at)
        both = [said, _line(turn, kind, line, line.get(told), sent)]
        return [each for each in both if each.text]
    if kind != "message" or role not in ("user", "assistant") or (role == "assistant" and line.get("tool_calls")):
        return []
    if line.get("mid") and line.get("mid") in deleted:
        return [_line(turn, str(role), line, FORGOTTEN)]
    files = facts_in(line)
    content = line.get("content")
    if line.get("stopped"):
        shown_text = "\n\n".join(part for part in (content, line["stopped"]) if part)
        return [_line(turn, "assistant" if content else "notice", line, shown_text)]
    return [_line(turn, str(role), line, content, files)] if content or files else []


def _line(turn: str, role: str, line: Line, content: object, files: Sequence[Fact] = ()) -> DisplayedMessage:
    by = line.get("by")
    typed = content if isinstance(content, str) else _text(content)
    return DisplayedMessage(
        id=turn,
        turn=turn,
        role=role,
        text="\n".join(part for part in (typed, facts_for_display(files)) if part),
        at=parse_time(line.get("timestamp")) or _EPOCH,
        name=str(by.get("name", "")) if role == "user" and isinstance(by, dict) else "",
        message_id=str(line.get("mid", "")) if role == "user" else "",
        typed=typed if role == "user" else "",
        attachments=tuple(attachment_of(each) for each in files if each.get("blob")),
        replaces=str(line.get("replaces", "")) if role == "user" else "",
        is_others=role == "user" and line.get("origin") == UNTRUSTED,
        # Lines of earlier versions lack the field; none of their addresses is known to be harmless.
        sources=_sources(line) if role == "notice" else (),
        links=tuple(map(str, line.get("links", ()))) if role == "assistant" and line.get(TAINTED) else None,
    )


def _sources(line: Line) -> tuple[AnswerSource, ...]:
    """Return the sources that a notice lists."""
    return tuple(AnswerSource(str(each["url"]), str(each["title"])) for each in line.get("footnotes", ()))


def _text(content: object) -> str:
    """Return the text among content parts (an image beside it is not text)."""
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, dict) and "text" in part)


def _numbered(line: DisplayedMessage, n: int) -> DisplayedMessage:
    return replace(line, id=f"{line.turn}/{n}")


def _queued_lines(rows: Sequence[InboxRow], turns: Sequence[_Turn], now: datetime) -> list[_SeenLine]:
    """Return the rows that are in no turn yet: accepted, not answered."""
    answered = {seq for _, lines in turns for line in lines[-1:] for seq in map(str, line.get("inbox", ()))}
    queued: list[_SeenLine] = []
    for row in rows:
        message = row.message
        if str(row.seq) in answered or message.kind not in (InboundKind.MESSAGE, InboundKind.COMMAND):
            continue
        turn = row.turn or turn_id(message)
        line = DisplayedMessage(
            id=f"{turn_id(message)}/0",
            turn=turn,
            role="user",
            text="\n".join(
                part for part in (message.text, facts_for_display(map(fact_of, message.attachments))) if part
            ),
            at=message.sent_at,
            name=message.sender.name,
            message_id=message.message_id,
            state="waiting",
            replaces=message.replaces,
        )
        queued.append(_SeenLine(line, row.accepted_at, now))
    return queued
