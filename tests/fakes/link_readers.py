"""What people could click: the links that each platform's clients make of a part, and more than any of them finds."""

from __future__ import annotations

import json
import re

from gateway.events import MessagePart

# Addresses that clients find in plain text, with a scheme or by a well-known ending.
_FOUND = re.compile(
    r"(?:[a-z][a-z0-9+.-]*://|www\.)[^\s<>]+"
    r"|(?:[\w%+-]+@)?(?:[\w-]+\.)+(?:com|org|net|example|рф|xn--\w+)(?![\w-])(?::\d+)?(?:[/?#][^\s<>]*)?",
    re.IGNORECASE,
)
_DISCORD = re.compile(
    r"(?P<escape>\\[^\w\s])|(?P<code>(?<!`)(?P<ticks>`+)(?!`)[\s\S]*?[^`](?P=ticks)(?!`))"
    r"|\[(?P<label>(?:\\.|[^\]\\])*)\]\(<(?P<masked>[^>\s]*)>\)|<(?P<angle>https?://[^>\s]*)>"
)
_SLACK_CODE = re.compile(r"```[\s\S]*?```|`[^`\n]+`")
_SLACK_LINK = re.compile(r"<([^<>|\n]+)(?:\|([^<>\n]*))?>")
_EDGES = ".,:;!?)]}\"'*_~|。"


def text_links(text: str) -> list[str]:
    """Return the addresses that a client could find in plain *text*."""
    return [found[0].rstrip(_EDGES) for found in _FOUND.finditer(text)]


def telegram_links(part: MessagePart) -> list[str]:
    """Return the links of a text with entities; what a client finds counts if any of it is outside code."""
    if not part.payload:
        return text_links(part.plain)
    read = json.loads(part.payload)
    text: str = read["text"]
    links = [each["url"] for each in read["entities"] if each["type"] == "text_link"]
    units = text.encode("utf-16-le")
    covered: set[int] = set()
    for each in read["entities"]:
        start = len(units[: 2 * each["offset"]].decode("utf-16-le"))
        end = len(units[: 2 * (each["offset"] + each["length"])].decode("utf-16-le"))
        if each["type"] in ("code", "pre", "text_link"):
            covered |= set(range(start, end))
    # The server drops what it finds where an entity of ours stands.
    found = (each for each in _FOUND.finditer(text) if not covered & set(range(*each.span())))
    return links + [each[0].rstrip(_EDGES) for each in found]


def slack_links(part: MessagePart) -> list[str]:
    """Return the links of mrkdwn: those it writes, and outside code those that Slack would find if it looked."""
    if not part.payload:
        return text_links(part.plain)
    links = [found[1] for found in _SLACK_LINK.finditer(part.payload)]
    rest = _SLACK_LINK.sub(" ", _SLACK_CODE.sub(" ", part.payload))
    return [_unescape(each) for each in links] + text_links(_unescape(rest))


def discord_links(part: MessagePart) -> list[str]:
    """Return the links of Discord's Markdown: masked, in angle brackets, and bare ones outside code."""
    content = part.payload or part.plain
    links = [found["masked"] or found["angle"] for found in _DISCORD.finditer(content)]
    rest = _DISCORD.sub(lambda found: found["escape"][1:] if found["escape"] else " ", content)
    return [each for each in links if each] + [each for each in text_links(rest) if "://" in each]


def _unescape(text: str) -> str:
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
