"""Adding what another text says: under its headings, once, and nothing that stands there changes."""

from __future__ import annotations

import pytest

from agent.importers.importer import add_statements, parse_statements, select_lines

THEIRS = "before\n\n# Preferences\n\n- color: blue\n- Tea:\n  - green\n\n# Work\n\n## Tools\n\n- Go\n"


def test_statements_are_what_a_text_says() -> None:
    """What is nested stays with what it is nested in; headings are where it stands."""
    assert [(each.headings, each.text) for each in parse_statements(THEIRS)] == [
        ((), "before"),
        (("# Preferences",), "- color: blue"),
        (("# Preferences",), "- Tea:\n  - green"),
        (("# Work", "## Tools"), "- Go"),
    ]


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ("", THEIRS),
        (
            "# Preferences\n\n- color: green\n",
            "before\n\n# Preferences\n\n- color: green\n- color: blue\n- Tea:\n  - green\n\n# Work\n## Tools\n\n- Go\n",
        ),
        (
            "mine\n\n# Tools\n\n- Rust\n\n# Work\n\n- much\n",
            "mine\n\nbefore\n\n# Tools\n\n- Rust\n- Go\n\n# Work\n\n- much\n\n# Preferences\n\n- color: blue\n- Tea:\n"
            "  - green\n",
        ),
    ],
)
def test_statements_go_under_their_headings(now: str, expected: str) -> None:
    """Into the section of that title, else to the end with their own; all of it is read back as it was said."""
    text = add_statements(now, parse_statements(THEIRS))
    assert parse_statements(text) == parse_statements(expected)
    for line in now.splitlines():
        assert line in text.splitlines()


def test_new_lines_keep_their_gaps() -> None:
    """Blank lines stand between what is kept, not where something was left out."""
    known = {"a", "# b"}
    assert select_lines("a\n\n# b\n\n- c\n- d\n\n\ne\n", lambda line: line not in known) == "- c\n- d\n\ne\n"
    assert select_lines("a\n\n# b\n", lambda line: line not in known) == ""
