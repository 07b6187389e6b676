r"""The Markdown tree that channels write their dialects from, and the walk that all dialects share.

The parser reads CommonMark with tables and strikethrough, and what models write beyond it. A dialect provides two
functions: one writes a block node, one a run of inline nodes.

Differences from CommonMark, each made in channels/web/page/markdown.js too:

- Marks beside Chinese, Japanese and Korean text need no blanks: such text has none (github.com/tats-u/
  markdown-cjk-friendly).
- A star between two letters, digits or brackets is a product: ``2*3*4``, ``(a)*(b)*c``. Two beside a digit are a power.
- Formulas (``$…$``, ``$$…$$``, ``\(…\)``, ``\[…\]``) are kept as written.
- A line that is not indented ends a list; CommonMark adds it to the last item.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.common.utils import isMdAsciiPunct, isPunctChar, isWhiteSpace
from markdown_it.parser_inline import ParserInline
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline
from markdown_it.rules_inline.state_inline import Scanned
from markdown_it.token import Token

from gateway.text.linked_addresses import Links, break_addresses, linked_addresses, restrict_tokens
from gateway.text.markdown_blocks import cells
from gateway.text.message_text import sanitize

FORMULA_MARKUP = "formula"  # `markup` of an inline code token that is a formula
_CJK = re.compile(
    "[\u1100-\u11ff\u2e80-\u303f\u3040-\u30ff\u3100-\u312f\u3130-\u318f\u31a0-\u31bf\u31f0-\u4dbf\u4e00-\u9fff"
    "\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef\U00020000-\U0003ffff]"
)
# A dollar sign before a blank or a digit ends no formula: "$5 and $6" is money.
_FORMULA = re.compile(
    r"\\\((?:[^\\]|\\(?![()])){1,1000}?\\\)|\\\[(?:[^\\]|\\(?![\[\]])){1,1000}?\\\]"
    r"|\$\$[^$]{1,1000}\$\$|\$(?!\s)[^$\n`]{1,1000}(?<!\s)\$(?!\d)"
)
_DISPLAYED = {r"\[": r"\]", "$$": "$$"}
_FORMULA_LINES = 100


class _InlineState(StateInline):
    def scanDelims(self, start: int, canSplitWord: bool) -> Scanned:  # noqa: N802, N803 - the library's names
        """Return whether the run of marks at *start* can open and close, and its length."""
        scanned = super().scanDelims(start, canSplitWord)
        end = start + scanned.length
        before = self.src[start - 1] if start > 0 else " "
        after = self.src[end] if end < self.posMax else " "
        if self.src[start] == "*" and _is_operator(before, scanned.length, after):
            return Scanned(False, False, scanned.length)
        if not canSplitWord or not (_CJK.match(before) or _CJK.match(after)):
            return scanned
        can_open = not _is_blank(after) and (not _is_foreign_punctuation(after) or _ends_word(before))
        can_close = not _is_blank(before) and (not _is_foreign_punctuation(before) or _ends_word(after))
        return Scanned(can_open, can_close, scanned.length)


def _is_operator(before: str, stars: int, after: str) -> bool:
    """Return True for the stars of a product or a power of what is *before* and *after* them."""
    if not (before.isascii() and after.isascii()):
        return False
    is_between = (before.isalnum() or before in ")]") and (after.isalnum() or after in "([")
    return is_between and (stars == 1 or (stars == 2 and (before.isdigit() or after.isdigit())))


def _is_blank(char: str) -> bool:
    return isWhiteSpace(ord(char))


def _is_punctuation(char: str) -> bool:
    return isMdAsciiPunct(ord(char)) or isPunctChar(char)


def _is_foreign_punctuation(char: str) -> bool:
    return _is_punctuation(char) and not _CJK.match(char)


def _ends_word(char: str) -> bool:
    return _is_blank(char) or _is_punctuation(char) or _CJK.match(char) is not None


class _InlineParser(ParserInline):
    def parse(self, src: str, md: MarkdownIt, env: Any, tokens: list[Token]) -> list[Token]:
        """Parse *src* with our own state."""
        state = _InlineState(src, md, env, tokens)
        self.tokenize(state)
        for rule in self.ruler2.getRules(""):
            rule(state)
        return state.tokens


def _formula(state: StateInline, silent: bool) -> bool:
    found = _FORMULA.match(state.src, state.pos, state.posMax)
    if found is None:
        return False
    if not silent:
        token = state.push("code_inline", "code", 0)
        token.markup, token.content = FORMULA_MARKUP, found[0]
    state.pos = found.end()
    return True


def _formula_block(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Keep a displayed formula of several lines, in which no line is an item of a list or a rule."""
    first = state.src[state.bMarks[start] + state.tShift[start] : state.eMarks[start]].rstrip()
    closing = _DISPLAYED.get(first[:2])
    if closing is None or (len(first) > 2 and first.endswith(closing)):
        return False
    for line in range(start + 1, min(end, start + _FORMULA_LINES)):
        if state.isEmpty(line):
            return False
        if state.src[state.bMarks[line] : state.eMarks[line]].rstrip().endswith(closing):
            break
    else:
        return False
    if not silent:
        state.push("paragraph_open", "p", 1)
        token = state.push("inline", "", 0)
        token.content = state.getLines(start, line + 1, state.blkIndent, False).strip()
        token.children = []
        state.push("paragraph_close", "p", -1)
        state.line = line + 1
    return True


def _list_end(state: StateBlock, start: int, _: int, silent: bool) -> bool:
    """End the paragraph of a list's item before a line that is not indented as far."""
    return silent and 0 <= state.sCount[start] < state.blkIndent


def make_parser() -> MarkdownIt:
    """Return the parser."""
    parser = MarkdownIt()
    parser.inline = _InlineParser()
    parser.configure("commonmark", {"html": False}).enable(["table", "strikethrough"])
    parser.inline.ruler.before("escape", "formula", _formula)
    parser.block.ruler.before("list", "formula_block", _formula_block, {"alt": ["paragraph"]})
    parser.block.ruler.before("list", "list_end", _list_end, {"alt": ["paragraph"]})
    return parser


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
