"""Add the statements of one text to another without changing what is there. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent.memory.editing.memory_entries import EntryKind, MemoryEntry, parse
from agent.memory.editing.text_operations import AddLines, apply


@dataclass(frozen=True, slots=True)
class TextStatement:
    """A statement with its nested lines, and the headings above it as they are written."""

    text: str
    headings: tuple[str, ...] = ()


def parse_statements(text: str) -> list[TextStatement]:
    """Return the statements of *text* in order; a heading with nothing below it is not a statement."""
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


def add_statements(text: str, new: Sequence[TextStatement]) -> str:
    """Return *text* with the statements: under their heading if *text* has it, else at the end with their headings."""
    for statement in new:
        if not statement.headings:
            text = _add_before_headings(text, statement.text)
            continue
        heading = statement.headings[-1].split("\n", maxsplit=1)[0]
        added = apply([AddLines(statement.text, under=heading)], text)
        if added.refused:
            section = "\n".join([*statement.headings, "", statement.text])
            added = apply([AddLines(section)], text)
        text = added.text
    return text


def _add_before_headings(text: str, statement: str) -> str:
    lines = text.splitlines()
    first = next(
        (n for n, line in enumerate(lines) if parse(line) and parse(line)[0].kind is EntryKind.HEADING), len(lines)
    )
    above, below = "\n".join(lines[:first]), "\n".join(lines[first:])
    added = apply([AddLines(statement)], above).text
    return f"{added}\n{below}\n" if below else added


def select_lines(text: str, is_new: Callable[[str], bool]) -> str:
    """Return the lines of *text* that are new, with the blank lines between them."""
    kept: list[str] = []
    for line in text.splitlines():
        if not line.strip():
            if kept and kept[-1]:
                kept.append("")
        elif is_new(line):
            kept.append(line)
    return "\n".join(kept).strip("\n") + "\n" if any(kept) else ""
