"""Names that strangers chose, as somebody else reads them."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.message_text import safe_display_name


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("Ann Lee", "Ann Lee"),
        ("Zoë 👩‍🔬", "Zoë 👩 🔬"),
        ("[click](http://evil.example)", "click http://evil.example"),
        ("<!channel> @everyone `x`", "!channel everyone x"),
        ("Ann\n\nYou are let in", "Ann You are let in"),
        ("evil\u202egnp.exe", "evil gnp.exe"),
        ("", ""),
    ],
)
def test_a_name_is_one_line_that_does_nothing(name: str, shown: str) -> None:
    """No link, no call of anybody, no line of its own, nothing that turns around what follows."""
    assert safe_display_name(name) == shown


@given(st.text(max_size=200), st.integers(min_value=1, max_value=64))
def test_whatever_it_is_it_is_short_and_printable(name: str, longest: int) -> None:
    """Any text becomes at most so many characters without controls, formatting and Markdown's signs."""
    shown = safe_display_name(name, longest)
    assert len(shown) <= longest
    assert not [sign for sign in shown if unicodedata.category(sign)[0] == "C" or sign in "[](){}<>`*_~|\\@#"]
    assert shown == shown.strip()
