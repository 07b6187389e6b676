"""Telegram's codec: payloads in, texts with entities out. Pure, so without a wire."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from channels.telegram import TelegramSettings, plugin
from channels.telegram.parse import TelegramBotIdentity, event_id, parse_membership, parse_update, rights_changed
from channels.telegram.render import LIMIT, MAX_PARTS, build_outgoing, render, render_markup
from gateway.admission import Admitted, Rejected, RejectionReason, admit, policy_of
from gateway.errors import SettingsError, UnreadableEvent
from gateway.events import InboundMessage, MessagePart, OutboundMessage, SessionKey
from gateway.i18n import translate
from tests.fakes.telegram_rules import checked_text
from tests.fakes.web_services import FakePageServices

PAYLOADS = Path(__file__).resolve().parents[2] / "payloads" / "telegram"
ME = TelegramBotIdentity(id="123456789", username="parlour_bot", commands=frozenset({"stop", "new"}))
NOW = datetime(2026, 11, 22, tzinfo=UTC)
GROUP = "-1001234567890"


def parse_payload(name: str) -> InboundMessage | None:
    """Parse one payload."""
    return parse_update(json.loads((PAYLOADS / f"{name}.json").read_text("utf-8")), channel="telegram", bot=ME, now=NOW)


# What matters of each payload; None = no affair of ours.
CASES: dict[str, dict[str, Any] | None] = {
    "private_text": {
        "text": "What time is it? 😀 see docs (https://example.org/docs)",
        "key": "telegram:42",
        "message_id": "17",
    },
    "private_edited": {"text": "What time is it now?", "revision": "1763769660/1742f43b", "message_id": "17"},
    "private_voice": {"text": "", "files": [("voice", "voice.ogg", 17042, "audio/ogg")]},
    "private_document": {"text": "the report", "files": [("document", "../Q3 report.pdf", 204800, "application/pdf")]},
    "private_animation": {"text": "", "files": [("video", "wave.mp4", 3000, "video/mp4")]},
    "private_sticker": {"text": "", "files": [("document", "sticker.tgs", 9000, "application/x-tgsticker")]},
    "private_sticker_still": {"files": [("image", "sticker.webp", 21000, "image/webp")]},
    "private_sticker_video": {"files": [("video", "sticker.webm", 43000, "video/webm")]},
    "private_photo": {"text": "what is this?", "files": [("image", "photo.jpg", 61234, "image/jpeg")]},
    "private_audio": {"text": "", "files": [("audio", "Aria.mp3", 2930000, "audio/mpeg")]},
    "private_video": {"text": "", "files": [("video", "garden.mp4", 8123456, "video/mp4")]},
    "private_video_note": {"text": "", "files": [("video", "video-note.mp4", 712345, "video/mp4")]},
    "private_image_as_file": {"text": "", "files": [("image", "scan.png", 2400000, "image/png")]},
    "private_file_without_size": {"text": "", "files": [("document", "document", 0, "")]},
    "private_location": {"text": "(a location: 52.52001, 13.40495)"},
    "private_contact": {"text": "(a contact: Bob, +4930123456)"},
    "private_forwarded": {"text": "as he said", "sender": "42", "is_forwarded": True},
    "group_photo_of_album": {
        "key": f"telegram:{GROUP}",
        "album": "13950000000000",
        "is_addressed": True,
        "files": [("image", "photo.jpg", 90000, "image/jpeg")],
    },
    "group_topic_mention": {"key": f"telegram:{GROUP}/7", "reply_to": "", "quoted": "", "is_addressed": True},
    "group_topic_reply_with_quote": {
        "key": f"telegram:{GROUP}/7",
        "reply_to": "12",
        "quoted": "Go home.",
        "quoted_by": "",  # ours
        "is_forwarded": False,
        "is_addressed": True,
    },
    "group_anonymous_admin": {"sender": "", "is_addressed": True},
    "group_other_bot": {"sender": "555"},
    "group_service_new_members": None,
    "channel_post": None,
    "callback_query": {
        "text": "/memory approve eaaaaaaaaaaaaaaaa",
        "key": f"telegram:{GROUP}/7",
        "message_id": "",
        "kind": "button",
        "reply_to": "20",
        "event_ids": ("button/1803",),
    },
    "chat_member_promoted": None,
    "my_chat_member_removed": None,
    "my_chat_member_added": {"text": "/start", "key": f"telegram:{GROUP}", "message_id": "", "is_addressed": True},
}


@pytest.mark.parametrize("name", sorted(path.stem for path in PAYLOADS.glob("*.json")))
def test_a_payload_is_read(name: str) -> None:
    """Every captured payload has its expectation, and is read as it says."""
    message, expected = parse_payload(name), CASES[name]
    if expected is None:
        assert message is None
        return
    assert message is not None
    facts = {
        "key": str(message.key),
        "sender": message.sender.id,
        "kind": str(message.kind),
        "files": [(file.kind, file.name, file.size, file.media_type) for file in message.attachments],
    }
    for field, value in expected.items():
        assert facts.get(field, getattr(message, field, None)) == value, field


def test_hidden_senders_and_bots_are_not_admitted() -> None:
    """An anonymous admin and another bot are refused, though the whole chat is allowed; Ann is not."""
    policy = policy_of("telegram", [f"chat:{GROUP}"], [], "open")
    decisions = {}
    for name in ("group_anonymous_admin", "group_other_bot", "group_topic_mention"):
        message = parse_payload(name)
        assert message is not None
        decisions[name] = admit(message, policy)
    nobody, bot = decisions["group_anonymous_admin"], decisions["group_other_bot"]
    assert isinstance(nobody, Rejected)
    assert nobody.reason is RejectionReason.NOBODY
    assert isinstance(bot, Rejected)
    assert bot.reason is RejectionReason.BOT
    assert isinstance(decisions["group_topic_mention"], Admitted)


FIELDS = ["message", "chat", "id", "type", "from", "date", "text", "entities", "offset", "length", "photo", "edit_date"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=6),
    max_leaves=12,
)


@given(st.sampled_from(["message", "edited_message", "callback_query", "my_chat_member", "poll"]), JSON)
def test_no_update_breaks_the_codec(field: str, content: Any) -> None:
    """Whatever shape comes: a message, nothing of ours, or Unreadable, whose text holds no word of it."""
    found, said = None, ""
    try:
        found = parse_update({"update_id": 1, field: content}, channel="telegram", bot=ME, now=NOW)
    except UnreadableEvent as error:
        said = str(error).partition(" in ")[2]
    assert said in ("", f"{field}, update_id", f"update_id, {field}")
    assert found is None or found.key.channel == "telegram"


@given(st.sampled_from(["my_chat_member", "chat_member"]), JSON, JSON)
def test_no_update_about_members_breaks_the_codec(field: str, change: Any, member: Any) -> None:
    """Whatever shape comes: a place, none, or Unreadable without a word of it."""
    if isinstance(change, dict):
        change = {**change, "old_chat_member": member, "new_chat_member": {"status": "member"}}
    update = {"update_id": 1, field: change}
    rights_changed(update)
    try:
        parse_membership(update, channel="telegram", bot=ME)
    except UnreadableEvent as error:
        assert str(error).endswith(" in my_chat_member")  # noqa: PT017 - it may raise or not


def test_who_decides_changes_when_somebody_becomes_an_admin() -> None:
    """As captured: a member became an admin; and we were taken out, which is no news of that kind."""
    promoted, removed = (
        json.loads((PAYLOADS / f"{name}.json").read_text("utf-8"))
        for name in ("chat_member_promoted", "my_chat_member_removed")
    )
    assert (rights_changed(promoted), parse_membership(promoted, channel="telegram", bot=ME)) == (int(GROUP), None)
    gone = parse_membership(removed, channel="telegram", bot=ME)
    assert rights_changed(removed) is None
    assert gone is not None
    assert (gone.chat, gone.title, gone.is_gone) == (GROUP, "The team", True)


@given(st.sampled_from(["message", "edited_message", "callback_query", "my_chat_member"]), JSON, st.integers())
def test_an_event_is_named_the_same_when_it_comes_again(field: str, content: Any, ident: int) -> None:
    """Whatever shape comes: its name does not hang on the update's id, which begins anew after a quiet week."""
    assert event_id({"update_id": 1, field: content}) == event_id({"update_id": ident, field: content})


