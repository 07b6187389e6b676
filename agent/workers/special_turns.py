"""Turns that no model answers: commands, questions about an approval, and reminders that have fired."""

from __future__ import annotations

import base64
import re
import secrets
import unicodedata
from collections.abc import Sequence
from datetime import datetime

from agent.base import transcript_lines as build
from agent.base.file_facts import UNTRUSTED
from agent.commands.command import CommandContext, CommandReply, ParsedCommand, actor_of
from agent.memory.jobs.approval_questions import question, short
from agent.reminders.reminder import (
    DO,
    LATE,
    LISTED_AFTER,
    SAY,
    Reminder,
    fired_id,
    is_reminder,
    reminders_in,
)
from agent.reminders.reminder_jobs import FAILED, REVOKED, settle_job, snooze_buttons
from agent.tools.tool_questions import ToolQuestion, denial_prefix, jobs_prefix
from agent.turns.prompt_assembly import speaker_fields
from agent.turns.turn import Turn
from agent.workers.turn_services import TurnServices, build_reply, call_person
from gateway.events import OutboundKind, OutboundMessage, short_turn_id
from gateway.i18n import translate
from gateway.i18n.failures import BY_NAME, failure_line
from gateway.i18n.formats import format_moment
from gateway.ports.journal import AuditEntry, InboxRow, Job, JobAdvance, Line, MessageOutcome
from gateway.text import append_commands


class CommandTurnRunner:
    """Runs commands to their commit."""

    def __init__(self, services: TurnServices) -> None:
        self._services = services

    async def run_command(self, turn: Turn, command: ParsedCommand) -> MessageOutcome | None:
        """Run a command that waited in the session queue; return None if the model is to answer it."""
        services = self._services
        await services.load_conversation(turn)
        reply = await services.router.run(command, self._context(turn, command))
        if reply.begins is not None:
            turn.opening_call = reply.begins
            return None
        services.add_notes(turn)
        return await self._finish(
            turn,
            reply,
            ends=_ended_by_new(turn) if reply.new_transcript else (),
            new_transcript=new_transcript() if reply.new_transcript else "",
        )

    async def run_question(self, turn: Turn, scope: str) -> MessageOutcome:
        """Ask about the changes of *scope* that wait for approval here; say nothing if none is left to ask about."""
        services, staging = self._services, self._services.commands.staging
        await services.load_conversation(turn)
        # A session whose scope has changed (an account was unlinked) must not learn about the other scope.
        is_here = scope == turn.scope == turn.lease.session.scope
        pending = await staging.pending_changes(scope) if is_here else []
        # Changes that an earlier attempt of this very turn noted before a crash were not asked about.
        unasked = [each for each in pending if each.session == str(turn.key) and each.asked in ("", turn.id)]
        services.add_notes(turn)
        outbound: tuple[OutboundMessage, ...] = ()
        if unasked:
            text, buttons = question(unasked, turn.language, is_shared=turn.is_shared)
            await staging.note_asked(scope, [each.name for each in unasked], turn.id)
            turn.draft.add(build.notice(turn.id, append_commands(text, buttons), services.now()))
            outbound = build_reply(turn, text, OutboundKind.NOTICE, choices=buttons)
        return await services.finish(turn, MessageOutcome.ANSWERED, outbound)

    async def run_control(self, turn: Turn) -> None:
        """Run a control command, unless its sender may no longer write."""
        command = self._services.router.parse(turn.message)
        if not turn.is_admitted:
            reply = CommandReply(text=translate("commands.revoked", turn.language), is_private=True)
            await self._finish(turn, reply, MessageOutcome.REFUSED)
            return
        reply = CommandReply(text=translate("commands.button_gone", turn.language), is_private=True)
        if command is not None:
            reply = await self._services.router.run(command, self._context(turn, command))
        await self._finish(turn, reply)

    async def dead_letter_control(self, turn: Turn) -> None:
        """Commit a control command that failed as dead-lettered, and notify its sender."""
        reply = CommandReply(text=failure_line(BY_NAME["bug"], short_turn_id(turn.id), turn.language))
        await self._finish(turn, reply, MessageOutcome.DEAD, failure="bug")

    async def _finish(
        self,
        turn: Turn,
        reply: CommandReply,
        outcome: MessageOutcome = MessageOutcome.ANSWERED,
        *,
        failure: str = "",
        ends: tuple[str, ...] = (),
        new_transcript: str = "",
    ) -> MessageOutcome:
        """Commit *reply*, the result of a command, or what is said of one that was not run to its end."""
        if outcome is MessageOutcome.ANSWERED:
            audit = self._audit(turn, reply.audit, reply.outcome, reply.whom)
        else:
            audit = self.audit_unfinished(turn, outcome)
        turn.draft.add(self._command_line(turn, reply))
        return await self._services.finish(
            turn,
            outcome,
            _outbound(turn, reply),
            failure=failure,
            ends=(*reply.ends, *ends),
            jobs=reply.jobs,
            advances=reply.advances,
            audit=audit,
            new_transcript=new_transcript,
        )

    def audit_unfinished(self, turn: Turn, outcome: MessageOutcome) -> AuditEntry | None:
        """Return the audit line of a command that did not end by itself; None if it decides nothing.

        It may have taken effect before it was ended, so the line must not be missing.
        """
        command = self._services.router.parse(turn.message)
        label = self._services.router.audit_label(command, self._context(turn, command)) if command is not None else ""
        return self._audit(turn, label, outcome.value)

    def audit_questions(self, turn: Turn, questions: Sequence[ToolQuestion]) -> AuditEntry | None:
        """Return the audit line of the calls that *turn* asks about; None if none exist."""
        names = ", ".join(each.tool for each in questions)
        return self._audit(turn, f"tools ask {names}", "asked") if questions else None

    def _audit(self, turn: Turn, label: str, outcome: str, subject: str = "") -> AuditEntry | None:
        if not label:
            return None
        return AuditEntry(
            id=turn.id,
            at=self._services.now(),
            by=actor_of(turn.message),
            where=str(turn.key),
            what=label,
            whom=subject,
            outcome=outcome,
        )

    def _command_line(self, turn: Turn, reply: CommandReply) -> Line:
        # A private answer never joins a shared transcript.
        is_private = reply.is_private or turn.message.is_ephemeral
        is_hidden = reply.is_secret or (is_private and turn.is_shared)
        text = "" if is_hidden else append_commands(reply.transcript_reply or reply.text, reply.choices)
        fields = speaker_fields(turn.message) | {"seen": build.format_time(turn.row.accepted_at)}
        return build.command(turn.id, reply.transcript_text or turn.message.text, text, self._services.now(), **fields)

    def _context(self, turn: Turn, command: ParsedCommand) -> CommandContext:
        services = self._services
        return CommandContext(
            turn=turn,
            args=command.args,
            now=services.now(),
            services=services.commands,
            commands=services.router.commands,
        )


