"""/remember, /memory, /search, /dream…: store facts; show, find, explain, undo and decide on what is remembered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from agent.base.scopes import SHARED
from agent.commands.command import ANY, CommandContext, CommandNeed, CommandReply, command
from agent.commands.memory_lists import first_change, format_change, format_source, list_history, list_notes
from agent.commands.privacy import approve_erasure
from agent.memory.editing.memory_versions import LineOrigin, UndoResult
from agent.memory.editing.staged_changes import MEMORY, MOST_ASKED, StagedChange
from agent.memory.editing.text_operations import PATH, DocumentEdit, RemoveLines, ReplaceLines
from agent.memory.jobs.approval_questions import (
    buttons,
    describe_operations,
    erasure_question,
    select_shown,
    short,
    short_name,
)
from agent.memory.jobs.chat_edits import LONGEST_FACT, ChatEditRequest, remember_job
from agent.memory.search.search_unit import SearchHit, SearchHits, SearchOptions
from agent.memory.storage.scope_documents import DREAM_CAUSE
from agent.memory.update.dream_phases import DREAM
from agent.memory.update.dreamer import DreamRequester, RestoreConflict
from agent.turns.turn_tools import may_edit_all
from gateway.errors import ToolFailed
from gateway.events import InboundKind, MessageButton, Role, short_id
from gateway.i18n.formats import format_moment
from gateway.ports.journal import Job
from gateway.ports.memory import DocumentChange
from gateway.text.message_text import one_line, show_code

_DECISION_WORDS = ("pending", "approve", "reject", "remove")  # of buttons
_LEAST = 8  # characters that identify a name
_SHORTEST_PART = 3  # characters of a line that `/memory drop` takes
_LOOK_BACK = timedelta(days=30)
_LONGEST_SHOWN = 6_000  # characters of memory that one answer shows
Act = Callable[[CommandContext, str], Awaitable[str | CommandReply]]


async def _pending(context: CommandContext, _: str) -> CommandReply:
    """List the staged changes, each with buttons to approve and to reject it."""
    changes = await context.services.staging.pending_changes(context.scope)
    if not changes:
        return context.private_reply("memory.nothing_waits")
    listed = select_shown(changes)
    left = len(changes) - len(listed)
    more = [context.translate("approvals.more", count=left)] if left else []
    shown, stored = (
        "\n\n".join(
            [
                context.translate("memory.waits"),
                *(_describe(context, each, has_examples=has_examples) for each in listed),
                *more,
            ]
        )
        for has_examples in (True, False)
    )
    return CommandReply(text=shown, transcript_reply=stored, is_private=True, choices=buttons(listed, context.language))


async def _approve(context: CommandContext, name: str) -> CommandReply:
    """Apply the staged change *name*; an erasure erases what matches by now."""
    if name and (reply := await approve_erasure(context, name)) is not None:
        return reply
    done = await context.services.staging.approve(context.scope, name, by=context.account.name)
    if done is None and await _was_approved(context, name):
        return CommandReply(text=context.translate("approvals.approved_before"), is_private=True, settles=True)
    return _decision_reply(context, "approve", done)


async def _reject(context: CommandContext, name: str) -> CommandReply:
    """Discard the staged change *name*."""
    staging, scope = context.services.staging, context.scope
    done = await staging.reject(scope, name)
    if done is None and not context.turn.is_shared:
        # The preview of an erasure in a group is shown to its requester in their direct chat on some platforms.
        asked = await staging.find_group_erasure(name, context.turn.accounts)
        done = await staging.reject(asked[0], name) if asked is not None else None
    return _decision_reply(context, "reject", done)


def _decision_reply(context: CommandContext, word: str, change: StagedChange | None) -> CommandReply:
    # A change that is not staged any more was decided or has expired: its button has no use left either.
    missing = "approvals.settled" if context.message.kind is InboundKind.BUTTON else "memory.no_such_waiting"
    return CommandReply(
        text=context.translate(f"memory.{word}_done" if change else missing), is_private=True, settles=True
    )


async def _is_about_own(context: CommandContext) -> bool:
    """Return True if the change only removes lines about the sender, who may then decide on it without a role."""
    name = context.args.partition(" ")[2].strip()
    changes = [
        each
        for each in await context.services.staging.pending_changes(context.scope)
        if name and each.name.startswith(name)
    ]
    return bool(changes) and all(each.account == context.account and _only_removes(each) for each in changes)


def _only_removes(change: StagedChange) -> bool:
    return change.erasure is not None or (
        bool(change.would_remove) and not change.would_add and not change.would_reword
    )


async def _was_approved(context: CommandContext, name: str) -> bool:
    """Return True if it was applied already: by an earlier press, or by this one before a crash."""
    if len(name) < _LEAST:
        return False
    done = await context.services.documents.log(
        context.scope, limit=1, select=lambda version: version.why.startswith(f"approved {name}")
    )
    return bool(done) and context.now - done[0].at < _LOOK_BACK


def _describe(context: CommandContext, change: StagedChange, *, has_examples: bool) -> str:
    """Return all that approving would remove, reword and add; of an erasure the amounts, and *has_examples*."""
    at = format_moment(change.at, context.turn.zone, context.language)
    lines = [f"`{short_name(change)}` {at}"]
    if change.erasure is not None:
        return f"{lines[0]}\n{erasure_question(change.erasure, context.language, has_examples=has_examples)}"
    sentences = ("memory.would_remove", "memory.would_reword", "memory.would_add")
    lines += [f"- {text}" for text in describe_operations(change, context.language, sentences)]
    return "\n".join(lines)


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
_DECIDE = CommandNeed(shared=Role.ADMIN, unless=_is_about_own)


@command(
    "memory",
    control_words=_DECISION_WORDS,
    words={
        "undo": _UNDO,
        "approve": _DECIDE,
        "reject": _DECIDE,
        **dict.fromkeys(("correct", "drop", "remove"), CommandNeed(single=Role.OWNER)),
    },
)
async def memory(context: CommandContext) -> CommandReply:
    """Show what is remembered here, the changes and the origin of a line, or undo a change."""
    word, _, rest = context.args.partition(" ")
    act = _ACTS.get(word.lower(), _usage)
    done = await act(context, rest.strip())
    return done if isinstance(done, CommandReply) else CommandReply(text=done, is_private=True)


async def _show(context: CommandContext, _: str) -> str:
    texts = await context.services.documents.displayed_documents(context.scope)
    if not texts:
        return context.translate("memory.empty")
    both = "\n\n".join([context.translate("memory.title"), *texts.values()])
    if len(both) <= _LONGEST_SHOWN:
        return both
    return f"{both[:_LONGEST_SHOWN]}…\n\n{context.translate('memory.cut', length=len(both))}"


async def _show_shared(context: CommandContext, _: str) -> str:
    texts = await context.services.documents.displayed_documents(SHARED)
    if not texts:
        return context.translate("account_links.nothing_shared")
    return "\n\n".join([context.translate("account_links.shared_title"), *texts.values()])[:_LONGEST_SHOWN]


async def _log(context: CommandContext, _: str) -> str:
    changes = await context.services.documents.log(context.scope)
    if not changes:
        return context.translate("memory.no_changes")
    diffs = await context.services.documents.diffs(context.scope, changes)
    lines = (_change(context, each) + _and(first_change(diff)) for each, diff in zip(changes, diffs, strict=True))
    return "\n".join(f"- {line}" for line in lines)


def _and(change: str) -> str:
    return f" · {change}" if change else ""


async def _diff(context: CommandContext, sha: str) -> str:
    version_and_diff = await context.services.documents.diff(context.scope, sha)
    if version_and_diff is None:
        return context.translate("memory.no_such_change" if sha else "memory.no_changes", sha=sha[:40])
    version, diff = version_and_diff
    return f"{_change(context, version)}\n\n```diff\n{diff}\n```"


async def _why(context: CommandContext, text: str) -> str:
    if not text:
        return context.translate("memory.why_what")
    origins = await context.services.documents.why(context.scope, text)
    if not origins:
        return context.translate("memory.no_such_line")
    return "\n\n".join(_origin(context, each) for each in origins)


async def _undo(context: CommandContext, sha: str) -> str:
    if not sha:
        return context.translate("memory.undo_what")
    done = await context.services.documents.undo(context.scope, sha, by=context.account.name, turn=context.turn.id)
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
    for name in (MEMORY, "USER.md"):
        edits = [DocumentEdit(name, ReplaceLines(old, new))]
        try:
            await context.services.editor.edit(_edit_request(context, "correct"), edits)
        except ToolFailed:  # the line is not there, or is not theirs to change; its text is for a model
            continue
        return context.translate("memory.corrected")
    return context.translate("memory.not_corrected")


def _edit_request(context: CommandContext, call: str) -> ChatEditRequest:
    return ChatEditRequest(
        scope=context.scope,
        account=context.account.name,
        turn=context.turn.id,
        call=call,
        may_all=may_edit_all(context.turn),
    )


@dataclass(frozen=True, slots=True)
class _RememberedLine:
    """A line of a document, and the heading that tells it from equal ones."""

    document: str
    line: str
    heading: str = ""

    @property
    def id(self) -> str:
        """The name of the line in a button's command."""
        return f"={short_id(f'{self.document}.{self.heading}.{self.line}')}"


