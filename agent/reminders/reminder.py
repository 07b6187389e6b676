"""A reminder: the job that it is stored as, the message that it fires as, and its next slot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from agent.base.transcript_lines import FORGOTTEN
from agent.reminders.recurrence import RecurrenceRule, parse_slot, to_utc
from gateway.events import ChatKind, InboundKind, InboundMessage, Sender, SessionKey, short_id
from gateway.i18n import translate
from gateway.i18n.formats import format_moment, format_time_of_day
from gateway.ports.journal import Job

REMIND = "remind"  # the kind of the jobs
MESSAGE_PREFIX = "job:remind/"  # of a message id; then the reminder's id and the slot
SAY, DO, LATE = (
    "say",
    "do",
    "late",
)  # how a due reminder runs: as text, as a turn, in the list of what is over a day late
MOST_FAILURES = 3  # turns in a row that fail before the reminder is paused
LATE_AFTER = timedelta(minutes=10)
LISTED_AFTER = timedelta(hours=24)
SNOOZABLE_FOR = timedelta(days=30)  # after the last slot
UNTRUSTED = "untrusted"
_NEVER = datetime(9000, 1, 1, tzinfo=UTC)  # when a paused reminder is due
_MOST_CAUGHT_UP = 500  # slots in one step; a long absence takes several


def reminder_id(call_key: str) -> str:
    """Return the id of the reminder that a tool call sets: the same after a restart."""
    return f"r{short_id(call_key, 8)}"


def job_prefix(reminder: str) -> str:
    """Return the prefix of the ids of all jobs of a reminder; `TurnCommit.ends` removes them by it."""
    return f"remind:{reminder}:"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReminderTarget:
    """Another direct chat of the same person, in which a reminder comes."""

    key: SessionKey
    by: str  # user id of the person there
    team: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reminder:
    """One reminder at its next slot."""

    id: str
    key: SessionKey  # the session it was set in
    by: str  # user id of the person who set it
    person: str  # their account, as a file name
    kind: str  # SAY or DO
    text: str
    at: str  # the slot: local wall time
    zone: str
    set_at: datetime  # or resumed
    source: str  # the tool call: "<turn>.<n>"
    chat_kind: ChatKind = ChatKind.DIRECT
    is_private: bool = False  # in a thread with a memory scope of its own
    repeat: str = ""  # the rule
    left: int | None = None  # slots to come, this one included; None = no limit
    origin: str = "user"  # or UNTRUSTED: the prompt was tainted when it was set
    missed: int = 0  # slots before this one that passed while the gateway was not running
    name: str = ""  # display name of the person
    team: str = ""
    guild: str = ""
    is_elapsed: bool = False  # set as "in n minutes": a change of the time zone does not concern it
    is_snoozed: bool = False  # an extra slot; the reminder itself stays as it is
    is_fired: bool = False  # over, and kept so that it can be snoozed
    paused: str = ""  # why: access, failed, silent
    recent: tuple[str, ...] = ()  # the last slots that fired
    failed: tuple[str, ...] = ()  # those whose turn failed
    target: ReminderTarget | None = None  # where it fires; None = where it was set

    @classmethod
    def from_job(cls, job: Job) -> Reminder:
        """Read a job's payload. Raises KeyError, TypeError or ValueError for any other payload."""
        row = job.payload
        others: dict[str, Any] = {field: str(row[name]) for name, field in _TEXTS.items()}
        others |= {name: row[name] for name in _OPTIONAL if name in row}
        return cls(
            key=SessionKey.parse(row["key"]),
            set_at=datetime.fromisoformat(row["set"]),
            chat_kind=ChatKind(row["chat_kind"]),
            is_private=bool(row["is_private"]),
            left=row["left"],
            missed=int(row["missed"]),
            recent=tuple(row.get("recent", ())),
            failed=tuple(row.get("failed", ())),
            target=_read_target(row.get("target")),
            **others,
        )

    def to_job(self, scope: str) -> Job:
        """Return the job that holds this reminder."""
        payload: dict[str, Any] = {
            "v": 1,
            "key": str(self.key),
            "chat_kind": self.chat_kind.value,
            "is_private": self.is_private,
            "left": self.left,
            "missed": self.missed,
            "set": self.set_at.isoformat(timespec="seconds"),
        }
        payload |= {name: getattr(self, field) for name, field in _TEXTS.items()}
        payload |= {name: value for name in _OPTIONAL if (value := getattr(self, name))}
        payload |= {name: list(value) for name in ("recent", "failed") if (value := getattr(self, name))}
        if (to := self.target) is not None:
            payload["target"] = {"key": str(to.key), "by": to.by, "team": to.team}
        return Job(id=f"{job_prefix(self.id)}{self._slot}", kind=REMIND, scope=scope, payload=payload, due_at=self._due)

    @property
    def _slot(self) -> str:
        if self.paused:
            return "paused"
        if self.is_fired:
            return "fired"
        return f"snooze:{self.at}" if self.is_snoozed else self.at

    @property
    def _due(self) -> datetime:
        if self.paused:
            return _NEVER
        return self.due + SNOOZABLE_FOR if self.is_fired else self.due

    @property
    def due(self) -> datetime:
        """The moment of the slot. The job may be due later: it was put off."""
        return to_utc(parse_slot(self.at), self.zone)

    @property
    def is_waiting(self) -> bool:
        """True if the slot is still to come: not over and not paused."""
        return not self.is_fired and not self.paused

    @property
    def is_erased(self) -> bool:
        """True if its text was forgotten."""
        return not self.text.strip() or self.text == FORGOTTEN

    @property
    def message_id(self) -> str:
        """The id of the message that it fires as, which makes that once."""
        return f"{MESSAGE_PREFIX}{self.id}/{self._slot}"

    @property
    def rule(self) -> RecurrenceRule | None:
        """The rule; None for a reminder without further slots."""
        if not self.repeat or self.is_snoozed or self.is_fired:
            return None
        return RecurrenceRule.parse(self.repeat, least_minutes=1)

    @property
    def follows_wall_clock(self) -> bool:
        """True if the slot is a time that a person named, so that it moves with their time zone."""
        rule = self.rule
        return self.is_waiting and not self.is_elapsed and not self.is_snoozed and (rule is None or not rule.is_elapsed)

    def next(self) -> Reminder | None:
        """Return the reminder at its next slot, or as one that is over; None if another job holds it."""
        rule = self.rule
        if rule is None:
            # The rule of a snoozed reminder has a job of its own.
            return None if self.is_snoozed and self.repeat else replace(self, is_fired=True, is_snoozed=False, missed=0)
        slot = rule.next_slot(self.at, self.zone)
        left = None if self.left is None else self.left - 1
        if slot is None or left == 0:
            return replace(self, is_fired=True, missed=0)
        return replace(self, at=slot, left=left, missed=0, recent=(*self.recent, self.at)[-MOST_FAILURES:])

    def catch_up(self, now: datetime) -> Reminder:
        """Return the reminder at the last slot that is due at *now*, with the number of those before it.

        Takes at most 500 slots at a time; call it again until nothing changes.
        """
        latest = self
        for _ in range(_MOST_CAUGHT_UP):
            following = latest.next()
            if following is None or not following.is_waiting or following.due > now:
                break
            is_same_moment = following.due == latest.due  # two wall times in a gap of the clock
            latest = replace(following, missed=latest.missed + (not is_same_moment), recent=self.recent)
        return latest

    def resume(self, now: datetime) -> Reminder | None:
        """Return a paused reminder at its first slot after *now*; None if it has none."""
        current = replace(self, paused="", failed=(), set_at=now, missed=0)
        while current.due <= now:
            caught = current.catch_up(now)
            following = caught.next()
            if following is None or not following.is_waiting:
                return None
            current = replace(following, missed=0)
        return current

    def message(self, text: str, now: datetime, command: str) -> InboundMessage:
        """Return the message that it fires as. *command* is SAY, DO or LATE."""
        message = InboundMessage(
            key=self.key,
            message_id=self.message_id,
            sender=Sender(id=self.by, name=self.name, team=self.team),
            text=text,
            sent_at=now,
            kind=InboundKind.JOB,
            command=command,
            chat_kind=self.chat_kind,
            is_addressed=True,
            guild=self.guild,
            is_private=self.is_private,
            is_forwarded=self.origin == UNTRUSTED,  # taints the turn that reads it
        )
        if (to := self.target) is None:
            return message
        sender = Sender(id=to.by, name=self.name, team=to.team)
        return replace(message, key=to.key, sender=sender, chat_kind=ChatKind.DIRECT, guild="", is_private=False)