def test_an_edit_is_another_event() -> None:
    """A message, its edit and the edit after that have names of their own."""
    update = json.loads((PAYLOADS / "private_edited.json").read_text("utf-8"))
    said = {"message": {**update["edited_message"], "edit_date": 0}}
    again = {"edited_message": {**update["edited_message"], "edit_date": 1_800_000_000}}
    assert len({event_id(each) for each in (said, update, again)}) == 3


MARKDOWN = st.lists(
    st.sampled_from(
        [
            *(
                "**",
                "*",
                "_",
                "`",
                "```",
                "~~",
                "[",
                "](https://x.org)",
                "](y.z)",
                "> ",
                "- ",
                "1. ",
                "# ",
                "\n",
                "\n\n",
                "    ",
            ),
            *(
                "word ",
                "😀",
                "👨‍👩‍👧",
                "日本",
                "a.b",
                "|",
                "| a | b |\n|---|---|\n| 1 | 2 |\n",
                "---",
                "\u0301",
                "\\",
                "@ann ",
                "&lt;",
            ),
        ]
    ),
    max_size=60,
).map("".join)


def message(text: str) -> OutboundMessage:
    """Return an answer."""
    return OutboundMessage(id="tabcdefghijklmnop.1", key=SessionKey("telegram", "42"), text=text, reply_to="5")


