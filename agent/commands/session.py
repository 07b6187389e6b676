"""Commands of a conversation: /start, /help, /new, /retry, /stop, /queue; and its state: /status, /usage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from agent.base.transcript_lines import FORGOTTEN
from agent.commands.command import CommandContext, CommandReply, command
from agent.commands.settings import has_model
from agent.memory.jobs.job_runner import JobKindStatus
from agent.memory.jobs.token_budget import MEMORY_PURPOSES, BudgetStatus
from agent.memory.prompt.due_jobs import PROMPT, SUMMARISE, UPDATE
from agent.memory.storage.messages import DISABLED_MEMORY_WINDOW
from agent.tools.offline_model import hint
from agent.turns.turn import RETRY_PREFIX, retried_turn
from gateway.events import UNKNOWN, InboundKind, Role
from gateway.i18n import command_prefix
from gateway.i18n.failures import describe_missing
from gateway.i18n.formats import format_moment, format_time_of_day, format_usage
from gateway.ports.access import CapAllowance, ToolAllowance
from gateway.ports.journal import Job

_LOOK_BACK = 50  # lines searched for what /retry repeats


@command("start", is_control=True)
async def start(context: CommandContext) -> CommandReply:
    """Greet: name, abilities, memory, three commands."""
    if not has_model(context):
        return CommandReply(text=f"{context.translate('offline.start')}\n\n{hint(context.language)}")
    return context.reply("commands.start")


@command("help", is_control=True)
async def help_(context: CommandContext) -> CommandReply:
    """List the commands that the sender may use here."""
    usable = [each for each in context.commands if each.is_for(context)]
    prefix = command_prefix(context.language)
    lines = [f"- `{prefix}{each.name}` {context.translate(each.help)}" for each in usable]
    return CommandReply(text="\n".join([context.translate("commands.help_title"), "", *lines]))


@command("new", who_in_groups=Role.ADMIN)
async def new(context: CommandContext) -> CommandReply:
    """Archive the transcript and start another. The summary is a durable job; a setting makes /new wait for it."""
    session = context.turn.lease.session
    window = context.turn.profile.memory_window
    if (context.services.memory_window if window is None else window) == DISABLED_MEMORY_WINDOW:
        return CommandReply(text=context.translate("commands.new"), new_transcript=True)
    job = Job(
        id=f"summarise:{session.transcript}",
        kind=UPDATE,
        scope=context.scope,
        payload={
            PROMPT: SUMMARISE,
            "key": str(context.key),
            "transcript": session.transcript,
            "turn": context.turn.id,
            "length": session.next_index,
        },
        due_at=context.now,
    )
    if session.next_index and not await context.services.archive(job):
        return context.reply("commands.new_failed")
    return CommandReply(text=context.translate("commands.new"), new_transcript=True, jobs=(job,))


@command("retry")
async def retry(context: CommandContext) -> CommandReply:
    """Enqueue the last message again, as a turn that supersedes its answer."""
    lines = await context.services.sessions.displayed_messages(context.key, limit=_LOOK_BACK)
    commands = {line.turn for line in lines if line.role == "command"}
    messages = [line for line in lines if line.role == "user" and line.turn not in commands]
    answered = [line for line in messages if line.state == "done" and line.text != FORGOTTEN]
    if not answered:
        return context.reply("commands.nothing_to_retry")
    turn = answered[-1].turn
    retried = [line for line in answered if line.turn == turn]
    text = "\n\n".join(line.typed for line in retried if line.typed)
    original = retried_turn(answered[-1].message_id) or turn
    again = replace(
        context.message,
        kind=InboundKind.JOB,
        # Named by the command's own row: a second /retry is a second turn, a redelivered one is not.
        message_id=f"{RETRY_PREFIX}{original}/{context.turn.row.seq}",
        event_ids=(),
        revision="",
        replaces=retried[0].message_id,
        text=text,
        quoted="",
        quoted_by=UNKNOWN,  # of quoted files, whoever sent them
        quoted_name="",
        quoted_files=tuple(each for line in retried for each in line.quoted_files),
        forwarded_from="",
        is_forwarded=any(line.is_others for line in retried),  # a retry does not make them the sender's words
        attachments=tuple(each for line in retried for each in line.attachments),  # from the stored bytes
    )
    is_enqueued = await context.services.queue.enqueue(again, context.turn.role)
    return context.reply("commands.retry" if is_enqueued else "commands.retry_full")


@command("usage", is_control=True)
async def usage(context: CommandContext) -> CommandReply:
    """Show the sender's own usage today and in the last 30 days, and what is left of each cap."""
    service = context.services.usage
    accounts = tuple(each.name for each in context.turn.accounts)
    today = await service.totals(since=day_start(context), accounts=accounts)
    month = await service.totals(since=context.now - timedelta(days=30), accounts=accounts)
    lines = [
        context.translate("commands.usage_today", **format_usage(today, context.language)),
        context.translate("commands.usage_month", **format_usage(month, context.language)),
        *await _memory_line(context),
        *(
            _allowance_line(context, each)
            for each in await service.caps.allowances(context.message, context.turn.capped_sender)
        ),
        *(_tool_line(context, each) for each in await service.caps.tool_allowances(context.turn.accounts) if each.used),
    ]
    return CommandReply(text="\n".join(lines), is_private=True)


