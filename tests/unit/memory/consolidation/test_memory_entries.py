"""MEMORY.md as entries: what stands in it, and that it comes back as it was."""

from __future__ import annotations

import pytest

from agent.memory.editing.memory_entries import EntryKind, MemoryEntry, parse, render

TEXT = """# About Ann

Lives by the sea.
Since long.

- likes tea
- Kids:
  - Tom, born 2012
    plays chess
  - Eve
1. first
2) second

## Work

```sh
# no heading

- no item
```

Title
=====
* last
---
"""


def kinds(text: str) -> list[tuple[EntryKind, str]]:
    """Return kind and first line of every entry."""
    return [(entry.kind, entry.raw.split("\n")[0]) for entry in parse(text)]


def test_every_kind_is_an_entry_and_code_is_whole() -> None:
    """Headings of both forms, paragraphs, bullets, numbers, nested ones, and a fence whatever stands in it."""
    assert kinds(TEXT) == [
        (EntryKind.HEADING, "# About Ann"),
        (EntryKind.PARAGRAPH, "Lives by the sea."),
        (EntryKind.ITEM, "- likes tea"),
        (EntryKind.ITEM, "- Kids:"),
        (EntryKind.ITEM, "  - Tom, born 2012"),
        (EntryKind.ITEM, "  - Eve"),
        (EntryKind.ITEM, "1. first"),
        (EntryKind.ITEM, "2) second"),
        (EntryKind.HEADING, "## Work"),
        (EntryKind.FENCE, "```sh"),
        (EntryKind.HEADING, "Title"),
        (EntryKind.ITEM, "* last"),
        (EntryKind.RULE, "---"),
    ]


def test_a_text_is_written_back_as_it_was() -> None:
    """Blank lines, indentation and marks included."""
    assert render(parse(TEXT)) == TEXT


def test_an_entry_knows_what_it_stands_under() -> None:
    """Its headings, the outermost first, then the items it is nested in."""
    by_text = {entry.text.split("\n")[0]: entry for entry in parse(TEXT)}
    assert by_text["Eve"].context == ("About Ann", "Kids:")
    assert by_text["last"].context == ("Title",)
    assert by_text["Work"].context == ("About Ann",)
    assert by_text["Tom, born 2012"].text == "Tom, born 2012\nplays chess"


@pytest.mark.parametrize("text", ["", "\n\n", " \n\t\n"])
def test_nothing_has_no_entries(text: str) -> None:
    """And renders as nothing."""
    assert parse(text) == []
    assert render([]) == ""


def test_a_fence_that_was_never_closed_is_closed() -> None:
    """What is put behind a cut answer must not fall into its code."""
    entries = [*parse("- a\n```\ncode"), MemoryEntry(kind=EntryKind.ITEM, raw="- b")]
    assert [entry.kind for entry in parse(render(entries))] == [EntryKind.ITEM, EntryKind.FENCE, EntryKind.ITEM]


def test_entries_do_not_run_into_each_other() -> None:
    """A paragraph behind an item or another paragraph gets the blank line that keeps it one."""
    entries = [
        MemoryEntry(kind=EntryKind.ITEM, raw="- a"),
        MemoryEntry(kind=EntryKind.PARAGRAPH, raw="p"),
        MemoryEntry(kind=EntryKind.RULE, raw="---"),
    ]
    assert [entry.kind for entry in parse(render(entries))] == [EntryKind.ITEM, EntryKind.PARAGRAPH, EntryKind.RULE]
