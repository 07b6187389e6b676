"""One turn, from its lease to its commit: the stages 6 to 8 in a row, and every way a turn can end."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from agent.commands import CommandContext, House, Reply, Router, Typed
from agent.commands.talk import original_of
from agent.context import Context, Place, content, speaker
from agent.draft import Draft
from agent.llm.port import ToolCall
from agent.loop import Loop, Seat, Thought
from agent.memory.conversation import Conversation, Conversations
from agent.memory.files import lines as build
from agent.memory.jobs import MemoryJobs
from agent.memory.scopes import person_of, scope_of
from agent.patient import PatientJournal
from agent.pool import Running
from agent.tools.port import ToolContext, bind
from gateway.events import ChatKind, InboundKind, OutboundKind, OutboundMessage, SessionKey, reference, turn_id
from gateway.ports import (
    Commit,
    EndState,
    InboxRow,
    Job,
    Journal,
    Lease,
    Line,
    Meter,
    Previews,
    SearchIndex,
    TurnRecord,
)
from gateway.words import say
from gateway.words.failures import BY_NAME, tell

Admits = Callable[[InboxRow], bool]

_EXPIRES = timedelta(hours=24)  # FORMATS.md, Lanes: what waited longer gets one line per chat
_TYPED = frozenset({InboundKind.MESSAGE, InboundKind.COMMAND})  # what stands in a chat, so that one can answer to it


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
        self._told_expired.discard(lease.key)  # after the next long absence it is news again
        typed = self._rooms.router.typed(head.message) if head.message.kind is InboundKind.COMMAND else None
        if typed is not None:
            await self._obey(running, typed)
            return EndState.ANSWERED
        return await self._answer(running)

    async def stopped(self, running: Running) -> None:
        """Commit the turn as stopped; what was shown of it stays in the transcript."""
        lease = running.lease
        line = say("commands.stopped_turn", self._rooms.language)
        if lease.rows[0].message.kind is InboundKind.COMMAND:
            await self._turn_away(running, EndState.STOPPED, line)
            return
        conversation, place = await self._open(lease)
        draft = running.draft
        if draft is None:  # stopped before anything was thought
            draft = Draft(lease, place.scope)
            await self._rooms.context.assemble(draft, lease.rows, lease.notes, conversation, place)
        for call in draft.open_calls:
            draft.result(call, "stopped by the user", remember=())
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
        lease = await self._lease_of(row)
        reply = Reply(text="")
        if typed is not None:
            reply = await self._rooms.router.run(typed, self._command(lease, typed))
        draft = Draft(lease, self._place(row).scope)
        draft.add(self._command_line(lease, reply))
        record = draft.record(EndState.ANSWERED, self._rooms.now())
        outbound = self._outbound(lease, reply.text, OutboundKind.NOTICE, reply.is_private)
        await self._journal.settle(row, Commit(record=record, outbound=outbound, jobs=reply.jobs))

    async def bury_control(self, row: InboxRow) -> None:
        """Settle a control command that failed and tell its sender."""
        lease = await self._lease_of(row)
        line = tell(BY_NAME["bug"], reference(lease.turn), self._rooms.language)
        draft = Draft(lease, self._place(row).scope)
        draft.add(self._command_line(lease, Reply(text=line)))
        record = draft.record(EndState.DEAD, self._rooms.now(), failure="bug")
        self._rooms.meter.count("turn_failures", failure="bug")
        await self._journal.settle(
            row, Commit(record=record, outbound=self._outbound(lease, line, OutboundKind.NOTICE))
        )

    # -- the ways a lane turn can go ------------------------------------------------------------

    async def _answer(self, running: Running) -> EndState:
        lease = running.lease
        conversation, place = await self._open(lease)
        preview = self._rooms.previews.open(lease)
        try:
            draft = Draft(lease, place.scope)
            prompt = await self._rooms.context.assemble(draft, lease.rows, lease.notes, conversation, place)
            running.draft = draft

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
        text = f"{thought.text}\n\n{say('delivery.cut', self._rooms.language)}" if thought.is_cut else thought.text
        outbound = self._outbound(running.lease, text, OutboundKind.ANSWER)
        record = draft.record(
            EndState.ANSWERED, self._rooms.now(), supersedes=original_of(running.lease.rows[0].message.message_id)
        )
        await self._commit(running, conversation, record, outbound, draft)

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
        record = draft.record(
            outcome, now, failure=failure, supersedes=original_of(running.lease.rows[0].message.message_id)
        )
        outbound = self._outbound(running.lease, notice, OutboundKind.NOTICE)
        await self._commit(running, conversation, record, outbound, draft)

    async def _turn_away(self, running: Running, outcome: EndState, line: str, failure: str = "") -> EndState:
        """End rows that are not answered at all: people see what they wrote and *line*, the model sees nothing."""
        lease = running.lease
        place = self._place(lease.rows[0])
        draft = Draft(replace(lease, steps=()), place.scope)
        now = self._rooms.now()
        for row in lease.notes:  # what they say is about other turns
            draft.add(self._rooms.context.note(draft, row, place.zone))
        for row in lease.rows:
            is_last = row is lease.rows[-1]
            said = {"asked": content(row.message), **speaker(row.message)}
            draft.add(build.notice(lease.turn, line if is_last else "", now, **said))
        record = draft.record(outcome, now, failure=failure)
        running.is_committing = True
        outbound = self._outbound(lease, line, OutboundKind.NOTICE)
        await self._journal.commit(lease, Commit(record=record, outbound=outbound))
        if failure:
            self._rooms.meter.count("turn_failures", failure=failure)
        self._rooms.conversations.forget(lease.key)  # it knows nothing of the notes
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
        draft.add(self._command_line(lease, reply))
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
        if record.failure:
            self._rooms.meter.count("turn_failures", failure=record.failure)
        for job in every:
            self._rooms.memory_jobs.note(job)

    async def _lease_of(self, row: InboxRow) -> Lease:
        """Return a control row as if it were leased: its record goes where the session stands now."""
        session = await self._journal.session(row.message.key)
        turn = row.turn or turn_id(row.message)
        return Lease(key=row.message.key, turn=turn, epoch=0, rows=(row,), session=session)

    def _command_line(self, lease: Lease, reply: Reply) -> Line:
        message = lease.rows[0].message
        # A private answer never joins a shared transcript (FORMATS.md, Sends).
        is_hidden = reply.is_private and message.chat_kind is ChatKind.GROUP
        text = "" if is_hidden else reply.text
        return build.command(lease.turn, message.text, text, self._rooms.now(), **speaker(message))

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