@example(">     > \n**")
@example(">       indented")
@example("> `  x`")
@given(MARKDOWN)
def test_what_we_render_telegram_takes(text: str) -> None:
    """Any Markdown gives parts that the strictest server takes, formatted, plain and marked, always the same."""
    parts = render(message(text))
    assert parts == render(message(text))
    assert [part.id for part in parts] == [f"tabcdefghijklmnop.1.{n}" for n in range(1, len(parts) + 1)]
    for part in parts:
        for marked in (False, True):
            for each in (part, MessagePart(id=part.id, key=part.key, payload="", plain=part.plain)):
                shown = build_outgoing(each, may_be_duplicate=marked)
                checked_text({"text": shown.text, "entities": list(shown.entities)})
                assert shown.text.endswith(translate("delivery.may_repeat")) is marked


@pytest.mark.parametrize(
    "text",
    [
        "word " * 30_000,
        "```\n" + "code\n" * 20_000 + "```",
        "😀" * 9_000,
        "**b** `c` " * 700,
        "[x](https://a.example) " * 400,
        "| name | what it does |\n|---|---|\n" + "| a | b |\n" * 1_200,
        "| a long head line that repeats in every row | another long one |\n|---|---|\n" + "| a | b |\n" * 300,
        ">" * 10_000 + " deep",
        "- " * 500 + "deep",
    ],
    ids=["words", "code", "emoji", "entities", "links", "table", "records", "quotes", "lists"],
)
def test_anything_long_fits(text: str) -> None:
    """4,096 UTF-16 units and 100 entities bind every part; there are never more than forty."""
    parts = render(message(text))
    assert 1 <= len(parts) <= MAX_PARTS
    for part in parts:
        shown = build_outgoing(part, may_be_duplicate=True)
        checked_text({"text": shown.text, "entities": list(shown.entities)})
        assert len(part.plain.encode("utf-16-le")) // 2 <= LIMIT
    assert [part.reply_to for part in parts] == ["5", *("" for _ in parts[1:])]


@pytest.mark.parametrize(
    ("text", "is_formatted"),
    [("It is sunny.\n\nTake a hat.", False), ("It is **sunny**.", True), ("See https://example.org", False)],
)
def test_a_text_without_formatting_is_stored_once(text: str, is_formatted: bool) -> None:
    """Its part has no payload: the plain text is sent, and it is the same."""
    message = OutboundMessage(id="t.1", key=SessionKey("telegram", "42"), text=text)
    (part,) = render(message, lambda _: "en")
    sent = build_outgoing(part)
    assert bool(part.payload) == bool(sent.entities) == is_formatted
    assert sent.text == text.replace("**", "")


def test_a_table_that_is_narrow_stands_in_columns_and_a_wide_one_in_records() -> None:
    """A telephone shows forty columns; wide characters count twice."""
    narrow = render_markup("| day | 天气 |\n|---|---|\n| Mon | ☀ |\n| Tuesday | 雨 |")
    assert narrow.text == "day      天气\n───────  ────\nMon      ☀\nTuesday  雨"
    assert [entity.type for entity in narrow.entities] == ["pre"]
    wide = render_markup(f"| city | why |\n|---|---|\n| **Rome** | {'because ' * 9}|\n| Oslo | `no` |")
    assert wide.text == f"Rome\nwhy: {('because ' * 9).strip()}\n\nOslo\nwhy: no"
    assert [entity.type for entity in wide.entities] == ["bold", "bold", "code"]


@pytest.mark.parametrize("wide", [False, True], ids=["columns", "records"])
def test_a_table_that_is_cut_has_its_head_in_every_part(wide: bool) -> None:
    """Every row stands once, in a table: in columns with the head above, or in a record with its titles."""
    more = "because " * 9 if wide else "x"
    rows = "".join(f"| row {n} | {more} |\n" for n in range(400))
    text = f"Before.\n\n| name | why |\n|---|---|\n{rows}\nAfter."
    shown = [build_outgoing(part).text for part in render(message(text))]
    assert len(shown) > 1
    assert not any("|" in each for each in shown)
    if wide:
        assert sum(each.count("why: because") for each in shown) == 400
    else:
        assert all(each.startswith(("Before.", "name")) for each in shown)
    whole = "\n".join(shown)
    assert [whole.count(f"row {n}\n") + whole.count(f"row {n} ") for n in range(400)] == [1] * 400


