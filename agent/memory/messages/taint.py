"""Taint: which lines put untrusted content into the prompt, and which replies were made with it in view (ADR 15).

A line is tainted if it holds a tool result with third-party content, a forwarded message, a quotation of an unknown
sender, a recalled tainted line, or a file with extracted text or a transcription. As long as such a line is in the
prompt, replies are marked `tainted`, and a marked reply taints later ones: a model that was manipulated once repeats
it. The search index stores both marks, so a hit taints as the line itself does. Pictures do not taint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agent.attachments.file_facts import ASIDE, UNTRUSTED, facts_in
from agent.attachments.file_facts import TAINTED as TAINTED

_WORDS = ("text", "said")  # of a file's fact: extracted text, transcription


def is_tainted_line(line: Mapping[str, Any]) -> bool:
    """Return True if *line* holds untrusted content, or a reply made with it in the prompt."""
    if line.get(TAINTED):
        return True
    if line.get("origin") == UNTRUSTED or any(
        line.get(f"{name}_origin") == UNTRUSTED for name in ASIDE if line.get(name)
    ):
        return True
    return any(fact.get("origin") == UNTRUSTED and any(fact.get(name) for name in _WORDS) for fact in facts_in(line))


def origin_of_words(line: Mapping[str, Any]) -> str:
    """Return the origin of the content of *line*: "untrusted", "tainted", or "" for trusted text.

    Files, quotations and recalled text beside the content are ignored, because search does not show them.
    """
    return TAINTED if line.get(TAINTED) else UNTRUSTED if line.get("origin") == UNTRUSTED else ""


def has_tainted_line(lines: Iterable[Mapping[str, Any]]) -> bool:
    """Return True if any of *lines* is tainted."""
    return any(is_tainted_line(line) for line in lines)


def strip_untrusted(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return *messages*, same number and order, without untrusted content and tainted replies.

    Messages of admitted senders and replies made without untrusted content in the prompt stay. Files keep their facts.
    """
    kept: list[Mapping[str, Any]] = []
    is_tainted = False  # for lines that were written before they were flagged, or elsewhere
    for message in messages:
        is_tainted = is_tainted or is_tainted_line(message)
        is_bots = message.get("role") == "assistant"
        is_left_out = message.get("origin") == UNTRUSTED or (is_bots and is_tainted)
        kept.append(_without_words(message, all_of_it=is_left_out))
    return kept


def _without_words(message: Mapping[str, Any], *, all_of_it: bool) -> Mapping[str, Any]:
    files = [fact if fact.get("origin") != UNTRUSTED else _facts_only(fact) for fact in facts_in(message)]
    if not all_of_it and not files:
        return message
    changed: dict[str, Any] = {name: value for name, value in message.items() if name not in ("origin", "files")}
    if all_of_it:
        return changed | {"content": ""}
    return changed | {"files": files}


def _facts_only(fact: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the facts of a file without its content."""
    return {name: value for name, value in fact.items() if name not in (*_WORDS, "caption", "origin")}
