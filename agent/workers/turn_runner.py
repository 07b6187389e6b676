"""Run one turn through the stages claim, assemble, think and commit, and through every other way it can end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agent.base import transcript_lines as build
from agent.base.file_facts import fact_of
from agent.commands.settings import model_gone_line, profile_gone_line
from agent.llm.chat_model import ReplyEnding
from agent.memory.jobs.approval_questions import question_scope, short
from agent.reminders.reminder import is_reminder
from agent.tools.deferred_tools import inner_call
from agent.tools.rights import RefusalRule
from agent.tools.tool import collect_sources, encode_sources
from agent.tools.tool_questions import ToolQuestion, format_questions
from agent.turns.agent_loop import LoopResult
from agent.turns.prompt_assembly import speaker_fields
from agent.turns.turn import Turn
from agent.workers.special_turns import (
    CommandTurnRunner,
    ReminderTurnRunner,
    failure_jobs,
    is_nothing,
    revocation_jobs,
)
from agent.workers.task_turns import TaskRunner
from agent.workers.turn_services import TurnServices, build_reply, call_person
from gateway.errors import StoreUnavailable
from gateway.events import InboundKind, MessageButton, OutboundKind, OutboundMessage, Role, SessionKey, short_turn_id
from gateway.i18n import translate
from gateway.i18n.failures import BY_NAME, failure_line
from gateway.i18n.formats import format_moment, format_time_of_day
from gateway.ports.access import ExceededCap
from gateway.ports.journal import EXPIRES, STOP_WANTED, CapNotice, InboxRow, Job, MessageOutcome, is_set_by_person
from gateway.text.message_text import format_sources

if TYPE_CHECKING:
    from gateway.access.pairing_service import OwnerAddress


class TurnRunner:
    """Runs leased turns."""

    def __init__(self, services: TurnServices, tasks: TaskRunner) -> None:
        self._services = services
        self._tasks = tasks
        self._commands = CommandTurnRunner(services)
        self._reminders = ReminderTurnRunner(services)
        self._notified_expired: set[SessionKey] = set()
        self._notified_revoked: set[tuple[str, str]] = set()  # (channel, sender)

    async def handle_turn(self, turn: Turn) -> MessageOutcome:
        """Run the turn to its commit: answer it, run its command, or refuse it."""
        turn.stage_times["claim"] = self._services.now()
        # Killed between /stop and the commit of the stopped turn.
        if any(step.kind in ("stop", STOP_WANTED.kind) for step in turn.lease.steps):
            turn.is_stop_wanted = True
            return await self.handle_stop(turn)
        try:
            async with self._services.claim(turn):
                return await self._refuse(turn) or await self._run(turn)
        finally:
            if turn.message.kind is InboundKind.JOB:
                self._services.reminders.note_end(turn.id)

    async def handle_stop(self, turn: Turn) -> MessageOutcome:
        """Commit the turn as stopped; the transcript keeps the part of the answer that was shown."""
        async with self._services.claim(turn, is_ending=True):
            if turn.message.kind is not InboundKind.COMMAND:
                return await self._finish_stopped(turn)
            return await self._finish_unanswered(
                turn, MessageOutcome.STOPPED, translate("commands.stopped_turn", turn.language)
            )

    async def dead_letter(self, turn: Turn) -> None:
        """Commit the turn as dead-lettered and notify its sender."""
        failure = BY_NAME["poison" if turn.lease.is_lone else "bug"]
        async with self._services.claim(turn, is_ending=True):
            line = failure_line(failure, short_turn_id(turn.id), turn.language)
            await self._finish_unanswered(turn, MessageOutcome.DEAD, line, failure=failure.name)

    async def control(self, row: InboxRow) -> None:
        """Run a control command to its commit."""
        async with self._services.claim(row) as turn:
            await self._commands.run_control(turn)

    async def dead_letter_control(self, row: InboxRow) -> None:
        """Commit a control command that cannot be run as dead-lettered, and notify its sender."""
        async with self._services.claim(row, is_ending=True) as turn:
            await self._commands.dead_letter_control(turn)

    # -- refused or expired before anything is done ---------------------------------------------

    async def _refuse(self, turn: Turn) -> MessageOutcome | None:
        """End the turn if its sender's access was revoked or it waited too long; else return None."""
        sender = (turn.key.channel, turn.message.sender.id)
        if not turn.is_admitted and is_set_by_person(turn.message):
            return await self._refuse_job(turn)
        if not turn.is_admitted:
            # Several messages may have waited: one notice is enough.
            line = "" if sender in self._notified_revoked else translate("commands.revoked", turn.language)
            self._notified_revoked.add(sender)
            return await self._finish_unanswered(turn, MessageOutcome.REFUSED, line)
        self._notified_revoked.discard(sender)
        age = self._services.now() - turn.message.sent_at
        is_old = turn.message.kind is not InboundKind.JOB and age > EXPIRES
        # Before a chat reads that its message expired: our own clock may be wrong.
        if is_old and age - await self._services.clock_ahead() > EXPIRES:
            line = "" if turn.key in self._notified_expired else translate("queue.expired", turn.language)
            self._notified_expired.add(turn.key)
            for row in turn.lease.rows:
                self._services.on_expired(row.message)
            return await self._finish_unanswered(turn, MessageOutcome.EXPIRED, line)
        return None

    async def _refuse_job(self, turn: Turn) -> MessageOutcome:
        """End a job whose person lost access: the owner is notified, once for all their jobs, and the chat is not."""
        sender = (turn.key.channel, turn.message.sender.id)
        owner = None if sender in self._notified_revoked else await self._services.find_owner(turn.key.channel)
        notices: tuple[OutboundMessage, ...] = ()
        if owner is not None:
            language = self._services.locales.language(owner.key)
            text = translate("commands.job_revoked", language, who=short(turn.account.label), chat=short(str(turn.key)))
            notices = (_to_owner(turn, owner, text),)
        self._notified_revoked.add(sender)
        jobs = revocation_jobs(turn, self._services.now())
        return await self._finish_unanswered(turn, MessageOutcome.REFUSED, "", also=notices, jobs=jobs)

    async def _refuse_capped(self, turn: Turn, exceeded: ExceededCap) -> MessageOutcome:
        """Notify of a cap once in its window; the queued messages under the same cap end with this turn."""
        queued = await self._services.commands.queue.journal.waiting_rows(turn.key)
        rest = _rows_under_same_cap(queued, turn.row, exceeded)
        self._services.caps.note_refusal([row.message for row in (*turn.lease.rows, *rest)], exceeded)
        line = _cap_line(exceeded, turn) if exceeded.notice else ""
        return await self._finish_unanswered(turn, MessageOutcome.REFUSED, line, rest=rest, cap_notice=exceeded.notice)

    async def _finish_unanswered(
        self,
        turn: Turn,
        outcome: MessageOutcome,
        line: str,
        *,
        failure: str = "",
        rest: tuple[InboxRow, ...] = (),
        cap_notice: CapNotice | None = None,
        also: tuple[OutboundMessage, ...] = (),
        jobs: tuple[Job, ...] = (),
    ) -> MessageOutcome:
        """Commit messages that get no answer: people see them with the notice *line*, the model never does.

        The queued rows *rest* end with them; *also* goes to other chats. Return *outcome*.
        """
        services, now = self._services, self._services.now()
        turn.restart(replace(turn.lease, steps=(), rows=(*turn.lease.rows, *rest)))
        services.add_notes(turn)  # edits and deletions concern other turns
        for row in (*turn.lease.rows, *rest):
            fields: dict[str, Any] = {"asked": row.message.text, **speaker_fields(row.message)}
            fields["seen"] = build.format_time(row.accepted_at)
            if row.message.attachments:  # only the facts: nothing is downloaded
                fields["files"] = [fact_of(each) for each in row.message.attachments]
            turn.draft.add(build.notice(turn.id, line if row is turn.lease.rows[-1] else "", now, **fields))
        return await services.finish(
            turn,
            outcome,
            (*build_reply(turn, line, OutboundKind.NOTICE), *also),
            failure=failure,
            jobs=jobs,
            audit=self._commands.audit_unfinished(turn, outcome),
            cap_notice=cap_notice,
        )

    # -- run ------------------------------------------------------------------------------------

    async def _run(self, turn: Turn) -> MessageOutcome:
        services = self._services
        if turn.message.kind is InboundKind.JOB and (outcome := await self._run_job(turn)) is not None:
            return outcome
        self._notified_expired.discard(turn.key)  # the next long absence is announced again
        command = services.router.parse(turn.message) if turn.message.kind is InboundKind.COMMAND else None
        if command is not None and (outcome := await self._commands.run_command(turn, command)) is not None:
            return outcome
        exceeded = await services.caps.admit_turn(turn.message, turn.id, turn.capped_sender)
        if exceeded is not None:
            return await self._refuse_capped(turn, exceeded)
        try:
            return await self._answer(turn)
        finally:
            services.caps.end_turn(turn.id)

    async def _run_job(self, turn: Turn) -> MessageOutcome | None:
        """Ask about an approval, or run a reminder or a task's end; return None for a job that the model answers."""
        if (asked_scope := question_scope(turn.message)) is not None:
            return await self._commands.run_question(turn, asked_scope)
        is_done = await self._reminders.run(turn) or await self._tasks.run_end(turn)
        return MessageOutcome.ANSWERED if is_done else None

    async def _answer(self, turn: Turn) -> MessageOutcome:
        services = self._services
        turn.stage_times["assemble"] = services.now()
        conversation = await services.load_conversation(turn)
        # Only here: a command needs no prompt limit and does not wait for a model that is being loaded.
        conversation.set_limit(await turn.profile.model.prompt_limit(), turn.profile.toolbox.overhead)
        turn.preview = services.previews.open(turn.lease, turn.language)
        try:
            self._resume(turn)
            await services.assembler.assemble(turn)
            turn.stage_times["think"] = services.now()
            result = await services.loop.think(turn)
            turn.stage_times["commit"] = services.now()
        finally:
            await turn.preview.close()
            turn.draft.shown_at = turn.preview.shown_at
        if (exceeded := result.exceeded_cap) is not None:
            services.caps.note_refusal([turn.message], exceeded)
            line = _cap_line(exceeded, turn)
            return await self._finish_with_notice(turn, MessageOutcome.REFUSED, line, cap_notice=exceeded.notice)
        if result.failure is not None:
            cause = result.cause if turn.role is Role.OWNER else None
            page = "" if turn.is_shared else services.page_address
            line = failure_line(result.failure, short_turn_id(turn.id), turn.language, cause=cause, page=page)
            return await self._finish_with_notice(turn, MessageOutcome.ANSWERED, line, failure=result.failure.name)
        return await self._finish_with_answer(turn, result)

    def _resume(self, turn: Turn) -> None:
        """Continue what an earlier attempt showed, where a stream would be seen."""
        turn.draft.begins_tainted = turn.conversation.is_tainted
        # A reminder may have nothing to report: its answer is not shown before it is complete.
        turn.is_watched = self._services.previews.is_watched(turn.key) and not is_reminder(turn.message)
        if turn.is_watched:
            turn.draft.streamed = turn.draft.last_words

    async def _finish_with_answer(self, turn: Turn, result: LoopResult) -> MessageOutcome:
        services, draft = self._services, turn.draft
        profile, active, language = turn.profile, turn.profile.active, turn.language
        files = [fact_of(each) | {"blob": each.blob} for each in draft.attachments]
        find_links = turn.find_links()
        links = None if find_links is None else await asyncio.to_thread(find_links, result.text)
        shown = {"files": files or None, "links": list(links or ()) or None, **draft.seen_field}
        draft.add(draft.message("assistant", result.text, services.now(), **shown))
        text = "" if is_nothing(turn, result.text) else result.text
        if (line := _ENDINGS.get(result.ending)) is not None and text:
            text = f"{text}\n\n{translate(line, language)}"
        if active.lost:
            text = f"{text}\n\n{model_gone_line(active, language)}"
        if profile.lost_name:
            text = f"{text}\n\n{profile_gone_line(profile, language)}"
        sources = collect_sources(draft.lines, result.text)
        below = [
            *_edit_lines(turn, result.text),
            *_doubt_lines(turn),
            *await self._tool_cap_lines(turn),
            *_version_lines(turn),
        ]
        asked_here = [each for each in draft.questions if not each.is_for_owner]
        asked_owner, notices = await self._ask_owner(turn, [each for each in draft.questions if each.is_for_owner])
        questions, buttons = format_questions(asked_here, language)
        spoken, too_long = await self._plan_speech(turn, result.text if text else "")
        below += [each for each in (too_long, asked_owner, questions) if each]
        for line in below:
            draft.add(build.notice(turn.id, line, services.now(), **draft.seen_field))
            text = f"{text}\n\n{line}".strip()
        if sources and text:
            listed = format_sources(sources, "", language)
            footnotes = encode_sources(sources)
            draft.add(build.notice(turn.id, listed, services.now(), footnotes=footnotes, **draft.seen_field))
        reply = build_reply(
            turn,
            text,
            OutboundKind.ANSWER,
            attachments=draft.attachments,
            choices=buttons,
            links=links,
            sources=sources,
        )
        if is_reminder(turn.message) and turn.is_shared:
            reply = tuple(call_person(turn, each) for each in reply)
        audit = self._commands.audit_questions(turn, draft.questions)
        outcome = await services.finish(turn, MessageOutcome.ANSWERED, (*reply, *notices), jobs=spoken, audit=audit)
        with suppress(StoreUnavailable):  # said once; after a crash before this line, or without a store, once more
            if active.lost:
                await services.profiles.choose_model(turn.key, "")
            if profile.lost_name:
                await services.profiles.choose_profile(turn.key, "")
        return outcome

    async def _plan_speech(self, turn: Turn, answer: str) -> tuple[tuple[Job, ...], str]:
        """Return the job that reads the answer out, and the line that says why it is not."""
        speaker = self._services.spoken_answers
        return ((), "") if speaker is None or not answer else await speaker.plan(turn, answer)

    async def _ask_owner(
        self, turn: Turn, questions: Sequence[ToolQuestion]
    ) -> tuple[str, tuple[OutboundMessage, ...]]:
        """Return the line for the chat and the question for the owner; both are empty without *questions*.

        If no owner has a direct chat, the line names the command that lists the questions.
        """
        if not questions:
            return "", ()
        names = ", ".join(f"`{each.tool}`" for each in questions)
        owner = await self._services.find_owner(turn.key.channel)
        if owner is None:
            return translate("tools.for_owner", turn.language, names=names), ()
        language = self._services.locales.language(owner.key)
        text, buttons = format_questions(questions, language)
        text = f"{translate('tools.asked_for', language, chat=short(str(turn.key)))}\n\n{text}"
        question = _to_owner(turn, owner, text, buttons)
        return translate("tools.asked_owner", turn.language, names=names), (question,)

    async def _tool_cap_lines(self, turn: Turn) -> list[str]:
        """Return a line for each daily cap on tool calls that refused a call of the turn."""
        if not any(line.get("refused") == RefusalRule.CAP for line in turn.draft.lines):
            return []
        return [
            translate(
                f"caps.{each.kind}_calls",
                turn.language,
                limit=each.limit,
                until=format_moment(each.until, turn.zone, turn.language),
            )
            for each in await self._services.caps.tool_allowances(turn.accounts)
            if each.used >= each.limit
        ]

    async def _finish_with_notice(
        self,
        turn: Turn,
        outcome: MessageOutcome,
        line: str,
        *,
        failure: str = "",
        cap_notice: CapNotice | None = None,
    ) -> MessageOutcome:
        """Commit a turn without a whole answer: people read the notice, the model never does. Return *outcome*.

        Text that was shown stays as an answer above the notice, and the model reads that it broke off.
        """
        draft, now = turn.draft, self._services.now()
        lines = [line, *_edit_lines(turn), *_doubt_lines(turn)]
        shown = self._services.redactor.redact_growing(draft.streamed).rstrip()
        find_links = draft.find_links
        links = None if find_links is None else await asyncio.to_thread(find_links, shown)
        if is_dropped := draft.drop_staged():
            lines.append(translate("delivery.staged_dropped", turn.language))
        if shown or is_dropped:
            ended = {"broken": bool(shown) or None, "dropped": is_dropped or None, "links": list(links or ()) or None}
            draft.add(draft.message("assistant", shown, now, **ended, **draft.seen_field))
        notice = "\n\n".join(lines)
        # Its time is the commit's: with the preview's it would stand above what was said meanwhile.
        draft.add(build.notice(turn.id, notice, now, **({} if shown else draft.seen_field)))
        outbound = build_reply(turn, notice, OutboundKind.NOTICE)
        if shown:
            kept = build_reply(turn, shown, OutboundKind.ANSWER, rings=False, links=links)
            outbound = (*kept, *(replace(each, id=f"{turn.id}.2") for each in outbound))
        return await self._services.finish(
            turn,
            outcome,
            outbound,
            failure=failure,
            jobs=failure_jobs(turn, now) if failure else (),
            cap_notice=cap_notice,
        )

    # -- stopped (docs/adr/0028-stopped-turns.md) -------------------------------------------------

    async def _finish_stopped(self, turn: Turn) -> MessageOutcome:
        """Commit an answer that /stop ended; safe to repeat after a kill at any point."""
        if turn.is_assembled:  # first of all: from here on a kill loses neither the stop nor the text so far
            await self._store_stop(turn)
        else:
            turn.restart(turn.lease)
        await self._services.load_conversation(turn)
        if turn.draft.stopped is None:  # stopped before the model was asked
            self._resume(turn)
            await self._services.assembler.assemble(turn, is_stopped=True)
            await self._store_stop(turn)
        turn.draft.drop_staged()
        text, ending = turn.draft.ending
        # Completing the preview notifies no one, however late; without a text it is a line like any other.
        reply = build_reply(
            turn,
            f"{text}\n\n{ending}" if text else ending,
            OutboundKind.ANSWER if text else OutboundKind.NOTICE,
            rings=False,
            links=turn.draft.ending_links,
        )
        return await self._services.finish(turn, MessageOutcome.STOPPED, reply)

    async def _store_stop(self, turn: Turn) -> None:
        draft = turn.draft
        draft.streamed = self._services.redactor.redact_growing(draft.streamed)
        opening = draft.take_opening()
        line = translate("delivery.stopped_here" if draft.streamed else "commands.stopped_turn", turn.language)
        dropped = [translate("delivery.staged_dropped", turn.language)] if draft.has_staged else []
        ending = " ".join([line, *_edit_lines(turn), *_doubt_lines(turn), *dropped])
        await self._services.journal.step(turn.lease, *opening, draft.stop(ending))


