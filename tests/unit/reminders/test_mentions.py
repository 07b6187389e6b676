"""A reminder in a group mentions its person, and no one else: on each platform, and where there are no mentions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from channels.discord import render as discord_codec
from channels.discord.api import _allowed_mentions
from channels.slack import render as slack_codec
from channels.telegram.api import entities_of
from channels.telegram.render import build_outgoing
from channels.telegram.render import render as render_telegram
from gateway.delivery.part_planner import DeliveryContext, PartPlanner
from gateway.events import ChatKind, MessagePart, OutboundMessage, SessionKey
from gateway.ports.channel import ChannelCapabilities
from gateway.text.redaction import SecretRedactor

TEXT = "⏰ ask <@U99>, @everyone and [Bob](tg://user?id=9) **now**"


def message(calls: str, name: str = "Ann", key: SessionKey | None = None) -> OutboundMessage:
    """Return a reminder whose text tries to call others."""
    return OutboundMessage(
        id="t1.1",
        key=key or SessionKey("slack", "C1"),
        text=TEXT,
        chat_kind=ChatKind.GROUP,
        calls=calls,
        calls_name=name,
    )


def called(part: MessagePart, sent: OutboundMessage) -> MessagePart:
    """Return the part as the planner makes it."""
    return MessagePart(
        id=part.id, key=part.key, payload=part.payload, plain=part.plain, calls=sent.calls, calls_name=sent.calls_name
    )


@pytest.mark.parametrize("calls", ["U07", "x> <!channel>", ""])
def test_slack(calls: str) -> None:
    """A user id is written as a mention before the text; anything else is none."""
    sent = message(calls)
    part = called(slack_codec.render(sent)[0], sent)
    text = str(slack_codec.message_body(part, may_be_duplicate=False)["text"])
    assert text.startswith("<@U07> ⏰ ask" if calls == "U07" else "⏰ ask")
    assert text.count("<@") + text.count("<!") == (calls == "U07")


@pytest.mark.parametrize("calls", ["811", "8> @everyone", ""])
def test_discord(calls: str) -> None:
    """The mention is written and permitted for that user alone; what stands in the chat is recognised again."""
    sent = message(calls)
    part = called(discord_codec.render(sent)[0], sent)
    content = discord_codec.message_content(part)
    assert content.startswith("<@811> ⏰ ask" if calls == "811" else "⏰ ask")
    assert discord_codec.matches_part(content, part)
    allowed = _allowed_mentions(calls).to_dict()
    assert allowed.get("users", []) == ([811] if calls == "811" else [])
    assert allowed["parse"] == []


@pytest.mark.parametrize("calls", ["42", "@bob", ""])
def test_telegram(calls: str) -> None:
    """The name is text with an entity for the user's id; the other entities move behind it."""
    sent = message(calls, name="Ann @bob")
    part = called(render_telegram(sent)[0], sent)
    words = build_outgoing(part)
    mentions = [each for each in words.entities if each["type"] == "text_mention"]
    assert [each["user"]["id"] for each in mentions] == ([42] if calls == "42" else [])
    bold = next(each for each in words.entities if each["type"] == "bold")
    units = words.text.encode("utf-16-le")[2 * bold["offset"] : 2 * (bold["offset"] + bold["length"])]
    assert units.decode("utf-16-le") == "now"
    if mentions:
        assert words.text.startswith("Ann bob ⏰ ask")
        sent_entities = entities_of(words.entities) or []
        assert [each.user.id for each in sent_entities if each.user is not None] == [42]


@pytest.mark.parametrize("mentions", [True, False])
def test_where_nothing_can_be_mentioned_the_text_names_the_person(*, mentions: bool) -> None:
    """As text, without links; the first part carries the mention elsewhere."""

    class PlainChannel:
        name = "pocket"
        capabilities = ChannelCapabilities(text_limit=100, mentions=mentions)

        def render(self, sent: OutboundMessage, *, least: int = 0) -> list[MessagePart]:
            return [MessagePart(id=f"{sent.id}.{n}", key=sent.key, payload="", plain=sent.text) for n in (1, 2)]

    context: Any = DeliveryContext.__new__(DeliveryContext)
    context.redactor, context.previewed, context.is_strict = SecretRedactor(()), {}, False
    context.now = lambda: datetime.now(UTC)
    channel: Any = PlainChannel()
    first, second = PartPlanner(channel, context).plan_parts(message("42", name="Ann [x](y)"), None)
    assert (first.calls, second.calls) == ("42" if mentions else "", "")
    assert first.plain == (TEXT if mentions else f"Ann x y: {TEXT}")
