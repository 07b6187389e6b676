"""/remember and /memory: store facts; show, explain and undo changes of what is remembered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from agent.commands import approvals
from agent.commands.command import CommandContext, CommandNeed, CommandReply, command
from agent.commands.memory_lists import first_change, format_change, format_source, list_history, list_notes
from agent.memory.documents.version_store import DocumentVersion
from agent.memory.editing.document_edits import DocumentEdit
from agent.memory.editing.staged_changes import MEMORY
from agent.memory.editing.text_operations import ReplaceLines
from agent.memory.jobs.chat_edits import ChatEditRequest
from agent.memory.jobs.memory_jobs import LONGEST_FACT, remember_job
from agent.memory.scopes import SHARED
from agent.memory.versioning.memory_service import LineOrigin, UndoResult
from agent.turn_memory import may_edit_all
from gateway.errors import ToolFailed
from gateway.events import Role

_LONGEST_SHOWN = 6_000  # characters of memory that one answer shows


@command("remember")
async def remember(context: CommandContext) -> CommandReply:
    """Store a fact; it is known from the next turn on, and its version names the account."""
    fact = " ".join(context.args.split())
    if not fact:
        return context.private_reply("memory.remember_what")
    if len(fact) > LONGEST_FACT:
        return context.private_reply("memory.too_long", most=LONGEST_FACT)
    job = remember_job(
        fact, turn=context.turn.id, scope=context.scope, origin="user", by=context.account.name, at=context.now
    )
    return CommandReply(text=context.translate("memory.remembered"), jobs=(job,))


_UNDO = CommandNeed(shared=Role.ADMIN, single=Role.OWNER)
_DECIDE = CommandNeed(shared=Role.ADMIN, unless=approvals.is_about_own)


@command(
    "memory",
    control_words=approvals.WORDS,
    words={"undo": _UNDO, "correct": CommandNeed(single=Role.OWNER), "approve": _DECIDE, "reject": _DECIDE},
)
async def memory(context: CommandContext) -> CommandReply:
    """Show what is remembered here, the changes and the origin of a line, or undo a change."""
    word, _, rest = context.args.partition(" ")
    act = _ACTS.get(word.lower(), _usage)
    done = await act(context, rest.strip())
    return done if isinstance(done, CommandReply) else CommandReply(text=done, is_private=True)


async def _show(context: CommandContext, _: str) -> str:
    texts = await context.services.memory.documents.displayed_documents(context.scope)
    if not texts:
        return context.translate("memory.empty")
    both = "\n\n".join([context.translate("memory.title"), *texts.values()])
    if len(both) <= _LONGEST_SHOWN:
        return both
    return f"{both[:_LONGEST_SHOWN]}…\n\n{context.translate('memory.cut', length=len(both))}"


async def _show_shared(context: CommandContext, _: str) -> str:
    texts = await context.services.memory.documents.displayed_documents(SHARED)
    if not texts:
        return context.translate("account_links.nothing_shared")
    return "\n\n".join([context.translate("account_links.shared_title"), *texts.values()])[:_LONGEST_SHOWN]


async def _log(context: CommandContext, _: str) -> str:
    changes = await context.services.memory.documents.log(context.scope)
    if not changes:
        return context.translate("memory.no_changes")
    diffs = await context.services.memory.documents.diffs(context.scope, changes)
    lines = (_change(context, each) + _and(first_change(diff)) for each, diff in zip(changes, diffs, strict=True))
    return "\n".join(f"- {line}" for line in lines)


def _and(change: str) -> str:
    return f" · {change}" if change else ""


async def _diff(context: CommandContext, sha: str) -> str:
    version_and_diff = await context.services.memory.documents.diff(context.scope, sha)
    if version_and_diff is None:
        return context.translate("memory.no_such_change" if sha else "memory.no_changes", sha=sha[:40])
    version, diff = version_and_diff
    return f"{_change(context, version)}\n\n```diff\n{diff}\n```"


async def _why(context: CommandContext, text: str) -> str:
    if not text:
        return context.translate("memory.why_what")
    origins = await context.services.memory.documents.why(context.scope, text)
    if not origins:
        return context.translate("memory.no_such_line")
    return "\n\n".join(_origin(context, each) for each in origins)


async def _undo(context: CommandContext, sha: str) -> str:
    if not sha:
        return context.translate("memory.undo_what")
    done = await context.services.memory.documents.undo(context.scope, sha, by=context.account.name)
    if done is UndoResult.UNKNOWN:
        return context.translate("memory.no_such_change", sha=sha[:40])
    return context.translate("memory.undone" if done is UndoResult.DONE else "memory.overtaken")


async def _correct(context: CommandContext, rest: str) -> str:
    """Replace a remembered line: its words, then ``=>`` or a new line, then the new words."""
    old, _, new = (part.strip() for part in rest.partition("\n" if "\n" in rest else " => "))
    new = " ".join(new.split())
    if not old or not new:
        return context.translate("memory.correct_what")
    if len(new) > LONGEST_FACT:
        return context.translate("memory.too_long", most=LONGEST_FACT)
    request = ChatEditRequest(
        scope=context.scope,
        account=context.account.name,
        turn=context.turn.id,
        call="correct",
        may_all=may_edit_all(context.turn),
    )
    for name in (MEMORY, "USER.md"):
        try:
            await context.services.memory.editor.edit(request, [DocumentEdit(name, ReplaceLines(old, new))])
        except ToolFailed:  # the line is not there, or is not theirs to change; its text is for a model
            continue
        return context.translate("memory.corrected")
    return context.translate("memory.not_corrected")


async def _usage(context: CommandContext, _: str) -> str:
    return context.translate("memory.usage")


Act = Callable[[CommandContext, str], Awaitable[str | CommandReply]]
_ACTS: Mapping[str, Act] = {
    "": _show,
    "show": _show,
    "log": _log,
    "notes": list_notes,
    "history": list_history,
    "shared": _show_shared,
    "diff": _diff,
    "why": _why,
    "undo": _undo,
    "correct": _correct,
    "pending": approvals.pending,
    "approve": approvals.approve,
    "reject": approvals.reject,
}


def _change(context: CommandContext, version: DocumentVersion) -> str:
    return format_change(version, zone=context.turn.zone, language=context.language)


def _origin(context: CommandContext, origin: LineOrigin) -> str:
    turn = context.turn
    source = format_source(origin, zone=turn.zone, language=context.language, is_shared=turn.is_shared)
    return f"> {origin.line}\n{source}"
