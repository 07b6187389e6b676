"""Payloads as Discord documents them, read without a connection."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.discord.parse import (
    DiscordBotIdentity,
    DiscordChat,
    DiscordFileRef,
    GuildProfile,
    changes_nothing,
    initial_response,
    moment_of,
    parse_interaction,
    parse_message,
    snowflake_at,
)
from channels.discord.render import remaining_rows
from gateway.events import UNKNOWN, ChatKind, InboundKind

PAYLOADS = Path(__file__).resolve().parents[2] / "payloads" / "discord"
ME = DiscordBotIdentity(id="1042", name="Parlour", roles=frozenset({"5001"}))
HALL = DiscordChat(id="4001", guild="3001")


def payload(name: str) -> dict[str, Any]:
    """Read a captured payload."""
    found: dict[str, Any] = json.loads((PAYLOADS / f"{name}.json").read_text("utf-8"))
    return found


def test_a_live_message_and_its_history_are_one_message() -> None:
    """The gateway adds the member; id, words, time and revision are the same, so the journal knows both."""
    live = parse_message("discord", payload("message_create_guild"), HALL, ME)
    past = parse_message("discord", payload("message_history"), HALL, ME, GuildProfile(roles=("5002",), name="Annie"))
    assert live == past
    assert live is not None
    assert (live.text, live.sender.name, live.sender.roles) == ("@Parlour hello", "Annie", ("5002",))


def test_a_forward_is_a_message_in_others_words() -> None:
    """What was said elsewhere is its text, marked as forwarded; the sender is who forwarded it."""
    message = parse_message("discord", payload("message_forward"), HALL, ME)
    assert message is not None
    assert (message.text, message.quoted, message.sender.id) == ("what was said elsewhere", "", "2001")
    assert message.is_forwarded
    assert message.forwarded_from == UNKNOWN  # Discord does not say whose it was


def test_system_messages_are_nobodys_words_and_webhooks_are_bots() -> None:
    """A join is dropped; a webhook is a fact for admission."""
    assert parse_message("discord", payload("message_member_join"), HALL, ME) is None
    hook = parse_message("discord", payload("message_webhook"), HALL, ME)
    assert hook is not None
    assert hook.sender.is_bot


def test_only_the_authors_own_edit_is_an_edit() -> None:
    """An embed that resolves is an update too."""
    assert changes_nothing(payload("message_update_embed"))
    assert not changes_nothing(payload("message_update_edit"))


@pytest.mark.parametrize("text", ["<@1042> /usage", "<@!1042>  !usage", "<@&5001> /usage"])
def test_a_command_after_our_name_is_the_command(text: str) -> None:
    """Discord's clients keep slashes for themselves, so people mention us first."""
    message = parse_message("discord", payload("message_history") | {"content": text}, HALL, ME)
    assert message is not None
    assert message.text in ("/usage", "!usage")


def test_a_command_says_all_that_admission_needs() -> None:
    """Who, with which roles and rights, where; a private thread is told by the payload alone."""
    message = parse_interaction("discord", payload("interaction_command_guild"), ME)
    assert message is not None
    assert (message.text, message.event_ids, message.message_id) == (
        "/timezone Europe/Berlin", ("1573887251060883457",), "",
    )  # fmt: skip
    assert (str(message.key), message.guild, message.is_private) == ("discord:4001/4101", "3001", True)
    assert (message.sender.id, message.sender.name, message.sender.roles) == ("2001", "Annie", ("5002",))
    assert message.sender.is_admin
    assert initial_response(message) == {"type": 5, "data": {"flags": 64}}


def test_a_button_in_a_direct_chat_is_its_value() -> None:
    """And is confirmed without a word."""
    message = parse_interaction("discord", payload("interaction_button_direct"), ME)
    assert message is not None
    assert (message.kind, message.text) == (InboundKind.BUTTON, "/memory approve eaaaaaaaaaaaaaaaa")
    assert (message.message_id, message.reply_to) == ("", "1573887251060883000")
    assert remaining_rows(payload("interaction_button_direct")) == []
    assert (message.chat_kind, message.sender.id) == (ChatKind.DIRECT, "2001")
    assert initial_response(message) == {"type": 6}


@pytest.mark.parametrize("kind", [1, 4, 5])
def test_interactions_that_we_never_asked_for_are_nothing(kind: int) -> None:
    """Pings, completions and forms."""
    assert parse_interaction("discord", payload("interaction_command_guild") | {"type": kind}, ME) is None


def test_a_voice_message_is_voice_and_knows_where_it_is() -> None:
    """The flag tells it from a sound file; the address holds what a fresh one is asked with."""
    message = parse_message("discord", payload("message_voice"), DiscordChat(id="92001", is_direct=True), ME)
    assert message is not None
    (voice,) = message.attachments
    assert (voice.kind, voice.size, voice.media_type) == ("voice", 8123, "audio/ogg")
    address = DiscordFileRef.read(voice.url)
    assert (address.chat, address.message, address.attachment) == (
        "92001", "1573887251060883460", "1573887251060883461",
    )  # fmt: skip
    assert address.url.startswith("https://cdn.discordapp.com/attachments/")
    assert address.to_line() == voice.url


@pytest.mark.parametrize("line", ["", "https://cdn.discordapp.com/a", "1/2 https://a", "1/2/3", "1/x/3 https://a"])
def test_what_is_no_address_of_a_file_is_none(line: str) -> None:
    """Only what `written` made is followed."""
    with pytest.raises(ValueError, match=r"address|unpack"):
        DiscordFileRef.read(line)


@given(st.datetimes(datetime(2016, 1, 1), datetime(2090, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001 - hypothesis adds the zone
def test_snowflakes_tell_the_time(moment: datetime) -> None:
    """An id made at a moment says that moment, to the millisecond."""
    assert abs((moment_of(snowflake_at(moment)) - moment).total_seconds()) < 0.002
