"""Adding to a text what another one says, and nothing else: what stands there stays as it is. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent.memory.editing.memory_entries import EntryKind, MemoryEntry, parse
from agent.memory.editing.text_operations import AddLines, apply


@dataclass(frozen=True, slots=True)
class TextStatement:
    """Something a text says, with what is nested in it, and the headings it stands under (as they are written)."""

    text: str
    headings: tuple[str, ...] = ()


def statements(text: str) -> list[TextStatement]:
    """Return what *text* says, in order; a heading alone says nothing."""
    found: list[TextStatement] = []
    headings: list[MemoryEntry] = []
    for entry in parse(text):
        if entry.kind is EntryKind.HEADING:
            headings = [*(each for each in headings if each.level < entry.level), entry]
        elif entry.kind is EntryKind.RULE or not entry.raw.strip():
            continue
        elif entry.parents and found:
            gap = "\n" * (entry.gap + 1)
            found[-1] = TextStatement(f"{found[-1].text}{gap}{entry.raw}", found[-1].headings)
        else:
            found.append(TextStatement(entry.raw, tuple(each.raw for each in headings)))
    return found


def with_statements(now: str, new: Sequence[TextStatement]) -> str:
    """Return *now* with the statements: each under its heading, where there is one, else at the end under its own."""
    text = now
    for statement in new:
        if not statement.headings:
            text = _on_top(text, statement.text)
            continue
        added = apply([AddLines(statement.text, under=_title(statement.headings[-1]))], text)
        if added.refused:
            section = "\n".join([*statement.headings, "", statement.text])
            added = apply([AddLines(section)], text)
        text = added.text
    return text


def _on_top(text: str, statement: str) -> str:
    """Put a statement behind what stands before the first heading."""
    lines = text.splitlines()
    first = next(
        (n for n, line in enumerate(lines) if parse(line) and parse(line)[0].kind is EntryKind.HEADING), len(lines)
    )
    above, below = "\n".join(lines[:first]), "\n".join(lines[first:])
    added = apply([AddLines(statement)], above).text
    return f"{added}\n{below}\n" if below else added


def _title(heading: str) -> str:
    return heading.split("\n", maxsplit=1)[0]


def new_lines(text: str, is_new: Callable[[str], bool]) -> str:
    """Return the lines of *text* that are new, with the blank lines between them; "" when none is."""
    kept: list[str] = []
    for line in text.splitlines():
        if not line.strip():
            if kept and kept[-1]:
                kept.append("")
        elif is_new(line):
            kept.append(line)
    return "\n".join(kept).strip("\n") + "\n" if any(kept) else ""
