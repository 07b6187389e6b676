"""The Markdown tree that channels write their dialects from, and the walk that all dialects share.

What is parsed says markdown_rules.py. A dialect provides two functions: one writes a block node, one a run of inline
nodes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from markdown_it.token import Token

from gateway.text.linked_addresses import Links, break_addresses, linked_addresses, restrict_tokens
from gateway.text.markdown_blocks import cells
from gateway.text.markdown_rules import FORMULA_MARKUP, make_parser
from gateway.text.text_units import sanitize

MOST_WEIGHT = 20_000  # of one text: a page of dense notes has 500, a second of processor time on a small machine 50,000
DEEPEST = 40  # levels; what is nested deeper is lifted into its parent, so that walking by recursion is safe
_SIGNS = "\n!$&*<>[\\]_`~|"  # where a parser stops to look; each costs it some ten microseconds


def weight(text: str) -> int:
    """Return the number of signs and table cells in *text*: its cost as Markdown grows with it, and no faster."""
    return sum(map(text.count, _SIGNS)) + (cells(text) if "|" in text else 0)


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
    CELL = "td"
    TEXT = "text"  # text
    CODE = "code_inline"  # text
    FORMULA = "formula"  # text, as written, with its delimiters
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
    is_tight: bool = False


@dataclass(slots=True)
class _OpenNode:
    """A node whose end has not come yet."""

    kind: NodeKind
    token: Token | None = None
    children: list[MarkdownNode] = field(default_factory=list)
    is_tight: bool = False


_PARSER = make_parser()
_TASK = re.compile(r"\[([ xX])\] ")
_BOXES = {" ": "☐ ", "x": "☑ ", "X": "☑ "}
_SAME = {"code_block": NodeKind.FENCE, "th": NodeKind.CELL}
_KINDS = {kind.value: kind for kind in NodeKind} | _SAME


def parse(markdown: str, links: Links | None = None) -> MarkdownNode:
    """Return the tree of *markdown*; raw HTML is text, and every text is clean.

    Addresses that are not in *links*, unless it is None, are inline code. Text heavier than `MOST_WEIGHT` is not
    parsed: its tree is one paragraph of the unchanged lines, in which such addresses are broken.
    """
    if weight(markdown) > MOST_WEIGHT:
        return _unread(break_addresses(sanitize(markdown), links))
    tokens = _PARSER.parse(sanitize(markdown))
    if links is not None:
        restrict_tokens(tokens, links)
    return _TreeBuilder(tokens).root


def find_addresses(markdown: str) -> list[str]:
    """Return everything in *markdown* that could become a link, each once; nothing of text that is too heavy."""
    if weight(markdown) > MOST_WEIGHT:
        return []
    return list(dict.fromkeys(linked_addresses(_PARSER.parse(sanitize(markdown)))))


def _unread(text: str) -> MarkdownNode:
    nodes: list[MarkdownNode] = []
    for line in text.split("\n"):
        nodes += [MarkdownNode(NodeKind.SOFT_BREAK), MarkdownNode(NodeKind.TEXT, text=line)]
    return MarkdownNode(NodeKind.DOCUMENT, (MarkdownNode(NodeKind.PARAGRAPH, tuple(nodes[1:])),))


class _TreeBuilder:
    """Turns the parser's flat tokens into the tree, without recursion."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._stack = [_OpenNode(NodeKind.DOCUMENT)]
        self._lifted: list[bool] = []  # for each open token: is it transparent?
        self._feed(tokens)
        self.root = MarkdownNode(NodeKind.DOCUMENT, tuple(self._stack[0].children))

    def _feed(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            if token.nesting > 0:
                self._enter(token)
            elif token.nesting < 0:
                self._leave()
            elif token.type == "inline":
                self._mark_task(token.children or ())
                self._feed(token.children or ())
            else:
                self._leaf(token)

    def _mark_task(self, tokens: Sequence[Token]) -> None:
        """Draw the box of a task where a list's item begins with one."""
        kinds = [node.kind for node in self._stack[-2:]]
        is_start = kinds == [NodeKind.ITEM, NodeKind.PARAGRAPH] and not self._stack[-2].children
        if is_start and tokens and tokens[0].type == "text" and (box := _TASK.match(tokens[0].content)):
            tokens[0].content = _BOXES[box[1]] + tokens[0].content[box.end() :]

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
        node = self._stack.pop()
        token = node.token
        assert token is not None  # noqa: S101 - only the document has none, and it is never left
        self._stack[-1].children.append(
            MarkdownNode(
                node.kind,
                tuple(node.children),
                href=str(token.attrs.get("href", "")),
                level=int(token.tag[1:]) if node.kind is NodeKind.HEADING else 0,
                start=int(token.attrs.get("start", 1)),
                is_tight=node.is_tight,
            )
        )

    def _leaf(self, token: Token) -> None:
        kind = _KINDS.get(token.type)
        if kind is NodeKind.IMAGE:
            described = _TreeBuilder(token.children or ()).root.children
            self._add(MarkdownNode(kind, described, href=str(token.attrs.get("src", ""))))
        elif kind is NodeKind.CODE and token.markup == FORMULA_MARKUP:
            self._add(MarkdownNode(NodeKind.FORMULA, text=token.content))
        elif kind is not None:
            self._add(MarkdownNode(kind, text=token.content, info=token.info.strip()))
        elif token.content:
            self._add(MarkdownNode(NodeKind.TEXT, text=token.content))

    def _add(self, node: MarkdownNode) -> None:
        if node.kind is not NodeKind.TEXT or node.text:
            self._stack[-1].children.append(node)


Block = Callable[[MarkdownNode], str]
Inline = Callable[[tuple[MarkdownNode, ...]], str]

BLOCKS = frozenset(
    (
        NodeKind.PARAGRAPH, NodeKind.HEADING, NodeKind.QUOTE, NodeKind.BULLETS,
        NodeKind.NUMBERS, NodeKind.FENCE, NodeKind.RULE, NodeKind.TABLE,
    )
)  # fmt: skip


def write_blocks(nodes: Iterable[MarkdownNode], block: Block, inline: Inline, gap: str = "\n\n") -> str:
    """Join blocks by *gap*; inline nodes that deep nesting moved out of their block become one line."""
    texts: list[str] = []
    run: list[MarkdownNode] = []
    for node in nodes:
        if node.kind in BLOCKS:
            texts.append(inline(tuple(run)))
            run.clear()
            texts.append(block(node))
        else:
            run.append(node)
    texts.append(inline(tuple(run)))
    return gap.join(text for text in texts if text)


def write_list(
    node: MarkdownNode, write_item: Callable[[Iterable[MarkdownNode], str], str], *, bullet: str, indent: int = 0
) -> str:
    """Write a list's items below each other; *write_item* gets an item's nodes and the gap between its blocks.

    Lines after the first stand *indent* columns in, by default as far as the item's own mark reaches.
    """
    gap = "\n" if node.is_tight else "\n\n"
    items: list[str] = []
    for number, item in enumerate(node.children, node.start):
        mark = bullet if node.kind is NodeKind.BULLETS else f"{number}. "
        items.append(prefix_lines(write_item(item.children, gap), mark, " " * (indent or len(mark))))
    return gap.join(items)


def prefix_lines(text: str, first: str, rest: str) -> str:
    """Put *first* before the first line of *text* and *rest* before the others; empty lines stay bare of blanks."""
    lines = text.split("\n")
    return "\n".join([first + lines[0], *(rest + line if line else rest.rstrip() for line in lines[1:])]).rstrip()


def render_plain(markdown: str, links: Links | None = None) -> str:
    """Return *markdown* as readable plain text.

    Lists keep their bullets and numbers, quotes their ``>``; a link shows its address unless its text does. Addresses
    that are not in *links*, unless it is None, are broken.
    """
    return plain_tree(parse(markdown, links), links)


def plain_tree(tree: MarkdownNode, links: Links | None = None) -> str:
    """Return the plain text of a parsed tree, with the addresses broken that are not in *links*."""
    return break_addresses(write_blocks(tree.children, _plain_block, _plain_inline), links)


def _plain_blocks(nodes: Iterable[MarkdownNode], gap: str = "\n\n") -> str:
    return write_blocks(nodes, _plain_block, _plain_inline, gap)


def _plain_block(node: MarkdownNode) -> str:
    match node.kind:
        case NodeKind.QUOTE:
            return prefix_lines(_plain_blocks(node.children), "> ", "> ")
        case NodeKind.BULLETS | NodeKind.NUMBERS:
            return write_list(node, _plain_blocks, bullet="• ")
        case NodeKind.FENCE:
            return node.text.rstrip("\n")
        case NodeKind.RULE:
            return "———"
        case NodeKind.TABLE:
            rows = (child for child in node.children if child.kind is NodeKind.ROW)
            return "\n".join(" | ".join(_plain_inline(cell.children) for cell in row.children) for row in rows)
        case _:
            return _plain_inline(node.children)


def _plain_inline(nodes: tuple[MarkdownNode, ...]) -> str:
    return "".join(_plain_span(node) for node in nodes)


def _plain_span(node: MarkdownNode) -> str:
    match node.kind:
        case NodeKind.SOFT_BREAK | NodeKind.HARD_BREAK:
            return "\n"
        case NodeKind.LINK | NodeKind.IMAGE:
            label = _plain_inline(node.children)
            bare = node.href.removeprefix("mailto:")
            if not bare or label in (node.href, bare):
                return label or node.href
            return f"{label} ({node.href})" if label else node.href
        case _:
            return node.text or _plain_inline(node.children)
