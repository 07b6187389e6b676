"""Discord's payloads and markup: what is read of events, what is written as parts."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.discord import chats, render
from channels.discord.chats import DiscordReplyThreads
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
from channels.discord.render import remaining_rows, render_markup
from gateway.events import UNKNOWN, ChatKind, InboundKind, InboundMessage, OutboundMessage, Sender, SessionKey
from tests.fakes.turns import START
from tests.fakes.web_services import FakeState

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


CASES = {
    "marks": ("*a* **b** ~~c~~ `d`", "*a* **b** ~~c~~ `d`"),
    "literal": ("2 * 3 snake_case ||x||", r"2 \* 3 snake\_case \|\|x\|\|"),
    "heading": ("# One\n\n#### Four", "# One\n\n**Four**"),
    "list": ("- a\n  - b\n- c", "- a\n  - b\n- c"),
    "numbers": ("3. a\n4. b", "3. a\n4. b"),
    "quote": ("> a\n> > b", "> a\n> \n> b"),
    "fence": ("```py\nx = 1\n```", "```py\nx = 1\n```"),
    "address": ("see https://a.example/b_c_d", "see https://a.example/b_c_d"),
    "link": ("[here](https://a.example)", "[here](<https://a.example>)"),
    "false link": ("[bank.example](https://evil.example)", "bank.example (https://evil.example)"),
    "script": ("[a](javascript:x)", r"[a\](javascript:x)"),
    "mention": ("<@42> <#7> <:e:1>", r"\<@42> \<#7> \<:e:1>"),
    "no heading": (r"\# no", r"\# no"),
    "table": ("| a | bb |\n|---|---|\n| 1 | 2 |", "```\na │ bb\n──┼───\n1 │ 2\n```"),
}


@pytest.mark.parametrize(("markdown", "written"), CASES.values(), ids=CASES.keys())
def test_markdown_becomes_discords(markdown: str, written: str) -> None:
    """Each construct as a person there would write it."""
    assert render_markup(markdown) == written


def test_a_fence_inside_code_does_not_end_it() -> None:
    """Three backticks in code stay in the code."""
    written = render_markup('~~~\nx = "```"\n~~~')
    assert written.count("```") == 2


@given(st.text(alphabet="ab*_~`|>#-[]()<@:\\\n \t1.", max_size=5_000))
def test_every_part_is_within_the_limit_and_leaves_room_for_a_mark(text: str) -> None:
    """Whatever escapes make of it."""
    parts = render.render(OutboundMessage(id="tabcdefghijklmnop.1", key=SessionKey("discord", "1"), text=text))
    assert all(0 < len(render.message_content(part)) <= render.LIMIT for part in parts)
    assert all(
        render.message_content(part, may_be_duplicate=True).endswith(part.payload or part.plain) for part in parts
    )
    assert all(
        render.matches_part(render.message_content(part, may_be_duplicate=True), part)
        for part in parts
        if part.plain.strip()
    )


class ThreadlessApi:
    """Starts every thread."""

    async def start_thread(self, parent: str, message: str, name: str) -> None:
        """Accept."""


def threads_over(state: FakeState) -> DiscordReplyThreads:
    """Return the threads of a channel that answers every mention in one."""
    return DiscordReplyThreads(
        cast("Any", state),
        cast("Any", ThreadlessApi()),
        name="discord",
        is_on=lambda _: True,
        anywhere=True,
        exists=lambda _: False,
        language=lambda _: "en",
    )


def accepted(number: int) -> InboundMessage:
    """Return a message that started its thread."""
    key = SessionKey("discord", f"900/{number}")
    sender = Sender(id="1")
    return InboundMessage(
        key=key, message_id=str(number), sender=sender, text="hi", sent_at=START, chat_kind=ChatKind.GROUP
    )


def deletion(number: int) -> InboundMessage:
    """Return the deletion of a message of the channel."""
    key = SessionKey("discord", "900")
    return InboundMessage(
        key=key, message_id=str(number), sender=Sender(id=""), text="", sent_at=START, kind=InboundKind.DELETION
    )


async def test_notes_of_started_threads_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest notes go, by the age of their messages; a restart knows the others."""
    monkeypatch.setattr(chats, "_START_LIMIT", 3)
    state = FakeState()
    threads = threads_over(state)
    for number in (9, 10, 11):
        await threads.start(accepted(number))
    threads = threads_over(state)
    await threads.start(accepted(100))
    place = cast("Any", type("Place", (), {"has_threads": True})())
    for known in (threads, threads_over(state)):
        found = [str((await known.with_thread(deletion(n), place)).key) for n in (9, 10, 11, 100)]
        assert found == ["discord:900", "discord:900/10", "discord:900/11", "discord:900/100"]
