"""Speaking to Telegram over the wire: what stands in the chat, and what delivery is told when it does not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest

from gateway.errors import FormatRefused, OutcomeUnknown, RetryLater, SendRefused
from gateway.events import MessagePart, OutboundKind, OutboundMessage, SessionKey
from gateway.i18n import translate
from gateway.ports.channel import ChatActivity
from tests.fakes.telegram_channel import TelegramConnection, open_line
from tests.fakes.telegram_server import TelegramFault, TelegramServer, open_telegram

ANN = SessionKey("telegram", "42")
GROUP = SessionKey("telegram", "-1001234567890")
TOPIC = SessionKey("telegram", "-1001234567890/7")
TURN = "tabcdefghijklmnop"


@pytest.fixture
async def server() -> AsyncIterator[TelegramServer]:
    """Give a Telegram in which Ann and the team have a chat with the bot."""
    async with open_telegram() as server:
        server.chat(42)
        team = server.chat(int(GROUP.chat))
        team.topics = {7}
        team.known = {1, 2, 3}
        team.last_id = 3
        yield server


@pytest.fixture
async def line(server: TelegramServer) -> AsyncIterator[TelegramConnection]:
    """Give a channel that sends, and hears nothing."""
    async with open_line(server, runs=False) as line:
        yield line


def parts(
    line: TelegramConnection,
    text: str,
    key: SessionKey = ANN,
    *,
    row: int = 1,
    kind: OutboundKind = OutboundKind.ANSWER,
    reply_to: str = "",
    visible_to: str = "",
) -> list[MessagePart]:
    """Render one message."""
    ident = f"{TURN}.{row}"
    message = OutboundMessage(id=ident, key=key, text=text, kind=kind, reply_to=reply_to, visible_to=visible_to)
    return list(line.channel.render(message))


def part(
    line: TelegramConnection, text: str, key: SessionKey = ANN, *, reply_to: str = "", visible_to: str = ""
) -> MessagePart:
    """Render a message of one part."""
    (only,) = parts(line, text, key, reply_to=reply_to, visible_to=visible_to)
    return only


def preview(line: TelegramConnection, text: str, key: SessionKey) -> MessagePart:
    """Render the text so far."""
    return parts(line, text, key, row=0, kind=OutboundKind.PREVIEW)[0]


async def test_an_answer_is_set_natively(line: TelegramConnection) -> None:
    """Markdown becomes entities that a strict server takes, without a link preview; the receipt names the message."""
    one = part(line, "It is **late**, 😀 see [the clock](https://time.example/now).\n\n```python\nprint(6)\n```")
    receipt = await line.channel.send(one)
    (post,) = line.server.posts
    assert post.text == "It is late, 😀 see the clock.\n\nprint(6)"
    assert [(e["type"], e["offset"], e["length"]) for e in post.entities] == [
        ("bold", 6, 4),
        ("text_link", 19, 9),
        ("pre", 31, 8),
    ]
    assert not post.has_preview
    assert (receipt.part, receipt.message_id) == (one.id, str(post.id))
    assert receipt.at.tzinfo is not None


async def test_an_answer_in_a_group_names_its_question(line: TelegramConnection) -> None:
    """In a group it is a reply, even to what is deleted by then; in a topic it stays there; in private it is none."""
    line.server.chat(int(GROUP.chat)).deleted = {2}
    await line.channel.send(part(line, "one", GROUP, reply_to="1"))
    await line.channel.send(part(line, "two", GROUP, reply_to="2"))
    await line.channel.send(part(line, "three", TOPIC, reply_to="3"))
    await line.channel.send(part(line, "four", ANN, reply_to="1"))
    assert [(p.text, p.reply_to, p.thread) for p in line.server.posts] == [
        ("one", 1, None),
        ("two", None, None),
        ("three", 3, 7),
        ("four", None, None),
    ]


REFUSALS = {
    "blocked": (TelegramFault("status", 403, description="Forbidden: bot was blocked by the user"), SendRefused),
    "gone": (TelegramFault("status", 400, description="Bad Request: chat not found"), SendRefused),
    "format": (TelegramFault("status", 400, description="Bad Request: can't parse entities: x"), FormatRefused),
    "later": (TelegramFault("status", 429, retry_after=17), RetryLater),
    "at-once": (TelegramFault("status", 429, description="Too Many Requests: retry after 0"), RetryLater),
    "token": (TelegramFault("status", 401, description="Unauthorized"), RetryLater),
    "server": (TelegramFault("status", 500), OutcomeUnknown),
    "gateway": (TelegramFault("status", 502, description="Bad Gateway"), OutcomeUnknown),
    "dropped": (TelegramFault("drop"), OutcomeUnknown),
    "lost": (TelegramFault("lost"), OutcomeUnknown),
    "garbage": (TelegramFault("garbage"), OutcomeUnknown),
}


@pytest.mark.parametrize("name", REFUSALS)
async def test_what_goes_wrong_has_its_name(line: TelegramConnection, name: str) -> None:
    """Each failure of a send tells delivery what to do about it, and no line of it holds the token."""
    fault, expected = REFUSALS[name]
    line.server.fail("sendMessage", fault)
    with pytest.raises(expected) as caught:
        await line.channel.send(part(line, "hello **you**"))
    assert line.server.token.partition(":")[2] not in f"{caught.value} {caught.value.__cause__}"
    assert len([name for name, _ in line.server.calls if name == "sendMessage"]) == 1
    if isinstance(caught.value, RetryLater) and name == "later":
        assert caught.value.delay == timedelta(seconds=17)


async def test_what_never_left_was_not_sent(server: TelegramServer) -> None:
    """A Telegram that is not reached leaves no doubt: later, not unknown."""
    async with open_line(server, runs=False, base_url="http://127.0.0.1:9/bot") as line:
        with pytest.raises(RetryLater):
            await line.channel.send(part(line, "hello"))


async def test_plain_text_is_sent_as_it_stands(line: TelegramConnection) -> None:
    """A part without its formatting is its plain text, and a refusal of that is final."""
    one = part(line, "see [the clock](https://time.example) *now*")
    bare = MessagePart(id=one.id, key=one.key, payload="", plain=one.plain)
    await line.channel.send(bare)
    assert line.server.shown(42) == ["see the clock (https://time.example) now"]
    line.server.fail("sendMessage", TelegramFault("status", 400, description="Bad Request: can't parse entities: x"))
    with pytest.raises(SendRefused):
        await line.channel.send(bare)


async def test_a_group_that_became_a_supergroup_is_followed(line: TelegramConnection) -> None:
    """The answer goes to the new chat at once, and so do all later ones; the note outlives the process."""
    old, new = SessionKey("telegram", "-555"), -1009999
    line.server.chat(-555, "group").moved_to = new
    line.server.chat(new)
    await line.channel.send(part(line, "first", old))
    await line.channel.send(part(line, "second", old))
    assert line.server.shown(new) == ["first", "second"]
    assert len([name for name, _ in line.server.calls if name == "sendMessage"]) == 3
    async with open_line(line.server, line.services, runs=False) as again:
        await again.channel.send(part(again, "third", old))
    assert len([name for name, _ in line.server.calls if name == "sendMessage"]) == 4


async def test_an_edit_that_changes_nothing_is_done(line: TelegramConnection) -> None:
    """Telegram's "not modified" is success; a message that is gone is refused, so that a new one can be sent."""
    receipt = await line.channel.send(part(line, "same", GROUP))
    assert (await line.channel.edit(receipt.message_id, part(line, "same", GROUP))).message_id == receipt.message_id
    line.server.chat(int(GROUP.chat)).deleted = {int(receipt.message_id)}
    with pytest.raises(SendRefused):
        await line.channel.edit(receipt.message_id, part(line, "other", GROUP))


