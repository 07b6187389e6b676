"""The whole gateway before Telegram's server: what a person writes, and what stands in the chat whatever happens."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from gateway.i18n import translate
from tests.fakes.store import WriterLog, writer_of
from tests.fakes.telegram_gateway import TEAM, EchoModel, mention, open_gateway
from tests.fakes.telegram_server import BOT, TelegramFault, TelegramServer


async def test_a_day_in_the_life(server: TelegramServer) -> None:
    """Private talk, a command, a group, a topic, a stranger, a second delivery: each what it should be, and once."""
    model = EchoModel()
    server.privacy = False
    async with open_gateway(server, model) as up:
        server.say("hello **you**")
        (update,) = server.updates
        await server.until(lambda: len(server.posts) == 1)
        server.redeliver(update)
        server.say("let me in", chat=666, sender=666)
        server.say("just talk", chat=TEAM, sender=666)
        server.say("/help")
        await server.until(lambda: len(server.posts) == 2)
        server.say("@parlour_bot why?", chat=TEAM, sender=43, **mention("@parlour_bot"))
        await server.until(lambda: len(server.posts) == 3)
        server.chat(TEAM).topics = {7}
        topic: dict[str, Any] = {"is_topic_message": True, "message_thread_id": 7}
        ours = {"message_id": 3, "from": BOT, "chat": {"id": TEAM}, "date": 1, "text": "It is six."}
        server.say("sure?", chat=TEAM, sender=43, reply_to_message=ours, **topic)
        await server.until(lambda: len(server.posts) == 4)
        await server.until(lambda: not server.updates)
        await up.idle()
    private, help_, group, threaded = server.posts
    assert (private.chat, private.text) == (42, "You said: hello you")
    assert [entity["type"] for entity in private.entities] == ["bold"]
    assert help_.text.startswith(translate("commands.help_title"))
    assert (group.chat, group.reply_to, group.thread) == (TEAM, 2, None)
    assert (threaded.thread, threaded.text) == (7, "You said: sure?")
    assert len(model.asked) == 3
    assert 666 not in {each["chat_id"] for each in (*server.actions, *server.reactions)}


async def test_a_warm_text_costs_seven_store_calls_in_four_transactions(server: TelegramServer) -> None:
    """Reaction, answer and file included; what a chat's first messages cost more does not count."""
    async with open_gateway(server, EchoModel()) as up:
        for n in range(3):
            server.say(f"warm {n}")
            await server.until(lambda: len(server.posts) > n and len(server.reactions) == 2 * n + 2)  # noqa: B023
            await up.idle()
        calls = WriterLog(writer_of(up.app.store))
        server.say("the one that counts")
        await server.until(lambda: len(server.posts) == 4 and len(server.reactions) == 8)
        await calls.wait("SqlTurnRecords.mark_written")
        count, transactions = Counter(calls.operations), list(calls.transactions)
    looks = count.pop("SqlTurnRecords.unwritten")
    assert looks <= 2  # one more, in a transaction of its own, if the file of the turn before is late
    assert count == {
        "SqlJournal.accept": 1,
        "SqlJournal.claim": 1,
        "SqlJournal.spend": 1,
        "SqlJournal.commit": 1,
        "SqlOutbox.mark_sent": 1,
        "SqlTurnRecords.mark_written": 1,
    }
    assert len(transactions) <= 3 + looks  # the file's mark goes with the next one that is needed anyway


async def test_an_answer_is_drafted_and_then_rings(server: TelegramServer) -> None:
    """In private the words grow in a draft, typing goes on, and the answer is one new message; both end with it."""
    model = EchoModel(lambda text: f"A long answer to that: {text}, with words that are worth a preview.")
    model.go_on.clear()
    async with open_gateway(server, model) as up:
        server.say("hello")
        await server.until(lambda: bool(server.drafts and server.actions))
        assert server.posts == []
        model.go_on.set()
        await server.until(lambda: len(server.posts) == 1)
        await up.idle()
        assert server.drafts == []
        await server.until(lambda: any(not each.get("reaction") for each in server.reactions))
        assert not [task for task in asyncio.all_tasks() if "typing" in task.get_name()]
    assert len(server.posts) == 1


async def test_a_group_sees_one_message_grow(server: TelegramServer) -> None:
    """In a group the preview is the message that becomes the answer."""
    model = EchoModel(lambda text: "Well, this is a long answer, with words that are worth a preview to everybody.")
    model.go_on.clear()
    async with open_gateway(server, model) as up:
        server.say("@parlour_bot hello", chat=TEAM, sender=43, **mention("@parlour_bot"))
        await server.until(lambda: len(server.posts) == 1)
        model.go_on.set()
        await server.until(lambda: server.posts[0].text.endswith("everybody."))
        await up.idle()
    (post,) = server.posts
    assert len(post.versions) == 2
    assert post.reply_to == 1


async def test_a_chat_that_must_wait_delays_nobody_else(server: TelegramServer) -> None:
    """429 for one chat: its answer comes when it may, in order; the other chat's comes at once."""
    async with open_gateway(server, EchoModel()) as up:
        server.fail("sendMessage", TelegramFault("status", 429, retry_after=1))
        server.say("slow")
        await server.until(lambda: not server.faults["sendMessage"])
        server.say("quick", chat=43, sender=43)
        await server.until(lambda: len(server.posts) == 2)
        await up.idle()
    assert [(post.chat, post.text) for post in server.posts] == [(43, "You said: quick"), (42, "You said: slow")]


