"""Writers of Markdown trees: the walk that all dialects share, and plain text.

A dialect provides two functions: one writes a block node, one a run of inline nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gateway.text.markdown_tree import MarkdownNode, NodeKind, parse

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


def render_plain(markdown: str) -> str:
    """Return *markdown* as readable plain text.

    Lists keep their bullets and numbers, quotes their ``>``; a link shows its address unless its text does.
    """
    return plain_tree(parse(markdown))


def plain_tree(tree: MarkdownNode) -> str:
    """Return the plain text of a parsed tree."""
    return _plain_blocks(tree.children)


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
