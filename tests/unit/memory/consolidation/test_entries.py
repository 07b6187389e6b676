"""MEMORY.md as entries: what stands in it, and that it comes back as it was."""

from __future__ import annotations

import pytest

from agent.memory.consolidation.entries import Entry, Kind, parse, render

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


def kinds(text: str) -> list[tuple[Kind, str]]:
    """Return kind and first line of every entry."""
    return [(entry.kind, entry.raw.split("\n")[0]) for entry in parse(text)]


def test_every_kind_is_an_entry_and_code_is_whole() -> None:
    """Headings of both forms, paragraphs, bullets, numbers, nested ones, and a fence whatever stands in it."""
    assert kinds(TEXT) == [
        (Kind.HEADING, "# About Ann"),
        (Kind.PARAGRAPH, "Lives by the sea."),
        (Kind.ITEM, "- likes tea"),
        (Kind.ITEM, "- Kids:"),
        (Kind.ITEM, "  - Tom, born 2012"),
        (Kind.ITEM, "  - Eve"),
        (Kind.ITEM, "1. first"),
        (Kind.ITEM, "2) second"),
        (Kind.HEADING, "## Work"),
        (Kind.FENCE, "```sh"),
        (Kind.HEADING, "Title"),
        (Kind.ITEM, "* last"),
        (Kind.RULE, "---"),
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
    entries = [*parse("- a\n```\ncode"), Entry(kind=Kind.ITEM, raw="- b")]
    assert [entry.kind for entry in parse(render(entries))] == [Kind.ITEM, Kind.FENCE, Kind.ITEM]


def test_entries_do_not_run_into_each_other() -> None:
    """A paragraph behind an item or another paragraph gets the blank line that keeps it one."""
    entries = [Entry(kind=Kind.ITEM, raw="- a"), Entry(kind=Kind.PARAGRAPH, raw="p"), Entry(kind=Kind.RULE, raw="---")]
    assert [entry.kind for entry in parse(render(entries))] == [Kind.ITEM, Kind.PARAGRAPH, Kind.RULE]