async def test_a_stream_in_private_is_a_draft_and_then_a_message(line: TelegramConnection) -> None:
    """Drafts under one id, never a message; the answer cannot be an edit of a draft, so it rings as a new one."""
    await line.channel.show(ChatActivity(key=ANN, on=True))
    receipt = await line.channel.send(preview(line, "It", ANN))
    for text in ("It is", "It is", "It is **late**"):
        receipt = await line.channel.edit(receipt.message_id, preview(line, text, ANN))
    assert line.server.posts == []
    assert [each["text"] for each in line.server.drafts] == ["It", "It is", "It is", "It is late"]
    assert len({each["draft_id"] for each in line.server.drafts}) == 1
    assert await line.channel.find(preview(line, "It", ANN)) is None
    with pytest.raises(SendRefused):
        await line.channel.edit(receipt.message_id, part(line, "It is late.", ANN))
    await line.channel.show(ChatActivity(key=ANN, on=False))
    await line.channel.send(part(line, "It is late.", ANN))
    assert line.server.shown(42) == ["It is late."]
    assert line.server.drafts == []


async def test_a_placed_part_is_a_silent_message(line: TelegramConnection) -> None:
    """delivery.once: strict: in private too a placeholder is a message that stays and rings nobody; it is edited."""
    for key in (ANN, GROUP):
        blank = replace(preview(line, "…", key), is_placed=True)
        receipt = await line.channel.send(blank)
        await line.channel.edit(receipt.message_id, preview(line, "It is", key))
        await line.channel.edit(receipt.message_id, part(line, "It is late.", key))
        with pytest.raises(OutcomeUnknown):
            await line.channel.find(blank)
    await line.channel.send(part(line, "This rings.", ANN))
    assert [(post.text, post.is_silent, len(post.versions)) for post in line.server.posts] == [
        ("It is late.", True, 3),
        ("It is late.", True, 3),
        ("This rings.", False, 1),
    ]
    assert line.server.drafts == []