# Names of texts in a job's payload, and the fields they are.
_TEXTS = {name: name for name in ("by", "person", "kind", "text", "at", "zone", "repeat", "origin")} | {
    "r": "id",
    "from": "source",
}
_OPTIONAL = ("name", "team", "guild", "is_elapsed", "is_snoozed", "is_fired", "paused")


def _read_target(row: Mapping[str, Any] | None) -> ReminderTarget | None:
    return None if row is None else ReminderTarget(key=SessionKey.parse(row["key"]), by=row["by"], team=row["team"])


def reminders_in(jobs: Iterable[Job]) -> list[Reminder]:
    """Return the reminders among *jobs*, without unreadable ones."""
    found = []
    for job in jobs:
        if job.kind == REMIND:
            try:
                found.append(Reminder.from_job(job))
            except (KeyError, TypeError, ValueError):
                continue
    return found


def is_reminder(message: InboundMessage) -> bool:
    """Return True if *message* is a reminder that has fired."""
    return message.kind is InboundKind.JOB and message.message_id.startswith(MESSAGE_PREFIX)


def fired_id(message: InboundMessage) -> tuple[str, str]:
    """Return the id and the slot of the reminder that fired as *message*."""
    id_, _, slot = message.message_id.removeprefix(MESSAGE_PREFIX).partition("/")
    return id_, slot