async def _drop(context: CommandContext, words: str) -> CommandReply:
    """Remove the one remembered line that *words* are of, or ask which; messages and summaries stay as they are."""
    editor, request = context.services.editor, _edit_request(context, "drop")
    if len(words) < _SHORTEST_PART:
        return context.private_reply("memory.drop_what")
    await context.services.erasure.settle(context.scope)  # a press does not wait in the session queue
    done = await editor.earlier_result(request)
    if done is None:
        texts = await context.services.documents.displayed_documents(context.scope)
        found = _find_lines(texts, words)
        if not found:
            return CommandReply(text=context.translate("memory.no_such_line"), is_private=True, settles=True)
        if len(found) > 1:
            return _ask_which(context, found)
        edit = DocumentEdit(found[0].document, RemoveLines(found[0].line, under=found[0].heading))
        try:
            done = await editor.edit(request, [edit])
        except ToolFailed:  # another person's, or changed at the same time; its text is for a model
            return context.private_reply("memory.not_dropped")
    lines = [context.translate("memory.dropped", line=show_code(each.old.strip())) for each in done.changes]
    lines += [context.translate("memory.drop_undo", change=each) for each in done.versions]
    return CommandReply(text="\n".join(lines), is_private=True, settles=True)


def _find_lines(texts: Mapping[str, str], words: str) -> list[_RememberedLine]:
    """Return the lines that are *words*, or otherwise those that contain them; or the one that a button names."""
    lines: list[_RememberedLine] = []
    for name, text in texts.items():
        headings: list[str] = []
        for line in text.splitlines():
            if line.startswith("#"):
                level = len(line) - len(line.lstrip("#"))
                headings = [*headings[: level - 1], line.lstrip("# ")]
            elif line.strip():
                is_unique = text.splitlines().count(line) == 1
                lines.append(_RememberedLine(name, line, "" if is_unique else PATH.join(headings[-2:])))
    wanted = _plain_words(words)
    equal = [each for each in lines if words == each.id or _plain_words(each.line) == wanted]
    found = equal or [each for each in lines if wanted in _plain_words(each.line)]
    return list(dict.fromkeys(found))


