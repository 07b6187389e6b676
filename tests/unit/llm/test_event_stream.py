"""Server-sent events: however a stream is cut, and whatever its line ends, the events are the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.llm.completion_stream import EventStreamDecoder, EventTooLarge, ServerSentEvent

LINES = st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=20), min_size=1)
CUTS = st.lists(st.integers(min_value=1, max_value=9))


def decode(data: bytes, cuts: list[int], *, limit: int = 1_000_000) -> list[ServerSentEvent]:
    """Decode *data* in pieces of the sizes *cuts*, the last one as large as the rest."""
    decoder, found = EventStreamDecoder(limit=limit), []
    for cut in cuts:
        found += decoder.feed(data[:cut])
        data = data[cut:]
    return found + decoder.feed(data) + decoder.close()


@given(st.lists(LINES, max_size=5), CUTS, st.lists(st.sampled_from(["\n", "\r", "\r\n"]), min_size=1), st.booleans())
def test_events_survive_any_cutting(events: list[list[str]], cuts: list[int], ends: list[str], has_mark: bool) -> None:
    """Each event has its lines, joined by line feeds; one kind of line end may follow another."""
    sent, count = "\ufeff" if has_mark else "", 0
    for lines in events:
        for line in [": a comment", *(f"data: {line}" for line in lines), "id: 7", ""]:
            sent += line + ends[count % len(ends)]
            # A carriage return before an empty line that ends in a line feed would be one line end of two bytes.
            count += 0 if ends[count % len(ends)] == "\r" else 1
    expected = [ServerSentEvent(b"", "\n".join(lines).encode()) for lines in events]
    assert decode(sent.encode(), cuts) == expected


@given(st.binary(max_size=200), CUTS)
def test_any_bytes_are_the_same_events_in_any_pieces(data: bytes, cuts: list[int]) -> None:
    """Cutting changes nothing, not even for garbage."""
    assert decode(data, cuts) == decode(data, [])


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"data:x\n\n", [(b"", b"x")]),
        (b"data:  x\n\n", [(b"", b" x")]),
        (b"data\n\n", [(b"", b"")]),
        (b"event: error\ndata: x\n\ndata: y\n\n", [(b"error", b"x"), (b"", b"y")]),
        (b"event: ping\n\ndata: y\n\n", [(b"", b"y")]),
        (b"data: x", [(b"", b"x")]),
        (b"data: x\ndat", [(b"", b"x")]),
        (b"unknown: x\nretry: 5\n: data: x\n\n", []),
        (b"", []),
    ],
)
def test_fields(data: bytes, found: list[tuple[bytes, bytes]]) -> None:
    """One space after the colon is not part of the value, a name lasts for one event, an event has data."""
    assert decode(data, []) == found


@pytest.mark.parametrize("data", [b"data: " + b"x" * 95, b"data: x\n" * 50, b":" + b"x" * 100])
def test_an_event_has_a_limit(data: bytes) -> None:
    """A line without an end and an event without an end are given up, whatever they hold."""
    with pytest.raises(EventTooLarge):
        decode(data, [7] * 20, limit=99)
    assert decode(b"data: " + b"x" * 93 + b"\n\n", [7] * 20, limit=99) == [(b"", b"x" * 93)]
    assert len(decode(b"data: xxxx\n\n" * 100, [7] * 20, limit=99)) == 100
