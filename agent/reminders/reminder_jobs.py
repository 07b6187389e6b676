"""Jobs of reminders: accept what is due as a message of its person, then advance to the next slot.

Both steps are idempotent, and the second has no effect on a reminder that was cancelled: a kill at any point fires a
slot once, and a cancelled reminder does not come back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import structlog

from agent.memory.jobs.approval_questions import short
from agent.memory.jobs.job_runner import JobErasure, JobKind, JobPace, RetryJobLater, send_job_report
from agent.reminders.recurrence import QuietHours
from agent.reminders.reminder import (
    DO,
    LATE,
    LISTED_AFTER,
    MESSAGE_PREFIX,
    MOST_FAILURES,
    REMIND,
    Reminder,
    ReminderTarget,
    chat_titles,
    do_text,
    job_prefix,
    reminders_in,
    say_text,
)
from gateway.events import InboundMessage, MessageButton, Role, SessionKey, turn_id
from gateway.i18n import translate
from gateway.ports.journal import AcceptOutcome, Job, PartState
from gateway.ports.metrics import MetricsRecorder

if TYPE_CHECKING:
    from gateway.chat_locales import ChatLocales
    from gateway.store.inspection import ScheduledRun
    from gateway.store.jobs import SqlJobs
    from gateway.store.journal import SqlJournal
    from gateway.store.outbox import SqlOutbox
    from gateway.store.records import SqlPreferences, SqlTurnRecords


log = structlog.get_logger(__name__)

SETTLE = "remind-settle"  # the kind of jobs that note how a fired reminder ended
REMINDER_JOBS = JobKind(
    name=REMIND, pace=JobPace.QUICK, aliases=(SETTLE,), erasure=JobErasure.OWN, export="reminders.jsonl"
)
FAILED, REVOKED, SENT_ELSEWHERE = "failed", "access", "target"
SILENT_AFTER = timedelta(days=30)
_AT_ONCE = 4  # fired reminders that have not ended; others wait, so that messages of people are not held up
_PACE = timedelta(milliseconds=250)  # that a reminder waits for those before it, whose chats may be busy
_LIST_AGAIN = timedelta(minutes=10)
_WATCHED = timedelta(days=1)  # the longest time that the delivery to another chat is watched
_WATCHED_AGAIN = (timedelta(seconds=2), timedelta(minutes=10))  # the shortest and the longest time between two looks
_MOST_LISTS = 3


@dataclass(slots=True, kw_only=True)
class ReminderJobs:
    """Handlers of the jobs, and the number of fired reminders that are in flight."""

    jobs: SqlJobs
    journal: SqlJournal
    outbox: SqlOutbox
    records: SqlTurnRecords
    preferences: SqlPreferences
    locales: ChatLocales
    has_lost_access: Callable[[InboundMessage], bool]  # the sender of a job that they set
    scope_of: Callable[[InboundMessage], str]
    open_chat: Callable[[SessionKey], Awaitable[SessionKey]]  # in which people see what is sent to a session
    now: Callable[[], datetime]
    meter: MetricsRecorder
    _in_flight: set[str] = field(default_factory=set)  # turns
    _ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, job: Job) -> RetryJobLater | None:
        """Fire a reminder that is due, or note how one has ended."""
        return await (self.settle(job) if job.kind == SETTLE else self.fire(job))

    async def fire(self, job: Job) -> RetryJobLater | None:
        """Fire a reminder that is due, or put it off. Raises StoreUnavailable."""
        found, now = reminders_in([job]), self.now()
        if not found or found[0].is_erased:
            log.warning("reminder.dropped", job=job.id, is_readable=bool(found))
            return None
        reminder = found[0]
        if reminder.is_fired:
            return None  # it can no longer be snoozed
        if reminder.due > now:  # the clock went back
            return RetryJobLater(reminder.due - now, "not due yet", counts=False)
        latest = reminder.catch_up(now)
        if latest is not reminder:
            await self._replace(job, latest)
            return None
        return await self._fire_slot(job, reminder)

    async def _fire_slot(self, job: Job, reminder: Reminder) -> RetryJobLater | None:
        """Fire the slot of *reminder*, the last one that is due."""
        now = self.now()
        reminder = replace(reminder, key=await self.open_chat(reminder.key))
        if (to := reminder.target) is not None:
            reminder = replace(reminder, target=replace(to, key=await self.open_chat(to.key)))
            at_home = replace(reminder, target=None)
            if not self._is_admitted(reminder, job.scope):
                if self._is_admitted(at_home, job.scope):
                    return await self._drop_target(job, at_home, to)
                reminder = at_home  # whose turn is refused
        if now - reminder.due > LISTED_AFTER:
            return await self._list(job, reminder)
        if reminder.kind == DO and (later := await self._hold_back(job, reminder)) is not None:
            return later
        if reminder.kind == DO and await self._is_silent(reminder):
            await self._pause(job, reminder, "silent")
            return None
        await self._pace()
        message = reminder.message("", now, reminder.kind)
        write = do_text if reminder.kind == DO else say_text
        message = replace(message, text=write(reminder, now, self.locales.language(message.key)))
        if reminder.target is not None:  # before it is sent: a kill between the two costs a look that finds nothing
            await self.jobs.put(_watch_job(reminder, turn_id(message), scope=job.scope, at=now))
        accepted = await self.journal.accept(message, role=Role.MEMBER, is_control=False)
        if accepted.outcome is AcceptOutcome.NEW:
            self._in_flight.add(turn_id(message))
            self.meter.count("reminders", state="fired")
            log.info("reminder.fired", reminder=reminder.id, kind=reminder.kind, missed=reminder.missed)
        await self._replace(job, reminder.next())
        return None

    async def runs(self, reminder: Reminder, *, limit: int) -> Sequence[ScheduledRun]:
        """Return the runs of *reminder* in the last 30 days, the newest first."""
        keys = {reminder.key, *([] if reminder.target is None else [reminder.target.key])}
        keys |= {await self.open_chat(each) for each in keys}
        return await self.journal.scheduled_runs(keys, f"{MESSAGE_PREFIX}{reminder.id}/", limit=limit)

    def note_end(self, turn: str) -> None:
        """Note that a turn has ended; only those of fired reminders count."""
        if turn in self._in_flight:
            self._in_flight.discard(turn)
            self._ended.set()

    async def settle(self, job: Job) -> RetryJobLater | None:
        """Note that a fired reminder's turn failed, or that its person lost access: it may be paused.

        If it was sent to another chat, check that it arrived.
        """
        if job.payload["why"] == SENT_ELSEWHERE:
            return await self._check_delivery(job)
        why, slot = str(job.payload["why"]), str(job.payload["slot"])
        for each in await self.jobs.pending_in(job.scope):
            found = [one for one in reminders_in([each]) if one.id == job.payload["r"] and one.is_waiting]
            if not found or (found[0].is_snoozed and why == FAILED):
                continue
            reminder = found[0]
            if why == REVOKED:
                await self._replace(each, replace(reminder, paused=REVOKED))
                continue
            failed = (*(one for one in reminder.failed if one != slot), slot)[-MOST_FAILURES:]
            if len(reminder.recent) == MOST_FAILURES and set(reminder.recent) <= set(failed):
                await self._pause(each, reminder, FAILED)
            else:
                await self._replace(each, replace(reminder, failed=failed))
        return None

    async def _replace(self, job: Job, following: Reminder | None) -> None:
        next_ = following.to_job(job.scope) if following is not None else None
        await self.jobs.advance(job, next_)

    async def _hold_back(self, job: Job, reminder: Reminder) -> RetryJobLater | None:
        """Put a turn off to the end of the quiet hours; of the slots in them only the last one runs."""
        quiet, now = QuietHours.of(self.preferences.preferences(job.scope)), self.now()
        end = quiet.end_after(now, self.locales.zone(job.scope)) if quiet is not None else None
        if end is None:
            return None
        following = reminder.next()
        if following is not None and following.is_waiting and following.due <= end:
            await self._replace(job, following)
        return RetryJobLater(end - now, "quiet hours", counts=False)

    async def _is_silent(self, reminder: Reminder) -> bool:
        """Return True if no user has written in the chat for 30 days and its person still has access."""
        since = self.now() - SILENT_AFTER
        if reminder.set_at > since:
            return False
        message = reminder.message("", self.now(), reminder.kind)
        for key in {reminder.key, message.key}:
            heard = await self.journal.last_message_at(key)
            if heard is not None and heard >= since:
                return False
        return not self.has_lost_access(message)

    def _is_admitted(self, reminder: Reminder, scope: str) -> bool:
        """Return True if the chat in which *reminder* comes is its person's, and they have access there."""
        message = reminder.message("", self.now(), reminder.kind)
        return self.scope_of(message) == scope and not self.has_lost_access(message)

    async def _drop_target(self, job: Job, reminder: Reminder, target: ReminderTarget) -> RetryJobLater:
        """Say in the chat where *reminder* was set that it comes there from now on, and have it come."""
        await self._say_at_home(job, "reminders.target_gone", reminder, target.key)
        log.info("reminder.target_gone", reminder=reminder.id, channel=target.key.channel)
        await self._replace(job, reminder)  # the job keeps its id
        return RetryJobLater(timedelta(0), "its target is gone", counts=False)

    async def _check_delivery(self, job: Job) -> RetryJobLater | None:
        """Have a reminder come where it was set, and say so there, if it could not be delivered in another chat.

        As where its person has blocked the bot. Without this the chat would stay silent, and the person would not know.
        """
        turn, now, to = str(job.payload["turn"]), self.now(), SessionKey.parse(job.payload["to"])
        pending = await self.jobs.pending_in(job.scope)
        rows = [(each, one) for each in pending for one in reminders_in([each]) if one.id == job.payload["r"]]
        rows = [(each, one) for each, one in rows if one.target is not None and one.target.key == to]
        if not rows:  # stopped, or sent elsewhere since
            return None
        messages = await self.outbox.messages_of(turn)
        states = [row.state for message in messages for row in message.parts]
        if PartState.DEAD in states:
            home = rows[0][1]
            await self._say_at_home(
                job, "reminders.target_refused", home, to, choices=snooze_buttons(home.id, self._language(home))
            )
            log.info("reminder.target_refused", reminder=home.id, channel=to.channel)
            for each, reminder in rows:
                await self._replace(each, replace(reminder, target=None))
            return None
        is_sent = bool(states) and {*states} <= {PartState.SENT, PartState.CANCELLED}
        age = now - datetime.fromisoformat(job.payload["at"])
        if (is_sent and all(message.parts for message in messages)) or age > _WATCHED:
            return None
        runs = [] if messages else [each for each in await self.runs(rows[0][1], limit=5) if each.turn == turn]
        if any(each.state not in ("waiting", "running") for each in runs):
            return None  # ended without a message: nothing to report, or refused
        least, most = _WATCHED_AGAIN
        return RetryJobLater(min(max(age / 4, least), most), "it is being delivered", counts=False)

    async def _say_at_home(
        self, job: Job, sentence: str, reminder: Reminder, to: SessionKey, *, choices: Sequence[MessageButton] = ()
    ) -> None:
        """Send *sentence* about the chat *to* to the chat where *reminder* was set, once for a job."""
        where = short(chat_titles((reminder.key, to))[to])
        await send_job_report(
            self.records,
            replace(job, id=f"{job.id}:target"),
            await self.journal.session(reminder.key),
            translate(sentence, self._language(reminder), what=short(reminder.text), where=where),
            at=self.now(),
            choices=choices,
        )

    def _language(self, reminder: Reminder) -> str:
        return self.locales.language(reminder.key)

    async def _pause(self, job: Job, reminder: Reminder, why: str) -> None:
        """Pause a reminder, and say so in its chat with a button that resumes it."""
        language = self.locales.language(reminder.key)
        key = "reminders.paused_failed" if why == FAILED else "reminders.paused_silent"
        await send_job_report(
            self.records,
            replace(job, id=f"{job.id}:{why}"),
            await self.journal.session(reminder.key),
            translate(key, language, what=short(reminder.text)),
            at=self.now(),
            chat_kind=reminder.chat_kind,
            choices=(
                MessageButton(translate("reminders.resume", language), f"/reminders resume {reminder.id}"),
                MessageButton(translate("reminders.stop", language), f"/reminders stop {reminder.id}"),
            ),
        )
        self.meter.count("reminders", state="paused")
        log.info("reminder.paused", reminder=reminder.id, reason=why)
        await self._replace(job, replace(reminder, paused=why))

    async def _list(self, job: Job, reminder: Reminder) -> RetryJobLater | None:
        """Have the reminder listed with the others of its chat that are over a day late; the turn advances them."""
        if str(reminder.key) != job.payload["key"]:  # the turn that lists it finds it by its chat; the job keeps its id
            await self._replace(job, reminder)
            return RetryJobLater(timedelta(0), "its conversation was deleted", counts=False)
        message = replace(reminder, target=None).message(reminder.text, self.now(), LATE)
        accepted = await self.journal.accept(message, role=Role.MEMBER, is_control=False)
        if accepted.outcome is AcceptOutcome.NEW:
            self._in_flight.add(turn_id(message))
            self.meter.count("reminders", state="late")
            return RetryJobLater(_LIST_AGAIN, "it is listed with the late ones of its chat", counts=False)
        if job.attempts < _MOST_LISTS:
            return RetryJobLater(_LIST_AGAIN, "its list has not been sent yet")
        await self._replace(job, reminder.next())  # the turn ended without it: stopped, or dead-lettered
        return None

    async def _pace(self) -> None:
        """Return when few fired reminders are in flight, or after a moment."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_PACE.total_seconds()):
                while len(self._in_flight) >= _AT_ONCE:
                    self._ended.clear()
                    await self._ended.wait()
        if len(self._in_flight) > 100 * _AT_ONCE:  # turns that ended in a way that nobody noted
            self._in_flight.clear()


def settle_job(reminder: str, slot: str, *, why: str, scope: str, at: datetime) -> Job:
    """Return the job that notes how the turn of a fired reminder ended."""
    payload = {"r": reminder, "slot": slot, "why": why}
    return Job(id=f"{job_prefix(reminder)}settle:{slot}", kind=SETTLE, scope=scope, payload=payload, due_at=at)


def _watch_job(reminder: Reminder, turn: str, *, scope: str, at: datetime) -> Job:
    """Return the job that checks whether *turn*, with which *reminder* fires in its target, could be delivered."""
    to = reminder.target.key if reminder.target is not None else reminder.key
    payload = {"r": reminder.id, "why": SENT_ELSEWHERE, "turn": turn, "to": str(to), "at": at.isoformat()}
    due_at = at + _WATCHED_AGAIN[0]
    return Job(id=f"{job_prefix(reminder.id)}target:{turn}", kind=SETTLE, scope=scope, payload=payload, due_at=due_at)


def snooze_buttons(reminder: str, language: str) -> tuple[MessageButton, ...]:
    """Return the buttons below a reminder: 10 min, 1 h, tomorrow, stop."""
    commands = (
        ("snooze_10", f"/reminders snooze {reminder} 10"),
        ("snooze_60", f"/reminders snooze {reminder} 60"),
        ("tomorrow", f"/reminders tomorrow {reminder}"),
        ("stop", f"/reminders stop {reminder}"),
    )
    return tuple(MessageButton(translate(f"reminders.{name}", language), command) for name, command in commands)
