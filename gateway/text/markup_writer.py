"""The common part of all dialects' writers: walk blocks, list items, prefix lines.

A dialect provides two functions: one writes a block node, one a run of inline nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gateway.text.markdown_tree import MarkdownNode, NodeKind

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
