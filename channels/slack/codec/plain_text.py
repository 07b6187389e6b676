"""Slack's text as people read it: mentions, links and dates stand in angle brackets, three signs are escaped.

https://docs.slack.dev/messaging/formatting-message-text
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gateway.text import as_one_word, find_command, sanitize

_TOKEN = re.compile(r"<([^<>\n]*)>")
_USER = re.compile(r"<@([UW][A-Z0-9]+)(?:\|[^<>]*)?>")
_SIGNS = {"&lt;": "<", "&gt;": ">", "&amp;": "&"}
_ESCAPED = re.compile("|".join(_SIGNS))


def mentions(text: str) -> list[str]:
    """Return the ids of the people whom *text* mentions, in order."""
    return _USER.findall(text)


def plain_text(text: str, names: Mapping[str, str]) -> str:
    """Return *text* as a person sees it; *names* by user id, an unknown one stays its id."""
    return sanitize(_unescape(_TOKEN.sub(lambda token: _spell(token[1], names), text)))


def command_in(text: str, user: str, handle: str, names: Mapping[str, str]) -> str:
    """Return the command of a message, "" for none; *user* and *handle* are the bot's.

    Slack writes mentions and links in angle brackets: at the start only the bot's mention is skipped, and in the
    arguments each bracket is one word.
    """

    def ours(token: re.Match[str]) -> str:
        return f"@{handle}" if token[1].partition("|")[0] == f"@{user}" else token[0]

    def spelt(arguments: str) -> str:
        return sanitize(_unescape(_TOKEN.sub(lambda token: as_one_word(_spell(token[1], names)), arguments)))

    return find_command(sanitize(_TOKEN.sub(ours, text)), handle, spelt)


def slash_command_in(text: str, names: Mapping[str, str]) -> str:
    """Return the command of a slash command's *text*, in which Slack escapes people alone, if the app asks for it."""

    def spelt(arguments: str) -> str:
        return _USER.sub(lambda token: as_one_word(_spell(token[0][1:-1], names)), arguments)

    return find_command(sanitize(text), spell=spelt)


def _unescape(text: str) -> str:
    # In one pass: "&amp;lt;" is "&lt;", not "<".
    return _ESCAPED.sub(lambda sign: _SIGNS[sign[0]], text)


def _spell(token: str, names: Mapping[str, str]) -> str:
    target, bar, label = token.partition("|")
    match target[:1]:
        case "@":
            return f"@{as_one_word(names.get(target[1:]) or label or target[1:])}"
        case "#":
            return f"#{label or target[1:]}"
        case "!":
            return _special(target[1:], label)
        case _:
            address = target.removeprefix("mailto:")
            return f"{label} ({target})" if bar and label not in (target, address) and label else address


def _special(target: str, label: str) -> str:
    name = target.partition("^")[0]
    if label:
        return label if name == "date" else f"@{label.lstrip('@')}"
    return f"@{name}"
