"""Markdown as readable plain text: the dialect of a platform that has none."""

from __future__ import annotations

from gateway.text.tree import Kind, Node, parse


def plain(markdown: str) -> str:
    """Return *markdown* without its marks, readable as it stands.

    Lists keep their bullets and numbers, quotes their ``>``, a link shows where it leads when its
    text does not say so.
    """
    return _blocks(parse(markdown).children)


def _blocks(nodes: tuple[Node, ...], gap: str = "\n\n") -> str:
    """Join blocks; what deep nesting lifted out of its block runs on in one line."""
    texts: list[str] = []
    inline: list[Node] = []
    for node in nodes:
        if node.kind in _BLOCKS:
            texts.append(_inline(tuple(inline)))
            inline.clear()
            texts.append(_block(node))
        else:
            inline.append(node)
    texts.append(_inline(tuple(inline)))
    return gap.join(text for text in texts if text)


def _block(node: Node) -> str:
    match node.kind:
        case Kind.QUOTE:
            return _prefixed(_blocks(node.children), "> ", "> ")
        case Kind.BULLETS | Kind.NUMBERS:
            return _list(node)
        case Kind.FENCE:
            return node.text.rstrip("\n")
        case Kind.RULE:
            return "———"
        case Kind.TABLE:
            return "\n".join(_row(row) for row in _rows(node))
        case _:
            return _inline(node.children)


_BLOCKS = frozenset(
    (
        Kind.PARAGRAPH, Kind.HEADING, Kind.QUOTE, Kind.BULLETS, Kind.NUMBERS, Kind.FENCE, Kind.RULE, Kind.TABLE,
    )
)  # fmt: skip


def _list(node: Node) -> str:
    items: list[str] = []
    for number, item in enumerate(node.children, node.start):
        mark = "• " if node.kind is Kind.BULLETS else f"{number}. "
        items.append(_prefixed(_blocks(item.children, "\n" if node.is_tight else "\n\n"), mark, " " * len(mark)))
    return ("\n" if node.is_tight else "\n\n").join(items)


def _rows(node: Node) -> list[Node]:
    return [child for child in node.children if child.kind is Kind.ROW]


def _row(row: Node) -> str:
    return " | ".join(_inline(cell.children) for cell in row.children)


def _prefixed(text: str, first: str, rest: str) -> str:
    lines = text.split("\n")
    return "\n".join([first + lines[0], *(rest + line if line else rest.rstrip() for line in lines[1:])]).rstrip()


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
