"""One turn, from its lease to its commit: the stages 6 to 8 in a row, and every way a turn can end."""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeVar

import structlog

from agent.commands import CommandContext, House, Reply, Router, Typed
from agent.context import Context, Place
from agent.draft import Draft
from agent.llm.port import ToolCall
from agent.loop import Loop, Seat, Thought
from agent.memory.conversation import Conversation, Conversations
from agent.memory.files import lines as build
from agent.memory.jobs import MemoryJobs
from agent.memory.scopes import person_of, scope_of
from agent.pool import Running
from agent.tools.port import ToolContext, bind
from gateway.errors import StoreDown
from gateway.events import ChatKind, InboundKind, OutboundKind, OutboundMessage, SessionKey, reference, turn_id
from gateway.ports import (
    Commit,
    EndState,
    InboxRow,
    Job,
    Journal,
    Lease,
    Meter,
    Previews,
    SearchIndex,
    SessionRow,
    Step,
    TurnRecord,
)
from gateway.words import say
from gateway.words.failures import BY_NAME, tell

log = structlog.get_logger(__name__)

T = TypeVar("T")
Admits = Callable[[InboxRow], bool]

_STORE_PAUSE = timedelta(seconds=0.5)
_EXPIRES = timedelta(hours=24)  # FORMATS.md, Lanes: what waited longer gets one line per chat
_TYPED = frozenset({InboundKind.MESSAGE, InboundKind.COMMAND})  # what stands in a chat, so that one can answer to it


