"""Frames and windows: what comes in is one thing or an error, what goes out is bounded."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.kit.background import ChatRateLimits, TokenBucket
from channels.web import frame_codec
from channels.web.frame_codec import BadFrame, HistoryFrame, PingFrame, SayFrame
from channels.web.windows import MOST_WAITING, ClientConnection
from gateway.events import AnswerSource, OutboundKind, OutboundMessage, Sender, SessionKey
from gateway.text import sanitize

KEY = SessionKey("web", "owner")
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
NEARLY = st.fixed_dictionaries(
    {"type": st.sampled_from(["say", "look", "ping", "nope", 5]) | ANYTHING},
    optional={"id": ANYTHING, "text": ANYTHING},
)


@given(ANYTHING | NEARLY | st.binary() | st.text())
def test_anything_is_a_frame_or_a_bad_frame(raw: Any) -> None:
    """No input gets another exception out of the codec, parsed or not."""
    for given_raw in (raw, json.dumps(raw, default=str)):
        with suppress(BadFrame):
            assert isinstance(frame_codec.parse_frame(given_raw), SayFrame | HistoryFrame | PingFrame)


@given(st.from_regex(r"[A-Za-z0-9_-]{8,64}", fullmatch=True), st.text(min_size=1))
def test_what_was_said_comes_through(ident: str, text: str) -> None:
    """The id stays, the text is as storable text; the same frame twice is the same message."""
    try:
        saying = frame_codec.parse_frame(json.dumps({"type": "say", "id": ident, "text": text}))
    except BadFrame:
        assert not sanitize(text).strip()
        return
    assert saying == SayFrame(ident, sanitize(text).strip())
    at = datetime(2026, 11, 21, tzinfo=UTC)
    first, second = (frame_codec.inbound(saying, key=KEY, sender=Sender(id="owner"), at=at) for _ in range(2))
    assert first == second
    assert first.message_id == ident
    first.text.encode()


WRONG = [
    b"\xff\xfe",
    "[" * 100_000,
    "{" + '"a":{' * 50_000,
    "x" * (frame_codec.LONGEST_FRAME + 1),
    {"type": "say", "id": "short", "text": "x"},
    {"type": "say", "id": "../../../../etc", "text": "x"},
    {"type": "say", "id": "a" * 65, "text": "x"},
    {"type": "say", "id": "message-0001", "text": " \n\t"},
    {"type": "say", "id": "message-0001", "text": "\0"},
    {"type": "say", "id": "message-0001", "text": "x" * (frame_codec.LONGEST_SAYING + 1)},
    {"type": "say", "id": "message-0001\n", "text": "x"},
]


@pytest.mark.parametrize("raw", WRONG, ids=range(len(WRONG)))
def test_wrong_frames_are_told_in_a_line(raw: Any) -> None:
    """Deep, long, empty, foreign: one line for whoever sits there, never a crash."""
    with pytest.raises(BadFrame):
        frame_codec.parse_frame(raw)


def test_sources_come_with_the_last_text() -> None:
    """Once, however long the answer is; what an erasure left of an address is no link."""
    sources = (AnswerSource("https://example.org/a", "A"), AnswerSource("[forgotten]", "B"))
    message = OutboundMessage(id="t.1", key=KEY, text="word " * 20_000, sources=sources)
    frames = [frame_codec.part_frame(part) for part in frame_codec.render(message)]
    assert [frame.get("sources") for frame in frames] == [None, [{"url": "https://example.org/a", "title": "A"}]]


@given(st.text(), st.sampled_from(OutboundKind))
def test_every_part_makes_a_frame_that_can_be_sent(text: str, kind: OutboundKind) -> None:
    """Frames are JSON and UTF-8 whatever a model wrote; exactly the last part says that it is."""
    message = OutboundMessage(id="tabcdefghijklmnop.1", key=KEY, text=text, kind=kind)
    frames = [frame_codec.part_frame(part) for part in frame_codec.render(message)]
    for frame in frames:
        assert json.loads(json.dumps(frame, ensure_ascii=False).encode()) == frame
    if kind is not OutboundKind.PREVIEW:
        assert [frame["last"] for frame in frames] == [False] * (len(frames) - 1) + [True] * bool(frames)


async def test_a_slow_window_is_shown_only_the_newest_state_of_a_stream() -> None:
    """Previews and activity replace what still waits; the answer makes its preview needless."""
    window = ClientConnection(KEY, "owner")
    for text in ("a", "ab", "abc"):
        window.push({"type": "preview", "turn": "t1", "text": text})
        window.push({"type": "activity", "on": True, "text": text})
    assert await window.take() == {"type": "preview", "turn": "t1", "text": "abc"}
    assert await window.take() == {"type": "activity", "on": True, "text": "abc"}
    window.push({"type": "preview", "turn": "t1", "text": "abcd"})
    window.push({"type": "message", "turn": "t1", "text": "abcde"})
    assert (await window.take())["type"] == "message"


@pytest.mark.parametrize(("number", "text"), [(MOST_WAITING + 1, "x"), (20, "x" * 500_000)])
async def test_a_window_that_does_not_read_is_closed(number: int, text: str) -> None:
    """What waits for one window is bounded in number and in characters; it gets the history when it is back."""
    window = ClientConnection(KEY, "owner")
    for n in range(number):
        window.push({"type": "message", "turn": f"t{n}", "text": text})
    await window.wait_closed()


def test_a_window_may_speak_in_bursts_but_not_for_ever() -> None:
    """Nothing is lost: beyond the burst each message waits its turn, and a pause restores the burst."""
    now = [0.0]
    pace = TokenBucket(3, 0.5, clock=lambda: now[0])
    assert [pace.take() for _ in range(5)] == [0, 0, 0, 0.5, 1.0]
    now[0] = 100.0
    assert [pace.take() for _ in range(4)] == [0, 0, 0, 0.5]


def test_a_large_frame_costs_as_much_as_many_small_ones() -> None:
    """What is read at once is bounded in bytes too: after one large frame the next ones wait."""
    now = [0.0]
    pace = TokenBucket(40, 0.1, clock=lambda: now[0])
    assert [pace.take(41), pace.take(41), pace.take()] == pytest.approx([0.1, 4.2, 4.3])


def test_a_pace_outlives_a_connection() -> None:
    """Who leaves and comes back has no new burst, and chats that nobody uses are forgotten in the end."""
    now = [0.0]
    paces = ChatRateLimits(1, lambda _: 1.0, clock=lambda: now[0])
    first = paces.of("ann")
    assert [first.take(), paces.of("ann").take()] == [0.0, 1.0]
    now[0] = 10.0
    for n in range(1_002):
        paces.of(f"person-{n}")
    assert paces.of("ann") is not first


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"command": "remember me"},
        {"command": "/x" + "y" * 80},
        {"command": "/memory\napprove"},
        {"part": 5},
        {"part": "x" * 90},
        {"id": "short"},
    ],
)
def test_a_press_is_a_command_of_ours_or_nothing(wrong: dict[str, Any]) -> None:
    """A window's press names its button and nothing else; anything odd is refused like every wrong frame."""
    frame = {"type": "press", "id": "press-0001", "part": "t1.1.1", "command": "/memory approve e7"}
    if not wrong:
        assert frame_codec.parse_frame(frame) == frame_codec.PressFrame("press-0001", "t1.1.1", "/memory approve e7")
        return
    with pytest.raises(frame_codec.BadFrame):
        frame_codec.parse_frame(frame | wrong)


def test_a_window_s_own_control_sends_a_longer_command() -> None:
    """It belongs to no message; it has lines and any letters, but still is a command of bounded length."""
    frame = {
        "type": "press",
        "id": "press-0001",
        "part": "",
        "command": "/memory correct Ann wohnt in Köln\nin Dresden",
    }
    assert frame_codec.parse_frame(frame) == frame_codec.PressFrame("press-0001", "", str(frame["command"]))
    for wrong in ("remember me", "", "/memory correct " + "x" * 4_000):
        with pytest.raises(frame_codec.BadFrame):
            frame_codec.parse_frame({**frame, "command": wrong})
