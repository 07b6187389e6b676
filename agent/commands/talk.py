"""/start, /help, /new, /retry: what begins, explains, begins again or repeats a conversation."""

from __future__ import annotations

from dataclasses import replace

from agent.commands.port import CommandContext, Reply, command
from gateway.events import InboundKind
from gateway.ports import Job
from gateway.words import say

_LOOK_BACK = 50  # lines searched for what /retry repeats


@command("start", is_control=True)
async def start(context: CommandContext) -> Reply:
    """Greet: name, what it can do here, what it remembers, three commands."""
    return Reply(text=say("commands.start", context.language))


@command("help", is_control=True)
async def help_(context: CommandContext) -> Reply:
    """List the commands that the sender may use here."""
    usable = [each for each in context.commands if context.role.covers(each.who)]
    lines = [f"- `/{each.name}` {say(each.help, context.language)}" for each in usable]
    return Reply(text="\n".join([say("commands.help_title", context.language), "", *lines]))


@command("new")
async def new(context: CommandContext) -> Reply:
    """Rename the transcript into the archive and begin a fresh one; the summary is a durable job."""
    job = Job(
        id=f"summarise:{context.transcript}",
        kind="summarise",
        scope=context.scope,
        payload={"key": str(context.key), "transcript": context.transcript, "turn": context.turn},
        due_at=context.now,
    )
    return Reply(text=say("commands.new", context.language), new_transcript=True, jobs=(job,))


@command("retry")
async def retry(context: CommandContext) -> Reply:
    """Answer the last message again: a turn of its own, behind this one, that says what it supersedes."""
    lines = await context.house.shown(context.key, limit=_LOOK_BACK)
    asked = [line for line in lines if line.role == "user" and line.state == "done"]
    if not asked:
        return Reply(text=say("commands.nothing_to_retry", context.language))
    turn = asked[-1].turn
    text = "\n\n".join(line.text for line in asked if line.turn == turn)
    original = turn
    if asked[-1].message_id.startswith("job:retry/"):
        original = asked[-1].message_id.removeprefix("job:retry/").split("/")[0]
    again = replace(
        context.row.message,
        kind=InboundKind.JOB,
        # The command's own message names the try, so that a second /retry is a second turn and a redelivery is none.
        message_id=f"job:retry/{original}/{context.row.seq}",
        event_ids=(),
        revision="",
        text=text,
        attachments=(),
    )
    await context.house.accept(again, context.role)
    return Reply(text=say("commands.retry", context.language))
