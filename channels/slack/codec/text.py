"""Slack's text as people read it: mentions, links and dates stand in angle brackets, three signs are escaped.

https://docs.slack.dev/messaging/formatting-message-text
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gateway.text import clean

_TOKEN = re.compile(r"<([^<>\n]*)>")
_USER = re.compile(r"<@([UW][A-Z0-9]+)(?:\|[^<>]*)?>")
_SIGNS = {"&lt;": "<", "&gt;": ">", "&amp;": "&"}
_ESCAPED = re.compile("|".join(_SIGNS))


def mentions(text: str) -> list[str]:
    """Return the ids of the people whom *text* mentions, in order."""
    return _USER.findall(text)


def readable(text: str, names: Mapping[str, str]) -> str:
    """Return *text* as a person sees it; *names* by user id, an unknown one stays its id."""
    return clean(_unescape(_TOKEN.sub(lambda token: _spell(token[1], names), text)))


def _unescape(text: str) -> str:
    # In one pass: "&amp;lt;" is "&lt;", not "<".
    return _ESCAPED.sub(lambda sign: _SIGNS[sign[0]], text)


def _spell(token: str, names: Mapping[str, str]) -> str:
    target, bar, label = token.partition("|")
    match target[:1]:
        case "@":
            return f"@{names.get(target[1:]) or label or target[1:]}"
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
