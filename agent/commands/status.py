"""/stop, /queue, /status: what acts on the work, counts it, or says how it stands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

from agent.commands.command_context import CommandContext, CommandReply
from agent.commands.declaration import command
from agent.commands.model import has_model
from agent.commands.usage import day_start, usage_fields
from agent.llm.offline_model import hint
from agent.memory.jobs.job_runner import JobKindStatus
from agent.memory.jobs.token_budget import BudgetStatus
from gateway.events import Role
from gateway.i18n import translate


@command("stop", others=Role.ADMIN, is_control=True)
async def stop(context: CommandContext) -> CommandReply:
    """Stop the turn and the queue, and say how many; a member stops their own, an admin everybody's.

    At the top level of a chat that has nothing to stop, the sender's own turns in its threads are meant.
    """
    message = context.message
    whose = "" if context.may_all else message.sender.id
    stopped, dropped = await context.services.queue.stop(context.key, sender=whose)
    in_threads = False
    if not stopped and not dropped:
        running = context.services.queue.running(context.key)
        if running is not None and whose in ("", running.lease.rows[0].message.sender.id):
            return CommandReply(text=translate("commands.already_answered", context.language))
        # What begins a thread of its own was written at the top level.
        if context.key.thread in ("", message.message_id):
            stopped, dropped = await context.services.queue.stop_in_threads(
                context.key.parent, sender=message.sender.id
            )
            in_threads = True
    if not stopped and not dropped:
        return CommandReply(text=translate("commands.nothing_to_stop", context.language))
    if stopped and not dropped:
        # The turn itself ends with that line. A slash command or a button is no message, and needs an answer anyway.
        is_told = bool(message.message_id) and not in_threads
        return CommandReply(
            text="" if is_told else translate("commands.stopped_turn", context.language), is_private=in_threads
        )
    word = "commands.stopped" if stopped else "commands.stopped_queue"
    return CommandReply(text=translate(word, context.language, queued=dropped), is_private=in_threads)


@command("queue", is_control=True)
async def queue(context: CommandContext) -> CommandReply:
    """Say what is being answered and what waits."""
    rows = await context.services.queue.waiting_messages(context.key)
    running = context.services.queue.running(context.key)
    at_work = {row.seq for row in running.lease.rows} if running else set()
    waiting = [row for row in rows if row.seq not in at_work]
    if not at_work and not waiting:
        return CommandReply(text=translate("commands.queue_empty", context.language))
    lines = [translate("commands.queue", context.language, running=len(at_work), waiting=len(waiting))]
    if running and running.tool:
        lines.append(translate("commands.queue_doing", context.language, tool=running.tool))
    return CommandReply(text="\n".join(lines))


@command("status", is_control=True)
async def status(context: CommandContext) -> CommandReply:
    """Say how the house stands, in words: model, uptime, work, today's tokens."""
    facts = await context.services.status.status()
    delayed = facts.get("delayed_chats", 0)
    spent = usage_fields(
        await context.services.usage.totals(since=day_start(context), chat=str(context.key)), context.language
    )
    lines = [
        translate(
            "commands.status",
            context.language,
            version=facts["version"],
            model=context.turn.profile.model.name,
            uptime=_span(timedelta(seconds=facts["uptime_seconds"])),
            busy=facts["busy"],
            workers=facts["workers"],
            queued=facts["queued"],
            tokens=spent["tokens"],
            cost=spent["cost"],
            cached=spent["cached_percent"],
        ),
        *_background(context, facts["work"], facts["budget"]),
        *([translate("commands.status_delayed", context.language, chats=delayed)] if delayed else []),
        *([] if has_model(context) else [hint(context.language)]),
        *([translate("commands.status_by_words", context.language)] if facts.get("by_words_alone") else []),
    ]
    return CommandReply(text="\n".join(lines))


def _background(context: CommandContext, work: Sequence[JobKindStatus], budget: BudgetStatus | None) -> Iterator[str]:
    """Yield how the work beside the turns stands: a line in all, and one for each kind with something to tell."""
    yield translate(
        "commands.status_work",
        context.language,
        running=sum(each.running for each in work),
        waiting=sum(each.waiting for each in work),
        done=sum(each.done for each in work),
    )
    for each in work:
        if not each.is_idle:
            last = context.now - each.last_run if each.last_run else None
            yield translate(
                "commands.status_kind",
                context.language,
                kind=each.kind,
                running=each.running,
                waiting=each.waiting,
                lag=_span(timedelta(seconds=each.lag_seconds)),
                failures=each.failures,
                last="-" if last is None else _span(last),
            )
    if budget is not None and budget.limit:
        word = "commands.status_budget_spent" if budget.is_spent else "commands.status_budget"
        yield translate(word, context.language, spent=budget.spent, limit=budget.limit)


def _span(span: timedelta) -> str:
    minutes = int(span.total_seconds()) // 60
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}d {hours}h {minutes}m" if days else f"{hours}h {minutes}m"
