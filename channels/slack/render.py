"""Answers as parts in mrkdwn, parts as the body of a call, buttons as blocks, and mrkdwn as plain text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from gateway.events import MessageButton, MessagePart, OutboundMessage, SessionKey
from gateway.i18n import translate
from gateway.ports.channel import in_english
from gateway.text import (
    Links,
    MarkdownNode,
    NodeKind,
    PartWriter,
    WrittenPart,
    as_one_word,
    break_addresses,
    button_rows,
    find_command,
    names_other_host,
    pack,
    parse,
    plain_tree,
    prefix_lines,
    sanitize,
    split,
    table_lines,
    write_blocks,
    write_list,
)

LIMIT = 4_000  # characters of a message: chat.update refuses more, and a post may be edited later
MOST_PARTS = 40
_ROOM = 3_850  # what is left beside the mark of a repeated send
_SOURCE = 3_600  # characters of a part's Markdown; marks and escapes make it longer
_EVENT = "parlour_part"
LINE: Mapping[str, Any] = {"event_type": "parlour_line", "event_payload": {}}  # of what is no part of an answer


def render(
    message: OutboundMessage, language: Callable[[SessionKey], str] = in_english, *, least: int = 0
) -> list[MessagePart]:
    """Cut and format *message*, and say in the chat's *language* where it is cut; pure.

    The first part holds the first *least* characters, where they fit.
    """
    write, literal = partial(_write, links=message.links), partial(_literal, links=message.links)
    parts = pack(
        message.text,
        PartWriter(limit=_SOURCE, max_parts=MOST_PARTS, write=write, literal=literal),
        note=lambda: translate("delivery.cut", language(message.key)),
        least=least,
    )
    # Every part keeps reply_to: it says since when the part can stand in the chat.
    return [message.part(n, each.payload, each.plain) for n, each in enumerate(parts, 1)]


def _write(markdown: str, *, links: Links | None) -> WrittenPart:
    tree, source = parse(markdown, links), break_addresses(markdown, links)
    payload, shown = mrkdwn_tree(tree) or escape(source), plain_tree(tree, links)
    return WrittenPart(payload, shown if 0 < len(shown) <= _ROOM else source, len(payload) / _ROOM)


def _literal(text: str, *, links: Links | None) -> WrittenPart:
    text = break_addresses(text, links)
    return WrittenPart("", text, len(escape(text)) / _ROOM)


def message_body(
    part: MessagePart, *, may_be_duplicate: bool, language: Callable[[SessionKey], str] = in_english
) -> dict[str, Any]:
    """Return the fields of *part* for chat.postMessage, chat.update and chat.postEphemeral."""
    text = f"{_mention(part)}{part.payload or escape(part.plain)}"
    if may_be_duplicate:
        text = f"_{translate('delivery.may_repeat', language(part.key))}_\n{text}"
    below = {"blocks": blocks(text, part.choices, is_plain=not part.payload)} if part.choices else {}
    return {
        "channel": part.key.parent.chat,
        "text": text,
        "mrkdwn": bool(part.payload),
        "parse": "none",
        "link_names": False,
        **below,
    }


def _mention(part: MessagePart) -> str:
    return f"<@{part.calls}> " if _USER_ID.fullmatch(part.calls) else ""


def metadata(part: MessagePart) -> Mapping[str, Any]:
    """Return the send key as Slack keeps it with the message."""
    return {"event_type": _EVENT, "event_payload": {"part": part.id}}


def part_of(message: Mapping[str, Any]) -> str:
    """Return the id of the part that *message* is, as its metadata says, or ""."""
    found = message.get("metadata") or {}
    if found.get("event_type") != _EVENT:
        return ""
    return str((found.get("event_payload") or {}).get("part") or "")


_USER_ID = re.compile(r"[UW][A-Z0-9]{1,30}")
_SIGNS = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_SCHEMES = frozenset({"http", "https", "mailto"})
_BESIDE = "\u200b"  # marks are marks only beside something that is no letter
_HAS_MARKS = re.compile(r"[*_~]")  # which Slack would act on in a formula
_MARGIN = "\x00"  # before a line of code, which no list indents: Slack would show the blanks. In no clean text
_AT_MARGIN = re.compile(rf"^((?:> )*) *{_MARGIN}", re.MULTILINE)
_WIDEST_TABLE = 120  # columns of a line; a wider one is not padded


def escape(text: str) -> str:
    """Return *text* escaped so that Slack shows it literally: no mention, no link."""
    return text.translate(_SIGNS)


def render_markup(markdown: str) -> str:
    """Return *markdown* as mrkdwn."""
    return mrkdwn_tree(parse(markdown))


def mrkdwn_tree(tree: MarkdownNode) -> str:
    """Return the text of *tree*, like `render_markup` of its source."""
    return _AT_MARGIN.sub(r"\1", _blocks(tree.children)).replace(_MARGIN, "")


def _blocks(nodes: Iterable[MarkdownNode], gap: str = "\n\n") -> str:
    return write_blocks(nodes, _block, _inline, gap)


def _block(node: MarkdownNode) -> str:
    match node.kind:
        case NodeKind.HEADING:
            return _wrap(_inline(node.children, bare=True), "*")
        case NodeKind.QUOTE:
            return prefix_lines(_blocks(node.children), "> ", "> ")
        case NodeKind.BULLETS | NodeKind.NUMBERS:
            return write_list(node, _blocks, bullet="• ", indent=4)
        case NodeKind.FENCE:
            return _fence(node.text.rstrip("\n"))
        case NodeKind.RULE:
            return "———"
        case NodeKind.TABLE:
            return _linked_rows(node) if _has_link(node) else _fence(_table(node))
        case _:
            return _inline(node.children)


def _fence(code: str) -> str:
    # Three of them would end the block.
    lines = f"```\n{escape(code).replace('```', f'``{_BESIDE}`')}\n```".split("\n")
    return "\n".join(_MARGIN + line for line in lines) if code.strip() else ""


def _table(node: MarkdownNode) -> str:
    rows = [[_bare(cell) for cell in row.children] for row in node.children if row.kind is NodeKind.ROW]
    aligned = table_lines(rows, gap=" | ", rule="--+-", widest=_WIDEST_TABLE)
    return "\n".join(" | ".join(row).rstrip() for row in rows) if aligned is None else aligned


def _linked_rows(node: MarkdownNode) -> str:
    """Write a table with links as lines, the head in bold: code holds no links."""
    head, *body = [row.children for row in node.children if row.kind is NodeKind.ROW]
    lines = [" | ".join(_inline(cell.children).replace("\n", " ") for cell in row) for row in body]
    return "\n".join([_wrap(" | ".join(_inline(cell.children, bare=True) for cell in head), "*"), *lines])


def _has_link(node: MarkdownNode) -> bool:
    return node.kind in (NodeKind.LINK, NodeKind.IMAGE) or any(map(_has_link, node.children))


def _bare(node: MarkdownNode) -> str:
    """The words of a cell, which stand in code and so have no marks."""
    if node.kind in (NodeKind.SOFT_BREAK, NodeKind.HARD_BREAK):
        return " "
    return node.text or "".join(_bare(child) for child in node.children) or node.href


def _inline(nodes: tuple[MarkdownNode, ...], *, bare: bool = False) -> str:
    """Join spans; *bare* = they stand in bold already, and bold in bold would end it."""
    text = ""
    for place, node in enumerate(nodes):
        span = _span(node, bare=bare)
        if node.kind in _MARKS and span:
            before, after = text[-1:], _first(nodes[place + 1 :])
            span = f"{_BESIDE if before.isalnum() else ''}{span}{_BESIDE if after.isalnum() else ''}"
        text += span
    return text


def _first(nodes: tuple[MarkdownNode, ...]) -> str:
    return nodes[0].text[:1] if nodes and nodes[0].kind is NodeKind.TEXT else ""


_MARKS = {NodeKind.STRONG: "*", NodeKind.EMPHASIS: "_", NodeKind.STRIKE: "~"}


def _span(node: MarkdownNode, *, bare: bool) -> str:
    match node.kind:
        case NodeKind.SOFT_BREAK | NodeKind.HARD_BREAK:
            return "\n"
        case NodeKind.CODE:
            return _code(node.text)
        case NodeKind.FORMULA:
            return _code(node.text.replace("\n", " ")) if _HAS_MARKS.search(node.text) else escape(node.text)
        case NodeKind.LINK | NodeKind.IMAGE:
            return _link(node)
        case NodeKind.STRONG | NodeKind.EMPHASIS | NodeKind.STRIKE:
            inner = _inline(node.children, bare=bare or node.kind is NodeKind.STRONG)
            return inner if bare and node.kind is NodeKind.STRONG else _wrap(inner, _MARKS[node.kind])
        case _:
            return escape(node.text) or _inline(node.children, bare=bare)


def _wrap(text: str, mark: str) -> str:
    """Put *mark* around each line: Slack's marks end with the line, and never stand beside a blank."""
    return "\n".join(_mark_line(line, mark) for line in text.split("\n"))


