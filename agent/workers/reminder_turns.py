"""Turns of reminders that have fired: texts that no model writes, and what else a fired reminder's commit contains."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import replace
from datetime import datetime

from agent.base.file_facts import UNTRUSTED
from agent.memory.jobs.approval_questions import short
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
from agent.turns.turn import Turn
from agent.workers.turn_services import TurnServices, build_reply
from gateway.events import OutboundKind, OutboundMessage
from gateway.i18n import translate
from gateway.i18n.formats import format_moment
from gateway.ports.journal import InboxRow, Job, JobAdvance, MessageOutcome

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


def call_person(turn: Turn, message: OutboundMessage) -> OutboundMessage:
    """Return a message to a shared chat that mentions the turn's person, and no one else."""
    sender = turn.message.sender
    return replace(message, calls=sender.id, calls_name=sender.name)


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
