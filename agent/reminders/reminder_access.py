"""The reminders that a turn may see, set and change: those of its chat, within the limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from agent.reminders.recurrence import (
    LEAST_MINUTES,
    LEAST_MINUTES_OF_TURNS,
    RecurrenceRule,
    parse_slot,
    slot_of,
    to_utc,
)
from agent.reminders.reminder import (
    DO,
    REMIND,
    SAY,
    UNTRUSTED,
    Reminder,
    is_reminder,
    local_words,
    reminder_id,
    reminders_in,
)
from gateway.errors import ToolFailed
from gateway.events import ChatKind, InboundMessage, PlatformAccount, Role, SessionKey
from gateway.ports.journal import Job

if TYPE_CHECKING:
    from gateway.store.jobs import SqlJobs

MOST_OF_PERSON = 50
MOST_OF_CHAT = 200
LONGEST_TEXT = 2_000  # characters
FURTHEST = timedelta(days=5 * 365)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReminderAccess:
    """Reads the reminders of a turn's chat, and builds and checks new ones. Errors are ToolFailed, for the model."""

    jobs: SqlJobs
    key: SessionKey
    message: InboundMessage  # the turn's first
    account: PlatformAccount  # the sender
    accounts: Sequence[PlatformAccount]  # all accounts of the sender's person
    role: Role
    scope: str
    zone: str  # IANA time zone of the scope
    now: Callable[[], datetime]
    taint: Callable[[], None] = lambda: None  # called when a reminder is read that was set from untrusted text
    # The jobs of the turn count towards the limits although they are not stored yet.
    staged_jobs: Callable[[], Iterable[Job]] = tuple

    async def read_all(self) -> list[Reminder]:
        """Return the reminders of this chat and its threads, the next one first, those that are over last."""
        found = reminders_in(await self.jobs.pending_in(self.scope))
        is_shared = self.message.chat_kind is ChatKind.GROUP
        here = [each for each in found if not is_shared or each.key.parent == self.key.parent]
        if any(each.origin == UNTRUSTED for each in here):
            self.taint()
        return sorted(here, key=lambda each: (each.is_fired, each.due))

    async def get(self, id_: str) -> list[Reminder]:
        """Return the rows of a reminder that the person may change: itself, and a snoozed one. Raises ToolFailed."""
        rows = [each for each in await self.read_all() if each.id == id_.strip().lower()]
        if not rows:
            raise ToolFailed(f"no reminder is called {id_[:40]!r}; `reminders` lists them")
        if not all(map(self.may_change, rows)):
            raise ToolFailed("only the person who set this reminder or an admin of this chat may change it")
        return rows

    def may_change(self, reminder: Reminder) -> bool:
        """Return True if the turn's person set the reminder, or is an admin of a shared chat."""
        return reminder.person in self._names or self.role.covers(Role.ADMIN)

    @property
    def moment(self) -> str:
        """The time now as errors name it: ``Sun 22 Nov 2026, 11:20 (Europe/Berlin)``."""
        return f"{local_words(self.now(), self.zone)} ({self.zone})"

    async def build(
        self, what: str, *, at: str, in_minutes: int, repeat: str, kind: str, call_key: str, is_tainted: bool
    ) -> Reminder:
        """Return a new reminder. Raises ToolFailed."""
        text = " ".join(what.split()) if kind == SAY else what.strip()
        if not text:
            raise ToolFailed("say what to remind of")
        if len(text) > LONGEST_TEXT:
            raise ToolFailed(f"a reminder has at most {LONGEST_TEXT} characters; this one has {len(text)}")
        if bool(at.strip()) == bool(in_minutes):
            raise ToolFailed(f"give either at (local time) or in_minutes; it is now {self.moment}")
        slot = self.slot_in(in_minutes) if in_minutes else self.slot_at(at)
        rule = self.rule(repeat, kind) if repeat.strip() else None
        found = rule.first_slot(slot, self.zone) if rule is not None else slot
        if found is None:
            raise ToolFailed("no date matches this rule")
        await self._check_limits()
        message = self.message
        return Reminder(
            id=reminder_id(call_key),
            key=self.key,
            by=message.sender.id,
            person=self.account.name,
            kind=kind,
            text=text,
            at=found,
            zone=self.zone,
            set_at=self.now(),
            source=call_key,
            chat_kind=message.chat_kind,
            is_private=message.is_private,
            repeat=rule.text if rule is not None else "",
            left=rule.count if rule is not None else None,
            origin=UNTRUSTED if is_tainted else "user",
            name=message.sender.name,
            team=message.sender.team,
            guild=message.guild,
            is_elapsed=bool(in_minutes) and rule is None,
        )

    def reschedule(self, reminder: Reminder, at: str) -> Reminder:
        """Return the reminder at another time; one that is over is set again. Raises ToolFailed."""
        self._require_person()
        slot = self.slot_at(at)
        current = replace(
            reminder, zone=self.zone, is_fired=False, is_snoozed=False, paused="", missed=0, is_elapsed=False
        )
        rule = current.rule
        found = rule.first_slot(slot, current.zone) if rule is not None else slot
        if found is None:
            raise ToolFailed("no date matches this rule")
        return replace(current, at=found)

    def snooze(self, reminder: Reminder, minutes: int) -> Reminder:
        """Return an extra slot of the reminder so many minutes from now. Raises ToolFailed."""
        self._require_person()
        return snooze_reminder(reminder, self.slot_in(minutes), self.zone)

    def rule(self, repeat: str, kind: str) -> RecurrenceRule:
        """Return the checked rule. Raises ToolFailed."""
        return RecurrenceRule.parse(repeat, least_minutes=LEAST_MINUTES_OF_TURNS if kind == DO else LEAST_MINUTES)

    def slot_in(self, minutes: int) -> str:
        """Return the slot so many minutes from now. Raises ToolFailed."""
        if not 1 <= minutes <= FURTHEST / timedelta(minutes=1):
            raise ToolFailed("the number of minutes must be at least 1, and at most five years")
        return slot_of(self.now().replace(microsecond=0) + timedelta(minutes=minutes), self.zone)

    def slot_at(self, at: str) -> str:
        """Return the slot of a local time. Raises ToolFailed for a wrong or past one."""
        zone = self.zone
        try:
            wall = parse_slot(at.strip())
            has_time = "T" in at.upper() or ":" in at
            local = wall if wall.tzinfo is None else wall.astimezone(ZoneInfo(zone))
            moment = to_utc(local, zone)
        except (ValueError, OverflowError) as error:
            raise ToolFailed(self._wrong_time()) from error
        if not has_time:
            raise ToolFailed(self._wrong_time())
        if moment <= self.now():
            raise ToolFailed(f"that is in the past: it is now {self.moment}")
        if moment - self.now() > FURTHEST:
            raise ToolFailed(f"that is more than five years ahead: it is now {self.moment}")
        if wall.tzinfo is not None:
            return slot_of(moment.replace(second=0, microsecond=0), zone)
        return wall.isoformat(timespec="minutes")

    @property
    def _names(self) -> set[str]:
        """Names of the accounts of the sender's person."""
        return {each.name for each in (self.account, *self.accounts)}

    def _wrong_time(self) -> str:
        return f"at is a local time such as 2026-11-23T09:00: it is now {self.moment}"

    def _require_person(self) -> None:
        """Raise ToolFailed in the turn of a reminder: it could start itself again and again. Cancelling is allowed."""
        if is_reminder(self.message):
            raise ToolFailed("not allowed here: a reminder moves no reminder; ask the person to write")

    async def _check_limits(self) -> None:
        staged = reminders_in(self.staged_jobs())
        moved = {each.id for each in staged}
        every = [each for each in reminders_in(await self.jobs.pending_of(REMIND)) if not each.is_fired]
        every = [*(each for each in every if each.id not in moved), *staged]
        if sum(each.person in self._names for each in every) >= MOST_OF_PERSON:
            raise ToolFailed(f"limit reached: {MOST_OF_PERSON} reminders")
        here = self.key.parent
        if sum(each.key.parent == here for each in every) >= MOST_OF_CHAT:
            raise ToolFailed(f"limit reached: {MOST_OF_CHAT} reminders in this chat")


def snooze_reminder(reminder: Reminder, slot: str, zone: str) -> Reminder:
    """Return an extra slot of *reminder*, which stays as it is."""
    return replace(
        reminder, at=slot, zone=zone, missed=0, is_snoozed=True, is_fired=False, paused="", left=None, is_elapsed=True
    )
