"""/remember and /memory: store facts; show, explain and undo changes of what is remembered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime

from agent.commands import approvals
from agent.commands.command_context import CommandContext, CommandReply
from agent.commands.declaration import CommandNeed, command
from agent.commands.memory_lists import first_change, list_history, list_notes
from agent.memory.documents.version_store import (
    APPROVED,
    ARCHIVED,
    BY_HAND,
    CONSOLIDATION,
    IMPORTED,
    UNARCHIVED,
    DocumentVersion,
)
from agent.memory.dream.dream_service import FORGET, RESTORE
from agent.memory.dream.dream_state import DREAM
from agent.memory.jobs.chat_edits import EDIT_CAUSE
from agent.memory.jobs.memory_jobs import LONGEST_FACT, REMEMBER, remember_job
from agent.memory.scopes import SHARED
from agent.memory.versioning.memory_service import UNDO, LineOrigin, NoSuchVersion, UndoConflict
from gateway.events import Role
from gateway.i18n.formats import format_moment

_LONGEST_QUOTE = 200
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


@command("memory", control_words=approvals.WORDS, words={"undo": _UNDO, "approve": _DECIDE, "reject": _DECIDE})
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
    if isinstance(done, NoSuchVersion):
        return context.translate("memory.no_such_change", sha=sha[:40])
    if isinstance(done, UndoConflict):
        return context.translate("memory.overtaken")
    return context.translate("memory.undone")


async def _usage(context: CommandContext, _: str) -> str:
    return context.translate("memory.usage")


_CAUSES = {  # by the beginning of a version's cause; a longer one before its prefix
    BY_HAND: "memory.cause_hand",
    REMEMBER: "memory.cause_remember",
    EDIT_CAUSE: "memory.cause_edit",
    UNDO: "memory.cause_undo",
    CONSOLIDATION: "memory.cause_consolidation",
    RESTORE: "memory.cause_restore",
    DREAM: "memory.cause_dream",
    APPROVED: "memory.cause_approved",
    IMPORTED: "memory.cause_imported",
    ARCHIVED: "memory.cause_archived",
    UNARCHIVED: "memory.cause_unarchived",
    FORGET: "memory.cause_forget",
}
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
    "pending": approvals.pending,
    "approve": approvals.approve,
    "reject": approvals.reject,
}


def _change(context: CommandContext, version: DocumentVersion) -> str:
    """Return one line: the change's name, time and cause."""
    return f"`{version.short}` {_local(context, version.at)}: {_cause(context, version)}"


def _local(context: CommandContext, at: datetime) -> str:
    return format_moment(at, context.turn.zone, context.language)


def _cause(context: CommandContext, version: DocumentVersion) -> str:
    sentence = next((each for begins, each in _CAUSES.items() if version.why.startswith(begins)), "memory.cause_other")
    return context.translate(sentence, what=version.why.rpartition(" ")[2][:40])


def _origin(context: CommandContext, origin: LineOrigin) -> str:
    lines = [f"> {origin.line}", _change(context, origin.version)]
    if origin.message is not None:
        who = origin.message.name or context.translate("memory.somebody")
        lines.append(context.translate("memory.said", who=who, quote=_short(origin.message.text)))
    if origin.entry is not None:
        lines.append(context.translate("memory.summary", quote=_short(origin.entry.content)))
    return "\n".join(lines)


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _LONGEST_QUOTE else f"{flat[:_LONGEST_QUOTE]}…"
