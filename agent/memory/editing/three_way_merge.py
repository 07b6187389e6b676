"""Three-way merge of a document, entry by entry: keeps a person's edit that was saved during a model call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from agent.memory.editing.memory_entries import EntryKind, MemoryEntry, parse, render

_MANY = 1_000  # entries
_Key = tuple[EntryKind, str]


@dataclass(frozen=True, slots=True)
class MergeConflict:
    """Both changed the same entries, each in another way. The text has *theirs*; *mine* belongs in a conflict copy."""

    base: str
    mine: str
    theirs: str


@dataclass(frozen=True, slots=True)
class ThreeWayResult:
    """The one text that holds both changes, and where it could not."""

    text: str
    conflicts: tuple[MergeConflict, ...] = ()


@dataclass(frozen=True, slots=True)
class _RangeEdit:
    """Replacement of entries *low* to *high* of the base by *new*; an insertion if *low* equals *high*."""

    low: int
    high: int
    new: tuple[MemoryEntry, ...]


def three_way(base: str, mine: str, theirs: str) -> ThreeWayResult:
    """Return *theirs* with the change from *base* to *mine* applied.

    Insertions at the same position follow each other, theirs first; equal ones are inserted once. An entry that they
    changed and we removed stays, without a conflict. If the merged entries would be parsed differently, the result is
    *theirs*, and all of our entries are in the conflict.
    """
    if mine in (base, theirs):
        return ThreeWayResult(theirs)
    if theirs == base:
        return ThreeWayResult(mine)
    old = _spaced(parse(base), parse(theirs))
    ours, their_edits = _edits(old, parse(mine)), _edits(old, parse(theirs))
    known = {_key(entry) for edit in their_edits for entry in edit.new}
    merged: list[MemoryEntry] = []
    conflicts: list[MergeConflict] = []
    position = 0
    while position <= len(old):
        here = [edit for edit in their_edits if edit.low == edit.high == position]
        merged += [entry for edit in here for entry in edit.new]
        here = [edit for edit in ours if edit.low == edit.high == position]
        merged += [entry for edit in here for entry in edit.new if _key(entry) not in known]
        if position == len(old):
            break
        position = _step(position, old, ours, their_edits, merged, conflicts)
    text = render(merged)
    if set(_keys(merged)) - set(_keys(parse(text))):
        # Side by side they are no longer what each was: an indented paragraph becomes a part of the item before it.
        made = [entry for edit in ours for entry in edit.new]
        return ThreeWayResult(theirs, (MergeConflict(base, _raws(made), theirs),))
    return ThreeWayResult(text, tuple(conflicts))


def merge_both(base: str, mine: str, theirs: str) -> str:
    """Return `three_way` with both entries where both changed one: mine behind theirs. No new line of mine is lost."""
    result = three_way(base, mine, theirs)
    entries = parse(result.text)
    for conflict in result.conflicts:
        known = {_key(each) for each in (*entries, *parse(conflict.base))}
        ours = [each for each in parse(conflict.mine) if _key(each) not in known]
        beside = {_key(each) for each in parse(conflict.theirs)}
        place = max((n + 1 for n, each in enumerate(entries) if _key(each) in beside), default=len(entries))
        entries[place:place] = ours
    text = render(entries) if result.conflicts else result.text
    # Side by side, entries can be parsed as one, or be parts of one that is there.
    kept = _lines(base) | _lines(text)
    lost = [line for line in mine.splitlines() if line.strip() and line.rstrip() not in kept]
    return "\n".join([text.rstrip("\n"), "", *lost, ""]) if lost else text


def revert_change(before: str, after: str, now: str) -> str | None:
    """Return *now* without what changed from *before* to *after*; None when later changes stand on it."""
    old, new = _lines(before), _lines(after)
    if not new - old <= _lines(now):  # a line that it added was changed or removed since
        return None
    undone = three_way(after, before, now)
    left = _lines(undone.text)
    is_done = not undone.conflicts and not (new - old) & left and old - new <= left
    return undone.text if is_done else None


def _lines(text: str) -> set[str]:
    return {line.rstrip() for line in text.splitlines() if line.strip()}


def _step(
    position: int,
    old: list[MemoryEntry],
    ours: list[_RangeEdit],
    theirs: list[_RangeEdit],
    result: list[MemoryEntry],
    conflicts: list[MergeConflict],
) -> int:
    """Merge one entry of the base, or the range around it that was edited; return the position after it."""
    low, high = position, position + 1
    touching: tuple[list[_RangeEdit], list[_RangeEdit]] = ([], [])
    while True:
        touching = (_within(ours, low, high), _within(theirs, low, high))
        reach = max([high, *(edit.high for side in touching for edit in side)])
        if reach == high:
            break
        high = reach
    mine, other = (_apply(side, old, low, high) for side in touching)
    before = old[low:high]
    if _keys(mine) in (_keys(before), _keys(other)):
        result += other
    elif _keys(other) == _keys(before):
        result += mine
    elif not mine:
        result += other
    else:
        result += other
        conflicts.append(MergeConflict(_raws(before), _raws(mine), _raws(other)))
    # Insertions inside the range go after it.
    inside = [edit for side in (theirs, ours) for edit in side if edit.low == edit.high and low < edit.low < high]
    result += [entry for edit in inside for entry in edit.new if _key(entry) not in {_key(each) for each in result}]
    return high


def _within(edits: list[_RangeEdit], low: int, high: int) -> list[_RangeEdit]:
    return [edit for edit in edits if edit.low < high and edit.high > low and edit.high > edit.low]


def _apply(edits: list[_RangeEdit], old: list[MemoryEntry], low: int, high: int) -> list[MemoryEntry]:
    made: list[MemoryEntry] = []
    position = low
    for edit in edits:
        made += [*old[position : edit.low], *edit.new]
        position = edit.high
    return made + old[position:high]


def _edits(old: list[MemoryEntry], new: list[MemoryEntry]) -> list[_RangeEdit]:
    """Return the edits that turn *old* into *new*; ranges of equal length are replaced entry by entry."""
    found: list[_RangeEdit] = []
    for tag, i1, i2, j1, j2 in _matcher(old, new).get_opcodes():
        if tag == "equal":
            continue
        if i2 - i1 == j2 - j1:
            found += [_RangeEdit(i1 + n, i1 + n + 1, (new[j1 + n],)) for n in range(i2 - i1)]
        elif i2 > i1 and j2 - j1 > i2 - i1:  # the first were changed, the rest came behind them
            found += [_RangeEdit(i1 + n, i1 + n + 1, (new[j1 + n],)) for n in range(i2 - i1)]
            found.append(_RangeEdit(i2, i2, tuple(new[j1 + i2 - i1 : j2])))
        else:
            found.append(_RangeEdit(i1, i2, tuple(new[j1:j2])))
    return found


def _matcher(old: list[MemoryEntry], new: list[MemoryEntry]) -> SequenceMatcher[_Key]:
    # Thousands of equal lines would take minutes to match in the best way; any way is right.
    return SequenceMatcher(None, _keys(old), _keys(new), autojunk=len(new) > _MANY)


def _spaced(old: list[MemoryEntry], theirs: list[MemoryEntry]) -> list[MemoryEntry]:
    """Return *old* with the blank lines that *theirs* has before the same entries."""
    spaced = list(old)
    for low, at, length in _matcher(old, theirs).get_matching_blocks():
        for n in range(length):
            spaced[low + n] = replace(old[low + n], gap=theirs[at + n].gap)
    return spaced


def _key(entry: MemoryEntry) -> _Key:
    return entry.kind, entry.raw.rstrip()


def _keys(entries: Sequence[MemoryEntry]) -> list[_Key]:
    return [_key(entry) for entry in entries]


def _raws(entries: Sequence[MemoryEntry]) -> str:
    return "\n".join(entry.raw for entry in entries)