# -- words -----------------------------------------------------------------------------------------


def chat_titles(keys: Iterable[SessionKey]) -> dict[SessionKey, str]:
    """Return a name for each of a person's direct chats: the channel's, with the chat's id where two share it."""
    chats = list(dict.fromkeys(keys))
    channels = [each.channel for each in chats]
    titles: dict[SessionKey, str] = {}
    for each in chats:
        title = f"{each.channel[:1].upper()}{each.channel[1:]}"
        is_only = channels.count(each.channel) == 1
        titles[each] = title if is_only else f"{title} ({str(each).partition(':')[2]})"
    return titles


def say_text(reminder: Reminder, now: datetime, language: str) -> str:
    """Return ``⏰ stand-up``, with what is to be said if it is late or slots were missed."""
    return " ".join(["⏰", reminder.text, *_late_notes(reminder, now, language)])


def do_text(reminder: Reminder, now: datetime, language: str) -> str:
    """Return ``[reminder r7k2m4qa, set 22 Nov 2026] text`` for the model."""
    head = f"[reminder {reminder.id}, set {_date_words(reminder.set_at.astimezone(ZoneInfo(reminder.zone)))}]"
    return " ".join([head, reminder.text, *_late_notes(reminder, now, language)])


def when_words(reminder: Reminder, now: datetime) -> str:
    """Return ``Mon 23 Nov 2026, 09:00 Europe/Berlin, in 11 hours``, for the model to repeat."""
    return f"{slot_words(reminder)}, {_distance(reminder.due - now)}"


def slot_words(reminder: Reminder) -> str:
    """Return ``Mon 23 Nov 2026, 09:00 Europe/Berlin``."""
    return f"{local_words(reminder.due, reminder.zone)} {reminder.zone}"


def local_words(at: datetime, zone: str) -> str:
    """Return ``Mon 23 Nov 2026, 09:00``, in English whatever the machine's locale."""
    local = at.astimezone(ZoneInfo(zone))
    seconds = ":%S" if local.second else ""
    return f"{_WEEKDAYS[local.weekday()]} {_date_words(local)}, {local:%H:%M{seconds}}"


def _date_words(local: datetime) -> str:
    return f"{local.day} {_MONTHS[local.month - 1]} {local.year}"


_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def _distance(remaining: timedelta) -> str:
    """Return ``in 11 hours``: in the largest unit of which there are two, rounded."""
    minutes = round(remaining.total_seconds() / 60)
    if minutes < 1:
        return "in less than a minute" if remaining > timedelta(0) else "now"
    size, unit = next((each for each in _UNITS if minutes >= 2 * each[0] or minutes == each[0]), (1, "minute"))
    count = round(minutes / size)
    return f"in {count} {unit}{'s' if count != 1 else ''}"


_UNITS = ((1_440, "day"), (60, "hour"), (1, "minute"))


def _late_notes(reminder: Reminder, now: datetime, language: str) -> list[str]:
    notes = []
    if now - reminder.due > LATE_AFTER:
        notes.append(translate("reminders.was_due", language, at=_due_words(reminder, now, language)))
    if reminder.missed:
        notes.append(translate("reminders.missed", language, count=reminder.missed))
    return notes


def _due_words(reminder: Reminder, now: datetime, language: str) -> str:
    zone = ZoneInfo(reminder.zone)
    is_today = reminder.due.astimezone(zone).date() == now.astimezone(zone).date()
    write = format_time_of_day if is_today else format_moment
    return write(reminder.due, reminder.zone, language)
