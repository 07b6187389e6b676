"""What channels add to an answer is in the chat's language, on every platform, and is known again by whoever looks."""

from __future__ import annotations

import pytest

from channels.discord import render as discord
from channels.slack import render as slack
from channels.telegram import render as telegram
from channels.web import frame_codec
from gateway.events import OutboundMessage, SessionKey
from gateway.i18n import LANGUAGES, translate

LONG = "word " * 60_000


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_repeat_and_a_cut_are_said_in_the_chats_language(language: str) -> None:
    """The mark of a part that may repeat, and the line where an answer is cut off, on each platform."""
    mark, cut = translate("delivery.may_repeat", language), translate("delivery.cut", language)

    def of(_: SessionKey) -> str:
        return language

    message = OutboundMessage(id="t1.1", key=SessionKey("x", "1"), text=LONG)
    parts = telegram.render(message, of)
    assert parts[-1].plain.endswith(cut)
    assert telegram.build_outgoing(parts[0], may_be_duplicate=True, language=of).text.endswith(mark)
    parts = discord.render(message, of)
    assert parts[-1].plain.endswith(cut)
    assert discord.message_content(parts[0], may_be_duplicate=True, language=of).startswith(mark)
    assert len(discord.message_content(parts[0], may_be_duplicate=True, language=of)) <= discord.LIMIT
    parts = slack.render(message, of)
    assert parts[-1].plain.endswith(cut)
    body = slack.message_body(parts[0], may_be_duplicate=True, language=of)
    assert mark in body["text"]
    assert len(body["text"]) <= slack.LIMIT
    assert frame_codec.render(OutboundMessage(id="t1.1", key=SessionKey("x", "1"), text=LONG * 12), language)[
        -1
    ].plain.endswith(cut)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_marked_part_is_found_again_whatever_language_was_chosen_since(language: str) -> None:
    """Discord is asked what stands in a chat: the mark may be in the language the chat had then."""
    (part,) = discord.render(OutboundMessage(id="t1.1", key=SessionKey("discord", "1"), text="**hello**"))
    assert discord.matches_part(discord.message_content(part, may_be_duplicate=True, language=lambda _: language), part)
    assert not discord.matches_part(translate("delivery.may_repeat", language), part)
