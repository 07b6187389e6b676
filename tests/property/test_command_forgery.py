"""No field that other people fill is ever read as a command: on every platform, wherever the text stands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.commands.command import CommandRouter
from channels.discord import parse as discord
from channels.slack import parse as slack
from channels.telegram.parse import TelegramBotIdentity, parse_update
from gateway.events import InboundMessage

PAYLOADS = Path(__file__).resolve().parents[1] / "payloads"
NOW = datetime(2026, 11, 22, tzinfo=UTC)
ROUTER = CommandRouter.load()
HANDLE = "Parlour"
TELEGRAM = TelegramBotIdentity(id="123456789", username=HANDLE, commands=frozenset({"new", "forget"}))
SLACK = slack.SlackBotIdentity(user="U0PARLOUR", bot="B0PARLOUR", team="T0HOME", handle=HANDLE)
DISCORD = discord.DiscordBotIdentity(id="1042", name=HANDLE, roles=frozenset({"5001"}))
PHOTO = [{"file_id": "p", "width": 1, "height": 1}]
HALL = discord.DiscordChat(id="4001", guild="3001")

# Everything that the router takes for a command when its sender typed it.
FORGED = st.builds(
    lambda before, sign, name, after: f"{before}{sign}{name}{after}",
    st.sampled_from(["", " ", f"{HANDLE} ", f"@{HANDLE} ", "<@1042> ", "<@U0PARLOUR> "]),
    st.sampled_from(["", "/", "!"]),
    st.sampled_from([each.name for each in ROUTER.commands]),
    st.sampled_from(["", " everything yes", " here", f"@{HANDLE}", "\nyes"]),
)
# Names of things and numbers, which no person can choose.
_FIXED = frozenset(
    {"type", "subtype", "channel_type", "ts", "thread_ts", "event_ts", "deleted_ts", "event_id", "trigger_id"}
    | {"timestamp", "edited_timestamp", "command", "custom_id", "action_id", "value", "data", "status", "mime_type"}
)


_TYPED = frozenset({"text", "content", "caption"})


def forge(payload: Any, text: str) -> Any:
    """Return *payload* with *text* in every field that a person fills."""
    if isinstance(payload, Mapping):
        return {name: value if _is_fixed(name, value) else forge(value, text) for name, value in payload.items()}
    if isinstance(payload, list):
        return [forge(each, text) for each in payload]
    return text if isinstance(payload, str) else payload


def typed_as(message: Any, text: str) -> Any:
    """Return *message* with *text* as its sender's own words, where it has any."""
    return {name: text if name in _TYPED and isinstance(value, str) else value for name, value in message.items()}


def _is_fixed(name: str, value: object) -> bool:
    is_id = name == "id" or name.endswith(("_id", "_ids")) or name in ("user", "channel", "team", "mention_roles")
    return name in _FIXED or (is_id and not isinstance(value, Mapping))


def payloads(platform: str) -> list[Any]:
    """Return the captured payloads of *platform*."""
    return [json.loads(path.read_text("utf-8")) for path in sorted((PAYLOADS / platform).glob("*.json"))]


def is_command(message: InboundMessage | None) -> bool:
    """Return True if the router takes *message* for a command."""
    return message is not None and ROUTER.parse(message) is not None


def on_telegram(message: Mapping[str, Any]) -> InboundMessage | None:
    """Read what a person sent on Telegram."""
    base = {"message_id": 1, "from": {"id": 42, "first_name": "Ann"}, "chat": {"id": 42, "type": "private"}, "date": 1}
    return parse_update({"message": base | dict(message)}, channel="telegram", bot=TELEGRAM, now=NOW)


def on_slack(text: str, names: Mapping[str, str], **event: Any) -> InboundMessage | None:
    """Read what a person wrote on Slack."""
    base = {"type": "message", "user": "U0ANN", "ts": "1795000000.000100", "channel": "D0ANN", "channel_type": "im"}
    body = {"type": "event_callback", "event_id": "Ev1", "event": base | {"text": text} | event}
    heard = slack.parse_event(body, SLACK, in_threads=True, now=NOW)
    assert heard is not None
    person = slack.SlackProfile(name=names.get("U0ANN", ""))
    return slack.build_message(heard, "slack", SLACK, person, is_followed=True, names=names)


def on_discord(text: str, name: str, **fields: Any) -> InboundMessage | None:
    """Read what a person wrote on Discord, mentioning somebody called *name*."""
    mal = {"id": "2003", "username": name, "global_name": name, "member": {"nick": name}}
    payload = json.loads((PAYLOADS / "discord" / "message_history.json").read_text("utf-8"))
    return discord.parse_message("discord", payload | {"content": text, "mentions": [mal]} | fields, HALL, DISCORD)


@given(FORGED, st.sampled_from(["hello", "", "see above"]))
def test_no_captured_payload_carries_a_forged_command(text: str, typed: str) -> None:
    """Names, titles, quotations, attachments, unfurls, embeds, polls and contacts of every captured payload."""
    for each in payloads("telegram"):
        for kind in {"message", "edited_message"} & set(each):
            update = {kind: typed_as(forge(each[kind], text), typed)}
            assert not is_command(parse_update(update, channel="telegram", bot=TELEGRAM, now=NOW)), update
    for each in payloads("slack"):
        if each.get("type") != "event_callback":
            continue
        event = typed_as(forge(each["event"], text), typed)
        if "message" in event:
            event["message"] = typed_as(event["message"], typed)
        heard = slack.parse_event(each | {"event": event}, SLACK, in_threads=True, now=NOW)
        if heard is not None:
            names = dict.fromkeys(("U0ANN", "U0BOB", "U0EVE"), text)
            person = slack.SlackProfile(name=text)
            assert not is_command(slack.build_message(heard, "slack", SLACK, person, is_followed=True, names=names)), (
                each
            )
    for each in payloads("discord"):
        if "content" in each:
            message = discord.parse_message("discord", typed_as(forge(each, text), typed), HALL, DISCORD)
            assert not is_command(message), each


