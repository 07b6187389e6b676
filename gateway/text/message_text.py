"""Commands that a sender typed, buttons as rows or as commands to type, and the sources below an answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from urllib.parse import quote, urlsplit

from gateway.events import AnswerSource, MessageButton
from gateway.i18n import translate

_OWN_MENTION = re.compile(r"@(\S+)\s+")
_COMMAND = re.compile(r"([/!]?)([a-z][a-z0-9_-]{0,31})(?:@(\S+))?(?:\s+(.*))?\Z", re.IGNORECASE | re.DOTALL)


def find_command(raw: str, handle: str = "", spell: Callable[[str], str] = str) -> str:
    """Return the command that *raw* can be, "" for none.

    *raw* is the platform's raw text, in which our own mention alone is replaced, by ``@handle``. The result is
    "/name arguments" or "!name arguments", or one bare word if our mention and that word are the whole text.
    *spell* is applied to the arguments only; it must write each name that it resolves as one word (`as_one_word`).
    """
    text = raw.strip()
    mention = _OWN_MENTION.match(text)
    calls_us = mention is not None and _is_same(mention[1], handle)
    found = _COMMAND.match(text, mention.end() if mention is not None and calls_us else 0)
    if found is None or (found[3] and not _is_same(found[3], handle)):
        return ""
    sign, name, arguments = found[1], found[2], found[4]
    if not sign:
        return name if calls_us and not found[3] and not arguments else ""
    return f"{sign}{name} {spell(arguments)}" if arguments else f"{sign}{name}"


def as_one_word(name: str) -> str:
    """Return *name* without blanks, so that it can stand among the words of a command and add none."""
    return "_".join(name.split())


def _is_same(handle: str, ours: str) -> bool:
    return bool(ours) and handle.lower() == ours.lower()


def button_rows(choices: Sequence[MessageButton]) -> list[list[MessageButton]]:
    """Return *choices* as rows of buttons."""
    return [list(row) for _, row in groupby(choices, key=lambda choice: choice.row)]


def append_commands(text: str, choices: Sequence[MessageButton], prefix: str = "/") -> str:
    """Return *text* (Markdown) with what would be buttons as commands that can be typed, behind *prefix*."""
    if not choices:
        return text
    lines = [
        " · ".join(f"{each.label}: `{prefix}{each.command.removeprefix('/')}`" for each in row)
        for row in button_rows(choices)
    ]
    return "\n".join([text, "", *(f"- {line}" for line in lines)])


# -- answer sources --------------------------------------------------------------------------------
# The sources of an answer as one line of Markdown, for channels that have no footnotes.

MOST_SOURCES = 8  # below one answer
LONGEST_TITLE = 80  # characters
_LONGEST_URL = 2_000
_MARKUP = re.compile(r"[\[\]()<>*_`~|\\#!\x00-\x1f\x7f]")  # a page chooses its title: no sign of it is markup
_SAFE = "/:?#@!$&'*+,;=%-._~"  # of an address; parentheses and blanks would end the link early


def format_sources(sources: Iterable[AnswerSource], text: str, language: str) -> str:
    """Return the Markdown line with the *sources* that *text* does not link itself; "" for none."""
    kept = [each for each in sources if is_source_address(each.url) and each.url not in text]
    links = [f"[{_plain_title(each)}]({quote(each.url, safe=_SAFE)})" for each in kept]
    return translate("delivery.sources", language, links=" · ".join(links)) if links else ""


def _plain_title(source: AnswerSource) -> str:
    plain = " ".join(_MARKUP.sub(" ", source.title).split())[:LONGEST_TITLE]
    return plain or urlsplit(source.url).hostname or source.url


def is_source_address(url: str) -> bool:
    """Return True for an address of http or https that is short enough to be listed."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and len(url) <= _LONGEST_URL