# The line below an answer that did not end by itself.
_ENDINGS = {
    ReplyEnding.LENGTH: "delivery.cut",
    ReplyEnding.FILTERED: "delivery.filtered",
    ReplyEnding.REPEATED: "delivery.repeated",
    ReplyEnding.BROKEN: "delivery.broken",
}


def _to_owner(turn: Turn, owner: OwnerAddress, text: str, choices: tuple[MessageButton, ...] = ()) -> OutboundMessage:
    """Return the turn's one message to an owner."""
    return OutboundMessage(
        id=f"{turn.id}.2",
        key=owner.key,
        text=text,
        kind=OutboundKind.NOTICE,
        visible_to=owner.visible_to,
        choices=choices,
    )


def _doubt_lines(turn: Turn) -> list[str]:
    """Return the line that names the tool calls that may have happened without a result, if there are any."""
    names = dict.fromkeys(f"`{inner_call(call).name}`" for call in turn.draft.doubtful_calls)
    if not names:
        return []
    return [
        translate("delivery.outcome_unknown", turn.language, what=", ".join(names), reference=short_turn_id(turn.id))
    ]


def _edit_lines(turn: Turn, text: str = "") -> list[str]:
    """Return a line with the undo command for each memory change of the turn, unless *text* names the version."""
    lines = []
    # A resumed turn has them too, since its lines hold them.
    for change in (each for line in turn.draft.lines for each in line.get("edited", ())):
        versions = [str(each) for each in change["versions"]]
        if versions and all(each in text for each in versions):
            continue
        parts = [_change_part(str(old), str(new), turn.language) for old, new in change["changes"]]
        if (rest := int(change["count"]) - len(parts)) > 0:
            parts.append(translate("erasure.more", turn.language, count=rest))
        undo = ", ".join(translate("memory.edit_undo", turn.language, sha=each) for each in versions) or "—"
        lines.append(translate("memory.edited", turn.language, what="; ".join(parts), undo=undo))
        if any(not new for _, new in change["changes"]):
            lines.append(translate("memory.edit_kept", turn.language))
    return lines


