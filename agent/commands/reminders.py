"""/reminders and /quiet: the reminders of a chat with buttons, and the hours in which none starts a turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from agent.commands.command import ANY, CommandContext, CommandNeed, CommandReply, command
from agent.memory.jobs.approval_questions import short
from agent.reminders.recurrence import QUIET, QuietHours, slot_of
from agent.reminders.reminder import Reminder, ReminderTarget, chat_titles, job_prefix
from agent.reminders.reminder_access import ReminderAccess, snooze_reminder
from gateway.errors import ToolFailed
from gateway.events import ChatKind, InboundKind, MessageButton, Role
from gateway.i18n.formats import format_moment

_MOST_SHOWN = 20
_MOST_BUTTONS = 5
_MOST_CHATS = 10
_LONGEST_SNOOZE = 7 * 24 * 60  # minutes
_OFF_WORDS = frozenset({"off", "none", "default", "-"})
_WORDS = ("snooze", "tomorrow", "run", "stop", "resume", "move", "leave", "to")


@command("reminders", control_words=_WORDS)
async def reminders(context: CommandContext) -> CommandReply:
    """List the reminders of the chat with a button to stop each, or change one; buttons send the changes."""
    word, _, rest = context.args.partition(" ")
    if word.lower() == "leave":
        return CommandReply(text=context.translate("reminders.zone_left"), settles=True)
    if word.lower() == "move" and not rest:
        return await _move_zone(context)
    change = _CHANGES.get(word.lower())
    if change is None and word.lower() != "to":
        return await _list(context)
    id_, _, argument = rest.partition(" ")
    found = await _find(context, id_)
    if change is None:
        return found if isinstance(found, CommandReply) else await _send_to(context, found, argument.strip())
    return found if isinstance(found, CommandReply) else change(context, found, argument)


async def _list(context: CommandContext) -> CommandReply:
    found = [each for each in await reminder_access(context).read_all() if not each.is_fired]
    if not found:
        return context.reply("reminders.none")
    shown = found[:_MOST_SHOWN]
    lines = [f"{n}. {_line(context, each)}" for n, each in enumerate(shown, 1)]
    if len(found) > len(shown):
        lines.append(context.translate("reminders.more", count=len(found) - len(shown)))
    buttons = []
    for n, each in enumerate(shown[:_MOST_BUTTONS], 1):
        word = "resume" if each.paused else "stop"
        label = f"{context.translate(f'reminders.{word}')} ({n})"
        buttons.append(MessageButton(label, f"/reminders {word} {each.id}", (n - 1) // 3))
    return CommandReply(text="\n".join([context.translate("reminders.list"), "", *lines]), choices=tuple(buttons))


def _line(context: CommandContext, reminder: Reminder) -> str:
    notes = [f"`{reminder.repeat}`"] if reminder.repeat and not reminder.is_snoozed else []
    notes += [context.translate("reminders.as_turn")] if reminder.kind == "do" else []
    notes += [context.translate("reminders.is_paused")] if reminder.paused else []
    if (to := reminder.target) is not None:
        notes.append(short(chat_titles((reminder.key, to.key))[to.key]))
    notes += [short(reminder.name)] if reminder.name and context.turn.is_shared else []
    when = when_due(context, reminder)
    beside = f" ({', '.join(notes)})" if notes else ""
    return f"{when}: {short(reminder.text)}{beside} `{reminder.id}`"


def when_due(context: CommandContext, reminder: Reminder) -> str:
    """Return the time of the next slot, with its zone."""
    return f"{format_moment(reminder.due, reminder.zone, context.language)} {reminder.zone}"


def _snooze(context: CommandContext, reminder: Reminder, text: str) -> CommandReply:
    minutes = int(text) if text.isdecimal() and len(text) < 6 else 0
    if not 1 <= minutes <= _LONGEST_SNOOZE:
        return context.private_reply("reminders.usage")
    return _snooze_until(context, reminder, context.now.replace(microsecond=0) + timedelta(minutes=minutes))


def _tomorrow(context: CommandContext, reminder: Reminder, _: str) -> CommandReply:
    """Remind again tomorrow, at the time of day of the reminder."""
    zone = ZoneInfo(context.turn.zone)
    day = context.now.astimezone(zone).date() + timedelta(days=1)
    return _snooze_until(context, reminder, datetime.combine(day, reminder.due.astimezone(zone).time(), zone))


def _run(context: CommandContext, reminder: Reminder, _: str) -> CommandReply:
    """Fire a reminder at once, beside its next time; pressed twice within a second, once."""
    zone = context.turn.zone
    again = snooze_reminder(reminder, slot_of(context.now.replace(microsecond=0), zone), zone)
    text = context.translate("reminders.runs", what=short(reminder.text))
    return CommandReply(text=text, jobs=(again.to_job(context.scope),))


def _snooze_until(context: CommandContext, reminder: Reminder, at: datetime) -> CommandReply:
    again = snooze_reminder(reminder, slot_of(at, context.turn.zone), context.turn.zone)
    return CommandReply(
        text=context.translate("reminders.snoozed", what=short(reminder.text), when=when_due(context, again)),
        settles=True,
        ends=(f"{job_prefix(reminder.id)}snooze:",),
        jobs=(again.to_job(context.scope),),
    )


def _stop(context: CommandContext, reminder: Reminder, _: str) -> CommandReply:
    text = context.translate("reminders.stopped", what=short(reminder.text))
    return CommandReply(text=text, settles=True, ends=(job_prefix(reminder.id),))


def _move(context: CommandContext, reminder: Reminder, at: str) -> CommandReply:
    """Move a reminder to another local time; a rule continues from there."""
    try:
        moved = reminder_access(context).reschedule(reminder, at)
    except ToolFailed:  # its text is for a model
        return context.private_reply("reminders.move_when")
    return _replaced(context, "reminders.moved", moved)


def _resume(context: CommandContext, reminder: Reminder, _: str) -> CommandReply:
    resumed = reminder.resume(context.now)
    if resumed is None:
        return CommandReply(text=context.translate("reminders.over", what=short(reminder.text)), settles=True)
    return _replaced(context, "reminders.resumed", resumed)


def _replaced(context: CommandContext, sentence: str, reminder: Reminder) -> CommandReply:
    """Return the reply with which *reminder* replaces all jobs of its id."""
    return CommandReply(
        text=context.translate(sentence, what=short(reminder.text), when=when_due(context, reminder)),
        settles=True,
        ends=(job_prefix(reminder.id),),
        jobs=(reminder.to_job(context.scope),),
    )


async def _send_to(context: CommandContext, reminder: Reminder, name: str) -> CommandReply:
    """Have a reminder come in another direct chat of its person, or ask in which."""
    if context.turn.is_shared or reminder.chat_kind is not ChatKind.DIRECT:
        return context.private_reply("reminders.to_direct")
    what = short(reminder.text)
    chats = dict(await context.services.find_direct_chats(context.scope, context.turn.accounts))
    chosen = next((key for key in (reminder.key, *chats) if str(key) == name), None)
    if name and chosen is None:
        return context.private_reply("reminders.to_unknown")
    if chosen is None:
        offered = list(dict.fromkeys((reminder.key, *chats)))[:_MOST_CHATS]
        titles = chat_titles(offered)
        buttons = tuple(
            MessageButton(titles[each], f"/reminders to {reminder.id} {each}", place // 2)
            for place, each in enumerate(offered)
        )
        return CommandReply(text=context.translate("reminders.to_which", what=what), choices=buttons)
    target = None
    if chosen != reminder.key:
        account = chats[chosen]
        target = ReminderTarget(key=chosen, by=account.id, team=account.team)
    rows = [each for each in await reminder_access(context).read_all() if each.id == reminder.id]  # and one put off
    where = short(chat_titles((reminder.key, *chats))[chosen])
    return CommandReply(
        text=context.translate("reminders.to_done", what=what, where=where, when=when_due(context, reminder)),
        settles=True,
        ends=(job_prefix(reminder.id),),
        jobs=tuple(replace(each, target=target).to_job(context.scope) for each in rows),
    )


_CHANGES: Mapping[str, Callable[[CommandContext, Reminder, str], CommandReply]] = {
    "snooze": _snooze,
    "tomorrow": _tomorrow,
    "run": _run,
    "stop": _stop,
    "resume": _resume,
    "move": _move,
}


async def _find(context: CommandContext, id_: str) -> Reminder | CommandReply:
    """Return a reminder that the sender may change, or the reply that says why not."""
    access = reminder_access(context)
    rows = [each for each in await access.read_all() if each.id == id_.strip().lower()]
    if not rows:
        # It was stopped, or a month has passed: its button has no use left either.
        is_press = context.message.kind is InboundKind.BUTTON
        text = context.translate("reminders.gone" if is_press else "reminders.unknown")
        return CommandReply(text=text, is_private=True, settles=True)
    if not all(map(access.may_change, rows)):
        return context.private_reply("reminders.not_yours")
    return next((each for each in rows if not each.is_snoozed), rows[0])


async def _move_zone(context: CommandContext) -> CommandReply:
    """Move the reminders of the chat to its time zone; their local times stay."""
    zone, access = context.turn.zone, reminder_access(context)
    rows = [each for each in await _of_other_zones(context, zone) if access.may_change(each)]
    return CommandReply(
        text=context.translate("reminders.zone_moved", count=len(rows), zone=zone),
        settles=True,
        ends=tuple(job_prefix(each.id) for each in rows),
        jobs=tuple(replace(each, zone=zone).to_job(context.scope) for each in rows),
    )


async def _of_other_zones(context: CommandContext, zone: str) -> list[Reminder]:
    return [each for each in await reminder_access(context).read_all() if each.follows_wall_clock and each.zone != zone]


async def zone_question(context: CommandContext, zone: str) -> tuple[str, tuple[MessageButton, ...]]:
    """Return the question whether reminders move to the new time zone, with its buttons; "" without reminders."""
    count = len(await _of_other_zones(context, zone))
    if not count:
        return "", ()
    buttons = (
        MessageButton(context.translate("reminders.zone_move"), "/reminders move"),
        MessageButton(context.translate("reminders.zone_leave"), "/reminders leave"),
    )
    return context.translate("reminders.zone_question", count=count), buttons


@command("quiet", words={ANY: CommandNeed(shared=Role.ADMIN)})
async def quiet(context: CommandContext) -> CommandReply:
    """Show or set the hours in which no reminder starts a turn: ``/quiet 22:00-07:00``, ``/quiet off``."""
    preferences = context.services.preferences
    if not context.args:
        hours = QuietHours.of(preferences.preferences(context.scope))
        return context.reply("reminders.quiet_none") if hours is None else _quiet_reply(context, hours)
    if context.args.strip().lower() in _OFF_WORDS:
        await preferences.prefer(context.scope, QUIET, "")
        return context.reply("reminders.quiet_none")
    hours = QuietHours.parse(context.args)
    if hours is None:
        return context.reply("reminders.quiet_usage")
    await preferences.prefer(context.scope, QUIET, str(hours))
    return _quiet_reply(context, hours)


def _quiet_reply(context: CommandContext, hours: QuietHours) -> CommandReply:
    return context.reply("reminders.quiet", hours=str(hours), zone=context.turn.zone)


def reminder_access(context: CommandContext) -> ReminderAccess:
    """Return the reminders that a command may see and change."""
    return context.turn.bind_reminders(context.services.jobs, lambda: context.now)