def _mark_line(line: str, mark: str) -> str:
    words = line.strip()
    if not words:
        return line
    before = line[: len(line) - len(line.lstrip())]
    return f"{before}{mark}{words}{mark}{line[len(line.rstrip()) :]}"


def _code(text: str) -> str:
    return escape(text) if "`" in text or not text.strip() else f"`{escape(text)}`"


def _link(node: MarkdownNode) -> str:
    label = "".join(_bare(child) for child in node.children).strip()
    href = node.href.strip()
    bare = href.removeprefix("mailto:")
    if _scheme(href) not in _SCHEMES:
        return escape(f"{label} ({href})" if label and href and label != href else label or href)
    if node.kind is NodeKind.IMAGE or _claims_another(label, href):
        # Show the address (docs/attacks.md, 75); the reader's client never fetches a picture (73).
        return f"{escape(label)} ({_address(href)})" if label else _address(href)
    if not label or label in (href, bare):
        return _address(href)
    return f"<{_quoted(href)}|{escape(label).replace('|', '¦')}>"


def _scheme(href: str) -> str:
    """Return the scheme of *href*, or "" if it is not an address."""
    try:
        return urlsplit(href).scheme.lower()
    except ValueError:
        return ""


def _claims_another(label: str, href: str) -> bool:
    """Return True if *label* looks like an address of another host than the link's."""
    if href.startswith("mailto:"):
        return names_other_host(label.rpartition("@")[2], href.rpartition("@")[2])
    return names_other_host(label, urlsplit(href).hostname or "")