async def _memory_line(context: CommandContext) -> list[str]:
    """Return the line about what the memory of this chat used in the last 30 days; none if it used nothing."""
    since = context.now - timedelta(days=30)
    rows = await context.services.usage.totals(since=since, chat=str(context.key))
    memory = [row for row in rows if row["purpose"] in MEMORY_PURPOSES]
    answers = sum(row["tokens_in"] + row["tokens_out"] for row in rows if row["purpose"] == "answer")
    if not memory:
        return []
    fields = format_usage(memory, context.language)
    percent = round(100 * fields["tokens"] / answers) if answers else 100
    return [context.translate("commands.usage_memory", **fields, percent=percent)]


def _allowance_line(context: CommandContext, allowance: CapAllowance) -> str:
    write = format_moment if allowance.cap.is_daily else format_time_of_day
    until = write(allowance.until, context.turn.zone, context.language) if allowance.until else ""
    cap, left = allowance.cap, max(allowance.limit - allowance.used, 0)
    word = f"{'left' if left else 'spent'}_{cap.word}"
    amounts = {"left": cap.format_amount(left), "limit": cap.format_amount(allowance.limit)}
    return context.translate(f"usage.{word}", **amounts, until=until)


def _tool_line(context: CommandContext, allowance: ToolAllowance) -> str:
    left = max(allowance.limit - allowance.used, 0)
    until = format_moment(allowance.until, context.turn.zone, context.language)
    return context.translate(f"usage.left_{allowance.kind}_calls", left=left, limit=allowance.limit, until=until)


def day_start(context: CommandContext) -> datetime:
    """Return the start of the day that caps and sums count, in the installation's time zone."""
    local = context.now.astimezone(ZoneInfo(context.services.usage.day_zone))
    return local.replace(hour=0, minute=0, second=0, microsecond=0)


