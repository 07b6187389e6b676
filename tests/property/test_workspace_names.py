"""Names of workspace files: one spelling each, in plain characters, that leads nowhere else."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as some

from agent.files.file_workspace import InvalidFileName, parse_name

PARTS = some.one_of(
    some.text(some.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20),
    some.from_regex(r"[A-Za-z0-9 ._%-]{1,20}", fullmatch=True),
)
NAMES = some.lists(PARTS, min_size=1, max_size=8).map("/".join)
ANY_NAMES = some.lists(some.text(max_size=20), max_size=9).map("/".join)


@given(some.one_of(NAMES, ANY_NAMES))
def test_an_accepted_name_is_one_line_of_plain_characters(name: str) -> None:
    """No control character, no invisible one, no way up, no hidden edge of white space; accepting is idempotent."""
    try:
        parsed = parse_name(name)
    except InvalidFileName:
        return
    assert parse_name(parsed) == parsed
    for part in parsed.split("/"):
        assert part == part.strip()
        assert part not in ("", ".", "..")
        assert len(part.encode()) <= 200
        assert not any(unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp") for each in part)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("/etc/passwd", "relative"),
        ("../a", "relative"),
        ("a//b", "relative"),
        ("a/", "relative"),
        ("a\\b", "backslashes"),
        ("a\0b", "control characters"),
        ("a\u202eb", "control characters"),
        ("x" * 201, "too long"),
        ("文" * 67, "too long"),
        ("/".join("x" * 199 for _ in range(4)), "too long"),
        ("/".join("abcdefghi"), "at most 8 parts"),
    ],
)
def test_a_refusal_says_why(name: str, why: str) -> None:
    """The model can correct the name."""
    with pytest.raises(InvalidFileName, match=why):
        parse_name(name)