def _address(href: str) -> str:
    return f"<{_quoted(href)}>"


def _quoted(href: str) -> str:
    href = href.replace("|", "%7C").replace("<", "%3C").replace(">", "%3E").replace(" ", "%20")
    return href.replace("\n", "").replace("&", "&amp;")


_TOKEN = re.compile(r"<([^<>\n]*)>")
_USER = re.compile(r"<@([UW][A-Z0-9]+)(?:\|[^<>]*)?>")
_NAMED_ID = re.compile(r"<(?:[@#]|!subteam\^)([A-Z][A-Z0-9]{1,30})>")
_ENTITY_SIGNS = {"&lt;": "<", "&gt;": ">", "&amp;": "&"}
_ESCAPED = re.compile("|".join(_ENTITY_SIGNS))


def named_ids(text: str) -> list[str]:
    """Return the ids of the people, channels and groups that *text* names without a label, each once."""
    return list(dict.fromkeys(_NAMED_ID.findall(text)))


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
    return _ESCAPED.sub(lambda sign: _ENTITY_SIGNS[sign[0]], text)


def _spell(token: str, names: Mapping[str, str]) -> str:
    target, bar, label = token.partition("|")
    match target[:1]:
        case "@":
            return f"@{as_one_word(names.get(target[1:]) or label or target[1:])}"
        case "#":
            return f"#{label or as_one_word(names.get(target[1:], '')) or target[1:]}"
        case "!":
            return _special(target[1:], label, names)
        case _:
            address = target.removeprefix("mailto:")
            return f"{label} ({target})" if bar and label not in (target, address) and label else address


