"""Changes of the memory in words: when and why a version was made, and where a line comes from."""

from __future__ import annotations

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
from agent.memory.jobs.memory_jobs import REMEMBER
from agent.memory.versioning.memory_service import UNDO, LineOrigin
from gateway.i18n import translate
from gateway.i18n.formats import format_moment

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


def format_change(version: DocumentVersion, *, zone: str, language: str) -> str:
    """Return one line: the change's name, time and cause."""
    sentence = next((each for begins, each in _CAUSES.items() if version.why.startswith(begins)), "memory.cause_other")
    cause = translate(sentence, language, what=version.why.rpartition(" ")[2][:40])
    return f"`{version.short}` {format_moment(version.at, zone, language)}: {cause}"


def format_source(origin: LineOrigin, *, zone: str, language: str) -> str:
    """Return the change that brought a line, and the message or summary behind it, a line each."""
    lines = [format_change(origin.version, zone=zone, language=language)]
    if origin.message is not None:
        who = origin.message.name or translate("memory.somebody", language)
        lines.append(translate("memory.said", language, who=who, quote=_short(origin.message.text)))
    if origin.entry is not None:
        lines.append(translate("memory.summary", language, quote=_short(origin.entry.content)))
    return "\n".join(lines)


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _LONGEST_QUOTE else f"{flat[:_LONGEST_QUOTE]}…"