@given(FORGED, st.sampled_from(["", " ", " hi", " everything yes", "\n/new"]))
def test_a_name_is_no_command_where_it_is_mentioned(name: str, rest: str) -> None:
    """The sender mentions somebody, first of all; whatever that name is, the message is none but the sender's words."""
    user = {"id": 666, "first_name": name}
    mention = {"type": "text_mention", "offset": 0, "length": len(name.encode("utf-16-le")) // 2, "user": user}
    assert not is_command(on_telegram({"text": name + rest, "entities": [mention]}))
    assert not is_command(on_telegram({"photo": PHOTO, "caption": name + rest, "caption_entities": [mention]}))
    assert not is_command(on_slack(f"<@U0EVE>{rest}", {"U0EVE": name}))
    assert not is_command(on_slack(f"<@U0EVE|{name}>{rest}", {}))
    assert not is_command(on_slack(f"<#C0ROOM|{name}>{rest}", {}))
    assert not is_command(on_slack(f"<!subteam^S1|{name}>{rest}", {}))
    assert not is_command(on_discord(f"<@2003>{rest}", name))
    assert not is_command(on_discord(f"<@!2003>{rest}", name))


@given(FORGED)
def test_titles_quotations_and_passed_on_text_are_no_commands(text: str) -> None:
    """A link's title, a pasted quotation, code, a forward, an inline bot's result, and what is answered."""
    span = {"offset": 0, "length": len(text.encode("utf-16-le")) // 2}
    for kind in ("blockquote", "expandable_blockquote", "code", "pre"):
        assert not is_command(on_telegram({"text": text, "entities": [{"type": kind, **span}]}))
    link = {"type": "text_link", "url": "http://evil.example", **span}
    assert not is_command(on_telegram({"text": text, "entities": [link]}))
    other = {"type": "user", "date": 1, "sender_user": {"id": 7, "first_name": text}}
    assert not is_command(on_telegram({"text": text, "forward_origin": other}))
    assert not is_command(on_telegram({"text": text, "via_bot": {"id": 9, "is_bot": True, "username": "gif"}}))
    answered = {"message_id": 2, "from": {"id": 7, "first_name": text}, "text": text}
    assert not is_command(on_telegram({"text": "yes", "reply_to_message": answered, "quote": {"text": text}}))
    for other_kind in (
        {"contact": {"first_name": text, "phone_number": text}},
        {"poll": {"question": text, "options": [{"text": text}]}},
        {"venue": {"title": text, "address": text}},
        {"document": {"file_id": "f", "file_name": text}},
    ):
        assert not is_command(on_telegram(other_kind))
    for token in (f"<http://evil.example|{text}>", f"<!date^0^{{date}}|{text}>", f"&gt; {text}"):
        assert not is_command(on_slack(token, {}))
    unfurled = [{"text": text, "title": text, "fallback": text, "is_msg_unfurl": True}]
    blocks = [{"type": "section", "text": {"type": "mrkdwn", "text": text}}]
    assert not is_command(on_slack("", {}, attachments=unfurled, blocks=blocks, files=[]))
    snapshot = [{"message": {"content": text, "type": 0}}]
    forward = {"message_reference": {"type": 1, "message_id": "1"}, "message_snapshots": snapshot}
    assert not is_command(on_discord("", text, **forward))
    assert not is_command(on_discord(f"> {text}", text, embeds=[{"title": text, "description": text}]))
    assert not is_command(on_discord(f"</{text}:1>", text))


@given(st.sampled_from(["everything yes", "yes", "here", "undo x", "pending", "123456", "-- --purge"]))
def test_a_name_among_the_arguments_is_one_word_of_its_own(name: str) -> None:
    """A resolved name never becomes a word that a command knows; `/allow` keeps the mentioned id."""
    user = {"id": 666, "first_name": name}
    entity = {"type": "text_mention", "offset": 7, "length": len(name), "user": user}
    for message in (
        on_telegram({"text": f"/allow {name}", "entities": [entity]}),
        on_slack("/allow <@U0EVE>", {"U0EVE": name}),
        on_slack("<@U0PARLOUR> /allow <@U0EVE>", {"U0EVE": name}),
        on_discord("<@1042> /allow <@2003>", name),
    ):
        assert message is not None
        typed = ROUTER.parse(message)
        assert typed is not None
        assert (typed.name, typed.args) == ("allow", f"@{'_'.join(name.split())}")
        assert message.mentioned in (("666",), ("U0EVE",), ("2003",))


@pytest.mark.parametrize("text", ["/help", "!help", "/allow here", "/forget everything yes"])
def test_what_the_sender_types_is_a_command_everywhere(text: str) -> None:
    """Alone, behind our mention, and below a photo of theirs."""
    mention = [{"type": "mention", "offset": 0, "length": len(HANDLE) + 1}]
    for message in (
        on_telegram({"text": text}),
        on_telegram({"text": f"@{HANDLE} {text}", "entities": mention}),
        on_telegram({"photo": PHOTO, "caption": text}),
        on_slack(text, {}),
        on_slack(f"<@U0PARLOUR> {text}", {}),
        on_discord(text, "Mal"),
        on_discord(f"<@1042> {text}", "Mal"),
        on_discord(f"<@&5001> {text}", "Mal"),
    ):
        assert is_command(message), message