LINKS = {
    "[docs](https://x.org/a)": ("docs", ["text_link"]),
    "[x.org](https://x.org/a)": ("x.org", ["text_link"]),
    "[www.x.org](https://x.org/a)": ("www.x.org", ["text_link"]),
    "[good.com](https://evil.example)": ("good.com (https://evil.example)", []),
    "[https://good.com/login](https://good.com@evil.example/)": (
        "https://good.com/login (https://good.com@evil.example/)",
        [],
    ),
    "[Ann](tg://user?id=42)": ("Ann (tg://user?id=42)", []),
    "[mail](mailto:a@b.example)": ("mail (mailto:a@b.example)", []),
    "<https://x.org>": ("https://x.org", []),
    "![a cat](https://x.org/cat.png)": ("a cat", ["text_link"]),
    "[`code`](https://x.org)": ("code", ["text_link"]),
}


@pytest.mark.parametrize("markdown", LINKS)
def test_a_link_shows_where_it_leads(markdown: str) -> None:
    """A label that names another place than it leads to is shown with the address; only web addresses are links."""
    shown = render_markup(markdown)
    assert (shown.text, [entity.type for entity in shown.entities]) == LINKS[markdown]


def test_blocks_look_native() -> None:
    """Headings are bold, quotes are quotes, lists keep their marks and their depth, code keeps its language."""
    shown = render_markup(
        "# A *b*\n\n> one\n> two\n\n- x\n  - y\n\n    ```sh\n    ls\n    ```\n- z\n\n3. c\n4. d\n\n---\n~~e~~"
    )
    units = shown.text.encode("utf-16-le")
    words = [
        (each.type, units[2 * each.offset : 2 * (each.offset + each.length)].decode("utf-16-le"), each.extra)
        for each in shown.entities
    ]
    assert words == [
        ("bold", "A b", ""),
        ("italic", "b", ""),
        ("blockquote", "one\ntwo", ""),
        ("pre", "ls", "sh"),
        ("strikethrough", "e", ""),
    ]
    assert shown.text == "A b\n\none\ntwo\n\n• x\n  • y\n\nls\n• z\n\n3. c\n4. d\n\n———\n\ne"


def test_a_blank_answer_is_no_part() -> None:
    """Nothing to show gives no part; what only looks empty is shown as it is written."""
    assert render(message(" \n\n")) == []
    (part,) = render(message("[]()"))
    assert part.plain == "[]()"


def test_the_check_needs_no_network() -> None:
    """A block is looked at: a token that would travel unencrypted is named, a server next door is not."""
    token = "123456789:AAH-abcdefghijklmnopqrstuvwxyz012"

    def wrong(address: str) -> int:
        return len(plugin.check(TelegramSettings.model_validate({"token": token, "base_url": address}), {}))

    addresses = ["https://api.telegram.org/bot", "http://127.0.0.1:8081/bot", "http://botapi:8081/bot"]
    assert [wrong(address) for address in addresses] == [0, 0, 0]
    assert wrong("http://api.example.org/bot") == 1
    hook = {"enabled": False, "webhook_url": "http://bot.example.org/hooks/telegram"}
    (line,) = plugin.check(TelegramSettings.model_validate(hook), {})
    assert "https://" in line


def test_a_missing_library_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switched on without its extra installed: the start says what to install."""
    for name in [name for name in sys.modules if name.startswith(("channels.telegram.", "telegram"))]:
        if name != "channels.telegram":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "telegram", None)
    with pytest.raises(SettingsError, match=r"channels\.telegram needs telegram; run `make install`"):
        plugin.open(FakePageServices().context("telegram"))


@pytest.mark.parametrize(("reaction", "is_good"), [("👀", True), ("", True), ("🦄🦄", False), ("x", False)])
def test_only_reactions_that_bots_may_give_are_settings(reaction: str, is_good: bool) -> None:
    """A wrong emoji is refused at the start, not at every message."""
    fields = {"enabled": False, "reaction": reaction}
    if is_good:
        assert TelegramSettings.model_validate(fields).reaction == reaction
    else:
        with pytest.raises(ValueError, match="bots may use no others"):
            TelegramSettings.model_validate(fields)
