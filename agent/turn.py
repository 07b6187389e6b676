"""One turn, from its lease to its commit: the stages 6 to 8 in a row, and every way a turn can end."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from agent.attachments.facts import fact_of
from agent.attachments.hearing import Purse
from agent.capped import behind, line_of
from agent.commands.model import gone
from agent.commands.talk import original_of
from agent.context import Place, speaker
from agent.draft import Draft, Staged
from agent.fitting import Fitting
from agent.llm.port import ToolCall
from agent.loop import Seat, Thought
from agent.memory.files import lines as build
from agent.memory.prompt.conversation import Conversation
from agent.memory.prompt.speaker_names import SpeakerNames
from agent.memory.waiting.asking import asked_about
from agent.orders import Orders
from agent.pool import Running
from agent.rooms import Rooms, to_chat
from agent.stopped_turn import commit_stopped, doubts_of, open_draft
from agent.tools.port import ToolContext, bind
from gateway.errors import StoreDown
from gateway.events import InboundKind, OutboundKind, SessionKey, reference
from gateway.ports import EXPIRES, Commit, EndState, InboxRow, Lease
from gateway.ports.caps import Past, Told
from gateway.words import say
from gateway.words.failures import BY_NAME, tell


class TurnWork:
    """Implements `agent.pool.Work`."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._orders = Orders(rooms)
        self._told_expired: set[SessionKey] = set()
        self._told_revoked: set[tuple[str, str]] = set()  # (channel, sender)

    async def take(self, running: Running) -> EndState:
        """Run the turn to its commit, as a command, as a thought, or as a refusal."""
        async with self._rooms.present(running.lease.rows[0]):
            return await self._take(running)

    async def _take(self, running: Running) -> EndState:
        lease = running.lease
        if any(step.kind == "stop" for step in lease.steps):  # a kill came between the stop and its commit
            running.stop_wanted = True
            await self._stop(running)
            return EndState.STOPPED
        head = lease.rows[0]
        role = await self._rooms.admits(head)
        who = (lease.key.channel, head.message.sender.id)
        if role is None:
            # Several messages may have waited: whose rights are gone is told so once.
            line = "" if who in self._told_revoked else say("commands.revoked", self._rooms.language(head))
            self._told_revoked.add(who)
            return await self._turn_away(running, EndState.REFUSED, line)
        self._told_revoked.discard(who)
        head = replace(head, role=role)
        running.lease = lease = replace(lease, rows=(head, *lease.rows[1:]))
        if head.message.kind is not InboundKind.JOB and await self._is_expired(head):
            first = lease.key not in self._told_expired
            self._told_expired.add(lease.key)
            line = say("pool.expired", self._rooms.language(head)) if first else ""
            for row in lease.rows:
                self._rooms.on_expired(row.message)
            return await self._turn_away(running, EndState.EXPIRED, line)
        if (asked := asked_about(head.message)) is not None:
            await self._orders.ask(running, asked)
            return EndState.ANSWERED
        self._told_expired.discard(lease.key)  # after the next long absence it is news again
        typed = self._rooms.router.typed(head.message) if head.message.kind is InboundKind.COMMAND else None
        if typed is not None:
            await self._orders.obey(running, typed)
            return EndState.ANSWERED
        past = self._rooms.caps.enter(head.message, lease.turn, self._rooms.person(head))
        if past is not None:
            return await self._refuse(running, past)
        try:
            return await self._answer(running)
        finally:
            self._rooms.caps.leave(lease.turn)

    async def _is_expired(self, row: InboxRow) -> bool:
        age = self._rooms.now() - row.message.sent_at
        # Before a chat is told that it waited too long: is it us who live in another day?
        return age > EXPIRES and age - await self._rooms.clock_ahead() > EXPIRES

    async def _refuse(self, running: Running, past: Past) -> EndState:
        """Tell of a cap once in its window, and end with this turn whatever of the same cap waits behind it."""
        head = running.lease.rows[0]
        rest = behind(await self._rooms.house.waiting(head.message.key), head, past)
        self._rooms.caps.refused([row.message for row in (*running.lease.rows, *rest)], past)
        line = self._cap_line(head, past) if past.told else ""
        return await self._turn_away(running, EndState.REFUSED, line, rest=rest, told=_as_tuple(past))

    def _cap_line(self, row: InboxRow, past: Past) -> str:
        return line_of(past, self._rooms.place(row).zone, self._rooms.language(row))

    async def stopped(self, running: Running) -> None:
        """Commit the turn as stopped; what was shown of it stays in the transcript."""
        async with self._rooms.present(running.lease.rows[0]):
            await self._stop(running)

    async def _stop(self, running: Running) -> None:
        if running.lease.rows[0].message.kind is InboundKind.COMMAND:
            line = say("commands.stopped_turn", self._rooms.language(running.lease.rows[0]))
            await self._turn_away(running, EndState.STOPPED, line)
            return
        await commit_stopped(self._rooms, running)

    async def bury(self, lease: Lease) -> None:
        """Commit the turn as dead-lettered and tell its sender what to do."""
        failure = BY_NAME["poison" if lease.is_lone else "bug"]
        running = Running(lease=lease)
        line = tell(failure, reference(lease.turn), self._rooms.language(lease.rows[0]))
        async with self._rooms.present(lease.rows[0]):
            await self._turn_away(running, EndState.DEAD, line, failure=failure.name)

    async def control(self, row: InboxRow) -> None:
        """Run a command that does not wait in its lane."""
        role = await self._rooms.admits(row)
        async with self._rooms.present(row):
            await self._orders.control(row, role)

    async def bury_control(self, row: InboxRow) -> None:
        """Settle a control command that failed and tell its sender."""
        async with self._rooms.present(row):
            await self._orders.bury_control(row)

    # -- the ways a lane turn can go ------------------------------------------------------------

    async def _answer(self, running: Running) -> EndState:
        lease = running.lease
        conversation, place = await self._rooms.open(lease)
        # Here alone: a command has no use for what a model takes, and does not wait for one that is being loaded.
        manner = self._rooms.manners.of(lease.key, lease.rows[0].message.guild)
        conversation.allow(await manner.model.room(), manner.toolbox.overhead)
        preview = self._rooms.previews.open(lease)
        try:
            draft = open_draft(self._rooms, lease, place)
            draft.begins_tainted = conversation.is_tainted
            person = self._rooms.person(lease.rows[0])
            purse = Purse(lease.turn, person, str(lease.key))
            prompt = await self._rooms.context.assemble(
                draft, lease.rows, lease.notes, conversation, place, manner, purse
            )
            running.draft = draft

            def doing(tool: str) -> None:
                running.doing = tool

            thought = await self._rooms.loop.think(
                Seat(
                    lease=lease,
                    person=person,
                    language=self._rooms.language(lease.rows[0]),
                    manner=manner,
                    draft=draft,
                    fitting=Fitting(conversation, draft, prompt, overhead=manner.toolbox.overhead),
                    preview=preview,
                    is_watched=self._rooms.previews.is_watched(lease.key),
                    context=lambda call, staged: self._tool_context(running, conversation, place, call, staged),
                    render=lambda rows: self._rooms.context.steered(draft, rows, place, conversation, purse),
                    show=lambda messages: self._rooms.pictures.show(messages, place.scope),
                    doing=doing,
                )
            )
        finally:
            await preview.close()
            if running.draft is not None:
                running.draft.shown_at = preview.shown_at
        await self._conclude(running, conversation, draft, thought)
        return EndState.ANSWERED if thought.past is None else EndState.REFUSED

    async def _conclude(self, running: Running, conversation: Conversation, draft: Draft, thought: Thought) -> None:
        language = self._rooms.language(running.lease.rows[0])
        if thought.past is not None:
            head, past = running.lease.rows[0], thought.past
            self._rooms.caps.refused([head.message], past)
            line = self._cap_line(head, past)
            await self._close(running, conversation, draft, EndState.REFUSED, notice=line, told=_as_tuple(past))
            return
        if thought.failure is not None:
            line = tell(thought.failure, reference(running.lease.turn), language)
            await self._close(
                running, conversation, draft, EndState.ANSWERED, notice=line, failure=thought.failure.name
            )
            return
        sent = [fact_of(each) | {"blob": each.blob} for each in draft.attachments]
        draft.add(draft.message("assistant", thought.text, self._rooms.now(), files=sent or None, **draft.seen))
        text = f"{thought.text}\n\n{say('delivery.cut', language)}" if thought.is_cut else thought.text
        message, models = running.lease.rows[0].message, self._rooms.manners.models
        model = models.in_force(message.key, message.guild)
        if model.lost:
            text = f"{text}\n\n{gone(model, language)}"
        for line in doubts_of(draft, running.lease, language):
            draft.add(build.notice(running.lease.turn, line, self._rooms.now(), **draft.seen))
            text = f"{text}\n\n{line}"
        answer = to_chat(running.lease, text, OutboundKind.ANSWER, attachments=draft.attachments)
        record = draft.record(
            EndState.ANSWERED, self._rooms.now(), supersedes=original_of(running.lease.rows[0].message.message_id)
        )
        await self._rooms.commit(running, conversation, record, answer, draft)
        if model.lost:  # told once; a crash before this line, or a store that is down, tells it again
            with suppress(StoreDown):
                await models.choose(message.key, "")

    async def _close(
        self,
        running: Running,
        conversation: Conversation,
        draft: Draft,
        outcome: EndState,
        *,
        notice: str,
        failure: str = "",
        told: tuple[Told, ...] = (),
    ) -> None:
        """End a turn that has no answer: people read *notice*, the model never does."""
        now, language = self._rooms.now(), self._rooms.language(running.lease.rows[0])
        lines = [notice, *doubts_of(draft, running.lease, language)]
        if draft.drop_staged():
            lines.append(say("delivery.staged_dropped", language))
            draft.add(draft.message("assistant", "", now, dropped=True))
        notice = "\n\n".join(lines)
        draft.add(build.notice(running.lease.turn, notice, now, **draft.seen))
        record = draft.record(
            outcome, now, failure=failure, supersedes=original_of(running.lease.rows[0].message.message_id)
        )
        said = to_chat(running.lease, notice, OutboundKind.NOTICE)
        await self._rooms.commit(running, conversation, record, said, draft, told=told)

    async def _turn_away(
        self,
        running: Running,
        outcome: EndState,
        line: str,
        failure: str = "",
        *,
        rest: tuple[InboxRow, ...] = (),
        told: tuple[Told, ...] = (),
    ) -> EndState:
        """End rows that are not answered at all: people see what they wrote and *line*, the model sees nothing.

        *rest* waits in the lane, and ends with them.
        """
        lease = running.lease
        place = self._rooms.place(lease.rows[0])
        draft = Draft(replace(lease, steps=(), rows=(*lease.rows, *rest)), place.scope)
        now = self._rooms.now()
        for row in lease.notes:  # what they say is about other turns
            draft.add(self._rooms.context.note(draft, row, place.zone, SpeakerNames()))
        for row in (*lease.rows, *rest):
            is_last = row is lease.rows[-1]
            said: dict[str, Any] = {"asked": row.message.text, **speaker(row.message)}
            said["seen"] = build.stamp(row.accepted_at)
            if row.message.attachments:  # as facts alone: nothing is fetched for who is turned away
                said["files"] = [fact_of(each) for each in row.message.attachments]
            draft.add(build.notice(lease.turn, line if is_last else "", now, **said))
        record = draft.record(outcome, now, failure=failure)
        running.is_committing = True
        told_in_chat = to_chat(lease, line, OutboundKind.NOTICE)
        audit = self._orders.unfinished(lease, outcome)
        await self._rooms.journal.commit(lease, Commit(record=record, outbound=told_in_chat, audit=audit, told=told))
        if failure:
            self._rooms.meter.count("turn_failures", failure=failure)
        self._rooms.conversations.forget(lease.key)  # it knows nothing of the notes
        return outcome

    def _tool_context(
        self, running: Running, conversation: Conversation, place: Place, call: ToolCall, staged: Staged
    ) -> ToolContext:
        lease = running.lease
        row = lease.rows[0]
        draft = running.draft
        said = draft.lines if draft is not None else []
        sent = len(draft.attachments) if draft is not None else 0
        return ToolContext(
            person=self._rooms.person(row),
            sender=row.message.sender,
            key=lease.key,
            scope=place.scope,
            turn=lease.turn,
            call=call.id,
            now=self._rooms.now(),
            recall=bind(self._rooms.search, place.scope, staged.taint),
            remember=staged.remember.append,
            is_tainted=draft is not None and draft.is_tainted_call(call),
            send=self._rooms.outgoing.bind(
                place.scope, lease.key, lambda: [*conversation.lines, *said], staged.send, sent=sent
            ),
        )


def _as_tuple(past: Past) -> tuple[Told, ...]:
    return (past.told,) if past.told else ()
