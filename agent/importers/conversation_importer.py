"""Import conversations: as archived transcripts, or as the beginning of a chat that has no messages yet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.base import transcript_lines as build
from agent.base.disk import Disk, save_corrupt
from agent.base.file_facts import TAINTED, UNTRUSTED
from agent.base.scopes import scope_folder, transcript_path
from agent.base.transcript_lines import encode, parse_time
from agent.importers.import_data import (
    ImportedSession,
    ImportLedger,
    ImportLedgers,
    ImportReportItem,
    ItemDigests,
    Message,
)
from gateway.errors import LeaseLost
from gateway.events import SessionKey, short_id
from gateway.ports.journal import Line, MessageOutcome, SessionRow, TurnRecord
from gateway.ports.memory import StoredTurn

if TYPE_CHECKING:
    from gateway.store.transcripts import SqlTranscripts


_MAX_SUMMARISED_MESSAGES = 200  # in one record of consolidated messages
_ARCHIVED = "archived"  # in the place of the transcript that follows
_FIELDS = ("tool_calls", "tool_call_id", "name", "tools_used", "by")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportTarget:
    """Destination of a conversation: the archive of *scope*, or the chat *key* of that scope."""

    scope: str
    key: SessionKey | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedTurn:
    """Messages that are stored as one turn, and their fingerprints."""

    messages: Sequence[Message]
    digests: Sequence[str]

    @property
    def turn(self) -> str:
        """The turn's id; the same messages always get the same id."""
        return f"t{short_id(' '.join(self.digests))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationImporter:
    """Imports the conversations of one system."""

    home: Path
    system: str
    ledgers: ImportLedgers
    session: Callable[[SessionKey], Awaitable[SessionRow]]
    sessions: Callable[[], Awaitable[Sequence[SessionRow]]]
    append: Callable[[TurnRecord], Awaitable[None]]
    transcripts: SqlTranscripts
    now: Callable[[], datetime]
    disk: Disk
    is_dry: bool = False

    async def earlier_target(self, conversation: ImportedSession) -> ImportTarget | None:
        """Return the scope that an earlier run imported the conversation into, if any."""
        digests = self._digests(conversation)
        for scope in await self.ledgers.scopes():
            ledger = await self.ledgers.of(scope)
            if any(digest in ledger for digest in digests):
                return ImportTarget(scope=scope)
        return None

    def _digests(self, conversation: ImportedSession) -> list[str]:
        digests = ItemDigests(self.system, "session", conversation.key)
        return [digests.of(each["role"], each.get("timestamp"), each["content"]) for each in conversation.messages]

    async def import_session(self, target: ImportTarget, conversation: ImportedSession) -> ImportReportItem:
        """Import the messages that no earlier run imported. Raises OSError."""
        ledger = await self.ledgers.of(target.scope)
        digests = self._digests(conversation)
        new = [n for n, digest in enumerate(digests) if digest not in ledger]
        consolidated = sum(n < conversation.consolidated for n in new)
        messages = [conversation.messages[n] for n in new]
        turns = list(split_into_turns(messages, [digests[n] for n in new], consolidated))
        destination = why = ""
        remaining = turns
        if turns and target.key is not None and await self._can_continue(target.key, ledger):
            destination, why = str(target.key), "the chat continues this conversation"
            remaining = await self._append_to_chat(target.scope, target.key, turns, consolidated, ledger)
            path = transcript_path(self.home, target.scope, str(target.key))
            await asyncio.to_thread(self._save_unreadable, path, conversation)
        elif turns and target.key is not None:
            why = f"archived, because {target.key} already has messages"
        if remaining:
            destination = await self._archive(target.scope, conversation, remaining, consolidated, ledger)
        return ImportReportItem(
            what="conversation",
            source=conversation.source,
            target=destination,
            new=len(new),
            known=len(digests) - len(new),
            bad=len(conversation.bad) if turns else 0,
            unsummarised=0 if target.key is not None else len(new) - consolidated,
            why=why,
        )

    async def _archive(
        self,
        scope: str,
        conversation: ImportedSession,
        turns: Sequence[ImportedTurn],
        consolidated: int,
        ledger: ImportLedger,
    ) -> str:
        digests = [digest for turn in turns for digest in turn.digests]
        transcript = short_id(" ".join((self.system, *digests)))
        path = scope_folder(self.home, scope) / "sessions" / f"{transcript}.{turns[-1].turn}.jsonl"  # as it is mirrored
        if not self.is_dry:
            at = conversation.created or self.now()
            stored = render_archive(transcript, conversation.key, turns, consolidated, at, system=self.system)
            # An archive that is there is complete, and words may have been erased from it since.
            if await self.transcripts.find(scope, stored[0].key, stored[0].turn) is None:
                await self.transcripts.adopt(scope, stored[0].key, stored)
        await asyncio.to_thread(self._save_unreadable, path, conversation)
        await ledger.add(digests)
        return str(path.relative_to(self.home))

    def _save_unreadable(self, path: Path, conversation: ImportedSession) -> None:
        if conversation.bad and not self.is_dry:
            self.disk.make_folder(path.parent)
            save_corrupt(self.disk, path, conversation.bad)

    async def _can_continue(self, key: SessionKey, ledger: ImportLedger) -> bool:
        """Return True if the chat has no messages except those of an interrupted import."""
        session = next((each for each in await self.sessions() if each.key == key), None)
        if session is None or not session.next_index:
            return True
        return self._boundary("begun", session) in ledger and self._boundary("ended", session) not in ledger

    async def _append_to_chat(
        self, scope: str, key: SessionKey, turns: list[ImportedTurn], consolidated: int, ledger: ImportLedger
    ) -> list[ImportedTurn]:
        """Append the turns to the chat's transcript; return those left over because the chat has got new messages."""
        if self.is_dry:
            await ledger.add([digest for turn in turns for digest in turn.digests])
            return []
        session = await self.session(key)
        await ledger.add([self._boundary("begun", session)])
        count = 0
        for n, turn in enumerate(turns):
            session = await self.session(key)
            count += len(turn.messages)
            stop = session.next_index + len(turn.messages)
            pointer = stop if count == consolidated else None
            record = TurnRecord(
                turn=turn.turn,
                key=key,
                transcript=session.transcript,
                outcome=MessageOutcome.ANSWERED,
                lines=render_lines(turn, session.next_index, self.now(), system=self.system, consolidated=pointer),
                from_index=session.next_index,
                to_index=stop,
                inbox=(),
                at=self.now(),
                scope=scope,
            )
            try:
                await self.append(record)  # has no effect if the record is stored already
            except LeaseLost:  # the chat got new messages after an interrupted import
                return turns[n:]
            await ledger.add(turn.digests)
        await ledger.add([self._boundary("ended", session)])
        return []

    def _boundary(self, name: str, session: SessionRow) -> str:
        """Return the fingerprint that notes that an import into *session* has begun, or ended."""
        return ItemDigests(self.system, name).of(str(session.key), session.transcript)


