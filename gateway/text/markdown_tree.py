"""The Markdown tree that channels write their dialects from: CommonMark, tables, strikethrough, no HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from markdown_it import MarkdownIt
from markdown_it.token import Token

from gateway.text.tables import cells
from gateway.text.text_units import sanitize

MOST_WEIGHT = 20_000  # of one text: a page of dense notes has 500, a second of processor time on a small machine 50,000
DEEPEST = 40  # levels; what is nested deeper is lifted into its parent, so that walking by recursion is safe
_SIGNS = "\n!&*<>[\\]_`~|"  # where a parser stops to look; each costs it some ten microseconds


def weight(text: str) -> int:
    """Return the number of signs and table cells in *text*: its cost as Markdown grows with it, and no faster."""
    return sum(map(text.count, _SIGNS)) + cells(text)


class NodeKind(StrEnum):
    """Kinds of nodes. The comments name a node's fields besides children."""

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
class MarkdownNode:
    """One node. Walk `children` in order; blocks hold blocks or, at the bottom, inline nodes.

    A list's items hold paragraphs; `is_tight` on the list says that they stand without blank lines.
    """

    kind: NodeKind
    children: tuple[MarkdownNode, ...] = ()
    text: str = ""
    info: str = ""
    href: str = ""
    level: int = 0
    start: int = 1
    is_header: bool = False
    is_tight: bool = False


@dataclass(slots=True)
class _OpenNode:
    """A node whose end has not come yet."""

    kind: NodeKind
    token: Token | None = None
    children: list[MarkdownNode] = field(default_factory=list)
    is_tight: bool = False


_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
_SAME = {"code_block": NodeKind.FENCE, "th": NodeKind.CELL}
_KINDS = {kind.value: kind for kind in NodeKind} | _SAME


def parse(markdown: str) -> MarkdownNode:
    """Return the tree of *markdown*; raw HTML is text, and every text is clean.

    Text heavier than `MOST_WEIGHT` is not parsed: its tree is one paragraph of the unchanged lines.
    """
    if weight(markdown) > MOST_WEIGHT:
        return _unread(sanitize(markdown))
    builder = _TreeBuilder()
    builder.feed(_PARSER.parse(sanitize(markdown)))
    return builder.root()


def _unread(text: str) -> MarkdownNode:
    nodes: list[MarkdownNode] = []
    for line in text.split("\n"):
        nodes += [MarkdownNode(NodeKind.SOFT_BREAK), MarkdownNode(NodeKind.TEXT, text=line)]
    return MarkdownNode(NodeKind.DOCUMENT, (MarkdownNode(NodeKind.PARAGRAPH, tuple(nodes[1:])),))


class _TreeBuilder:
    """Turns the parser's flat tokens into the tree, without recursion."""

    def __init__(self) -> None:
        self._stack = [_OpenNode(NodeKind.DOCUMENT)]
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

    def root(self) -> MarkdownNode:
        return MarkdownNode(NodeKind.DOCUMENT, tuple(self._stack[0].children))

    def _enter(self, token: Token) -> None:
        kind = _KINDS.get(token.type.removesuffix("_open"))
        lifted = kind is None or len(self._stack) > DEEPEST
        self._lifted.append(lifted)
        if kind is not None and not lifted:
            self._stack.append(_OpenNode(kind, token))
        if token.type == "paragraph_open" and token.hidden:
            self._mark_tight()

    def _mark_tight(self) -> None:
        for node in reversed(self._stack):
            if node.kind in (NodeKind.BULLETS, NodeKind.NUMBERS):
                node.is_tight = True
                return

    def _leave(self) -> None:
        if self._lifted.pop():
            return
        done = self._stack.pop()
        self._add(_closed(done))

    def _leaf(self, token: Token) -> None:
        kind = _KINDS.get(token.type)
        if kind is NodeKind.IMAGE:
            described = _TreeBuilder()
            described.feed(token.children or ())
            self._add(MarkdownNode(kind, described.root().children, href=str(token.attrs.get("src", ""))))
        elif kind is not None:
            self._add(MarkdownNode(kind, text=token.content, info=token.info.strip()))
        elif token.content:
            self._add(MarkdownNode(NodeKind.TEXT, text=token.content))

    def _add(self, node: MarkdownNode) -> None:
        if node.kind is not NodeKind.TEXT or node.text:
            self._stack[-1].children.append(node)


def _closed(node: _OpenNode) -> MarkdownNode:
    token = node.token
    assert token is not None  # noqa: S101 - only the document has none, and it is never left
    return MarkdownNode(
        node.kind,
        tuple(node.children),
        href=str(token.attrs.get("href", "")),
        level=int(token.tag[1:]) if node.kind is NodeKind.HEADING else 0,
        start=int(token.attrs.get("start", 1)),
        is_header=token.type == "th_open",
        is_tight=node.is_tight,
    )
