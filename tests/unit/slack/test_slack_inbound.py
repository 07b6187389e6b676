"""What Slack sends, read from payloads as it documents them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.slack.parse import ParsedEvent, SlackBotIdentity, SlackProfile, build_message, moment, parse_event
from channels.slack.render import mentions, plain_text, without_row
from gateway.events import ChatKind, InboundKind, InboundMessage, edit_revision

PAYLOADS = Path(__file__).parents[2] / "payloads" / "slack"
ME = SlackBotIdentity(user="U0PARLOUR", bot="B0PARLOUR", team="T0HOME", handle="parlour")
NOW = datetime(2026, 11, 22, tzinfo=UTC)


def payload(name: str) -> dict[str, Any]:
    """Return a captured payload."""
    found: dict[str, Any] = json.loads((PAYLOADS / f"{name}.json").read_text("utf-8"))
    return found


def parse_payload(name: str, *, in_threads: bool = True) -> ParsedEvent | None:
    """Read a captured payload."""
    return parse_event(payload(name), ME, in_threads=in_threads, now=NOW)


def message(name: str, *, in_threads: bool = True, person: SlackProfile | None = None) -> InboundMessage:
    """Return what becomes of a payload that is for us."""
    found = parse_payload(name, in_threads=in_threads)
    assert found is not None
    return build_message(found, "slack", ME, person or SlackProfile(), is_followed=False, names={"U0ANN": "Ann"})


NOTHING = (
    "message_changed_unfurl",
    "message_changed_by_us",
    "channel_join",
    "message_replied",
    "reaction_added",
    "unknown_event",
    "block_actions_foreign",
)


@pytest.mark.parametrize("name", NOTHING)
def test_what_is_no_word_of_a_person_is_nothing(name: str) -> None:
    """Unfurls, our own edits, joins and events of kinds that we do not know are passed over."""
    assert parse_payload(name) is None


TS = "1795000000.000100"
KEYS = [
    ("message_im", True, "D0ANN"),
    ("message_im", False, "D0ANN"),
    ("message_im_thread", True, "D0ANN/1794999000.000200"),
    ("message_channel", True, f"C0ROOM/{TS}"),
    ("message_channel", False, "C0ROOM"),
    ("message_channel_mention", True, f"C0ROOM/{TS}"),
    ("app_mention", True, f"C0ROOM/{TS}"),
    ("message_thread", True, "C0ROOM/1794999000.000200"),
    ("message_thread", False, "C0ROOM/1794999000.000200"),
    ("thread_broadcast", True, "C0ROOM/1794999000.000200"),
    ("message_mpim", False, "G0THREE"),
    ("message_changed_by_person", True, f"C0ROOM/{TS}"),
    ("message_deleted", True, f"C0ROOM/{TS}"),
    ("message_tombstone", False, "C0ROOM"),
    ("slash_own", True, "D0ANN"),
]


@pytest.mark.parametrize(("name", "in_threads", "chat"), KEYS)
def test_the_session_is_the_chat_or_its_thread(name: str, in_threads: bool, chat: str) -> None:
    """With `reply_in: thread` a channel's message starts its thread; a direct message's top level is one session."""
    assert str(message(name, in_threads=in_threads).key) == f"slack:{chat}"


def test_a_direct_message_speaks_to_us() -> None:
    """Text as people read it, the time by way of no float, and the workspace of the sender."""
    found = message("message_im")
    assert found.text == "good evening & example (https://example.org)"
    assert found.chat_kind is ChatKind.DIRECT
    assert found.is_addressed
    assert found.sent_at == datetime(2026, 11, 18, 11, 6, 40, 100, tzinfo=UTC)
    assert (found.sender.id, found.sender.team, found.message_id) == ("U0ANN", "T0HOME", TS)
    assert found.event_ids == ("Ev01",)


@pytest.mark.parametrize("name", ["message_channel", "message_thread", "message_mpim"])
def test_talk_among_others_is_not_addressed(name: str) -> None:
    """In a shared chat only a mention (or a thread of ours) speaks to us."""
    assert not message(name).is_addressed


def test_a_thread_below_our_message_and_a_turn_to_somebody_else_are_seen() -> None:
    """Facts that decide whether a thread is followed."""
    below, away = parse_payload("message_thread_below_us"), parse_payload("message_channel")
    assert below is not None
    assert away is not None
    assert below.is_below_us
    assert not below.calls_others
    assert not away.calls_others  # "just talking to @Ann" does not begin with her
    turned = payload("message_thread")
    turned["event"]["text"] = " <@U0ANN> and you?"
    found = parse_event(turned, ME, in_threads=True, now=NOW)
    assert found is not None
    assert found.calls_others


def test_an_edit_is_the_same_message_with_a_revision() -> None:
    """It stays addressed when the mention is what was taken out."""
    found = message("message_changed_by_person")
    assert (found.kind, found.message_id, found.revision) == (
        InboundKind.MESSAGE,
        TS,
        edit_revision("1795000010.000000", found.text),
    )
    assert found.text == "hello again"
    assert found.is_addressed


@pytest.mark.parametrize("name", ["message_deleted", "message_tombstone"])
def test_a_deletion_names_the_message_and_whose_it_was(name: str) -> None:
    """A message with a thread below leaves a tombstone; both are deletions."""
    found = message(name)
    assert (found.kind, found.message_id, found.sender.id, found.text) == (InboundKind.DELETION, TS, "U0BOB", "")


def test_a_deletion_that_names_nobody_is_still_one() -> None:
    """Slack may leave out what was deleted; only our own words and other bots' are passed over."""
    bare = payload("message_deleted")
    del bare["event"]["previous_message"]
    found = parse_event(bare, ME, in_threads=False, now=NOW)
    assert found is not None
    assert (found.kind, found.ts, found.user) == (InboundKind.DELETION, TS, "")
    bare["event"]["previous_message"] = {"user": "U0PARLOUR", "bot_id": "B0PARLOUR", "text": "x", "ts": TS}
    assert parse_event(bare, ME, in_threads=False, now=NOW) is None


