"""Markdown as readable plain text: the dialect of a platform that has none."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.text.markdown_tree import MarkdownNode, NodeKind, parse
from gateway.text.markup_writer import prefix_lines, write_blocks, write_list


def render_plain(markdown: str) -> str:
    """Return *markdown* as readable plain text.

    Lists keep their bullets and numbers, quotes their ``>``; a link shows its address unless its text does.
    """
    return plain_tree(parse(markdown))


def plain_tree(tree: MarkdownNode) -> str:
    """Return the plain text of a parsed tree."""
    return _blocks(tree.children)


def _blocks(nodes: Iterable[MarkdownNode], gap: str = "\n\n") -> str:
    return write_blocks(nodes, _block, _inline, gap)


def _block(node: MarkdownNode) -> str:
    match node.kind:
        case NodeKind.QUOTE:
            return prefix_lines(_blocks(node.children), "> ", "> ")
        case NodeKind.BULLETS | NodeKind.NUMBERS:
            return write_list(node, _blocks, bullet="• ")
        case NodeKind.FENCE:
            return node.text.rstrip("\n")
        case NodeKind.RULE:
            return "———"
        case NodeKind.TABLE:
            return "\n".join(_row(row) for row in _rows(node))
        case _:
            return _inline(node.children)


def _rows(node: MarkdownNode) -> list[MarkdownNode]:
    return [child for child in node.children if child.kind is NodeKind.ROW]


def _row(row: MarkdownNode) -> str:
    return " | ".join(_inline(cell.children) for cell in row.children)


def _inline(nodes: tuple[MarkdownNode, ...]) -> str:
    return "".join(_span(node) for node in nodes)


def _span(node: MarkdownNode) -> str:
    match node.kind:
        case NodeKind.SOFT_BREAK | NodeKind.HARD_BREAK:
            return "\n"
        case NodeKind.LINK | NodeKind.IMAGE:
            label = _inline(node.children)
            bare = node.href.removeprefix("mailto:")
            if not bare or label in (node.href, bare):
                return label or node.href
            return f"{label} ({node.href})" if label else node.href
        case _:
            return node.text or _inline(node.children)