def _outbound(turn: Turn, reply: CommandReply) -> tuple[OutboundMessage, ...]:
    answer = build_reply(
        turn, reply.text, OutboundKind.NOTICE, reply.is_private, choices=reply.choices, settles=reply.settles
    )
    return (*answer, *reply.also)


def _ended_by_new(turn: Turn) -> tuple[str, ...]:
    """Return the prefixes of jobs that end with the transcript: its questions, and unread denials."""
    return (jobs_prefix(turn.key), denial_prefix(turn.key))


def new_transcript() -> str:
    """Return 16 random base32 characters."""
    return base64.b32encode(secrets.token_bytes(10)).decode("ascii").lower()


NOTHING = "NOTHING"  # the answer of a turn that has nothing to report
_LONGEST_IDLE = 80  # characters of a line that says nothing
_WORDS = re.compile(r"\w+")
_HEADING = re.compile(r"#|.*[:：]\W*$|\*\*[^*]+\*\*$")
# What models write behind the word. "Nothing is on your calendar" and "Nothing about Ann" are answers.
_IDLE_WORDS = frozenset(
    _WORDS.findall(
        "a add all any at attention be changed changes currently do due flag for found happened has have here i"
        " important in is it mention moment needed needs new news no note noteworthy now of or relevant report right"
        " say see send share so tell the there this time to today update updates urgent was worth yet you"
        " berichten heute melden neues zu comunicar hoy informar nuevo que reportar"
    )
)
_IDLE_WHEN_ALONE = _IDLE_WORDS | {"else", "further", "more", "weiter", "más"}  # at the end of a report, they close it
_MOST_LISTED = 20


