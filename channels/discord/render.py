"""Answers as Discord's messages: cut, and written in its dialect of Markdown, with buttons below."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from gateway.events import MessageButton, MessagePart, OutboundMessage, SessionKey
from gateway.i18n import LANGUAGES, translate
from gateway.ports.channel import in_english
from gateway.text import (
    Links,
    MarkdownNode,
    NodeKind,
    PartWriter,
    WrittenPart,
    break_addresses,
    button_rows,
    names_other_host,
    pack,
    parse,
    plain_tree,
    sanitize,
    table_lines,
    write_blocks,
    write_list,
)

LIMIT = 2_000  # characters of a message (docs.discord.com/developers/resources/message, content)
FILE_LIMIT = 10 << 20  # bytes of a file, where a server has no boosts
MOST_PARTS = 40
_MARK_ROOM = 110  # for the line that says a part may repeat: it joins a part that was cut long before
_ROOM = LIMIT - _MARK_ROOM


def render(
    message: OutboundMessage, language: Callable[[SessionKey], str] = in_english, *, least: int = 0
) -> list[MessagePart]:
    """Split and format *message*, with a note in the chat's *language* where it is cut; pure.

    Each part leaves space for the mark of a resend. The first one contains the first *least* characters if they fit.
    """
    parts = pack(
        message.text,
        _writer(message.links),
        note=lambda: translate("delivery.cut", language(message.key)),
        least=least,
    )
    return [message.part(n, each.payload, each.plain) for n, each in enumerate(parts, 1)]


def _write(markdown: str, *, links: Links | None) -> WrittenPart:
    tree = parse(markdown, links)
    payload, text = write_tree(tree), plain_tree(tree, links)
    if not payload.strip() or not text.strip():  # nothing but definitions: better as they stand than not at all
        return _write_literal(markdown, links=links)
    return WrittenPart(payload, text, max(len(payload), len(text)) / _ROOM)


def _write_literal(text: str, *, links: Links | None) -> WrittenPart:
    text = break_addresses(text, links)
    # Discord has no plain text: what would be a mark or a link is escaped.
    payload = literal(text)
    return WrittenPart(payload, text, len(payload) / _ROOM)


def _writer(links: Links | None) -> PartWriter:
    write, literal = partial(_write, links=links), partial(_write_literal, links=links)
    return PartWriter(limit=_ROOM, max_parts=MOST_PARTS, write=write, literal=literal)


def message_content(
    part: MessagePart, *, may_be_duplicate: bool = False, language: Callable[[SessionKey], str] = in_english
) -> str:
    """Return the content of *part*; a marked one starts with a note that it may repeat another."""
    text = f"{_mention(part)}{part.payload or part.plain}"
    if part.file is not None:
        # What a voice message says stands above it already. Whoever wrote a caption, it is no markup.
        is_sound = part.file.kind in ("voice", "audio")
        text = "" if is_sound else literal(sanitize(part.file.caption))[:_ROOM]
    return f"{translate('delivery.may_repeat', language(part.key))}\n{text}"[:LIMIT] if may_be_duplicate else text


def _mention(part: MessagePart) -> str:
    return f"<@{part.calls}> " if part.calls.isdecimal() else ""


def matches_part(content: str, part: MessagePart) -> bool:
    """Return True if the content of a message is *part*, marked or not; Discord trims white space."""
    standing = content.strip()
    for language in LANGUAGES:  # it may have been another one's when it was sent
        standing = standing.removeprefix(translate("delivery.may_repeat", language)).strip()
    standing = standing.removeprefix(_mention(part))
    return bool(standing) and standing in (part.payload.strip(), part.plain.strip())


_URL = re.compile(r"(?:https?://)[^\s<>]+")
_SPECIAL = re.compile(r"[\\*_~`|]")
_CONTROL = re.compile(r"<(?=[@#:/]|a:|t:|id:|sound:)")  # mentions, emoji, commands, times: shown, not acted upon
_MASKED = re.compile(r"\](?=\()")
_LINE_MARK = re.compile(r"^([^\S\n]*)(?=(?:#{1,3}|-#|>{1,3}|[-+])\s|>>>)|^([^\S\n]*\d+)(?=\.\s)", re.MULTILINE)
_DEEPEST_HEADING = 3
_BREAK = "\u200b"  # keeps three backticks inside a code block from ending it
_WIDEST_TABLE = 110  # columns of a line that does not wrap on a desktop


def render_markup(markdown: str) -> str:
    """Return *markdown* as Discord's own."""
    return write_tree(parse(markdown))