def split_into_turns(messages: Sequence[Message], digests: Sequence[str], consolidated: int) -> Iterator[ImportedTurn]:
    """Split at each user message; the first *consolidated* messages are split into separate, larger turns."""
    start = 0
    for n in range(1, len(messages) + 1):
        is_end = n == len(messages) or n == consolidated
        if not is_end and messages[n]["role"] == "user":
            is_end = n > consolidated or n - start >= _MAX_SUMMARISED_MESSAGES
        if is_end:
            yield ImportedTurn(messages=messages[start:n], digests=digests[start:n])
            start = n


def render_lines(
    turn: ImportedTurn, start: int, at: datetime, *, system: str, consolidated: int | None = None
) -> tuple[Line, ...]:
    """Return the turn's transcript lines from index *start*; with *consolidated*, a pointer before the end line."""
    lines: list[Line] = []
    for n, message in enumerate(turn.messages):
        sent_at = parse_time(message.get("timestamp")) or at
        fields: dict[str, Any] = {name: message[name] for name in _FIELDS if message.get(name)}
        # Results of another program's tools can contain text by third parties, and so can its answers.
        fields["origin"] = {"user": "user", "tool": UNTRUSTED}.get(message["role"])
        if message["role"] == "assistant":
            fields[TAINTED] = True
        lines.append(build.message(start + n, turn.turn, message["role"], message["content"], sent_at, **fields))
    if consolidated is not None:
        lines.append(build.pointer(consolidated))
    end = build.end_line(
        turn.turn,
        from_index=start,
        to_index=start + len(turn.messages),
        inbox=[],
        outcome=MessageOutcome.ANSWERED,
        at=_first_time(turn.messages[::-1]) or at,
        imported=system,
    )
    return (*lines, end)


def render_archive(
    transcript: str, key: str, turns: Sequence[ImportedTurn], consolidated: int, at: datetime, *, system: str
) -> list[StoredTurn]:
    """Return the turns of an archived transcript; *at* is the time of messages that have none."""
    session = SessionKey.parse(key)
    stored: list[StoredTurn] = []
    index = 0
    for n, turn in enumerate(turns, start=1):
        stop = index + len(turn.messages)
        pointer = consolidated if stop == consolidated else None
        lines = render_lines(turn, index, at, system=system, consolidated=pointer)
        stored.append(
            StoredTurn(
                seq=0,
                turn=turn.turn,
                key=session,
                transcript=transcript,
                from_index=index,
                to_index=stop,
                at=parse_time(lines[-1].get("at")) or at,
                outcome=MessageOutcome.ANSWERED,
                body=b"".join(map(encode, lines)),
                new_transcript=_ARCHIVED if n == len(turns) else "",
            )
        )
        index = stop
    return stored


def _first_time(messages: Sequence[Message]) -> datetime | None:
    return next((at for each in messages if (at := parse_time(each.get("timestamp")))), None)
