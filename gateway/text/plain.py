"""Markdown as readable plain text: the dialect of a platform that has none."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.text.dialect import prefixed, write_blocks, write_list
from gateway.text.tree import Kind, Node, parse


def plain(markdown: str) -> str:
    """Return *markdown* without its marks, readable as it stands.

    Lists keep their bullets and numbers, quotes their ``>``, a link shows where it leads when its
    text does not say so.
    """
    return plain_tree(parse(markdown))


def plain_tree(tree: Node) -> str:
    """Return what `plain` returns for the Markdown that *tree* was read from."""
    return _blocks(tree.children)


def _blocks(nodes: Iterable[Node], gap: str = "\n\n") -> str:
    return write_blocks(nodes, _block, _inline, gap)


def _block(node: Node) -> str:
    match node.kind:
        case Kind.QUOTE:
            return prefixed(_blocks(node.children), "> ", "> ")
        case Kind.BULLETS | Kind.NUMBERS:
            return write_list(node, _blocks, bullet="• ")
        case Kind.FENCE:
            return node.text.rstrip("\n")
        case Kind.RULE:
            return "———"
        case Kind.TABLE:
            return "\n".join(_row(row) for row in _rows(node))
        case _:
            return _inline(node.children)


def _rows(node: Node) -> list[Node]:
    return [child for child in node.children if child.kind is Kind.ROW]


def _row(row: Node) -> str:
    return " | ".join(_inline(cell.children) for cell in row.children)


def _inline(nodes: tuple[Node, ...]) -> str:
    return "".join(_span(node) for node in nodes)


def _span(node: Node) -> str:
    match node.kind:
        case Kind.SOFT_BREAK | Kind.HARD_BREAK:
            return "\n"
        case Kind.LINK | Kind.IMAGE:
            label = _inline(node.children)
            bare = node.href.removeprefix("mailto:")
            if not bare or label in (node.href, bare):
                return label or node.href
            return f"{label} ({node.href})" if label else node.href
        case _:
            return node.text or _inline(node.children)