def write_tree(tree: MarkdownNode) -> str:
    """Return the text of *tree*, like `render_markup` of its source."""
    return _blocks(tree.children)


def literal(text: str) -> str:
    """Return *text* escaped so that Discord shows it literally."""
    return _escape_line_marks(_literal(text))


def _blocks(nodes: Iterable[MarkdownNode], gap: str = "\n\n") -> str:
    return write_blocks(nodes, _block, _paragraph, gap)


def _block(node: MarkdownNode) -> str:
    match node.kind:
        case NodeKind.HEADING:
            return _heading(node)
        case NodeKind.QUOTE:
            # Discord has one level.
            lines = _blocks(node.children).split("\n")
            return "\n".join(line if line.startswith("> ") else f"> {line}" for line in lines)
        case NodeKind.BULLETS | NodeKind.NUMBERS:
            return write_list(node, _blocks, bullet="- ")
        case NodeKind.FENCE:
            return _code(node.text, node.info)
        case NodeKind.RULE:
            return "———"
        case NodeKind.TABLE:
            return _table(node)
        case _:
            return _paragraph(node.children)


def _heading(node: MarkdownNode) -> str:
    text = _inline(node.children).replace("\n", " ")
    if not text:
        return ""
    return f"{'#' * node.level} {text}" if node.level <= _DEEPEST_HEADING else f"**{text}**"


def _code(text: str, info: str = "") -> str:
    language = info.split()[0] if info else ""
    language = language if re.fullmatch(r"[\w+#.-]{1,30}", language) else ""
    body = text.rstrip("\n").replace("``", f"`{_BREAK}`")
    return f"```{language}\n{body}\n```"


def _table(node: MarkdownNode) -> str:
    """A table in a code block, its columns aligned; too wide a one as lines of cells."""
    rows = [[_cell(cell) for cell in row.children] for row in node.children if row.kind is NodeKind.ROW]
    if not any(rows):
        return ""
    aligned = table_lines(rows, gap=" │ ", rule="──┼─", widest=_WIDEST_TABLE)
    return _code("\n".join(" | ".join(row) for row in rows) if aligned is None else aligned)


def _cell(cell: MarkdownNode) -> str:
    return " ".join("".join(_bare(child) for child in cell.children).split())


def _bare(node: MarkdownNode) -> str:
    """Text without marks, for where no mark works."""
    if node.kind in (NodeKind.SOFT_BREAK, NodeKind.HARD_BREAK):
        return " "
    text = node.text or "".join(_bare(child) for child in node.children)
    if node.kind in (NodeKind.LINK, NodeKind.IMAGE) and node.href and node.href not in text:
        return f"{text} ({node.href})" if text else node.href
    return text


def _paragraph(nodes: Iterable[MarkdownNode]) -> str:
    return _escape_line_marks(_inline(nodes))


def _escape_line_marks(text: str) -> str:
    return _LINE_MARK.sub(lambda found: f"{found[1] or found[2] or ''}\\", text)


def _inline(nodes: Iterable[MarkdownNode]) -> str:
    return "".join(_span(node) for node in nodes)


