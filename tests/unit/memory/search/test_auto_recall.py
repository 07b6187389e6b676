"""Which hits are placed before a message without being asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.memory.search.search_unit import SearchHit
from agent.turns.prompt_assembly import bears_on

HIT = SearchHit(source="sessions/x", line=1, text="I never eat fish", role="user")
PERSONAL, CHORE = "Where shall we have dinner?", "What is the capital of Mongolia?"


@pytest.mark.parametrize(
    ("hit", "message", "is_shown"),
    [
        (HIT, PERSONAL, False),
        (replace(HIT, coverage=0.7), CHORE, True),
        (replace(HIT, similarity=0.4), PERSONAL, True),
        (replace(HIT, similarity=0.4), CHORE, False),
        (replace(HIT, similarity=0.4), "Translate my letter into French.", False),
        (replace(HIT, similarity=0.2, score=3.0), PERSONAL, False),
        (replace(HIT, role="", similarity=0.4), PERSONAL, True),
        (replace(HIT, role="assistant", coverage=1.0, similarity=0.9), PERSONAL, False),
    ],
    ids=["neither", "words", "similar", "chore", "task", "only-ranked", "fact", "bot"],
)
def test_only_close_words_of_persons_bear_on_a_message(hit: SearchHit, message: str, is_shown: bool) -> None:
    """The rank alone is no reason: the words must cover the message, or be close to one about its author."""
    assert bears_on(hit, message) is is_shown
