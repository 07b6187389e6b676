"""Whose words stood before the bot when it spoke: what decides what is remembered without asking (ADR 15).

A line *brings* words of others when it is a tool's result that holds them, a message that was passed on, quotes
somebody whom the chat does not admit, has such a line recalled before it, or carries a file of which text was read or
speech was heard. As long as such a line is in the prompt, what the bot says is `tainted`: the flag stands in its line,
and that line taints in its turn, since a bot that was talked into something talks itself into it again. The search
index keeps both, so that a find taints as the line itself would. A picture brings none: what is seen on it is nobody's
order, and people show their bot pictures every day.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agent.attachments.file_facts import ASIDE, UNTRUSTED, facts_in

TAINTED = "tainted"
_WORDS = ("text", "said")  # of a file's fact: what was read in it, what was heard


def is_tainted_line(line: Mapping[str, Any]) -> bool:
    """Say whether *line* puts words of others before the bot, or what it said with them in view."""
    if line.get(TAINTED):
        return True
    if line.get("origin") == UNTRUSTED or any(
        line.get(f"{name}_origin") == UNTRUSTED for name in ASIDE if line.get(name)
    ):
        return True
    return any(fact.get("origin") == UNTRUSTED and any(fact.get(name) for name in _WORDS) for fact in facts_in(line))


def origin_of_words(line: Mapping[str, Any]) -> str:
    """Return whose words the content of *line* is: "untrusted", "tainted", or "" for words that are taken on trust.

    What rides along with the content (files, quotations, recall) is not asked about: search does not show it.
    """
    return TAINTED if line.get(TAINTED) else UNTRUSTED if line.get("origin") == UNTRUSTED else ""


def has_tainted_line(lines: Iterable[Mapping[str, Any]]) -> bool:
    """Say whether any of *lines* does."""
    return any(is_tainted_line(line) for line in lines)


def strip_untrusted(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return *messages*, as many and in their places, with nothing left in them that is not taken on trust.

    Kept are words of people whom the chat admits, and what the bot said while no words of others stood before it.
    Files are their facts.
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
    files = [fact if fact.get("origin") != UNTRUSTED else _named(fact) for fact in facts_in(message)]
    if not all_of_it and not files:
        return message
    changed: dict[str, Any] = {name: value for name, value in message.items() if name not in ("origin", "files")}
    if all_of_it:
        return changed | {"content": ""}
    return changed | {"files": files}


def _named(fact: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a file as what it is, without anything that stands in it."""
    return {name: value for name, value in fact.items() if name not in (*_WORDS, "caption", "origin")}