@command("stop", others=Role.ADMIN, is_control=True)
async def stop(context: CommandContext) -> CommandReply:
    """Stop the turn and the queue, a member their own, an admin every sender's, and count the messages.

    At the top level of a chat with nothing to stop, stop the sender's own turns in its threads; the page's own Stop
    button leaves other conversations alone.
    """
    message, service = context.message, context.services.queue
    sender = "" if context.may_all else message.sender.id
    is_own_button = message.kind is InboundKind.BUTTON and not message.reply_to
    stopped, dropped = await service.stop(context.key, sender=sender, before=context.turn.row.seq)
    in_threads = False
    if not stopped and not dropped:
        running = service.turns.get(context.key)
        if running is not None and running.is_meant(sender, context.turn.row.seq):
            return context.reply("commands.already_answered")
        # The message that starts a thread was written at the top level.
        if context.key.thread in ("", message.message_id) and not is_own_button:
            stopped, dropped = await service.turns.stop_in_threads(
                context.key.parent, sender=message.sender.id, before=context.turn.row.seq
            )
            in_threads = True
    if not stopped and not dropped:
        return context.reply("commands.nothing_to_stop")
    if stopped and not dropped:
        # The stopped turn says so itself. A slash command or a platform's button must be answered all the same.
        is_silent = (bool(message.message_id) or is_own_button) and not in_threads
        return CommandReply(text="" if is_silent else context.translate("commands.stopped_turn"), is_private=in_threads)
    word = "commands.stopped" if stopped else "commands.stopped_queue"
    return CommandReply(text=context.translate(word, queued=dropped), is_private=in_threads)


@command("queue", is_control=True)
async def queue(context: CommandContext) -> CommandReply:
    """Count the messages that are being answered and those that wait."""
    rows = await context.services.queue.journal.waiting_rows(context.key)
    running = context.services.queue.turns.get(context.key)
    in_flight = {row.seq for row in running.lease.rows} if running else set()
    waiting = [row for row in rows if row.seq not in in_flight]
    if not in_flight and not waiting:
        return context.reply("commands.queue_empty")
    lines = [context.translate("commands.queue", running=len(in_flight), waiting=len(waiting))]
    if running and running.tool:
        lines.append(context.translate("commands.queue_doing", tool=running.tool))
    return CommandReply(text="\n".join(lines))


@command("status", is_control=True)
async def status(context: CommandContext) -> CommandReply:
    """Show model, uptime, running work and today's tokens."""
    facts = await context.services.status()
    spent = format_usage(
        await context.services.usage.totals(since=day_start(context), chat=str(context.key)), context.language
    )
    lines = [
        context.translate(
            "commands.status",
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
        *_profile_line(context),
        *_lacking(context),
        *_background(context, facts["jobs"], facts["background_budget"]),
        *([context.translate("commands.status_delayed", chats=delayed)] if (delayed := facts["delayed_chats"]) else []),
        *([] if has_model(context) else [hint(context.language)]),
        *([context.translate(facts["search_limitation"])] if facts.get("search_limitation") else []),
    ]
    return CommandReply(text="\n".join(lines))


def _profile_line(context: CommandContext) -> list[str]:
    """Return the line about the chat's profile; none if it has none."""
    name = context.turn.profile.name
    return [context.translate("commands.status_profile", profile=name)] if name else []


def _lacking(context: CommandContext) -> list[str]:
    """Return the line about abilities that the model lacks; none if it has all."""
    facts = context.turn.profile.model.own_facts()
    abilities = describe_missing(facts, language=context.language, zone=context.turn.zone)
    return [context.translate("commands.status_lacks", abilities=abilities)] if abilities else []


def _background(context: CommandContext, work: Sequence[JobKindStatus], budget: BudgetStatus | None) -> Iterator[str]:
    """Yield one line for all background jobs, and one for each kind that is not idle."""
    yield context.translate(
        "commands.status_work",
        running=sum(each.running for each in work),
        waiting=sum(each.waiting for each in work),
        done=sum(each.done for each in work),
    )
    for each in work:
        if not each.is_idle:
            last = context.now - each.last_run if each.last_run else None
            yield context.translate(
                "commands.status_kind",
                kind=each.kind,
                running=each.running,
                waiting=each.waiting,
                lag=_span(timedelta(seconds=each.lag_seconds)),
                failures=each.failures,
                last="-" if last is None else _span(last),
            )
    if budget is not None and budget.limit:
        word = "commands.status_budget_spent" if budget.is_spent else "commands.status_budget"
        yield context.translate(word, spent=budget.spent, limit=budget.limit)


def _span(span: timedelta) -> str:
    minutes = int(span.total_seconds()) // 60
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}d {hours}h {minutes}m" if days else f"{hours}h {minutes}m"