class PatientJournal:
    """The journal as a running turn sees it: while the disk is full a turn waits, it does not fail.

    Every call may be repeated (gateway/ports/journal.py), so waiting is safe; cancelling ends it.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def step(self, lease: Lease, step: Step) -> None:
        """Store one step."""
        await self._until_stored(lambda: self._journal.step(lease, step))

    async def steer(self, lease: Lease) -> tuple[InboxRow, ...]:
        """Take what the sender wrote meanwhile."""
        return await self._until_stored(lambda: self._journal.steer(lease))

    async def commit(self, lease: Lease, commit: Commit) -> TurnRecord:
        """Store the turn."""
        return await self._until_stored(lambda: self._journal.commit(lease, commit))

    async def settle(self, row: InboxRow, commit: Commit) -> TurnRecord:
        """Store a control command's turn."""
        return await self._until_stored(lambda: self._journal.settle(row, commit))

    @staticmethod
    async def _until_stored(write: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await write()
            except StoreDown:
                log.warning("turn.waits_for_store")
                await asyncio.sleep(_STORE_PAUSE.total_seconds())


@dataclass(frozen=True, slots=True, kw_only=True)
class Rooms:
    """What a turn works with; built once by the composition root."""

    journal: Journal
    previews: Previews
    conversations: Conversations
    context: Context
    loop: Loop
    router: Router
    house: House
    memory_jobs: MemoryJobs
    search: SearchIndex
    admits: Admits
    zone: Callable[[str], str]
    meter: Meter
    now: Callable[[], datetime]
    kinds: Callable[[str], str]  # block name -> platform kind, which names a person whichever bot they wrote to
    language: str = "en"


class TurnWork:
    """Implements `agent.pool.Work`."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._journal = PatientJournal(rooms.journal)
        self._told_expired: set[SessionKey] = set()

    async def take(self, running: Running) -> EndState:
        """Run the turn to its commit, as a command, as a thought, or as a refusal."""
        lease = running.lease
        head = lease.rows[0]
        if not self._rooms.admits(head):
            return await self._turn_away(running, EndState.REFUSED, say("commands.revoked", self._rooms.language))
        if head.message.kind is not InboundKind.JOB and self._rooms.now() - head.message.sent_at > _EXPIRES:
            first = lease.key not in self._told_expired
            self._told_expired.add(lease.key)
            line = say("pool.expired", self._rooms.language) if first else ""
            return await self._turn_away(running, EndState.EXPIRED, line)
        typed = self._rooms.router.typed(head.message) if head.message.kind is InboundKind.COMMAND else None
        if typed is not None:
            await self._obey(running, typed)
            return EndState.ANSWERED
        return await self._answer(running)

    async def stopped(self, running: Running) -> None:
        """Commit the turn as stopped; what was shown of it stays in the transcript."""
        lease = running.lease
        conversation, place = await self._open(lease)
        draft = Draft(lease, place.scope)
        if not draft.is_resumed:
            await self._rooms.context.assemble(draft, lease.rows, lease.notes, conversation, place)
        for call in draft.open_calls:
            draft.result(call, "stopped by the user", remember=())
        line = say("commands.stopped_turn", self._rooms.language)
        await self._close(running, conversation, draft, EndState.STOPPED, notice=line)

    async def bury(self, lease: Lease) -> None:
        """Commit the turn as dead-lettered and tell its sender what to do."""
        failure = BY_NAME["poison" if lease.rows[0].is_lone else "bug"]
        running = Running(lease=lease)
        await self._turn_away(
            running, EndState.DEAD, tell(failure, reference(lease.turn), self._rooms.language), failure=failure.name
        )

    async def control(self, row: InboxRow) -> None:
        """Run a command that does not wait in its lane."""
        typed = self._rooms.router.typed(row.message)
        session = SessionRow(key=row.message.key, transcript="", next_index=0, created_at=self._rooms.now())
        lease = Lease(key=row.message.key, turn=row.turn or turn_id(row.message), epoch=0, rows=(row,), session=session)
        reply = Reply(text="")
        if typed is not None:
            reply = await self._rooms.router.run(typed, self._command(lease, typed))
        draft = Draft(lease, self._place(row).scope)
        draft.add(build.command(lease.turn, row.message.text, reply.text, self._rooms.now()))
        record = draft.record(EndState.ANSWERED, self._rooms.now())
        commit = Commit(
            record=record,
            outbound=self._outbound(lease, reply.text, OutboundKind.NOTICE, reply.is_private),
            jobs=reply.jobs,
        )
        await self._journal.settle(row, commit)

    # -- the ways a lane turn can go ------------------------------------------------------------

    async def _answer(self, running: Running) -> EndState:
        lease = running.lease
        conversation, place = await self._open(lease)
        preview = self._rooms.previews.open(lease)
        try:
            draft = Draft(lease, place.scope)
            prompt = await self._rooms.context.assemble(draft, lease.rows, lease.notes, conversation, place)

            def doing(tool: str) -> None:
                running.doing = tool

            thought = await self._rooms.loop.think(
                Seat(
                    lease=lease,
                    person=self._person(lease.rows[0]),
                    draft=draft,
                    prompt=prompt,
                    preview=preview,
                    is_watched=self._rooms.previews.is_watched(lease.key),
                    context=lambda call, remember: self._tool_context(lease, place, call, remember),
                    render=lambda rows: [self._rooms.context.user(draft, row, place.zone) for row in rows],
                    doing=doing,
                )
            )
        finally:
            await preview.close()
        await self._conclude(running, conversation, draft, thought)
        return EndState.ANSWERED

    async def _conclude(self, running: Running, conversation: Conversation, draft: Draft, thought: Thought) -> None:
        if thought.failure is not None:
            line = tell(thought.failure, reference(running.lease.turn), self._rooms.language)
            await self._close(
                running, conversation, draft, EndState.ANSWERED, notice=line, failure=thought.failure.name
            )
            return
        draft.add(draft.message("assistant", thought.text, self._rooms.now()))
        outbound = self._outbound(running.lease, thought.text, OutboundKind.ANSWER)
        await self._commit(running, conversation, draft.record(EndState.ANSWERED, self._rooms.now()), outbound, draft)

    async def _close(
        self,
        running: Running,
        conversation: Conversation,
        draft: Draft,
        outcome: EndState,
        *,
        notice: str,
        failure: str = "",
    ) -> None:
        """End a turn that has no answer: people read *notice*, the model never does."""
        now = self._rooms.now()
        draft.add(build.notice(running.lease.turn, notice, now))
        record = draft.record(outcome, now, failure=failure)
        outbound = self._outbound(running.lease, notice, OutboundKind.NOTICE)
        await self._commit(running, conversation, record, outbound, draft)

    async def _turn_away(self, running: Running, outcome: EndState, line: str, failure: str = "") -> EndState:
        """End rows that are not answered at all; nothing of them is replayed."""
        lease = running.lease
        draft = Draft(replace(lease, steps=()), self._place(lease.rows[0]).scope)
        if line:
            draft.add(build.notice(lease.turn, line, self._rooms.now()))
        record = draft.record(outcome, self._rooms.now(), failure=failure)
        running.is_committing = True
        outbound = self._outbound(lease, line, OutboundKind.NOTICE) if line else ()
        await self._journal.commit(lease, Commit(record=record, outbound=outbound))
        return outcome

    async def _obey(self, running: Running, typed: Typed) -> None:
        """Run a command that waited in its lane."""
        lease = running.lease
        conversation, place = await self._open(lease)
        reply = await self._rooms.router.run(typed, self._command(lease, typed))
        draft = Draft(lease, place.scope)
        now = self._rooms.now()
        for row in lease.notes:
            draft.add(self._rooms.context.note(draft, row, place.zone))
        draft.add(build.command(lease.turn, lease.rows[0].message.text, reply.text, now))
        record = draft.record(EndState.ANSWERED, now)
        if reply.new_transcript:
            record = replace(record, new_transcript=new_transcript())
        outbound = self._outbound(lease, reply.text, OutboundKind.NOTICE, reply.is_private)
        await self._commit(running, conversation, record, outbound, draft, reply.jobs)
        if reply.new_transcript:
            self._rooms.conversations.forget(lease.key)

    # -- shared steps --------------------------------------------------------------------------

    async def _open(self, lease: Lease) -> tuple[Conversation, Place]:
        place = self._place(lease.rows[0])
        # What earlier turns of this scope wanted remembered stands before this one reads it.
        await self._rooms.memory_jobs.settle(place.scope)
        conversation = await self._rooms.conversations.open(lease.session, place.scope)
        return conversation, place

    async def _commit(
        self,
        running: Running,
        conversation: Conversation,
        record: TurnRecord,
        outbound: Sequence[OutboundMessage],
        draft: Draft,
        jobs: Sequence[Job] = (),
    ) -> None:
        lease = running.lease
        person = self._person(lease.rows[0])
        every = (*draft.jobs(person, record.at), *jobs)
        running.is_committing = True
        marked = conversation.with_mark(record)
        stored = await self._journal.commit(lease, Commit(record=marked, outbound=tuple(outbound), jobs=every))
        conversation.adopt(stored)
        for job in every:
            self._rooms.memory_jobs.note(job)

    def _place(self, row: InboxRow) -> Place:
        scope = scope_of(row.message, self._rooms.kinds(row.message.key.channel))
        return Place(scope, self._rooms.zone(scope))

    def _person(self, row: InboxRow) -> str:
        return person_of(row.message, self._rooms.kinds(row.message.key.channel))

    def _command(self, lease: Lease, typed: Typed) -> CommandContext:
        row = lease.rows[0]
        return CommandContext(
            row=row,
            args=typed.args,
            scope=self._place(row).scope,
            person=self._person(row),
            turn=lease.turn,
            transcript=lease.session.transcript,
            language=self._rooms.language,
            now=self._rooms.now(),
            house=self._rooms.house,
            commands=self._rooms.router.commands,
        )

    def _tool_context(self, lease: Lease, place: Place, call: ToolCall, remember: list[str]) -> ToolContext:
        row = lease.rows[0]
        return ToolContext(
            person=self._person(row),
            sender=row.message.sender,
            key=lease.key,
            scope=place.scope,
            turn=lease.turn,
            call=call.id,
            now=self._rooms.now(),
            search=bind(self._rooms.search, place.scope),
            remember=remember.append,
        )

    def _outbound(
        self, lease: Lease, text: str, kind: OutboundKind, is_private: bool = False
    ) -> tuple[OutboundMessage, ...]:
        if not text:
            return ()
        message = lease.rows[-1].message
        shared = message.chat_kind is ChatKind.GROUP
        return (
            OutboundMessage(
                id=f"{lease.turn}.1",
                key=lease.key,
                text=text,
                kind=kind,
                reply_to=message.message_id if message.kind in _TYPED else "",
                visible_to=message.sender.id if is_private and shared else "",
            ),
        )


def new_transcript() -> str:
    """Return 16 random base32 characters."""
    return base64.b32encode(secrets.token_bytes(10)).decode("ascii").lower()
