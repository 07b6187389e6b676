"""/start, /help, /new, /retry: what begins, explains, begins again or repeats a conversation."""

from __future__ import annotations

from dataclasses import replace

from agent.commands.command_context import CommandContext, CommandReply
from agent.commands.declaration import command
from agent.commands.model import has_model
from agent.llm.offline_model import hint
from agent.memory.storage.transcript_lines import FORGOTTEN
from agent.turn import RETRY_PREFIX, retried_turn
from gateway.events import InboundKind, Role
from gateway.i18n import command_sign, translate
from gateway.ports import Job

_LOOK_BACK = 50  # lines searched for what /retry repeats


@command("start", is_control=True)
async def start(context: CommandContext) -> CommandReply:
    """Greet: name, what it can do here, what it remembers, three commands."""
    if not has_model(context):
        return CommandReply(text=f"{translate('offline.start', context.language)}\n\n{hint(context.language)}")
    return CommandReply(text=translate("commands.start", context.language))


@command("help", is_control=True)
async def help_(context: CommandContext) -> CommandReply:
    """List the commands that the sender may use here."""
    usable = [each for each in context.commands if each.is_for(context)]
    sign = command_sign(context.language)
    lines = [f"- `{sign}{each.name}` {translate(each.help, context.language)}" for each in usable]
    return CommandReply(text="\n".join([translate("commands.help_title", context.language), "", *lines]))


@command("new", who_in_groups=Role.ADMIN)
async def new(context: CommandContext) -> CommandReply:
    """Rename the transcript into the archive and begin a fresh one; the summary is a durable job, or waited for."""
    job = Job(
        id=f"summarise:{context.turn.lease.session.transcript}",
        kind="summarise",
        scope=context.scope,
        payload={
            "key": str(context.key),
            "transcript": context.turn.lease.session.transcript,
            "turn": context.turn.id,
            "length": context.turn.lease.session.next_index,
        },
        due_at=context.now,
    )
    if context.turn.lease.session.next_index and not await context.services.memory.archive(job):
        return CommandReply(text=translate("commands.new_failed", context.language))
    return CommandReply(text=translate("commands.new", context.language), new_transcript=True, jobs=(job,))


@command("retry")
async def retry(context: CommandContext) -> CommandReply:
    """Answer the last message again: a turn of its own, behind this one, that says what it supersedes."""
    lines = await context.services.memory.sessions.displayed_messages(context.key, limit=_LOOK_BACK)
    commands = {line.turn for line in lines if line.role == "command"}
    said = [line for line in lines if line.role == "user" and line.turn not in commands]
    asked = [line for line in said if line.state == "done" and line.text != FORGOTTEN]
    if not asked:
        return CommandReply(text=translate("commands.nothing_to_retry", context.language))
    turn = asked[-1].turn
    again_asked = [line for line in asked if line.turn == turn]
    text = "\n\n".join(line.typed for line in again_asked if line.typed)
    original = retried_turn(asked[-1].message_id) or turn
    again = replace(
        context.message,
        kind=InboundKind.JOB,
        # The command's own message names the try, so that a second /retry is a second turn and a redelivery is none.
        message_id=f"{RETRY_PREFIX}{original}/{context.turn.row.seq}",
        event_ids=(),
        revision="",
        text=text,
        quoted="",
        quoted_by="",
        is_forwarded=any(line.is_others for line in again_asked),  # words do not become one's own by asking twice
        attachments=tuple(each for line in again_asked for each in line.attachments),  # by their stored bytes
    )
    is_taken = await context.services.queue.enqueue(again, context.turn.role)
    return CommandReply(text=translate("commands.retry" if is_taken else "commands.retry_full", context.language))
