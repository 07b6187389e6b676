"""Quoted names: nobody reads another's file, on any file system."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from agent.base.scopes import quote, scope_folder
from gateway.events import NAME_BYTES

TEXTS = st.text(max_size=300) | st.text(alphabet="aA.%-/\0é", max_size=12) | st.text(alphabet="\ud800a", max_size=3)


@given(TEXTS, TEXTS)
@example("..", "%2e%2e")
@example("a" * 300, "a" * 299)
@example("a" * 200, "a" * 201)
@example("A" * 100, "A" * 101)
@example("Ann", "ann")
def test_two_texts_never_share_a_name(one: str, other: str) -> None:
    """Injective, also for case twins and beyond the length where names are cut."""
    assert (quote(one).casefold() == quote(other).casefold()) == (one == other)


@given(TEXTS)
@example("\0")
@example("." * 300)
@example("é" * 200)
def test_every_text_has_a_harmless_name(text: str) -> None:
    """At most 200 bytes, no separators, no leading dot, never empty: safe in a path."""
    name = quote(text)
    assert re.fullmatch(r"[a-z0-9_%-][a-z0-9._%-]*", name)
    assert len(name.encode()) <= NAME_BYTES
    assert scope_folder(Path("/home"), f"people/{name}").parent == Path("/home/people")
