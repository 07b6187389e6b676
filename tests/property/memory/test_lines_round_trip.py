"""Whatever is written is read again, and repairing a history is done once and for all."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agent.base.transcript_lines import decode, encode, replayable, to_messages
from tests.fakes.memory import exchange

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.text('\ud800\0\n"x', max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
CALL_IDS = st.sampled_from(["a", "b", "c"])
HISTORY = st.lists(
    st.one_of(
        st.builds(lambda text: {"role": "user", "content": text}, st.text(max_size=3)),
        st.builds(
            lambda ids, text: {"role": "assistant", "content": text, "tool_calls": [{"id": each} for each in ids]},
            st.lists(CALL_IDS, unique=True, max_size=3),
            st.text(max_size=2),
        ),
        st.builds(lambda each: {"role": "tool", "tool_call_id": each, "content": "r"}, CALL_IDS),
    ),
    max_size=12,
)


@given(st.dictionaries(st.text(max_size=10), JSON, max_size=6))
def test_any_line_survives_the_file(line: dict[str, Any]) -> None:
    """One line of bytes per line, half surrogates and line breaks included."""
    data = encode(line)
    assert data.count(b"\n") == 1
    assert decode(data) == line


@given(HISTORY)
def test_a_repaired_history_is_what_providers_take(history: list[dict[str, Any]]) -> None:
    """Each call has its results right behind it, each result its call; repairing again changes nothing."""
    repaired = replayable(history)
    assert replayable(repaired) == repaired
    expected: list[str] = []
    for message in repaired:
        if message["role"] == "tool":
            assert message["tool_call_id"] in expected
            expected.remove(message["tool_call_id"])
        else:
            assert not expected
            expected = [call["id"] for call in message.get("tool_calls", [])]
    assert not expected


@given(st.text(), st.text(), st.integers(0, 3))
def test_what_the_model_is_sent_does_not_depend_on_the_file(said: str, answered: str, tools: int) -> None:
    """A line from memory and the same line read back are the same request bytes."""
    for line in exchange(1, 0, said=said, answered=answered, tools=tools).lines:
        again = decode(encode(line))
        assert again is not None
        assert json.dumps(to_messages(again)) == json.dumps(to_messages(line))