def _plain_words(line: str) -> str:
    text = " ".join(line.casefold().split())
    return text[2:] if text[:2] in ("- ", "* ") else text


def _ask_which(context: CommandContext, candidates: Sequence[_RememberedLine]) -> CommandReply:
    """List lines that one of is meant, each with a button."""
    shown = candidates[:MOST_ASKED]
    lines = [f"{n}. {short(_plain(each.line))}" for n, each in enumerate(shown, 1)]
    if len(candidates) > len(shown):
        lines.append(context.translate("memory.drop_more", count=len(candidates) - len(shown)))
    label = context.translate("memory.drop_button")
    buttons = tuple(MessageButton(f"{label} ({n})", f"/memory remove {each.id}", n) for n, each in enumerate(shown, 1))
    text = "\n".join([context.translate("memory.drop_which"), *lines])
    return CommandReply(text=text, is_private=True, choices=buttons)


def _plain(line: str) -> str:
    return line.strip().removeprefix("- ")


async def _usage(context: CommandContext, _: str) -> str:
    return context.translate("memory.usage")


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
    "drop": _drop,
    "remove": _drop,
    "pending": _pending,
    "approve": _approve,
    "reject": _reject,
}


def _change(context: CommandContext, version: DocumentChange) -> str:
    return format_change(version, zone=context.turn.zone, language=context.language)


def _origin(context: CommandContext, origin: LineOrigin) -> str:
    turn = context.turn
    source = format_source(origin, zone=turn.zone, language=context.language, is_shared=turn.is_shared)
    return f"> {origin.line}\n{source}"


_MOST_HITS = 40  # as many as fit into the token budget of a page
_LONGEST_HIT = 280  # characters of one


