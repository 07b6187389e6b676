"""Answers as Telegram's text with entities, in parts of 4,096 UTF-16 units and 100 entities, cut once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from gateway.events import MessagePart, OutboundMessage, SessionKey
from gateway.i18n import translate
from gateway.ports.channel import in_english
from gateway.text import (
    LengthUnit,
    Links,
    MarkdownNode,
    NodeKind,
    PartWriter,
    WrittenPart,
    break_addresses,
    names_other_host,
    pack,
    parse,
    plain_tree,
    split,
    table_lines,
    width,
)
from gateway.text.message_text import safe_display_name

_PLATFORM_LIMIT = 4096  # UTF-16 units after entities parsing (constants.MessageLimit)
_ENTITIES = 100  # what comes after them is shown without its setting
MAX_PARTS = 40
# A resend that may repeat something says so, in the same message: its room is kept free in every part.
LIMIT = _PLATFORM_LIMIT - 120


@dataclass(frozen=True, slots=True)
class OutgoingText:
    """The text of one call with its entities as Telegram's objects."""

    text: str
    entities: tuple[dict[str, Any], ...] = ()


def render(
    message: OutboundMessage, language: Callable[[SessionKey], str] = in_english, *, least: int = 0
) -> list[MessagePart]:
    """Cut and format *message*, and say in the chat's *language* where it is cut; only a blank text gives no part.

    The first part holds the first *least* characters, where they fit.
    """
    parts = pack(
        message.text,
        _writer(message.links),
        note=lambda: translate("delivery.cut", language(message.key)),
        least=least,
    )
    later = replace(message, reply_to="")
    return [(message if n == 1 else later).part(n, each.payload, each.plain) for n, each in enumerate(parts, 1)]


def build_outgoing(
    part: MessagePart, *, may_be_duplicate: bool = False, language: Callable[[SessionKey], str] = in_english
) -> OutgoingText:
    """Return the text of *part*, plain if its payload is empty; *may_be_duplicate* adds that it may repeat another."""
    if part.payload:
        read = json.loads(part.payload)
        text, entities = str(read["text"]), tuple(read["entities"])
    else:
        text, entities = part.plain, ()
    if part.calls.isdecimal():
        text, entities = _with_mention(part, text, entities)
    if not may_be_duplicate:
        return OutgoingText(text, entities)
    mark = f"\n\n{translate('delivery.may_repeat', language(part.key))}"
    if width(text + mark, LengthUnit.UTF16) > _PLATFORM_LIMIT:  # a part that another version of us has cut
        # Without its settings: only the plain text is safe to show so.
        text = split(part.plain, limit=_PLATFORM_LIMIT - width(mark, LengthUnit.UTF16), unit=LengthUnit.UTF16)[0]
        entities = ()
    return OutgoingText(text + mark, entities)


def _with_mention(
    part: MessagePart, text: str, entities: tuple[dict[str, Any], ...]
) -> tuple[str, tuple[dict[str, Any], ...]]:
    """Return the text after the name of the user whom the part mentions, by id: the name is not a handle."""
    name = safe_display_name(part.calls_name) or "@"
    length = width(name, LengthUnit.UTF16)
    user = {"id": int(part.calls), "is_bot": False, "first_name": name}
    mention = {"type": "text_mention", "offset": 0, "length": length, "user": user}
    moved = ({**each, "offset": each["offset"] + length + 1} for each in entities)
    return f"{name} {text}", (mention, *moved)


def _write(markdown: str, links: Links | None = None) -> WrittenPart:
    tree = parse(markdown, links)
    shown = styled_tree(tree)
    if not shown.text.strip():
        shown = FormattedText(break_addresses(markdown.strip(), links))
    text = plain_tree(tree, links)
    fill = max(width(shown.text, LengthUnit.UTF16) / LIMIT, len(shown.entities) / _ENTITIES)
    plain = text if text.strip() and width(text, LengthUnit.UTF16) <= LIMIT else shown.text
    is_formatted = bool(shown.entities) or shown.text != plain
    return WrittenPart(_payload(shown) if is_formatted else "", plain, fill)


def _literal(text: str, links: Links | None = None) -> WrittenPart:
    text = break_addresses(text, links)
    return WrittenPart("", text, width(text, LengthUnit.UTF16) / LIMIT)


def _writer(links: Links | None) -> PartWriter:
    write, literal = partial(_write, links=links), partial(_literal, links=links)
    return PartWriter(limit=LIMIT, unit=LengthUnit.UTF16, max_parts=MAX_PARTS, write=write, literal=literal)


def _payload(formatted: FormattedText) -> str:
    entities = [_entity(entity) for entity in formatted.entities]
    return json.dumps({"text": formatted.text, "entities": entities}, ensure_ascii=False, separators=(",", ":"))


def _entity(entity: TextEntity) -> dict[str, Any]:
    fields: dict[str, Any] = {"type": entity.type, "offset": entity.offset, "length": entity.length}
    if entity.extra:
        fields["url" if entity.type == "text_link" else "language"] = entity.extra
    return fields


