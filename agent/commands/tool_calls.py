"""`/tools last`: the tool calls of the last turn, from its transcript."""

from __future__ import annotations

from agent.commands.command_context import CommandContext
from agent.memory.jobs.approval_questions import short
from agent.tools.call_record import CallOutcome, ToolCallRecord, call_records, sender_of
from gateway.i18n.formats import format_moment

_LOOK_BACK = 200  # turns


async def list_last_calls(context: CommandContext) -> str:
    """Return the calls of the chat's last turn; of the sender's own last turn unless the sender may read all."""
    turns = await context.services.memory.sessions.recent_turns(context.key, limit=_LOOK_BACK)
    for lines in reversed(turns):
        sender = sender_of(lines)
        if sender is not None and (context.may_all or sender[0] == context.message.sender.id):
            records = list(call_records(lines))
            break
    else:
        return context.translate("tools.last_nothing")
    if not records:
        return context.translate("tools.last_none")
    waiting = {question.id for question, _ in await context.services.approvals.pending(context.key)}
    zone = context.services.chats.locales.zone(context.scope)
    at = format_moment(records[0].at or context.now, zone, context.language)
    rows = [_row(context, each, is_waiting=each.question in waiting) for each in records]
    return "\n".join([context.translate("tools.last", at=at), "", *rows])


def _row(context: CommandContext, record: ToolCallRecord, *, is_waiting: bool) -> str:
    if record.outcome is CallOutcome.REFUSED:
        outcome = context.translate(f"tools.refused_{record.rule}")
    elif record.outcome is CallOutcome.ASKED:
        outcome = context.translate("tools.outcome_waiting" if is_waiting else "tools.outcome_asked")
    else:
        outcome = context.translate(f"tools.outcome_{record.outcome}")
    what = f"{short(record.tool)} {short(record.summary)}" if record.summary else short(record.tool)
    return f"{record.number}. {what}: {outcome} (`{record.reference}`)"
