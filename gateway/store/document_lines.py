"""Lines of documents, pure: which rows a new text keeps, removes and adds, and where the added ones stand.

A text is split on newlines only, so that joining its lines gives its bytes back; the empty text has no lines. A line
keeps its number when it moves, and when a change that undoes another brings it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from gateway.ports.memory import DocumentState

_BASE = 16
_WIDTH = 8  # digits of a place: room for a million lines between two of them
_STEP = _BASE**3  # between lines that are added together
_END = "f"  # place of the last, empty line of a text: others come before it
_MOST_COMPARED = 4_000  # lines; of longer texts, only the lines that moved are recognised


@dataclass(frozen=True, slots=True)
class DocumentLine:
    """A line from the change that added it to the one that removed it."""

    line: int  # its identity
    place: str  # digits of a fraction: the lines of a document are in the order of their places
    text: str
    added: int
    removed: int | None = None

    def is_alive(self, number: int) -> bool:
        """Return True if the document after the change *number* has the line."""
        return self.added <= number and (self.removed is None or self.removed > number)


@dataclass(frozen=True, slots=True)
class LineDiff:
    """The lines that a change of a text removes and adds."""

    removed: tuple[DocumentLine, ...]
    added: tuple[DocumentLine, ...]


def split_lines(text: str) -> list[str]:
    """Return the lines of *text*."""
    return text.split("\n") if text else []


def join_lines(lines: Sequence[DocumentLine]) -> str:
    """Return the text of *lines*, which are in order."""
    return "\n".join(each.text for each in lines)


def compare_lines(
    before: Sequence[DocumentLine],
    text: str,
    number: int,
    dead: Sequence[DocumentLine] = (),
    undone: int | None = None,
) -> LineDiff:
    """Return the change *number* from the lines *before*, in order, to *text*.

    If it undoes the change *undone*, lines of *dead*, which were removed, come back where *text* has them.
    """
    if undone is not None:
        then = sorted((each for each in (*before, *dead) if each.is_alive(undone - 1)), key=lambda each: each.place)
        if join_lines(then) == text:  # exactly as before: of equal lines, those that were there
            revived = tuple(DocumentLine(each.line, each.place, each.text, number) for each in then if each.removed)
            return LineDiff(tuple(each for each in before if not each.is_alive(undone - 1)), revived)
        dead = sorted(dead, key=lambda each: (each.removed != undone, -(each.removed or 0)))
    after = split_lines(text)
    head = 0
    while head < min(len(before), len(after)) and before[head].text == after[head]:
        head += 1
    tail = 0
    while tail < min(len(before), len(after)) - head and before[-1 - tail].text == after[-1 - tail]:
        tail += 1
    old, new = before[head : len(before) - tail], after[head : len(after) - tail]
    edits = _edits([each.text for each in old], new)
    removed = [each for low, high, _, _ in edits for each in old[low:high]]
    known = _Identities(removed, dead, {each.line for each in before}, number)
    added: list[DocumentLine] = []
    for low, high, start, stop in edits:
        lines = new[start:stop]
        previous = before[head + low - 1].place if head + low else ""
        following = before[head + high].place if head + high < len(before) else ""
        places = places_between(previous, following, lines)
        added += [DocumentLine(known.take(each), at, each, number) for at, each in zip(places, lines, strict=True)]
    return LineDiff(tuple(removed), tuple(added))


def places_between(low: str, high: str, lines: Sequence[str]) -> list[str]:
    """Return rising places for *lines* behind *low* and before *high*; an empty string sets no bound."""
    if not lines:
        return []
    if not high and lines[-1] == "" and low < _END:
        return [*places_between(low, _END, lines[:-1]), _END]
    width = max(_WIDTH, len(low), len(high))
    while True:
        first = int(low.ljust(width, "0"), _BASE) if low else 0
        last = int(high.ljust(width, "0"), _BASE) if high else _BASE**width
        if step := min((last - first) // (len(lines) + 1), _STEP):
            # Without zeros at its end, so that there is room before each place.
            return [f"{first + step * (n + 1):0{width}x}".rstrip("0") for n in range(len(lines))]
        width += _WIDTH


def build_lines(states: Iterable[DocumentState], first: int) -> dict[str, list[DocumentLine]]:
    """Return the lines that documents with the history *states* have had, by document; *first* numbers the first."""
    numbers: dict[str, int] = {}
    lines: dict[str, list[DocumentLine]] = {}
    alive: dict[str, list[DocumentLine]] = {}
    texts: Mapping[str, str] = {}
    for number, state in enumerate(states, first):
        numbers[state.change.id] = number
        for name in dict.fromkeys((*texts, *state.texts)):
            if (text := state.texts.get(name, "")) == texts.get(name, ""):
                continue
            before, past = alive.get(name, []), lines.setdefault(name, [])
            undone = numbers.get(state.change.undoes) if state.change.undoes else None
            change = compare_lines(before, text, number, past if undone is not None else (), undone)
            gone = {each.line for each in change.removed}
            past += [_removed(each, number) for each in before if each.line in gone]
            kept = [each for each in before if each.line not in gone]
            alive[name] = sorted((*kept, *change.added), key=lambda each: each.place)
        texts = state.texts
    for name, each in alive.items():
        lines[name] += each
    return lines


class _Identities:
    """Numbers of lines that are added: of one that moved or came back its own, otherwise a new one."""

    def __init__(
        self, removed: Sequence[DocumentLine], dead: Sequence[DocumentLine], alive: set[int], number: int
    ) -> None:
        known: dict[str, dict[int, None]] = {}
        for each in (*removed, *(each for each in dead if each.line not in alive)):
            if each.text.strip():
                known.setdefault(each.text, {})[each.line] = None
        self._known = {text: list(reversed(lines)) for text, lines in known.items()}
        self._next = number << 32

    def take(self, text: str) -> int:
        """Return the number of a line with *text*."""
        if known := self._known.get(text):
            return known.pop()
        self._next += 1
        return self._next


def _edits(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int, int, int]]:
    """Return the ranges of *old* that are replaced, and those of *new* that replace them."""
    if not old and not new:
        return []
    if not old or not new or max(len(old), len(new)) > _MOST_COMPARED:
        return [(0, len(old), 0, len(new))]
    matcher = SequenceMatcher(None, old, new)
    return [tuple(each) for tag, *each in matcher.get_opcodes() if tag != "equal"]  # type: ignore[misc]


def _removed(line: DocumentLine, number: int) -> DocumentLine:
    return DocumentLine(line.line, line.place, line.text, line.added, number)
