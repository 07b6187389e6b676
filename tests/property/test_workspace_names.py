"""Names of workspace files: what is written under a name is listed and read under that name, and under no other."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import assume, given
from hypothesis import strategies as some

from agent.files.workspace_names import (
    InvalidFileName,
    disk_files,
    disk_name,
    is_hidden,
    is_marked,
    parse_name,
    shown_name,
)

PARTS = some.one_of(
    some.text(some.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20),
    some.from_regex(r"[A-Za-z0-9 ._%-]{1,20}", fullmatch=True),
)
NAMES = some.lists(PARTS, min_size=1, max_size=8).map("/".join)
ANY_NAMES = some.lists(some.text(max_size=20), max_size=9).map("/".join)


@given(NAMES, some.booleans())
def test_a_name_survives_the_disk(name: str, is_untrusted: bool) -> None:
    """The path of a new file shows the same name and mark, and is among the paths that are looked for."""
    try:
        parts = parse_name(name)
    except InvalidFileName:
        assume(False)
    path = (*map(disk_name, parts[:-1]), disk_name(parts[-1], is_untrusted=is_untrusted))
    assert shown_name(path) == "/".join(parts)
    assert is_marked(path[-1]) is is_untrusted
    assert path in list(disk_files(parts))
    assert not any(map(is_hidden, path))
    assert all(len(part.encode()) <= 255 and "/" not in part for part in path)


@given(some.one_of(NAMES, ANY_NAMES))
def test_an_accepted_name_is_one_line_of_plain_characters(name: str) -> None:
    """No control character, no invisible one, no way up, no hidden edge of white space; accepting is idempotent."""
    try:
        parts = parse_name(name)
    except InvalidFileName:
        return
    assert parse_name("/".join(parts)) == parts
    for part in parts:
        assert part == part.strip()
        assert part not in ("", ".", "..")
        assert not any(unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp") for each in part)


@given(PARTS, PARTS)
def test_two_names_have_two_paths(one: str, other: str) -> None:
    """No file on disk answers to two names."""
    try:
        first, second = parse_name(one), parse_name(other)
    except InvalidFileName:
        return
    assert (first == second) is bool(set(disk_files(first)) & set(disk_files(second)))


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
        ("文" * 23, "too long"),
        ("/".join("abcdefghi"), "at most 8 parts"),
    ],
)
def test_a_refusal_says_why(name: str, why: str) -> None:
    """The model can correct the name."""
    with pytest.raises(InvalidFileName, match=why):
        parse_name(name)
