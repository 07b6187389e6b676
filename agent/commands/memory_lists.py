"""Lists about a scope's memory, a page of one message each: its log, notes and history; changes of it in words."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from agent.commands.command import CommandContext
from agent.memory.editing.memory_versions import UNDO, LineOrigin
from agent.memory.jobs.chat_edits import EDIT_CAUSE
from agent.memory.storage.scope_documents import (
    APPROVED,
    ARCHIVED,
    BY_HAND,
    CONSOLIDATION,
    IMPORTED,
    TRACKED,
    UNARCHIVED,
)
from agent.memory.update.dream_phases import DREAM
from agent.memory.update.dreamer import FORGET, RESTORE
from gateway.i18n import translate
from gateway.i18n.formats import format_moment
from gateway.ports.journal import REMEMBER
from gateway.ports.memory import DocumentChange
from gateway.text.message_text import one_line

_PAGE = 1_800  # characters: with its frame one message on every platform
_LONGEST_LINE = 80  # characters of a changed line
_LONGEST_ENTRY = 700  # characters of a summary


async def list_notes(context: CommandContext, words: str) -> str:
    """Return a page of the names of the scope's notes, the newest first, or the text of the note called *words*."""
    documents = context.services.documents
    if words and not words.isdecimal():
        text = await documents.read_note(context.scope, words)
        if text is None:
            return context.translate("memory.no_such_note", name=words[:80])
        return text if len(text) <= _PAGE else f"{text[:_PAGE]}…"
    names = await documents.list_notes(context.scope)
    if not names:
        return context.translate("memory.no_notes")
    lines, page, pages = _page_of([f"- `{name}`" for name in names], words)
    title = context.translate("memory.notes_title", page=page, pages=pages)
    return "\n".join([title, *lines, *_next_page(context, "notes", page, pages)])


async def list_history(context: CommandContext, words: str) -> str:
    """Return a page of the scope's summaries, the newest first."""
    entries = await context.services.documents.history(context.scope)
    if not entries:
        return context.translate("memory.no_history")
    texts = [one_line(f"[{each.timestamp}] {_without_time(each.content)}", _LONGEST_ENTRY) for each in entries[::-1]]
    lines, page, pages = _page_of(texts, words)
    title = context.translate("memory.history_title", page=page, pages=pages)
    return "\n\n".join([title, *lines, *_next_page(context, "history", page, pages)])


def first_change(diff: str) -> str:
    """Return the first changed line of a unified diff, with the line that replaces it: `− old · + new`."""
    headers = {f"{sign} {name}" for name in TRACKED for sign in ("---", "+++")}
    lines = [line for line in diff.splitlines() if line not in headers and not line.startswith("@@")]
    changed = [line for line in lines if line[:1] in ("-", "+") and line[1:].strip()]
    if not changed:
        return ""
    first = changed[0]
    new = next((after for before, after in pairwise(changed) if before[0] == "-" and after[0] == "+"), "")
    both = [first, new] if first[0] == "-" and new else [first]
    return " · ".join(f"{'−' if line[0] == '-' else '+'} {_flat(line[1:])}" for line in both)


def _page_of(items: Sequence[str], words: str) -> tuple[list[str], int, int]:
    """Return the items of the page that *words* names (the first by default), its number, and the number of pages."""
    pages: list[list[str]] = [[]]
    size = 0
    for item in items:
        if pages[-1] and size + len(item) > _PAGE:
            pages.append([])
            size = 0
        pages[-1].append(item)
        size += len(item) + 2
    number = min(max(int(words), 1), len(pages)) if words.isdecimal() and len(words) < 9 else 1
    return pages[number - 1], number, len(pages)


def _next_page(context: CommandContext, word: str, page: int, pages: int) -> list[str]:
    return [context.translate("memory.next_page", word=word, next=page + 1)] if page < pages else []


def _without_time(content: str) -> str:
    """Return a summary without the time that it begins with."""
    return content.partition("] ")[2] if content.startswith("[2") and "] " in content[:24] else content


def _flat(line: str) -> str:
    return one_line(line.strip().removeprefix("- ").removeprefix("* ").replace("`", "'"), _LONGEST_LINE)


_LONGEST_QUOTE = 200
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


def format_change(version: DocumentChange, *, zone: str, language: str) -> str:
    """Return one line: the change's name, time and cause."""
    sentence = next((each for begins, each in _CAUSES.items() if version.why.startswith(begins)), "memory.cause_other")
    what = version.undoes[: len(version.short)] or version.why.rpartition(" ")[2][:40]
    cause = translate(sentence, language, what=what)
    return f"`{version.short}` {format_moment(version.at, zone, language)}: {cause}"


def format_source(origin: LineOrigin, *, zone: str, language: str, is_shared: bool) -> str:
    """Return the change that brought a line, and the message or summary behind it, a line each.

    A message without a sender's name is the reader's own unless the chat *is_shared*.
    """
    lines = [format_change(origin.change, zone=zone, language=language)]
    if origin.message is not None:
        who, quote = origin.message.name, one_line(origin.message.text, _LONGEST_QUOTE)
        if who or is_shared:
            who = who or translate("memory.somebody", language)
            lines.append(translate("memory.said", language, who=who, quote=quote))
        else:
            lines.append(translate("memory.said_by_you", language, quote=quote))
    if origin.entry is not None:
        lines.append(translate("memory.summary", language, quote=one_line(origin.entry.content, _LONGEST_QUOTE)))
    return "\n".join(lines)
