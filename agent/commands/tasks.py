"""/tasks and /promises: the background tasks of a chat with buttons that stop them, and everything that is due."""

from __future__ import annotations

from agent.commands.command import CommandContext, CommandReply, command
from agent.commands.reminders import reminder_access, when_due
from agent.memory.jobs.approval_questions import short
from agent.reminders.reminder import Reminder
from agent.tasks.task import Task, job_prefix
from agent.tasks.task_jobs import state_words, stop_button
from gateway.events import InboundKind
from gateway.i18n.formats import format_moment
from gateway.store.inspection import Promise

_MOST_ENDED = 10  # that are listed
_MOST_BUTTONS = 5


@command("tasks", control_words=("stop",))
async def tasks(context: CommandContext) -> CommandReply:
    """List the tasks of the chat, or stop one by its id: places in the list shift while tasks end and begin."""
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
    task = next((each for each in open_ if each.id == name), None)
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


_MOST_DUE = 20


@command("promises", is_control=True)
async def promises(context: CommandContext) -> CommandReply:
    """List what the sender was promised and is due, and how the last promises in this chat ended."""
    services, key = context.services, context.key
    # A person's scope has their direct chats alone; one scope for all (memory.isolation: shared) has everybody's.
    sender = "" if context.scope and not context.turn.is_shared else context.message.sender.id
    journal = services.queue.journal
    due = await journal.due_promises(key, context.scope, sender=sender, limit=_MOST_DUE)
    lines = [_promise_line(context, each) for each in due]
    lines += [_reminder_line(context, each) for each in await _own_reminders(context)]
    lines += [_task_line(context, each) for each in await _own_tasks(context)]
    written = {each.message.turn for each in await services.queue.outbox.undelivered(key)} - {context.turn.id}
    if written and not sender:
        lines.append(context.translate("promises.undelivered", count=len(written)))
    text = [context.translate("promises.due"), "", *lines] if lines else [context.translate("promises.none")]
    ended = await journal.ended_promises(key, context.scope, sender=sender, limit=_MOST_ENDED)
    if ended:
        text += ["", context.translate("promises.ended"), "", *(_promise_line(context, each) for each in ended)]
    return CommandReply(text="\n".join(text), is_private=True)


async def _own_reminders(context: CommandContext) -> list[Reminder]:
    """Return the reminders of the sender that are still to come, paused ones included."""
    found = [each for each in await reminder_access(context).read_all() if not each.is_fired]
    names = {each.name for each in context.turn.accounts}
    return [each for each in found if each.person in names][:_MOST_DUE]


async def _own_tasks(context: CommandContext) -> list[Task]:
    """Return the tasks of the sender that have not ended."""
    access = context.turn.bind_tasks(context.services.tasks, lambda: context.now)
    return [each for each in await access.read_all() if access.is_own(each) and not each.state.is_over][:_MOST_DUE]


def _promise_line(context: CommandContext, promise: Promise) -> str:
    at = format_moment(promise.at, context.turn.zone, context.language)
    what = context.translate(f"promises.kind_{promise.kind}")
    where = f" ({short(str(promise.key))})" if promise.key != context.key else ""
    return f"- {at}: {what}, {context.translate(f'promises.state_{promise.state}')}{where}"


def _reminder_line(context: CommandContext, reminder: Reminder) -> str:
    what = context.translate("promises.kind_reminder")
    paused = f" ({context.translate('reminders.is_paused')})" if reminder.paused else ""
    return f"- {when_due(context, reminder)}: {what}, {short(reminder.text)}{paused}"


def _task_line(context: CommandContext, task: Task) -> str:
    state = state_words(task, context.now, context.turn.zone, context.language)
    return f"- {context.translate('promises.kind_task')}, {short(task.goal)}, {state}"
