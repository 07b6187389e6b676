"""/tasks: the background tasks of a chat, with buttons that stop them."""

from __future__ import annotations

from agent.commands.command import CommandContext, CommandReply, command
from agent.memory.jobs.approval_questions import short
from agent.tasks.task import Task, job_prefix
from agent.tasks.task_jobs import state_words, stop_button
from gateway.events import InboundKind

_MOST_ENDED = 10  # that are listed
_MOST_BUTTONS = 5


@command("tasks", control_words=("stop",))
async def tasks(context: CommandContext) -> CommandReply:
    """List the tasks of the chat, or stop one by its id or number in the list."""
    word, _, rest = context.args.partition(" ")
    found = await context.turn.bind_tasks(context.services.tasks, lambda: context.now).read_all()
    open_ = [each for each in found if not each.state.is_over]
    if word.lower() == "stop":
        return _stop(context, open_, rest.strip().lower())
    if not found:
        return context.reply("tasks.none")
    shown = [*open_, *[each for each in found if each.state.is_over][:_MOST_ENDED]]
    lines = [f"{n}. {_line(context, each)}" for n, each in enumerate(shown, 1)]
    label = context.translate("tasks.stop")
    buttons = [stop_button(each, f"{label} ({n})", (n - 1) // 3) for n, each in enumerate(open_[:_MOST_BUTTONS], 1)]
    return CommandReply(text="\n".join([context.translate("tasks.list"), "", *lines]), choices=tuple(buttons))


def _line(context: CommandContext, task: Task) -> str:
    notes = [state_words(task, context.now, context.turn.zone, context.language)]
    notes += [short(task.name)] if task.name and context.turn.is_shared else []
    return f"{short(task.goal)} ({', '.join(notes)}) `{task.id}`"


def _stop(context: CommandContext, open_: list[Task], name: str) -> CommandReply:
    access = context.turn.bind_tasks(context.services.tasks, lambda: context.now)
    place = int(name) - 1 if name.isdecimal() and len(name) < 4 else -1
    task = open_[place] if 0 <= place < len(open_) else next((each for each in open_ if each.id == name), None)
    if task is None:
        # It has ended: its button has no use left either.
        is_press = context.message.kind is InboundKind.BUTTON
        text = context.translate("tasks.gone" if is_press else "tasks.unknown")
        return CommandReply(text=text, is_private=True, settles=True)
    if not access.may_stop(task):
        return context.private_reply("tasks.not_yours")
    context.services.interrupt_task(task.id)
    return CommandReply(
        text=context.translate("tasks.stopped", what=short(task.goal)),
        settles=True,
        ends=(job_prefix(task.id),),
        jobs=(task.stop(context.now).to_job(context.scope),),
    )
