"""Which hits are placed before a message without being asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.auto_recall import bears_on
from gateway.ports import SearchHit

HIT = SearchHit(source="sessions/x", line=1, text="I never eat fish", role="user")


@pytest.mark.parametrize(
    ("hit", "is_shown"),
    [
        (HIT, False),
        (replace(HIT, coverage=0.6), True),
        (replace(HIT, similarity=0.5, margin=0.4), True),
        (replace(HIT, similarity=0.5, margin=0.1), False),
        (replace(HIT, similarity=0.2, margin=0.2, score=3.0), False),
        (replace(HIT, role="", similarity=0.5, margin=0.4), True),
        (replace(HIT, role="assistant", coverage=1.0, similarity=0.9, margin=0.8), False),
    ],
    ids=["neither", "words", "similar", "all-is-similar", "only-ranked", "fact", "bot"],
)
def test_only_close_words_of_persons_bear_on_a_message(hit: SearchHit, is_shown: bool) -> None:
    """The rank alone is no reason: the words must cover the message, or the meaning stand out from the rest."""
    assert bears_on(hit) is is_shown
