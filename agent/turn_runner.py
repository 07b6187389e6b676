"""One turn, from its lease to its commit: the stages 6 to 8 in a row, and every way a turn can end."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from agent.agent_loop import LoopContext, LoopResult
from agent.attachments.file_facts import fact_of
from agent.attachments.transcription import UsageAttribution
from agent.cap_notices import cap_line, rows_under_same_cap
from agent.command_turns import CommandTurnRunner
from agent.commands.model import model_gone_line
from agent.commands.session import retried_turn
from agent.llm.chat_model import ToolCall
from agent.memory.jobs.approval_questions import question_scope
from agent.memory.messages.sender_names import SenderNames
from agent.memory.prompt.conversation import Conversation
from agent.memory.storage import transcript_lines as build
from agent.prompt_assembly import TurnScope, speaker_fields
from agent.prompt_fitter import PromptFitter
from agent.stopped_turn import commit_stopped, doubts_of, open_draft
from agent.tools.tool import ToolContext, bind_recall
from agent.turn_draft import StagedEffects, TurnDraft
from agent.turn_services import TurnServices, build_reply
from agent.worker_pool import RunningTurn
from gateway.errors import StoreUnavailable
from gateway.events import InboundKind, OutboundKind, SessionKey, short_turn_id
from gateway.i18n import translate
from gateway.i18n.failures import BY_NAME, failure_line
from gateway.ports import EXPIRES, InboxRow, MessageOutcome, TurnCommit, TurnLease
from gateway.ports.caps import CapNotice, ExceededCap


class TurnRunner:
    """Implements `agent.worker_pool.TurnHandler`."""

    def __init__(self, rooms: TurnServices) -> None:
        self._rooms = rooms
        self._orders = CommandTurnRunner(rooms)
        self._told_expired: set[SessionKey] = set()
        self._told_revoked: set[tuple[str, str]] = set()  # (channel, sender)

    async def handle_turn(self, running: RunningTurn) -> MessageOutcome:
        """Run the turn to its commit, as a command, as a thought, or as a refusal."""
        async with self._rooms.scope_in_use(running.lease.rows[0]):
            return await self._take(running)

    async def _take(self, running: RunningTurn) -> MessageOutcome:
        lease = running.lease
        if any(step.kind == "stop" for step in lease.steps):  # a kill came between the stop and its commit
            running.stop_wanted = True
            await self._stop(running)
            return MessageOutcome.STOPPED
        head = lease.rows[0]
        role = await self._rooms.admits(head)
        who = (lease.key.channel, head.message.sender.id)
        if role is None:
            # Several messages may have waited: whose rights are gone is told so once.
            line = "" if who in self._told_revoked else translate("commands.revoked", self._rooms.language(head))
            self._told_revoked.add(who)
            return await self._turn_away(running, MessageOutcome.REFUSED, line)
        self._told_revoked.discard(who)
        head = replace(head, role=role)
        running.lease = lease = replace(lease, rows=(head, *lease.rows[1:]))
        if head.message.kind is not InboundKind.JOB and await self._is_expired(head):
            first = lease.key not in self._told_expired
            self._told_expired.add(lease.key)
            line = translate("queue.expired", self._rooms.language(head)) if first else ""
            for row in lease.rows:
                self._rooms.on_expired(row.message)
            return await self._turn_away(running, MessageOutcome.EXPIRED, line)
        if (asked := question_scope(head.message)) is not None:
            await self._orders.run_question(running, asked)
            return MessageOutcome.ANSWERED
        self._told_expired.discard(lease.key)  # after the next long absence it is news again
        typed = self._rooms.router.parse(head.message) if head.message.kind is InboundKind.COMMAND else None
        if typed is not None:
            await self._orders.run_command(running, typed)
            return MessageOutcome.ANSWERED
        past = self._rooms.caps.admit_turn(head.message, lease.turn, self._rooms.person(head))
        if past is not None:
            return await self._refuse(running, past)
        try:
            return await self._answer(running)
        finally:
            self._rooms.caps.end_turn(lease.turn)

    async def _is_expired(self, row: InboxRow) -> bool:
        age = self._rooms.now() - row.message.sent_at
        # Before a chat is told that it waited too long: is it us who live in another day?
        return age > EXPIRES and age - await self._rooms.clock_ahead() > EXPIRES

    async def _refuse(self, running: RunningTurn, past: ExceededCap) -> MessageOutcome:
        """Tell of a cap once in its window, and end with this turn whatever of the same cap waits behind it."""
        head = running.lease.rows[0]
        rest = rows_under_same_cap(await self._rooms.house.waiting_messages(head.message.key), head, past)
        self._rooms.caps.note_refusal([row.message for row in (*running.lease.rows, *rest)], past)
        line = self._cap_line(head, past) if past.told else ""
        return await self._turn_away(running, MessageOutcome.REFUSED, line, rest=rest, told=_as_tuple(past))

    def _cap_line(self, row: InboxRow, past: ExceededCap) -> str:
        return cap_line(past, self._rooms.place(row).zone, self._rooms.language(row))

    async def handle_stop(self, running: RunningTurn) -> None:
        """Commit the turn as stopped; what was shown of it stays in the transcript."""
        async with self._rooms.scope_in_use(running.lease.rows[0]):
            await self._stop(running)

    async def _stop(self, running: RunningTurn) -> None:
        if running.lease.rows[0].message.kind is InboundKind.COMMAND:
            line = translate("commands.stopped_turn", self._rooms.language(running.lease.rows[0]))
            await self._turn_away(running, MessageOutcome.STOPPED, line)
            return
        await commit_stopped(self._rooms, running)

    async def dead_letter(self, lease: TurnLease) -> None:
        """Commit the turn as dead-lettered and tell its sender what to do."""
        failure = BY_NAME["poison" if lease.is_lone else "bug"]
        running = RunningTurn(lease=lease)
        line = failure_line(failure, short_turn_id(lease.turn), self._rooms.language(lease.rows[0]))
        async with self._rooms.scope_in_use(lease.rows[0]):
            await self._turn_away(running, MessageOutcome.DEAD, line, failure=failure.name)

    async def control(self, row: InboxRow) -> None:
        """Run a command that does not wait in its lane."""
        role = await self._rooms.admits(row)
        async with self._rooms.scope_in_use(row):
            await self._orders.control(row, role)

    async def bury_control(self, row: InboxRow) -> None:
        """Settle a control command that failed and tell its sender."""
        async with self._rooms.scope_in_use(row):
            await self._orders.dead_letter_control(row)

    # -- the ways a lane turn can go ------------------------------------------------------------

    async def _answer(self, running: RunningTurn) -> MessageOutcome:
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
            purse = UsageAttribution(lease.turn, person, str(lease.key))
            prompt = await self._rooms.context.assemble(
                draft, lease.rows, lease.notes, conversation, place, manner, purse
            )
            running.draft = draft

            def doing(tool: str) -> None:
                running.doing = tool

            thought = await self._rooms.loop.think(
                LoopContext(
                    lease=lease,
                    person=person,
                    language=self._rooms.language(lease.rows[0]),
                    manner=manner,
                    draft=draft,
                    fitting=PromptFitter(conversation, draft, prompt, overhead=manner.toolbox.overhead),
                    preview=preview,
                    is_watched=self._rooms.previews.is_watched(lease.key),
                    context=lambda call, staged: self._tool_context(running, conversation, place, call, staged),
                    render=lambda rows: self._rooms.context.steered(draft, rows, place, conversation, purse),
                    show=lambda messages: self._rooms.pictures.inline(messages, place.scope),
                    doing=doing,
                )
            )
        finally:
            await preview.close()
            if running.draft is not None:
                running.draft.shown_at = preview.shown_at
        await self._conclude(running, conversation, draft, thought)
        return MessageOutcome.ANSWERED if thought.past is None else MessageOutcome.REFUSED

    async def _conclude(
        self, running: RunningTurn, conversation: Conversation, draft: TurnDraft, thought: LoopResult
    ) -> None:
        language = self._rooms.language(running.lease.rows[0])
        if thought.past is not None:
            head, past = running.lease.rows[0], thought.past
            self._rooms.caps.note_refusal([head.message], past)
            line = self._cap_line(head, past)
            await self._close(running, conversation, draft, MessageOutcome.REFUSED, notice=line, told=_as_tuple(past))
            return
        if thought.failure is not None:
            line = failure_line(thought.failure, short_turn_id(running.lease.turn), language)
            await self._close(
                running, conversation, draft, MessageOutcome.ANSWERED, notice=line, failure=thought.failure.name
            )
            return
        sent = [fact_of(each) | {"blob": each.blob} for each in draft.attachments]
        draft.add(draft.message("assistant", thought.text, self._rooms.now(), files=sent or None, **draft.seen_field))
        text = f"{thought.text}\n\n{translate('delivery.cut', language)}" if thought.is_cut else thought.text
        message, models = running.lease.rows[0].message, self._rooms.manners.models
        model = models.active_model(message.key, message.guild)
        if model.lost:
            text = f"{text}\n\n{model_gone_line(model, language)}"
        for line in doubts_of(draft, running.lease, language):
            draft.add(build.notice(running.lease.turn, line, self._rooms.now(), **draft.seen_field))
            text = f"{text}\n\n{line}"
        answer = build_reply(running.lease, text, OutboundKind.ANSWER, attachments=draft.attachments)
        record = draft.record(
            MessageOutcome.ANSWERED,
            self._rooms.now(),
            supersedes=retried_turn(running.lease.rows[0].message.message_id),
        )
        await self._rooms.commit(running, conversation, record, answer, draft)
        if model.lost:  # told once; a crash before this line, or a store that is down, tells it again
            with suppress(StoreUnavailable):
                await models.choose(message.key, "")

    async def _close(
        self,
        running: RunningTurn,
        conversation: Conversation,
        draft: TurnDraft,
        outcome: MessageOutcome,
        *,
        notice: str,
        failure: str = "",
        told: tuple[CapNotice, ...] = (),
    ) -> None:
        """End a turn that has no answer: people read *notice*, the model never does."""
        now, language = self._rooms.now(), self._rooms.language(running.lease.rows[0])
        lines = [notice, *doubts_of(draft, running.lease, language)]
        if draft.drop_staged():
            lines.append(translate("delivery.staged_dropped", language))
            draft.add(draft.message("assistant", "", now, dropped=True))
        notice = "\n\n".join(lines)
        draft.add(build.notice(running.lease.turn, notice, now, **draft.seen_field))
        record = draft.record(
            outcome, now, failure=failure, supersedes=retried_turn(running.lease.rows[0].message.message_id)
        )
        said = build_reply(running.lease, notice, OutboundKind.NOTICE)
        await self._rooms.commit(running, conversation, record, said, draft, told=told)

    async def _turn_away(
        self,
        running: RunningTurn,
        outcome: MessageOutcome,
        line: str,
        failure: str = "",
        *,
        rest: tuple[InboxRow, ...] = (),
        told: tuple[CapNotice, ...] = (),
    ) -> MessageOutcome:
        """End rows that are not answered at all: people see what they wrote and *line*, the model sees nothing.

        *rest* waits in the lane, and ends with them.
        """
        lease = running.lease
        place = self._rooms.place(lease.rows[0])
        draft = TurnDraft(replace(lease, steps=(), rows=(*lease.rows, *rest)), place.scope)
        now = self._rooms.now()
        for row in lease.notes:  # what they say is about other turns
            draft.add(self._rooms.context.note(draft, row, place.zone, SenderNames()))
        for row in (*lease.rows, *rest):
            is_last = row is lease.rows[-1]
            said: dict[str, Any] = {"asked": row.message.text, **speaker_fields(row.message)}
            said["seen"] = build.format_time(row.accepted_at)
            if row.message.attachments:  # as facts alone: nothing is fetched for who is turned away
                said["files"] = [fact_of(each) for each in row.message.attachments]
            draft.add(build.notice(lease.turn, line if is_last else "", now, **said))
        record = draft.record(outcome, now, failure=failure)
        running.is_committing = True
        told_in_chat = build_reply(lease, line, OutboundKind.NOTICE)
        audit = self._orders.unfinished(lease, outcome)
        await self._rooms.journal.commit(
            lease, TurnCommit(record=record, outbound=told_in_chat, audit=audit, told=told)
        )
        if failure:
            self._rooms.meter.count("turn_failures", failure=failure)
        self._rooms.conversations.forget(lease.key)  # it knows nothing of the notes
        return outcome

    def _tool_context(
        self, running: RunningTurn, conversation: Conversation, place: TurnScope, call: ToolCall, staged: StagedEffects
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
            recall=bind_recall(self._rooms.search, place.scope, staged.taint),
            remember=staged.remember.append,
            is_tainted=draft is not None and draft.is_tainted_call(call),
            send=self._rooms.outgoing.bind(
                place.scope, lease.key, lambda: [*conversation.lines, *said], staged.send, sent=sent
            ),
        )


def _as_tuple(past: ExceededCap) -> tuple[CapNotice, ...]:
    return (past.told,) if past.told else ()