_STYLES = {NodeKind.STRONG: "bold", NodeKind.EMPHASIS: "italic", NodeKind.STRIKE: "strikethrough"}
_BLOCKS = frozenset(
    (
        NodeKind.PARAGRAPH,
        NodeKind.HEADING,
        NodeKind.QUOTE,
        NodeKind.BULLETS,
        NodeKind.NUMBERS,
        NodeKind.FENCE,
        NodeKind.RULE,
        NodeKind.TABLE,
    )
)
_LANGUAGE = re.compile(r"[A-Za-z0-9+#._-]{1,32}")
_WIDEST_TABLE = 40  # columns that a telephone shows without breaking the line
_WHITE = frozenset(map(ord, " \t\n\u00a0\u3000"))


@dataclass(frozen=True, slots=True)
class TextEntity:
    """How one stretch of a text is set; *extra* is the address of a text_link, the language of a pre."""

    type: str
    offset: int  # UTF-16 units
    length: int
    extra: str = ""


@dataclass(frozen=True, slots=True)
class FormattedText:
    """A text with its entities, in order."""

    text: str
    entities: tuple[TextEntity, ...] = ()


def render_markup(markdown: str) -> FormattedText:
    """Return *markdown* as Telegram shows it. The text is blank when nothing in it can be shown."""
    return styled_tree(parse(markdown))


def styled_tree(tree: MarkdownNode) -> FormattedText:
    """Return the formatted text of *tree*, like `render_markup` of its source."""
    writer = _EntityWriter()
    writer.blocks(tree.children)
    return writer.finish()