class ReminderTurnRunner:
    """Runs fired reminders that need no model."""

    def __init__(self, services: TurnServices) -> None:
        self._services = services
        self._jobs = services.reminders.jobs

    async def run(self, turn: Turn) -> bool:
        """Commit the turn of a reminder without a model; return False if a model has to answer it.

        A reminder that was cancelled since it fired says nothing.
        """
        if not is_reminder(turn.message):
            return False
        command, (id_, _) = turn.message.command, fired_id(turn.message)
        jobs = await self._jobs.pending_in(turn.scope)
        is_cancelled = all(each.id != id_ for each in reminders_in(jobs))
        if command == DO and not is_cancelled:
            return False
        text, advances = turn.message.text, tuple[JobAdvance, ...]()
        if command == LATE:
            text, advances = await self._list_late(turn, jobs)
        await self._commit(turn, "" if is_cancelled else text, advances, has_buttons=command == SAY)
        return True

    async def _commit(self, turn: Turn, text: str, advances: tuple[JobAdvance, ...], *, has_buttons: bool) -> None:
        services, draft = self._services, turn.draft
        await services.load_conversation(turn)
        is_others = any(each.job.payload.get("origin") == UNTRUSTED for each in advances)
        draft.begins_tainted = turn.message.is_forwarded or is_others
        services.add_notes(turn)
        outbound: tuple[OutboundMessage, ...] = ()
        if text:
            draft.add(draft.message("assistant", text, services.now()))
            buttons = snooze_buttons(fired_id(turn.message)[0], turn.language) if has_buttons else ()
            links = () if draft.is_tainted else None
            outbound = build_reply(turn, text, OutboundKind.ANSWER, choices=buttons, links=links)
        if has_buttons and turn.is_shared:
            outbound = tuple(call_person(turn, each) for each in outbound)
        await services.finish(turn, MessageOutcome.ANSWERED, outbound, advances=advances)

    async def _list_late(self, turn: Turn, jobs: tuple[Job, ...]) -> tuple[str, tuple[JobAdvance, ...]]:
        """Return one text about the reminders of this chat that are over a day late, and their next slots."""
        now = self._services.now()
        lines: list[str] = []
        advances: list[JobAdvance] = []
        for job in jobs:
            for reminder in reminders_in([job]):
                latest = reminder.catch_up(now)
                is_late = (
                    reminder.is_waiting
                    and not reminder.is_erased
                    and reminder.key == turn.key
                    and now - latest.due > LISTED_AFTER
                )
                if not is_late or latest.catch_up(now) is not latest or not await self._may_be_listed(turn, latest):
                    continue
                lines.append(_late_line(latest, turn.language))
                following = latest.next()
                advances.append(JobAdvance(job, following.to_job(job.scope) if following is not None else None))
        if not lines:
            return "", ()
        shown = lines[:_MOST_LISTED]
        if len(lines) > len(shown):
            shown.append(f"- {translate('reminders.more', turn.language, count=len(lines) - len(shown))}")
        return "\n".join([f"⏰ {translate('reminders.late', turn.language)}", *shown]), tuple(advances)

    async def _may_be_listed(self, turn: Turn, reminder: Reminder) -> bool:
        """Return True if the person of *reminder* has access; other reminders are refused in their own turns."""
        if reminder.by == turn.message.sender.id:
            return True
        message = reminder.message(reminder.text, self._services.now(), LATE)
        row = InboxRow(seq=0, message=message, accepted_at=self._services.now())
        return await self._services.current_admission(row, self._services.context_of(message)) is not None


def _late_line(reminder: Reminder, language: str) -> str:
    missed = f" ({translate('reminders.missed_bare', language, count=reminder.missed)})" if reminder.missed else ""
    return f"- {format_moment(reminder.due, reminder.zone, language)}: {short(reminder.text)}{missed}"


def is_nothing(turn: Turn, answer: str) -> bool:
    """Return True if the turn of a reminder sends nothing: its *answer* is NOTHING, or begins or ends with it."""
    return is_reminder(turn.message) and is_silence(answer)


def is_silence(answer: str) -> bool:
    """Return True if the first or the last line of *answer* is the word NOTHING.

    Case, marks around it and a few idle words behind it ("to report") do not matter. A line that says more is an
    answer, and so is a last line in small letters below a heading: it is about what the heading names.
    """
    lines = [each for each in answer.splitlines() if _WORDS.search(each)]
    if not lines:
        return False
    if len(lines) == 1:
        return _is_idle(lines[0], _IDLE_WHEN_ALONE)
    is_under_heading = _HEADING.match(lines[-2].strip()) is not None and NOTHING not in lines[-1]
    return _is_idle(lines[0], _IDLE_WORDS) or (_is_idle(lines[-1], _IDLE_WORDS) and not is_under_heading)


def _is_idle(line: str, idle_words: frozenset[str]) -> bool:
    if len(line) > _LONGEST_IDLE:
        return False
    first, *rest = _WORDS.findall(unicodedata.normalize("NFKC", line).casefold().replace("_", " "))
    return first == NOTHING.casefold() and idle_words.issuperset(rest)


def failure_jobs(turn: Turn, at: datetime) -> tuple[Job, ...]:
    """Return the job of a reminder's turn that failed; none for other turns."""
    return _settle_jobs(turn, FAILED, at)


def revocation_jobs(turn: Turn, at: datetime) -> tuple[Job, ...]:
    """Return the job that pauses a reminder whose person lost access; none for other turns."""
    return _settle_jobs(turn, REVOKED, at)


def _settle_jobs(turn: Turn, why: str, at: datetime) -> tuple[Job, ...]:
    if not is_reminder(turn.message):
        return ()
    id_, slot = fired_id(turn.message)
    return (settle_job(id_, slot, why=why, scope=turn.scope, at=at),)
