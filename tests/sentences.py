"""Find sentences for people that stand in code instead of in the catalogue (gateway/i18n).

The rule: three or more words of literal text that are given to something a person reads. That is the
first argument, ``text=`` or ``line=`` of the types in SHOWN, and the entries ``text`` and ``line`` of
a frame. Literal text is a string, an f-string's fixed parts, either side of ``+``, ``or`` and a
conditional, what ``.format`` and ``.join`` are called on or with, and a name that the module binds
to any of these.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

PACKAGES = ("gateway", "channels", "agent")
# Operators' lines stand where they arise (docs/adr/0002-words.md).
OPERATORS = frozenset({"i18n", "settings", "doctor", "cli", "logs", "operations", "home", "errors"})
SHOWN = frozenset({"OutboundMessage", "CommandReply", "DisplayedMessage", "IntakeResult", "ChatActivity", "BadFrame"})
FIELDS = frozenset({"text", "line"})
LEAST = 3  # words

_WORD = re.compile(r"[^\W\d_]{2,}|\b[aI]\b")


@dataclass(frozen=True)
class MisplacedSentence:
    """A sentence out of place."""

    line: int
    text: str


def files(root: Path) -> Iterator[Path]:
    """Yield the modules whose sentences belong into the catalogue."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            inner = PurePosixPath(path.relative_to(root)).with_suffix("").parts
            if OPERATORS.isdisjoint(inner):
                yield path


def find(source: str, *, has_frames: bool) -> list[MisplacedSentence]:
    """Return the sentences out of place in a module; *has_frames* where dicts go to a person's screen."""
    nodes = list(ast.walk(ast.parse(source)))
    bound = _bindings(nodes)
    found: dict[tuple[int, str], MisplacedSentence] = {}
    for node in nodes:
        for shown in _user_visible(node, has_frames=has_frames):
            for text in _literals(shown, bound, frozenset()):
                if is_sentence(text):
                    found[shown.lineno, text] = MisplacedSentence(shown.lineno, text)
    return list(found.values())


def is_sentence(text: str) -> bool:
    """Say whether *text* has as many words as a sentence."""
    return len(_WORD.findall(text)) >= LEAST


def _user_visible(node: ast.AST, *, has_frames: bool) -> Iterator[ast.expr]:
    """Yield the expressions of *node* that a person will read."""
    if isinstance(node, ast.Call) and _name(node.func) in SHOWN:
        yield from node.args[:1]
        yield from (keyword.value for keyword in node.keywords if keyword.arg in FIELDS)
    elif isinstance(node, ast.Dict) and has_frames:
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value in FIELDS:
                yield value


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _bindings(nodes: Sequence[ast.AST]) -> dict[str, list[ast.expr]]:
    bound: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign):
            targets: list[ast.expr] = node.targets
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            targets = [node.target]
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Name) and node.value is not None:
                bound.setdefault(target.id, []).append(node.value)
    return bound


def _literals(node: ast.expr, bound: dict[str, list[ast.expr]], followed: frozenset[str]) -> Iterator[str]:
    """Yield the literal texts an expression can come to."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=parts):
            yield " … ".join(str(part.value) for part in parts if isinstance(part, ast.Constant))
        case ast.Name(id=name) if name not in followed:
            for value in bound.get(name, ()):
                yield from _literals(value, bound, followed | {name})
        case ast.BoolOp(values=values):
            for value in values:
                yield from _literals(value, bound, followed)
        case ast.IfExp(body=body, orelse=orelse):
            yield from _literals(body, bound, followed)
            yield from _literals(orelse, bound, followed)
        case _:
            yield " … ".join(text for part in _joined(node) for text in _literals(part, bound, followed))


def _joined(node: ast.expr) -> list[ast.expr]:
    """Return the parts that come to one text together."""
    match node:
        case ast.BinOp(left=left, right=right):
            return [left, right]
        case ast.List(elts=values) | ast.Tuple(elts=values):
            return values
        case ast.Call(func=ast.Attribute(value=value, attr="format" | "join" | "strip"), args=args):
            return [value, *args]
        case _:
            return []
