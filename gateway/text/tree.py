"""The Markdown tree that channels write their dialects from: CommonMark, tables, strikethrough, no HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from markdown_it import MarkdownIt
from markdown_it.token import Token

from gateway.text.units import clean
from gateway.text.weight import MOST, weight

DEEPEST = 40  # levels; what is nested deeper is lifted into its parent, so that walking by recursion is safe


class Kind(StrEnum):
    """What a node is. The comments name what it carries besides children."""

    DOCUMENT = "document"
    PARAGRAPH = "paragraph"
    HEADING = "heading"  # level
    QUOTE = "blockquote"
    BULLETS = "bullet_list"
    NUMBERS = "ordered_list"  # start
    ITEM = "list_item"
    FENCE = "fence"  # text, info (the language)
    RULE = "hr"
    TABLE = "table"
    ROW = "tr"
    CELL = "td"  # is_header
    TEXT = "text"  # text
    CODE = "code_inline"  # text
    STRONG = "strong"
    EMPHASIS = "em"
    STRIKE = "s"
    LINK = "link"  # href
    IMAGE = "image"  # href; its children are the description
    SOFT_BREAK = "softbreak"
    HARD_BREAK = "hardbreak"


@dataclass(frozen=True, slots=True)
class Node:
    """One node. Walk `children` in order; blocks hold blocks or, at the bottom, inline nodes.

    A list's items hold paragraphs; `is_tight` on the list says that they stand without blank lines.
    """

    kind: Kind
    children: tuple[Node, ...] = ()
    text: str = ""
    info: str = ""
    href: str = ""
    level: int = 0
    start: int = 1
    is_header: bool = False
    is_tight: bool = False


@dataclass(slots=True)
class _Open:
    """A node whose end has not come yet."""

    kind: Kind
    token: Token | None = None
    children: list[Node] = field(default_factory=list)
    is_tight: bool = False


_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
_SAME = {"code_block": Kind.FENCE, "th": Kind.CELL}
_KINDS = {kind.value: kind for kind in Kind} | _SAME


def parse(markdown: str) -> Node:
    """Return the tree of *markdown*; raw HTML is text, and every text is clean.

    What weighs more than `weight.MOST` is not read as Markdown: its tree is one paragraph of the lines as they stand.
    """
    if weight(markdown) > MOST:
        return _unread(clean(markdown))
    builder = _Builder()
    builder.feed(_PARSER.parse(clean(markdown)))
    return builder.root()


def _unread(text: str) -> Node:
    nodes: list[Node] = []
    for line in text.split("\n"):
        nodes += [Node(Kind.SOFT_BREAK), Node(Kind.TEXT, text=line)]
    return Node(Kind.DOCUMENT, (Node(Kind.PARAGRAPH, tuple(nodes[1:])),))


class _Builder:
    """Turns the parser's flat tokens into the tree, without recursion."""

    def __init__(self) -> None:
        self._stack = [_Open(Kind.DOCUMENT)]
        self._lifted: list[bool] = []  # for each open token: is it transparent?

    def feed(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            if token.nesting > 0:
                self._enter(token)
            elif token.nesting < 0:
                self._leave()
            elif token.type == "inline":
                self.feed(token.children or ())
            else:
                self._leaf(token)

    def root(self) -> Node:
        return Node(Kind.DOCUMENT, tuple(self._stack[0].children))

    def _enter(self, token: Token) -> None:
        kind = _KINDS.get(token.type.removesuffix("_open"))
        lifted = kind is None or len(self._stack) > DEEPEST
        self._lifted.append(lifted)
        if kind is not None and not lifted:
            self._stack.append(_Open(kind, token))
        if token.type == "paragraph_open" and token.hidden:
            self._mark_tight()

    def _mark_tight(self) -> None:
        for node in reversed(self._stack):
            if node.kind in (Kind.BULLETS, Kind.NUMBERS):
                node.is_tight = True
                return

    def _leave(self) -> None:
        if self._lifted.pop():
            return
        done = self._stack.pop()
        self._add(_closed(done))

    def _leaf(self, token: Token) -> None:
        kind = _KINDS.get(token.type)
        if kind is Kind.IMAGE:
            described = _Builder()
            described.feed(token.children or ())
            self._add(Node(kind, described.root().children, href=str(token.attrs.get("src", ""))))
        elif kind is not None:
            self._add(Node(kind, text=token.content, info=token.info.strip()))
        elif token.content:
            self._add(Node(Kind.TEXT, text=token.content))

    def _add(self, node: Node) -> None:
        if node.kind is not Kind.TEXT or node.text:
            self._stack[-1].children.append(node)


def _closed(done: _Open) -> Node:
    token = done.token
    assert token is not None  # noqa: S101 - only the document has none, and it is never left
    return Node(
        done.kind,
        tuple(done.children),
        href=str(token.attrs.get("href", "")),
        level=int(token.tag[1:]) if done.kind is Kind.HEADING else 0,
        start=int(token.attrs.get("start", 1)),
        is_header=token.type == "th_open",
        is_tight=done.is_tight,
    )