@command("search", is_control=True)
async def search(context: CommandContext) -> CommandReply:
    """Show the best hits with time and sender, to the sender of the command only."""
    query = " ".join(context.args.split())
    if not query:
        return context.private_reply("search.what")
    hits = await context.services.search.search(context.scope, query, SearchOptions(limit=_MOST_HITS))
    lines = [context.translate("search.nothing")]
    if hits:
        lines = [context.translate("search.found"), "", *(_hit_line(context, hit) for hit in hits)]
    lines += [f"\n{context.translate(word)}" for word in _limitations(hits)]
    return CommandReply(text="\n".join(lines), is_private=True)


def _limitations(hits: SearchHits) -> Iterator[str]:
    if hits.is_words_only:
        yield "search.by_words"
    if hits.is_building:
        yield "search.building"


def _hit_line(context: CommandContext, hit: SearchHit) -> str:
    text = one_line(hit.text.strip().removeprefix("- "), _LONGEST_HIT)
    when = format_moment(hit.at, context.turn.zone, context.language) if hit.role and hit.at else ""
    who = hit.who or (context.translate("search.bot") if hit.role == "assistant" else "")
    where = "" if hit.role else hit.source
    header = ", ".join(part for part in (when, who, where) if part)
    return f"- {header}: {text}"


_TYPED = frozenset({InboundKind.MESSAGE, InboundKind.COMMAND})  # messages in the chat that a reply can refer to


@command("dream")
async def dream(context: CommandContext) -> CommandReply:
    """Start Dream now: reply at once, and report the result when it is done."""
    if not context.services.dreams.can_run:
        return context.private_reply("dream.offline")
    message = context.message
    requester = DreamRequester(
        key=str(context.key),
        reply_to=message.message_id if message.kind in _TYPED else "",
        visible_to=message.sender.id if context.turn.is_shared else "",
        chat_kind=message.chat_kind.value,
        language=context.language,
    )
    job = Job(
        id=f"{DREAM}:{context.turn.id}",
        kind=DREAM,
        scope=context.scope,
        payload=requester.payload(),
        due_at=context.now,
    )
    budget = await context.services.runner.budget()
    word = "dream.begins_later" if budget is not None and budget.is_spent else "dream.begins"
    return CommandReply(text=context.translate(word), is_private=True, jobs=(job,))


@command("dream-log")
async def dream_log(context: CommandContext) -> CommandReply:
    """Show Dream's latest change, or the one given."""
    return CommandReply(text=await _dream_log(context, context.args.strip()), is_private=True)


async def _dream_log(context: CommandContext, sha: str) -> str:
    if not sha:
        newest = await context.services.dreams.log(context.scope, limit=1)
        if not newest:
            return context.translate("dream.no_changes")
        sha = newest[0].id
    version_and_diff = await context.services.documents.diff(context.scope, sha)
    if version_and_diff is None:
        return context.translate("memory.no_such_change", sha=sha[:40])
    version, diff = version_and_diff
    if not version.why.startswith(DREAM_CAUSE):
        return context.translate("dream.not_dreams", sha=version.short)
    return f"{_dream_line(context, version)}\n\n```diff\n{diff}\n```"


@command("dream-restore", words={ANY: CommandNeed(shared=Role.ADMIN, single=Role.OWNER)})
async def dream_restore(context: CommandContext) -> CommandReply:
    """List Dream's changes, or restore the state before one."""
    return CommandReply(text=await _dream_restore(context, context.args.strip()), is_private=True)


async def _dream_restore(context: CommandContext, sha: str) -> str:
    if not sha:
        versions = await context.services.dreams.log(context.scope)
        if not versions:
            return context.translate("dream.no_changes")
        lines = [context.translate("dream.log_title"), *(f"- {_dream_line(context, each)}" for each in versions)]
        return "\n".join(lines)
    done = await context.services.dreams.restore(context.scope, sha, by=context.account.name, turn=context.turn.id)
    if done is None:
        return context.translate("memory.no_such_change", sha=sha[:40])
    if isinstance(done, RestoreConflict):
        return context.translate("dream.in_the_way", sha=sha[:8], other=done.version.short)
    if not done.changed:
        return context.translate("dream.is_so")
    return context.translate("dream.restored", sha=sha[:8], kept=done.kept)


def _dream_line(context: CommandContext, version: DocumentChange) -> str:
    at = format_moment(version.at, context.turn.zone, context.language)
    return context.translate("dream.log_line", sha=version.short, at=at, names=", ".join(version.names))
