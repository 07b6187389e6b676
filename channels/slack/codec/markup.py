"""Markdown in Slack's own dialect, mrkdwn. The model's text cannot mention users: it is escaped.

https://docs.slack.dev/messaging/formatting-message-text
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from gateway.text import (
    MarkdownNode,
    NodeKind,
    names_other_host,
    parse,
    prefix_lines,
    table_lines,
    write_blocks,
    write_list,
)

_SIGNS = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_SCHEMES = frozenset({"http", "https", "mailto"})
_BESIDE = "\u200b"  # marks are marks only beside something that is no letter
_MARGIN = "\x00"  # before a line of code, which no list indents: Slack would show the blanks. In no clean text
_AT_MARGIN = re.compile(rf"^((?:> )*) *{_MARGIN}", re.MULTILINE)
_WIDEST_TABLE = 120  # columns of a line; a wider one is not padded


def escape(text: str) -> str:
    """Return *text* escaped so that Slack shows it literally: no mention, no link."""
    return text.translate(_SIGNS)


def render_markup(markdown: str) -> str:
    """Return *markdown* as mrkdwn."""
    return mrkdwn_tree(parse(markdown))


def mrkdwn_tree(tree: MarkdownNode) -> str:
    """Return the text of *tree*, like `render_markup` of its source."""
    return _AT_MARGIN.sub(r"\1", _blocks(tree.children)).replace(_MARGIN, "")


def _blocks(nodes: Iterable[MarkdownNode], gap: str = "\n\n") -> str:
    return write_blocks(nodes, _block, _inline, gap)


def _block(node: MarkdownNode) -> str:
    match node.kind:
        case NodeKind.HEADING:
            return _wrap(_inline(node.children, bare=True), "*")
        case NodeKind.QUOTE:
            return prefix_lines(_blocks(node.children), "> ", "> ")
        case NodeKind.BULLETS | NodeKind.NUMBERS:
            return write_list(node, _blocks, bullet="• ", indent=4)
        case NodeKind.FENCE:
            return _fence(node.text.rstrip("\n"))
        case NodeKind.RULE:
            return "———"
        case NodeKind.TABLE:
            return _fence(_table(node))
        case _:
            return _inline(node.children)


def _fence(code: str) -> str:
    # Three of them would end the block.
    lines = f"```\n{escape(code).replace('```', f'``{_BESIDE}`')}\n```".split("\n")
    return "\n".join(_MARGIN + line for line in lines) if code.strip() else ""


def _table(node: MarkdownNode) -> str:
    rows = [[_bare(cell) for cell in row.children] for row in node.children if row.kind is NodeKind.ROW]
    aligned = table_lines(rows, gap=" | ", rule="--+-", widest=_WIDEST_TABLE)
    return "\n".join(" | ".join(row).rstrip() for row in rows) if aligned is None else aligned


def _bare(node: MarkdownNode) -> str:
    """The words of a cell, which stand in code and so have no marks."""
    if node.kind in (NodeKind.SOFT_BREAK, NodeKind.HARD_BREAK):
        return " "
    return node.text or "".join(_bare(child) for child in node.children) or node.href


def _inline(nodes: tuple[MarkdownNode, ...], *, bare: bool = False) -> str:
    """Join spans; *bare* = they stand in bold already, and bold in bold would end it."""
    text = ""
    for place, node in enumerate(nodes):
        span = _span(node, bare=bare)
        if node.kind in _MARKS and span:
            before, after = text[-1:], _first(nodes[place + 1 :])
            span = f"{_BESIDE if before.isalnum() else ''}{span}{_BESIDE if after.isalnum() else ''}"
        text += span
    return text


def _first(nodes: tuple[MarkdownNode, ...]) -> str:
    return nodes[0].text[:1] if nodes and nodes[0].kind is NodeKind.TEXT else ""


_MARKS = {NodeKind.STRONG: "*", NodeKind.EMPHASIS: "_", NodeKind.STRIKE: "~"}


def _span(node: MarkdownNode, *, bare: bool) -> str:
    match node.kind:
        case NodeKind.SOFT_BREAK | NodeKind.HARD_BREAK:
            return "\n"
        case NodeKind.CODE:
            return _code(node.text)
        case NodeKind.LINK | NodeKind.IMAGE:
            return _link(node)
        case NodeKind.STRONG | NodeKind.EMPHASIS | NodeKind.STRIKE:
            inner = _inline(node.children, bare=bare or node.kind is NodeKind.STRONG)
            return inner if bare and node.kind is NodeKind.STRONG else _wrap(inner, _MARKS[node.kind])
        case _:
            return escape(node.text) or _inline(node.children, bare=bare)


def _wrap(text: str, mark: str) -> str:
    """Put *mark* around each line: Slack's marks end with the line, and never stand beside a blank."""
    return "\n".join(_mark_line(line, mark) for line in text.split("\n"))


def _mark_line(line: str, mark: str) -> str:
    words = line.strip()
    if not words:
        return line
    before = line[: len(line) - len(line.lstrip())]
    return f"{before}{mark}{words}{mark}{line[len(line.rstrip()) :]}"


def _code(text: str) -> str:
    return escape(text) if "`" in text or not text.strip() else f"`{escape(text)}`"


def _link(node: MarkdownNode) -> str:
    label = "".join(_bare(child) for child in node.children).strip()
    href = node.href.strip()
    bare = href.removeprefix("mailto:")
    if _scheme(href) not in _SCHEMES:
        return escape(f"{label} ({href})" if label and href and label != href else label or href)
    if node.kind is NodeKind.IMAGE or _claims_another(label, href):
        # Show the address (docs/attacks.md, 75); the reader's client never fetches a picture (73).
        return f"{escape(label)} ({_address(href)})" if label else _address(href)
    if not label or label in (href, bare):
        return _address(href)
    return f"<{_quoted(href)}|{escape(label).replace('|', '¦')}>"


def _scheme(href: str) -> str:
    """Return the scheme of *href*, or "" if it is not an address."""
    try:
        return urlsplit(href).scheme.lower()
    except ValueError:
        return ""


def _claims_another(label: str, href: str) -> bool:
    """Return True if *label* looks like an address of another host than the link's."""
    if href.startswith("mailto:"):
        return names_other_host(label.rpartition("@")[2], href.rpartition("@")[2])
    return names_other_host(label, urlsplit(href).hostname or "")


def _address(href: str) -> str:
    return f"<{_quoted(href)}>"


def _quoted(href: str) -> str:
    href = href.replace("|", "%7C").replace("<", "%3C").replace(">", "%3E").replace(" ", "%20")
    return href.replace("\n", "").replace("&", "&amp;")