async def test_an_edit_before_the_turn_changes_it(server: TelegramServer) -> None:
    """What is edited while it waits is answered as it reads by then; once."""
    model = EchoModel()
    model.go_on.clear()
    async with open_gateway(server, model) as up:
        server.say("first")
        await model.thinks.wait()
        message = server.say("color")
        server.edit(message, "colour")
        await server.until(lambda: not server.updates)
        model.go_on.set()
        await server.until(lambda: len(server.posts) == 2)
        await up.idle()
    assert server.shown(42) == ["You said: first", "You said: colour"]


async def test_a_name_added_later_is_heard_when_it_is_added(server: TelegramServer) -> None:
    """What did not name us days ago and is edited to: said now, and answered; an answered message is not, again."""
    async with open_gateway(server, EchoModel()) as up:
        old = server.message(TEAM, 43, text="why?") | {"date": server.now() - 2 * 24 * 3600}
        server.edit({**old, **mention("@parlour_bot why?")}, "@parlour_bot why?")
        await server.until(lambda: len(server.posts) == 1)
        message = server.say("hello")
        await server.until(lambda: len(server.posts) == 2)
        server.edit(message, "hello!", at=server.now() + 9)
        await server.until(lambda: not server.updates)
        await up.idle()
    assert [post.text for post in server.posts] == ["You said: @parlour_bot why?", "You said: hello"]


async def test_twenty_thousand_characters(server: TelegramServer) -> None:
    """Nanobot bug 12: a long answer with code comes whole and in order; a fence that is cut is closed and opened."""
    text = "\n\n".join(f"Paragraph {n} " + "word " * 60 + f"\n\n```python\nprint({n})\n```" for n in range(60))
    async with open_gateway(server, EchoModel(lambda _: text)) as up:
        server.say("tell me")
        await server.until(lambda: any("print(59)" in post.text for post in server.posts))
        await up.idle()
    shown = "\n".join(server.shown(42))
    places = [shown.index(f"Paragraph {n} ") for n in range(60)]
    assert places == sorted(places)
    assert [post.entities[0]["type"] for post in server.posts] == ["pre"] * len(server.posts)


async def test_added_to_a_group_it_greets(server: TelegramServer) -> None:
    """Added by somebody it knows, it says hello there; added by a stranger, nothing."""
    async with open_gateway(server, EchoModel(), ALLOW_FROM="42") as up:
        for person, chat in ((666, TEAM - 1), (42, TEAM)):
            server.chat(chat)
            members = {"old_chat_member": {"status": "left"}, "new_chat_member": {"status": "member"}}
            change = {"chat": {"id": chat, "type": "supergroup"}, "date": server.now()}
            server.push({"my_chat_member": change | members | {"from": {"id": person, "is_bot": False}}})
        await server.until(lambda: not server.updates and bool(server.posts))
        await up.idle()
    assert [post.chat for post in server.posts] == [TEAM]


async def test_another_bot_s_command_is_not_ours(server: TelegramServer) -> None:
    """Nanobot bug 7: /new@otherbot in a group does nothing here; /help@parlour_bot is answered."""
    server.privacy = False
    model = EchoModel()
    async with open_gateway(server, model) as up:
        for text in ("/new@otherbot", "/help@parlour_bot"):
            command = {"type": "bot_command", "offset": 0, "length": len(text)}
            server.say(text, chat=TEAM, sender=42, entities=[command])
        await server.until(lambda: len(server.posts) == 1)
        await server.until(lambda: not server.updates)
        await up.idle()
    assert server.posts[0].reply_to == 2
    assert model.asked == []


async def test_a_private_command_answer_stays_private(server: TelegramServer) -> None:
    """What a command prints about a person is sent to them; who never pressed Start is told to, in the group."""
    server.chat(43).blocked = True
    entities = {"entities": [{"type": "bot_command", "offset": 0, "length": 6}]}
    async with open_gateway(server, EchoModel()) as up:
        server.chat(42)
        server.say("/usage", chat=TEAM, sender=42, **entities)
        await server.until(lambda: len(server.posts) == 1)
        server.say("/usage", chat=TEAM, sender=43, **entities)
        await server.until(lambda: len(server.posts) == 2)
        await up.idle()
    private, public = server.posts
    assert private.chat == 42
    assert (public.chat, public.text, public.reply_to) == (TEAM, translate("telegram.write_first"), 2)


async def test_a_stopped_answer_of_a_private_chat_is_sent(server: TelegramServer) -> None:
    """A draft goes when its time is over: what it held becomes a message, marked as stopped."""
    model = EchoModel(lambda text: "Well, this is a long answer, with words that are worth a preview to everybody.")
    model.go_on.clear()
    async with open_gateway(server, model) as up:
        server.say("hello")
        await server.until(lambda: bool(server.drafts))
        server.say("/stop")
        await server.until(lambda: len(server.posts) == 1)
        await up.idle()
        assert server.shown(42) == [
            f"Well, this is a long answer, with words that are\n\n{translate('delivery.stopped_here')}"
        ]
        assert server.drafts == []
        model.go_on.set()