async def test_previews_leave_a_group_its_messages(line: TelegramConnection) -> None:
    """Twenty a minute is the wall: previews stop well before it, so that answers are not held up by them."""
    receipt = await line.channel.send(preview(line, "…", GROUP))
    for n in range(40):
        await line.channel.edit(receipt.message_id, preview(line, f"text {n}", GROUP))
    (post,) = line.server.posts
    assert 5 < len(post.versions) < 20
    for n in range(5):
        await line.channel.send(part(line, f"answer {n}", GROUP))
    assert len(line.server.posts) == 6


async def test_our_own_pace_keeps_us_off_the_wall(line: TelegramConnection) -> None:
    """What a group has no room for any more waits, for that group only; Telegram never has to say so."""
    for n in range(20):
        await line.channel.send(part(line, f"answer {n}", GROUP))
    with pytest.raises(RetryLater) as caught:
        await line.channel.send(part(line, "one more", GROUP))
    assert timedelta(0) < caught.value.delay <= timedelta(seconds=3)
    await line.channel.send(part(line, "elsewhere", ANN))
    assert len(line.server.posts) == 21


async def test_a_status_is_a_draft_until_there_are_words(line: TelegramConnection) -> None:
    """What is being done stands where the answer will; it never takes the place of words."""
    await line.channel.show(ChatActivity(key=ANN, on=True, text="Searching. Use /stop to cancel."))
    await line.channel.send(preview(line, "It is", ANN))
    await line.channel.show(ChatActivity(key=ANN, on=True, text="Searching more"))
    await line.channel.show(ChatActivity(key=GROUP, on=True, text="Searching"))
    assert [each["text"] for each in line.server.drafts] == ["Searching. Use /stop to cancel.", "It is"]
    assert len({each["draft_id"] for each in line.server.drafts}) == 1


async def test_a_private_answer_goes_to_its_person(line: TelegramConnection) -> None:
    """What one person may see is sent to them; where Telegram forbids it, the group is told how to get it, once."""
    await line.channel.send(part(line, "your secret", TOPIC, reply_to="1", visible_to="42"))
    assert (line.server.shown(42), line.server.shown(int(GROUP.chat))) == (["your secret"], [])
    line.server.chat(43).blocked = True
    long = parts(line, "secret " * 1000, GROUP, reply_to="2", visible_to="43")
    await line.channel.send(long[0])
    with pytest.raises(SendRefused):
        await line.channel.send(long[1])
    (post,) = [post for post in line.server.posts if post.chat == int(GROUP.chat)]
    assert (post.text, post.reply_to) == (translate("telegram.write_first"), 2)


async def test_the_sign_on_a_message_goes_when_it_is_answered(server: TelegramServer) -> None:
    """👀 on what was taken, gone from it and from what came before once the answer stands; none on a command."""
    async with open_line(server) as line:
        line.services.state.unanswered = {"4"}
        for text in ("one", "two", "/status", "three"):
            server.say(text)
        await server.until(lambda: len(server.reactions) == 3)
        await line.channel.send(part(line, "Both.", ANN, reply_to="2"))
        line.channel.remove_reactions(ANN)
        await server.until(lambda: len(server.reactions) == 5)
    put = [each["message_id"] for each in server.reactions if each.get("reaction")]
    taken = [each["message_id"] for each in server.reactions if not each.get("reaction")]
    assert (sorted(put), taken) == ([1, 2, 4], [1, 2])


async def test_no_sign_where_none_is_wanted(server: TelegramServer) -> None:
    """An empty setting switches the reaction off."""
    async with open_line(server, reaction="") as line:
        server.say("one")
        await line.services.wait_deliveries(1)
        await server.until(lambda: not server.updates)
    assert "setMessageReaction" not in [name for name, _ in server.calls]


async def test_a_server_without_drafts_still_gets_answers(line: TelegramConnection) -> None:
    """A Bot API server of one's own that knows no drafts: no preview, and no waiting for it."""
    line.server.unknown_methods = {"sendMessageDraft"}
    with pytest.raises(SendRefused):
        await line.channel.send(preview(line, "It", ANN))
    await line.channel.send(part(line, "It is late.", ANN))
    assert line.server.shown(42) == ["It is late."]


async def test_privacy_mode_is_explained_where_it_matters(server: TelegramServer) -> None:
    """Added to a group, with the policy to read everything and Telegram hiding it: one line says what to click."""
    members = {"old_chat_member": {"status": "left"}, "new_chat_member": {"status": "member"}}
    person = {"id": 42, "is_bot": False, "first_name": "Ann"}
    chat = {"id": int(GROUP.chat), "type": "supergroup", "title": "t"}
    async with open_line(server, group_policy="open"):
        server.push({"my_chat_member": {"chat": chat, "from": person, "date": server.now()} | members})
        await server.until(lambda: bool(server.posts))
    assert server.shown(int(GROUP.chat)) == [translate("telegram.privacy")]
