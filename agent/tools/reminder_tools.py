"""Tools for reminders. The model converts words into local times; the answers name the resolved time."""

from __future__ import annotations

from typing import Annotated, Literal

from agent.reminders.reminder import Reminder, job_prefix, local_words, slot_words, when_words
from agent.tools.tool import AskRule, ToolContext, ToolKind, tool
from gateway.errors import ToolFailed
from gateway.text.message_text import one_line, safe_display_name

_ON_SEND = "once this answer is sent"
_LONGEST_SHOWN = 200
_MOST_SHOWN = 60


@tool(
    "Remind the person here at a time, once or repeatedly. Repeat the time that the result names. `say`: the text is"
    " sent as it is; `do`: you get it as a request then, with tools; the answer NOTHING sends nothing.",
    kind=ToolKind.KEEP,
    ask=AskRule.TAINTED,
    gives=["reminders"],
)
async def remind(
    context: ToolContext,
    what: Annotated[str, "the text, or the request"],
    at: Annotated[str, "local time, as 2026-11-23T09:00"] = "",
    in_minutes: Annotated[int, "instead of at"] = 0,
    repeat: Annotated[str, "RRULE, as FREQ=WEEKLY;INTERVAL=2;BYDAY=TU; first from `at`"] = "",
    kind: Literal["say", "do"] = "say",
) -> str:
    """Stage a reminder; it is set with the turn's commit. Raises ToolFailed."""
    reminder = await context.schedule.build(
        what,
        at=at,
        in_minutes=in_minutes,
        repeat=repeat,
        kind=kind,
        call_key=context.call_key,
        is_tainted=context.is_tainted,
    )
    context.stage_job(reminder.to_job(context.scope))
    following = reminder.next() if reminder.rule is not None else None
    then = f"; then {slot_words(following)}" if following is not None and following.is_waiting else ""
    return f"reminder {reminder.id} is set {_ON_SEND}: {when_words(reminder, context.now)}{then}"


@tool("List the reminders here.", kind=ToolKind.LOOK, gives=["reminders"])
async def reminders(context: ToolContext) -> str:
    """Return a line for each reminder of the chat."""
    found = await context.schedule.read_all()
    lines = [_line(each, context) for each in found[:_MOST_SHOWN]]
    if len(found) > len(lines):
        lines.append(f"and {len(found) - len(lines)} more")
    return "\n".join(lines) or "no reminders are set here"


@tool(
    "Move, snooze or cancel a reminder here. Repeat the time that the result names.",
    kind=ToolKind.KEEP,
    is_for_untyped=True,  # to cancel
    ask=AskRule.TAINTED,
    gives=["reminders"],
)
async def reminder_change(
    context: ToolContext,
    id: Annotated[str, "as `reminders` lists it"],  # noqa: A002 - what the model calls it
    at: Annotated[str, "new local time"] = "",
    snooze_minutes: int = 0,
    cancel: bool = False,
) -> str:
    """Stage the change; it is made with the turn's commit. Raises ToolFailed."""
    if (bool(at.strip()), bool(snooze_minutes), cancel).count(True) != 1:
        raise ToolFailed("give one of at, snooze_minutes and cancel")
    rows = await context.schedule.get(id)
    row = next((each for each in rows if not each.is_snoozed), rows[0])
    if cancel:
        context.end_jobs(job_prefix(row.id))
        return f"reminder {row.id} is cancelled {_ON_SEND}: {one_line(row.text, _LONGEST_SHOWN)}"
    if snooze_minutes:
        changed = context.schedule.snooze(row, snooze_minutes)
        context.end_jobs(f"{job_prefix(row.id)}snooze:")
    else:
        changed = context.schedule.reschedule(row, at)
        context.end_jobs(job_prefix(row.id))
    context.stage_job(changed.to_job(context.scope))
    return f"reminder {row.id} is moved {_ON_SEND}: {when_words(changed, context.now)}"


def _line(reminder: Reminder, context: ToolContext) -> str:
    if reminder.is_fired:
        when = f"was due {local_words(reminder.due, reminder.zone)}"
    elif reminder.paused:
        when = f"paused ({reminder.paused})"
    else:
        when = when_words(reminder, context.now)
    notes = [
        reminder.kind,
        *([reminder.repeat] if reminder.repeat else []),
        *(["snoozed"] if reminder.is_snoozed else []),
    ]
    notes += [f"of {name}"] if (name := safe_display_name(reminder.name)) else []
    return f"{reminder.id} {when} ({', '.join(notes)}): {one_line(reminder.text, _LONGEST_SHOWN)}"