@pytest.mark.parametrize("name", ["bot_message", "bot_as_user"])
def test_a_bot_is_a_bot(name: str) -> None:
    """However it posts, it is a typed fact that admission refuses."""
    found = message(name)
    assert found.sender.is_bot
    assert not found.sender.is_self


def test_our_own_words_are_ours() -> None:
    """By our user id as by our bot id."""
    assert message("own_message").sender.is_self


def test_files_are_facts() -> None:
    """Kind, name, size and address; what is gone is no file, and a bad size is none."""
    files = message("file_share").attachments
    assert [(file.kind, file.name, file.size) for file in files] == [
        ("image", "cat.png", 2048),
        ("voice", "audio_message.m4a", 90000),
        ("document", "F0LATER", 0),
    ]
    assert files[0].url.startswith("https://files.slack.com/")


def test_a_slash_command_is_a_command() -> None:
    """`/parlour stop` is `/stop`; alone it asks for help; its trigger id decides what is a repeat."""
    stop, help_ = message("slash_own"), message("slash_help")
    assert (stop.kind, stop.text, stop.message_id) == (InboundKind.COMMAND, "/stop", "")
    assert stop.event_ids == ("13345224609.738474920.fake",)
    assert (help_.text, help_.chat_kind, help_.is_addressed) == ("/help", ChatKind.GROUP, True)


TEXTS = [
    ("a &amp;lt; b", "a &lt; b"),
    ("<@U0ANN> and <@U0NOBODY|nobody>", "@Ann and @nobody"),
    ("<#C0ROOM|room> <#C0OTHER>", "#room #C0OTHER"),
    ("<!here> <!subteam^S0T|@team> <!date^1^{date}|today>", "@here @team today"),
    ("<https://a.example> <https://a.example|a> <mailto:x@a.example|x@a.example>", None),
    ("< not a token\nat all >", "< not a token\nat all >"),
]


@pytest.mark.parametrize(("text", "seen"), TEXTS)
def test_text_is_what_people_see(text: str, seen: str | None) -> None:
    """Mentions, channels, groups, dates and links are spelled out."""
    seen = seen or "https://a.example a (https://a.example) x@a.example"
    assert plain_text(text, {"U0ANN": "Ann"}) == seen


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    """What stands between the marks comes through, escaped as Slack escapes it, and nothing raises."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    read_back = plain_text(escaped, {})
    assert read_back == plain_text(escaped, {"U0ANN": "Ann"})
    assert mentions(escaped) == []
    assert "\0" not in read_back
    if text.isprintable():
        assert read_back == text


@pytest.mark.parametrize("ts", ["", "17", "17.", "x.1", "1.1234567", "１.1"])
def test_what_is_no_ts_is_refused(ts: str) -> None:
    """A broken id is an unreadable event, not a message of 1970."""
    with pytest.raises(ValueError, match="no ts"):
        moment(ts)


def test_a_press_is_what_its_button_stands_for() -> None:
    """Said by whoever pressed, where the button is; the rest of the message is known without that button's row."""
    found = parse_payload("block_actions")
    assert found is not None
    assert found.press is not None
    left = without_row(found.press.blocks, found.press.row)
    assert [block["type"] for block in left] == ["section"]
    assert found.press.response_url == ""  # everybody sees that message: it is changed as every message is
    pressed = message("block_actions")
    assert (pressed.kind, pressed.text) == (InboundKind.BUTTON, "/memory reject eaaaaaaaaaaaaaaaa")
    assert (str(pressed.key), pressed.sender.id) == ("slack:C0ROOM/1763769600.000100", "U0BOB")
    assert (pressed.message_id, pressed.event_ids, pressed.reply_to) == ("", ("1.2.fake",), "1763769600.000200")
    assert pressed.is_addressed