def _version_lines(turn: Turn) -> list[str]:
    """Return the line that says that another version of an earlier message was answered as a new message."""
    if turn.message.kind is not InboundKind.MESSAGE or not turn.message.replaces:
        return []
    return (
        [] if any("replaces" in line for line in turn.draft.lines) else [translate("queue.not_replaced", turn.language)]
    )


def _change_part(old: str, new: str, language: str) -> str:
    kind = "removed" if not new else "replaced" if old else "added"
    old, new = (short(text.strip().removeprefix("- ")) for text in (old, new))
    return translate(f"memory.edit_{kind}", language, old=old, new=new)


def _cap_line(exceeded: ExceededCap, turn: Turn) -> str:
    """Return the notice that says which cap is reached and when it ends."""
    write = format_moment if exceeded.cap.is_daily else format_time_of_day
    until = write(exceeded.until, turn.zone, turn.language)
    return translate(
        f"caps.{exceeded.cap.word}", turn.language, limit=exceeded.cap.format_amount(exceeded.limit), until=until
    )


def _rows_under_same_cap(queued: Iterable[InboxRow], head: InboxRow, exceeded: ExceededCap) -> tuple[InboxRow, ...]:
    """Return the queued messages that the cap covers too; commands are never capped."""
    return tuple(
        row
        for row in queued
        if not row.turn
        and row.seq != head.seq
        and row.message.kind is InboundKind.MESSAGE
        and (not exceeded.cap.is_personal or row.message.sender.id == head.message.sender.id)
    )
