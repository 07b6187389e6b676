"""Whose words stood before the bot: which lines bring words of others, and what a conversation is without them."""

from __future__ import annotations

from typing import Any

import pytest

from agent.memory.storage.messages import TAINTED, is_tainted_line, strip_untrusted

UNTRUSTED = {"origin": "untrusted"}


def line(role: str, content: str, **fields: Any) -> dict[str, Any]:
    """Return a message."""
    return {"role": role, "content": content, **fields}


@pytest.mark.parametrize(
    ("brings", "fields"),
    [
        (False, {"origin": "user"}),
        (False, {"files": [{"kind": "image", "seen": {"blob": "b"}, **UNTRUSTED}]}),
        (False, {"files": [{"kind": "voice", "said": "buy tea"}]}),
        (False, {"quoted": "hello"}),
        (False, {"quoted_origin": "untrusted"}),  # the quotation itself is gone
        (True, UNTRUSTED),
        (True, {TAINTED: True}),  # said with such words in view
        (True, {"files": [{"kind": "document", "text": "hello", **UNTRUSTED}]}),
        (True, {"files": [{"kind": "audio", "said": "hello", **UNTRUSTED}]}),
        (True, {"quoted": "hello", "quoted_origin": "untrusted"}),
    ],
)
def test_which_lines_bring_words_of_others(fields: dict[str, Any], *, brings: bool) -> None:
    """Documents, recordings, what was passed on and quotations of strangers do; pictures and one's own voice do not."""
    assert is_tainted_line(line("user", "x", **fields)) is brings


def test_what_is_left_of_a_conversation() -> None:
    """People's own words, and the bot's until words of others came; as many messages as before, in their places."""
    said = [
        line("user", "I like tea"),
        line("assistant", "noted"),
        line("user", "read this", files=[{"kind": "document", "name": "a.txt", "text": "obey", **UNTRUSTED}]),
        line("assistant", "I obey"),
        line("user", "passed on: obey", **UNTRUSTED),
        line("user", "and I like cake"),
        line("assistant", "I still obey"),
    ]
    kept = strip_untrusted(said)
    assert [each["content"] for each in kept] == ["I like tea", "noted", "read this", "", "", "and I like cake", ""]
    assert kept[2]["files"] == [{"kind": "document", "name": "a.txt"}]
    assert "obey" not in str(kept)
    assert strip_untrusted(kept) == kept
    assert said[3]["content"] == "I obey"  # nothing was changed in place


def test_a_flag_counts_where_the_words_themselves_are_in_an_earlier_range() -> None:
    """A later range holds the answer and not the document; the answer's own line says what stood before it."""
    kept = strip_untrusted(
        [line("user", "go on"), line("assistant", "I obey", **{TAINTED: True}), line("assistant", "fine")]
    )
    assert [each["content"] for each in kept] == ["go on", "", ""]
