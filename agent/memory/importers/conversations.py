"""Conversations that are taken over: as archives, or as what a chat that has said nothing yet goes on from."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from agent.memory.importers.import_data import ImportedSession
from agent.memory.importers.import_ledger import ImportLedger, ImportLedgers, ItemDigests
from agent.memory.importers.report import ImportReportItem
from agent.memory.importers.transcripts import ImportedTurn, as_archive, as_lines, name_of, split_into_turns
from agent.memory.scopes import scope_folder, transcript_path
from agent.memory.storage.disk import Disk, save_corrupt
from gateway.errors import LeaseLost
from gateway.events import SessionKey
from gateway.ports import MessageOutcome, SessionRow, TurnRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportTarget:
    """Where a conversation goes: into a scope's archive, or on as the chat *key* of it."""

    scope: str
    key: SessionKey | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationImporter:
    """Takes over the conversations of one system."""

    home: Path
    system: str
    ledgers: ImportLedgers
    session: Callable[[SessionKey], Awaitable[SessionRow]]
    sessions: Callable[[], Awaitable[Sequence[SessionRow]]]
    append: Callable[[TurnRecord], Awaitable[None]]
    now: Callable[[], datetime]
    disk: Disk
    is_dry: bool = False

    async def earlier_target(self, found: ImportedSession) -> ImportTarget | None:
        """Return where an earlier run took the conversation; it goes on there, also when nobody says so again."""
        marks = self._marks(found)

        def look() -> ImportTarget | None:
            knows = (scope for scope in self.ledgers.scopes() if any(mark in self.ledgers.of(scope) for mark in marks))
            return next((ImportTarget(scope=scope) for scope in knows), None)

        return await asyncio.to_thread(look)

    def _marks(self, found: ImportedSession) -> list[str]:
        digests = ItemDigests(self.system, "session", found.key)
        return [digests.of(each["role"], each.get("timestamp"), each["content"]) for each in found.messages]

    async def import_session(self, goal: ImportTarget, found: ImportedSession) -> ImportReportItem:
        """Take over what is new of a conversation. Raises OSError."""
        ledger = await asyncio.to_thread(self.ledgers.of, goal.scope)
        marks = self._marks(found)
        fresh = [n for n, mark in enumerate(marks) if mark not in ledger]
        consolidated = sum(n < found.consolidated for n in fresh)
        new = list(split_into_turns([found.messages[n] for n in fresh], [marks[n] for n in fresh], consolidated))
        target = why = ""
        left = new
        if new and goal.key is not None and await self._may_go_on(goal.key, ledger):
            target, why = str(goal.key), "the chat goes on from it"
            left = await self._go_on(goal.scope, goal.key, new, consolidated, ledger)
            await asyncio.to_thread(self._keep_bad, transcript_path(self.home, goal.scope, str(goal.key)), found)
        elif new and goal.key is not None:
            why = f"{goal.key} has gone on without it, so it is an archive"
        if left:
            target = await asyncio.to_thread(self._archive, goal.scope, found, left, consolidated, ledger)
        return ImportReportItem(
            what="conversation",
            source=found.source,
            target=target,
            new=len(fresh),
            known=len(marks) - len(fresh),
            bad=len(found.bad) if new else 0,
            unsummarised=0 if goal.key is not None else len(fresh) - consolidated,
            why=why,
        )

    def _archive(
        self, scope: str, found: ImportedSession, new: list[ImportedTurn], consolidated: int, ledger: ImportLedger
    ) -> str:
        digests = [digest for piece in new for digest in piece.digests]
        transcript, turn = name_of(self.system, *digests), f"t{name_of(self.system, 'end', *digests)}"
        path = scope_folder(self.home, scope) / "sessions" / f"{transcript}.{turn}.jsonl"
        # One that stands there is whole, and may have been redacted since.
        if not self.is_dry and self.disk.size(path) is None:
            at = found.created or self.now()
            data = as_archive(transcript, found.key, new, consolidated, at, system=self.system)
            self.disk.replace(path, data)
        self._keep_bad(path, found)
        ledger.add(digests)
        return str(path.relative_to(self.home))

    def _keep_bad(self, path: Path, found: ImportedSession) -> None:
        if found.bad and not self.is_dry:
            self.disk.make_folder(path.parent)
            save_corrupt(self.disk, path, found.bad)

    async def _may_go_on(self, key: SessionKey, ledger: ImportLedger) -> bool:
        """Say whether the chat has said nothing yet but what an import that broke off has put there."""
        session = next((each for each in await self.sessions() if each.key == key), None)
        if session is None or not session.next_index:
            return True
        return self._mark("begun", session) in ledger and self._mark("ended", session) not in ledger

    async def _go_on(
        self, scope: str, key: SessionKey, new: list[ImportedTurn], consolidated: int, ledger: ImportLedger
    ) -> list[ImportedTurn]:
        """Make the pieces the chat's conversation, a record each; return those that came too late for it."""
        if self.is_dry:
            ledger.add([digest for piece in new for digest in piece.digests])
            return []
        session = await self.session(key)
        await asyncio.to_thread(ledger.add, [self._mark("begun", session)])
        done = 0
        for n, piece in enumerate(new):
            session = await self.session(key)
            done += len(piece.messages)
            stop = session.next_index + len(piece.messages)
            pointer = stop if done == consolidated else None
            record = TurnRecord(
                turn=piece.turn,
                key=key,
                transcript=session.transcript,
                outcome=MessageOutcome.ANSWERED,
                lines=as_lines(piece, session.next_index, self.now(), system=self.system, consolidated=pointer),
                from_index=session.next_index,
                to_index=stop,
                inbox=(),
                at=self.now(),
                scope=scope,
            )
            try:
                await self.append(record)  # one that is there already changes nothing
            except LeaseLost:  # people went on talking after an import that broke off
                return new[n:]
            await asyncio.to_thread(ledger.add, piece.digests)
        await asyncio.to_thread(ledger.add, [self._mark("ended", session)])
        return []

    def _mark(self, what: str, session: SessionRow) -> str:
        return ItemDigests(self.system, what).of(str(session.key), session.transcript)