def _span(node: MarkdownNode) -> str:
    match node.kind:
        case NodeKind.TEXT:
            return _literal(node.text)
        case NodeKind.CODE:
            return _inline_code(node.text)
        case NodeKind.FORMULA:
            return _inline_code(node.text.replace("\n", " ")) if _SPECIAL.search(node.text) else node.text
        case NodeKind.STRONG:
            return _wrapped("**", node)
        case NodeKind.EMPHASIS:
            return _wrapped("*", node)
        case NodeKind.STRIKE:
            return _wrapped("~~", node)
        case NodeKind.LINK | NodeKind.IMAGE:
            return _link(node)
        case NodeKind.SOFT_BREAK | NodeKind.HARD_BREAK:
            return "\n"
        case _:
            return _inline(node.children)


def _wrapped(mark: str, node: MarkdownNode) -> str:
    text = _inline(node.children)
    return f"{mark}{text}{mark}" if text.strip() else text


def _inline_code(text: str) -> str:
    if "`" not in text:
        return f"`{text}`"
    if "``" in text or text.startswith("`") or text.endswith("`"):
        return f"`{text.replace('`', 'ˋ')}`"
    return f"``{text}``"


def _literal(text: str) -> str:
    """Escape what Discord would act on; addresses stay whole, or they would lead elsewhere."""
    written, place = [], 0
    for url in _URL.finditer(text):
        written += [_escaped(text[place : url.start()]), url[0]]
        place = url.end()
    return "".join([*written, _escaped(text[place:])])


def _escaped(text: str) -> str:
    text = _SPECIAL.sub(lambda found: f"\\{found[0]}", text)
    return _MASKED.sub("\\\\]", _CONTROL.sub("\\\\<", text))


def _link(node: MarkdownNode) -> str:
    label = " ".join("".join(_read(child) for child in node.children).split())
    href = node.href
    bare = href.removeprefix("mailto:")
    if not href or label in (href, bare):
        return _literal(label or href)
    is_web = re.fullmatch(r"https?://[^\s<>()]+", href) is not None
    if not label:
        return href if is_web else _literal(href)
    if not is_web or node.kind is NodeKind.IMAGE or _names_another_host(label, href):
        return f"{_literal(label)} ({href if is_web else _literal(href)})"
    return f"[{_inline(node.children)}](<{href}>)".replace("\n", " ")


def _read(node: MarkdownNode) -> str:
    """Return the plain text of a node."""
    if node.kind in (NodeKind.SOFT_BREAK, NodeKind.HARD_BREAK):
        return " "
    return node.text or "".join(_read(child) for child in node.children)


def _names_another_host(label: str, href: str) -> bool:
    """Return True if the label looks like an address of another host, so that the target must be shown."""
    if "//" in label or "\\" in label:
        return True  # Discord shows such a link as it is written anyway
    return names_other_host(label, urlsplit(href).hostname or "")


# -- buttons ---------------------------------------------------------------------------------------
# Buttons below a message: Discord's components, and which of them stay when one was pressed.
#
# Field names are Discord's (docs.discord.com/developers/components/reference).

MOST_BUTTONS = 20  # five in each of five rows are Discord's most
_ROW, _BUTTON = 1, 2  # component types
_GREY = 2  # style: nothing that is asked is the right answer


def render_buttons(choices: Sequence[MessageButton]) -> list[dict[str, Any]]:
    """Return *choices* as rows of buttons; the command is what a press sends back."""
    return [
        {
            "type": _ROW,
            "components": [
                {"type": _BUTTON, "style": _GREY, "label": each.label, "custom_id": each.command} for each in row
            ],
        }
        for row in button_rows(choices)
    ]


def remaining_rows(payload: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the rows that stay below the message of a press when the pressed button's row is done with."""
    pressed = payload["data"]["custom_id"]
    rows = (payload.get("message") or {}).get("components") or ()
    return [row for row in rows if all(each.get("custom_id") != pressed for each in row.get("components") or ())]
