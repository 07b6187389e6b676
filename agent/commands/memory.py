"""/remember and /memory: having something kept, and arguing with what is kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime

from agent.commands import approvals
from agent.commands.command_context import CommandContext, CommandReply
from agent.commands.declaration import CommandNeed, command
from agent.memory.documents.version_store import APPROVED, BY_HAND, CONSOLIDATION, IMPORTED, DocumentVersion
from agent.memory.dream.dream_service import FORGET, RESTORE
from agent.memory.dream.dream_state import DREAM
from agent.memory.jobs.memory_jobs import LONGEST_FACT, REMEMBER, remember_job
from agent.memory.scopes import SHARED
from agent.memory.versioning.memory_service import UNDO, LineOrigin, NoSuchVersion, UndoConflict
from gateway.events import Role
from gateway.i18n import translate
from gateway.i18n.formats import format_moment

_LONGEST_QUOTE = 200
_LONGEST_SHOWN = 6_000  # characters of memory that one answer shows


@command("remember")
async def remember(context: CommandContext) -> CommandReply:
    """Keep a fact; it is known from the next turn on, and the version says who wanted it."""
    fact = " ".join(context.args.split())
    if not fact:
        return CommandReply(text=translate("memory.remember_what", context.language), is_private=True)
    if len(fact) > LONGEST_FACT:
        return CommandReply(text=translate("memory.too_long", context.language, most=LONGEST_FACT), is_private=True)
    job = remember_job(
        fact, turn=context.turn.id, scope=context.scope, origin="user", by=context.account, at=context.now
    )
    return CommandReply(text=translate("memory.remembered", context.language), jobs=(job,))


_UNDO = CommandNeed(shared=Role.ADMIN, single=Role.OWNER)
_DECIDE = CommandNeed(shared=Role.ADMIN, unless=approvals.is_about_own)


@command("memory", control_words=approvals.WORDS, words={"undo": _UNDO, "approve": _DECIDE, "reject": _DECIDE})
async def memory(context: CommandContext) -> CommandReply:
    """Show what is remembered here; or where a line came from, what changed, and take a change back."""
    word, _, rest = context.args.partition(" ")
    act = _ACTS.get(word.lower(), _usage)
    done = await act(context, rest.strip())
    return done if isinstance(done, CommandReply) else CommandReply(text=done, is_private=True)


async def _show(context: CommandContext, _: str) -> str:
    texts = await context.services.memory.documents.displayed_documents(context.scope)
    if not texts:
        return translate("memory.empty", context.language)
    both = "\n\n".join([translate("memory.title", context.language), *texts.values()])
    if len(both) <= _LONGEST_SHOWN:
        return both
    return f"{both[:_LONGEST_SHOWN]}…\n\n{translate('memory.cut', context.language, length=len(both))}"


async def _shared(context: CommandContext, _: str) -> str:
    texts = await context.services.memory.documents.displayed_documents(SHARED)
    if not texts:
        return translate("account_links.nothing_shared", context.language)
    return "\n\n".join([translate("account_links.shared_title", context.language), *texts.values()])[:_LONGEST_SHOWN]


async def _log(context: CommandContext, _: str) -> str:
    changes = await context.services.memory.documents.log(context.scope)
    if not changes:
        return translate("memory.no_changes", context.language)
    return "\n".join(f"- {_change(context, each)}" for each in changes)


async def _diff(context: CommandContext, sha: str) -> str:
    found = await context.services.memory.documents.diff(context.scope, sha)
    if found is None:
        return translate("memory.no_such_change" if sha else "memory.no_changes", context.language, sha=sha[:40])
    version, changed = found
    return f"{_change(context, version)}\n\n```diff\n{changed}\n```"


async def _why(context: CommandContext, text: str) -> str:
    if not text:
        return translate("memory.why_what", context.language)
    origins = await context.services.memory.documents.why(context.scope, text)
    if not origins:
        return translate("memory.no_such_line", context.language)
    return "\n\n".join(_origin(context, each) for each in origins)


async def _undo(context: CommandContext, sha: str) -> str:
    if not sha:
        return translate("memory.undo_what", context.language)
    done = await context.services.memory.documents.undo(context.scope, sha, by=context.account)
    if isinstance(done, NoSuchVersion):
        return translate("memory.no_such_change", context.language, sha=sha[:40])
    if isinstance(done, UndoConflict):
        return translate("memory.overtaken", context.language)
    return translate("memory.undone", context.language)


async def _usage(context: CommandContext, _: str) -> str:
    return translate("memory.usage", context.language)


_CAUSES = {  # how a version's cause begins; a longer beginning stands before a shorter one
    BY_HAND: "memory.cause_hand",
    REMEMBER: "memory.cause_remember",
    UNDO: "memory.cause_undo",
    CONSOLIDATION: "memory.cause_consolidation",
    RESTORE: "memory.cause_restore",
    DREAM: "memory.cause_dream",
    APPROVED: "memory.cause_approved",
    IMPORTED: "memory.cause_imported",
    FORGET: "memory.cause_forget",
}
Act = Callable[[CommandContext, str], Awaitable[str | CommandReply]]
_ACTS: Mapping[str, Act] = {
    "": _show,
    "show": _show,
    "log": _log,
    "shared": _shared,
    "diff": _diff,
    "why": _why,
    "undo": _undo,
    "pending": approvals.pending,
    "approve": approvals.approve,
    "reject": approvals.reject,
}


def _change(context: CommandContext, version: DocumentVersion) -> str:
    """Return one line on a change: its name, when, and why, in words."""
    return f"`{version.short}` {_local(context, version.at)}: {_cause(context, version)}"


def _local(context: CommandContext, at: datetime) -> str:
    return format_moment(at, context.turn.zone, context.language)


def _cause(context: CommandContext, version: DocumentVersion) -> str:
    sentence = next((each for begins, each in _CAUSES.items() if version.why.startswith(begins)), "memory.cause_other")
    return translate(sentence, context.language, what=version.why.rpartition(" ")[2][:40])


def _origin(context: CommandContext, origin: LineOrigin) -> str:
    lines = [f"> {origin.line}", _change(context, origin.version)]
    if origin.message is not None:
        who = origin.message.name or translate("memory.somebody", context.language)
        lines.append(translate("memory.said", context.language, who=who, quote=_short(origin.message.text)))
    if origin.entry is not None:
        lines.append(translate("memory.summary", context.language, quote=_short(origin.entry.content)))
    return "\n".join(lines)


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _LONGEST_QUOTE else f"{flat[:_LONGEST_QUOTE]}…"
