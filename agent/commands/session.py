"""/start, /help, /new, /retry: greet, explain, start a new transcript, answer again."""

from __future__ import annotations

from dataclasses import replace

from agent.base.transcript_lines import FORGOTTEN
from agent.commands.command import CommandContext, CommandReply, command
from agent.commands.model import has_model
from agent.memory.prompt.due_jobs import PROMPT, SUMMARISE, UPDATE
from agent.memory.storage.messages import DISABLED_MEMORY_WINDOW
from agent.tools.offline_model import hint
from agent.turns.turn import RETRY_PREFIX, retried_turn
from gateway.events import UNKNOWN, InboundKind, Role
from gateway.i18n import command_prefix
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