class _EntityWriter:
    """Walks the tree once; offsets are counted as the text grows."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._at = 0
        self._indents: list[str] = []
        self._is_line_new = False  # the line's indent is written with its first character
        self._open: list[tuple[str, str, int]] = []
        self._entities: list[TextEntity] = []

    def finish(self) -> FormattedText:
        """Return the text, with entities trimmed of white space at their edges."""
        text = "".join(self._pieces).rstrip()
        units = text.encode("utf-16-le")
        trimmed = (_trim(entity, units) for entity in self._entities)
        kept = sorted((each for each in trimmed if each.length > 0), key=lambda each: (each.offset, -each.length))
        return FormattedText(text, tuple(kept))

    # Text

    def write(self, text: str) -> None:
        """Write *text*; every line starts with the indent of its lists and quotes."""
        for n, line in enumerate(text.split("\n")):
            if n:
                self._put("\n")
                self._is_line_new = True
            if line:
                self._start_line()
                self._put(line)

    def _put(self, text: str) -> None:
        self._pieces.append(text)
        self._at += width(text, LengthUnit.UTF16)

    def _start_line(self) -> None:
        if self._is_line_new:
            self._is_line_new = False
            self._put("".join(self._indents))

    @contextmanager
    def _style(self, type_: str, extra: str = "") -> Iterator[None]:
        if any(name == type_ for name, _, _ in self._open):
            yield
            return
        self._start_line()
        self._open.append((type_, extra, self._at))
        yield
        self._end_style()

    def _end_style(self) -> tuple[str, str]:
        type_, extra, start = self._open.pop()
        if self._at > start:
            self._entities.append(TextEntity(type_, start, self._at - start, extra))
        return type_, extra

    def _solid(self, type_: str, text: str, extra: str = "") -> None:
        """Write code, which contains no entity and can only be inside a quote: the styles around it pause."""
        if any(name == "blockquote" for name, _, _ in self._open):
            text = text.strip()  # a quote is trimmed at its edges, and must not end within what it holds
        self._start_line()
        paused: list[tuple[str, str]] = []
        while self._open and self._open[-1][0] != "blockquote":
            paused.append(self._end_style())
        start = self._at
        self._put(text)
        self._entities.append(TextEntity(type_, start, self._at - start, extra))
        for name, more in reversed(paused):
            self._open.append((name, more, self._at))

    @contextmanager
    def _indented(self, indent: str) -> Iterator[None]:
        self._indents.append(indent)
        yield
        self._indents.pop()

    # Blocks

    def blocks(self, nodes: Sequence[MarkdownNode], gap: str = "\n\n") -> None:
        """Write blocks with *gap* between them; inline nodes that deep nesting moved here continue the line."""
        was_block = False
        for n, node in enumerate(nodes):
            is_block = node.kind in _BLOCKS
            if n and (is_block or was_block):
                self.write(gap)
            was_block = is_block
            if is_block:
                self._block(node)
            else:
                self._span(node)

    def _block(self, node: MarkdownNode) -> None:
        match node.kind:
            case NodeKind.HEADING:
                with self._style("bold"):
                    self._inline(node.children)
            case NodeKind.QUOTE:
                self._quote(node)
            case NodeKind.BULLETS | NodeKind.NUMBERS:
                self._list(node)
            case NodeKind.FENCE:
                self._fence(node)
            case NodeKind.RULE:
                self.write("———")
            case NodeKind.TABLE:
                self._table(node)
            case _:
                self._inline(node.children)

    def _quote(self, node: MarkdownNode) -> None:
        if self._indents or any(name == "blockquote" for name, _, _ in self._open):
            self._start_line()
            self._put("> ")
            with self._indented("> "):
                self.blocks(node.children)
            return
        with self._style("blockquote"):
            self.blocks(node.children)

    def _list(self, node: MarkdownNode) -> None:
        for number, item in enumerate(node.children, node.start):
            if number > node.start:
                self.write("\n" if node.is_tight else "\n\n")
            mark = "• " if node.kind is NodeKind.BULLETS else f"{number}. "
            self._start_line()
            self._put(mark)
            with self._indented(" " * len(mark)):
                self.blocks(item.children, "\n" if node.is_tight else "\n\n")

    def _fence(self, node: MarkdownNode) -> None:
        code = node.text.rstrip("\n")
        if not code.strip():
            return
        language = _LANGUAGE.match(node.info)
        self._is_line_new = False  # code begins at the margin, or its first line would stand apart
        self._solid("pre", code, language[0] if language else "")

    def _table(self, node: MarkdownNode) -> None:
        rows = [row.children for row in node.children if row.kind is NodeKind.ROW]
        flat = [[_flat(cell.children) for cell in row] for row in rows]
        # Columns need code, which holds no links.
        aligned = None if any(map(_has_link, rows)) else table_lines(flat, gap="  ", rule="─  ", widest=_WIDEST_TABLE)
        if aligned is not None:
            self._is_line_new = False
            self._solid("pre", aligned)
        else:
            self._records(rows)

    def _records(self, rows: Sequence[tuple[MarkdownNode, ...]]) -> None:
        """Write a table that is too wide for columns, or has links: a paragraph for each row."""
        head, *body = rows
        if body and _has_link(head[:1]):  # the other titles are before their cells
            self._inline(head[0].children)
            self.write("\n\n")
        for n, row in enumerate(body or [head]):
            if n:
                self.write("\n\n")
            with self._style("bold"):
                self._inline(row[0].children if row else ())
            for title, cell in zip(head[1:], row[1:], strict=False):
                self.write("\n")
                self._inline(title.children)
                self.write(": ")
                self._inline(cell.children)

    # Inline

    def _inline(self, nodes: Sequence[MarkdownNode]) -> None:
        for node in nodes:
            self._span(node)

    def _span(self, node: MarkdownNode) -> None:
        if node.kind in _STYLES:
            with self._style(_STYLES[node.kind]):
                self._inline(node.children)
            return
        match node.kind:
            case NodeKind.SOFT_BREAK | NodeKind.HARD_BREAK:
                self.write("\n")
            case NodeKind.CODE:
                self._code(node.text)
            case NodeKind.LINK | NodeKind.IMAGE:
                self._link(node)
            case _:
                self.write(node.text)
                self._inline(node.children)

    def _code(self, text: str) -> None:
        if any(name == "text_link" for name, _, _ in self._open) or not text.strip():
            self.write(text)  # a link that leads somewhere is worth more than its typeface
        else:
            self._solid("code", text)

    def _link(self, node: MarkdownNode) -> None:
        label, bare = _flat(node.children), node.href.removeprefix("mailto:")
        if not bare or label in (node.href, bare):
            self.write(label or node.href)
        elif not label:
            self.write(node.href)
        elif _is_honest(label, node.href) and not any(name == "text_link" for name, _, _ in self._open):
            with self._style("text_link", node.href):
                self._inline(node.children)
        else:
            self._inline(node.children)
            self.write(f" ({node.href})")


def _flat(nodes: Sequence[MarkdownNode]) -> str:
    """Return the text of *nodes* without formatting."""
    return "".join(" " if "break" in node.kind else node.text or _flat(node.children) for node in nodes)


def _has_link(nodes: Sequence[MarkdownNode]) -> bool:
    return any(node.kind in (NodeKind.LINK, NodeKind.IMAGE) or _has_link(node.children) for node in nodes)


def _is_honest(label: str, href: str) -> bool:
    """Return True if *href* is a web address and *label* does not name another host."""
    try:
        parts = urlsplit(href)
        host = parts.hostname or ""
    except ValueError:
        return False
    if parts.scheme.lower() not in ("http", "https") or not host or len(href) > 2000:
        return False
    return not names_other_host(label, host)


def _trim(entity: TextEntity, units: bytes) -> TextEntity:
    """Return *entity* without the white space at its edges, and within the text; code keeps its own."""
    start, end = entity.offset, min(entity.offset + entity.length, len(units) // 2)
    if entity.type not in ("code", "pre"):
        while end > start and _unit(units, end - 1) in _WHITE:
            end -= 1
        while start < end and _unit(units, start) in _WHITE:
            start += 1
    return TextEntity(entity.type, start, end - start, entity.extra)


def _unit(units: bytes, index: int) -> int:
    return int.from_bytes(units[2 * index : 2 * index + 2], "little")