def _special(target: str, label: str, names: Mapping[str, str]) -> str:
    name, _, ident = target.partition("^")
    name = as_one_word(names.get(ident, "")) or name
    if label:
        return label if name == "date" else f"@{label.lstrip('@')}"
    return f"@{name}"


# -- buttons ---------------------------------------------------------------------------------------
# Choices as blocks below a text, and a press (`block_actions`) as what it says, as in
# docs.slack.dev/reference/interaction-payloads/block_actions-payload.

_SECTION = 2_900  # characters; Slack takes 3,000 in a section's text
_ROW = "parlour-row-"  # then a number: the id of a row's block
ACTION = "parlour-"  # then a number: the id of a button


@dataclass(frozen=True, slots=True)
class SlackButtonPress:
    """A pressed button, and its message."""

    chat: str
    ts: str
    thread: str
    value: str
    row: str  # id of the button's block
    text: str
    blocks: tuple[Mapping[str, Any], ...]
    response_url: str  # where a message that one person alone sees can be changed; "" for any other


def blocks(text: str, choices: Sequence[MessageButton], *, is_plain: bool) -> list[dict[str, Any]]:
    """Return *text* (mrkdwn) and the buttons below it. With blocks, Slack shows no text beside them."""
    # What is a link is written as one: `verbatim` keeps Slack from making others, in code too.
    form = {"type": "plain_text"} if is_plain else {"type": "mrkdwn", "verbatim": True}
    shown: list[dict[str, Any]] = [
        {"type": "section", "text": {**form, "text": piece}} for piece in split(text, limit=_SECTION)
    ]
    number = 0
    for n, row in enumerate(button_rows(choices)):
        buttons = []
        for choice in row:
            buttons.append(
                {
                    "type": "button",
                    "action_id": f"{ACTION}{number}",
                    "text": {"type": "plain_text", "text": choice.label},
                    "value": choice.command,
                }
            )
            number += 1
        shown.append({"type": "actions", "block_id": f"{_ROW}{n}", "elements": buttons})
    return shown


def is_press(body: Mapping[str, Any]) -> bool:
    """Return True if *body* is a press."""
    return body.get("type") == "block_actions"


def parse_press(body: Mapping[str, Any]) -> SlackButtonPress | None:
    """Return the press, or None for another app's element. Raises KeyError and the like for a malformed payload."""
    action = body["actions"][0]
    if action.get("type") != "button" or not str(action["action_id"]).startswith(ACTION):
        return None
    container = body["container"]
    message = body.get("message") or {}
    ts = str(container["message_ts"])
    thread = str(container.get("thread_ts") or message.get("thread_ts") or "")
    return SlackButtonPress(
        chat=str(container["channel_id"]),
        ts=ts,
        thread="" if thread == ts else thread,
        value=str(action["value"]),
        row=str(action.get("block_id") or ""),
        text=str(message.get("text") or ""),
        blocks=tuple(message.get("blocks") or ()),
        response_url=str(body.get("response_url") or "") if container.get("is_ephemeral") else "",
    )


def without_row(blocks: Iterable[Mapping[str, Any]], row: str) -> list[Mapping[str, Any]]:
    """Return *blocks* without the one whose id is *row*."""
    return [block for block in blocks if block.get("block_id") != row]
