"""Where an event comes from is told before it is parsed, as parsing would tell it, and never raises."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from channels.slack.parse import origin_of as slack_origin
from channels.telegram.parse import TelegramBotIdentity, parse_update
from channels.telegram.parse import origin_of as telegram_origin
from gateway.errors import UnreadableEvent
from gateway.events import ChatKind
from gateway.ports.channel import EventOrigin

PAYLOADS = Path(__file__).parents[1] / "payloads"
ODD: list[Any] = [{}, {"message": None}, {"message": {"chat": 1}}, {"event": {}}, {"event": {"type": "message"}}]


@pytest.mark.parametrize("file", sorted((PAYLOADS / "telegram").glob("*.json")), ids=lambda file: file.stem)
def test_telegrams_origin_is_the_parsed_messages(file: Path) -> None:
    """Chat, topic, sender and message id agree with the codec for every captured message."""
    update = json.loads(file.read_text())
    origin = telegram_origin(update)
    if origin is None:
        return
    try:
        heard = parse_update(
            update, channel="telegram", bot=TelegramBotIdentity(id="1", username="b"), now=datetime.now(UTC)
        )
    except UnreadableEvent:
        return
    if heard is not None and heard.sender.id:
        assert (origin.chat, origin.sender) == (heard.key.chat, heard.sender.id)
        assert origin.is_direct == (heard.chat_kind is ChatKind.DIRECT)


def test_slacks_origin_names_chat_thread_and_sender() -> None:
    """A direct message, and one in a thread of a channel."""
    event = {"type": "message", "channel": "C1", "user": "U1", "ts": "5.0", "thread_ts": "1.0", "text": "hi"}
    assert slack_origin({"event": event}) == EventOrigin(chat="C1/1.0", sender="U1", message_id="5.0")
    direct = {"type": "message", "channel": "D1", "user": "U1", "ts": "5.0"}
    assert slack_origin({"event": direct}) == EventOrigin(chat="D1", sender="U1", message_id="5.0", is_direct=True)


@pytest.mark.parametrize("payload", ODD, ids=str)
def test_odd_payloads_have_no_origin(payload: Any) -> None:
    """What cannot be told is not told, and nothing is raised."""
    assert telegram_origin(payload) is None
    assert slack_origin(payload) is None
