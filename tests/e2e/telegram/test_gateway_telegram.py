"""The whole gateway before Telegram's server: what a person writes or sends, and what stands in the chat in the end."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

from gateway.i18n import translate
from gateway.ports.memory import FileKind
from gateway.quarantine import list_events
from tests.fakes.gateway import free_port
from tests.fakes.store import WriterLog, writer_of
from tests.fakes.stored_files import stored_files
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


def document(server: TelegramServer, name: str, data: bytes, media_type: str = "text/plain") -> dict[str, Any]:
    """Return the field of a message with a document that lies on the server."""
    ident = server.files.keep(data)
    return {"document": {"file_id": ident, "file_name": name, "mime_type": media_type, "file_size": len(data)}}


def stored_file_contents(home: Path) -> list[bytes]:
    """Return the bytes of every file that was stored."""
    return sorted(stored_files(home, FileKind.ATTACHMENT).values())


async def test_a_caption_reaches_the_model_once(server: TelegramServer) -> None:
    """It is what the sender wrote, and no fact of the file besides; in an album too, and as the history has it."""
    model = EchoModel(lambda _: "Read.")
    async with open_gateway(server, model) as up:
        server.say(None, caption="what does it say?", **document(server, "a.txt", b"the key"))
        await server.until(lambda: len(server.posts) == 1)
        for n, caption in enumerate(({"caption": "and these two?"}, {})):
            fields: dict[str, Any] = {"media_group_id": "77", **caption}
            server.say(None, **fields, **document(server, f"{n}.txt", b"the clock"))
        await server.until(lambda: len(server.posts) == 2)
        await up.idle()
    assert model.heard[-1].count("what does it say?") == 1
    assert model.heard[-1].count("and these two?") == 1


async def test_a_stranger_s_file_is_never_fetched(server: TelegramServer) -> None:
    """Nanobot bug 8: before the access check nothing is downloaded, stored, typed or reacted to."""
    async with open_gateway(server, EchoModel()) as up:
        server.say(None, chat=666, sender=666, **document(server, "a.txt", b"take this"))
        server.say(None, chat=TEAM, sender=666, caption="@parlour_bot", **document(server, "b.txt", b"and this"))
        server.say("hello")
        await server.until(lambda: len(server.posts) == 1)
        await server.until(lambda: not server.updates)
        await up.idle()
        assert stored_file_contents(up.home) == []
    assert "getFile" not in [name for name, _ in server.calls]
    assert {each["chat_id"] for each in (*server.actions, *server.reactions)} <= {42}


async def test_an_album_is_one_turn_with_all_its_files(server: TelegramServer) -> None:
    """Three documents sent together are one question and one answer, and all three are read."""
    model = EchoModel(lambda _: "All read.")
    async with open_gateway(server, model) as up:
        for n in range(3):
            caption: dict[str, Any] = {"caption": "compare"} if n == 0 else {}
            fields = document(server, f"{n}.txt", f"words of file {n}".encode())
            server.say(None, media_group_id="album", **fields, **caption)
        await server.until(lambda: len(server.posts) == 1)
        await server.until(lambda: not server.updates)
        await up.idle()
        assert len(stored_file_contents(up.home)) == 3
    assert len(model.heard) == 1
    assert [f"words of file {n}" in model.heard[0] for n in range(3)] == [True] * 3
    assert server.shown(42) == ["All read."]


SECRET = "a-secret-that-is-hard-to-guess"


async def test_a_poison_update_is_set_aside_and_those_beside_it_are_answered(server: TelegramServer) -> None:
    """What cannot be read is quarantined, the offset goes on, and nobody else notices."""
    server.say("before")
    server.push({"message": {"message_id": 7, "chat": {"id": 42, "type": "private"}, "date": "never", "text": "x"}})
    server.say("after", chat=43, sender=43)
    async with open_gateway(server, EchoModel()) as up:
        await server.until(lambda: len(server.posts) == 2)
        await server.until(lambda: not server.updates)
        await up.idle()
        (kept,) = list_events(up.home / "quarantine")
    assert (kept.channel, kept.reason) == ("telegram", "ValueError in message, update_id")
    assert server.shown(42) + server.shown(43) == ["You said: before", "You said: after"]


async def test_called_into_a_conversation_it_has_read_along(server: TelegramServer) -> None:
    """What admitted people said before the mention is known to that turn alone; a stranger's words to none."""
    server.privacy = False
    model = EchoModel(lambda _: "At six.")
    async with open_gateway(server, model, ALLOW_FROM="42,43") as up:
        server.say("shall we meet at six?", chat=TEAM, sender=42)
        server.say("buy my coins", chat=TEAM, sender=666)
        server.say("@parlour_bot when do we meet?", chat=TEAM, sender=43, **mention("@parlour_bot"))
        await server.until(lambda: len(server.posts) == 1)
        await up.idle()
        server.say("and what did they say there?", chat=43, sender=43)
        await server.until(lambda: len(server.posts) == 2)
        await up.idle()
    assert "shall we meet at six?" in model.heard[0]
    assert "coins" not in model.heard[0]
    assert "meet at six" not in model.heard[1]


async def test_a_webhook_brings_what_polling_would(server: TelegramServer) -> None:
    """Called instead of polling: a message, a second delivery, a stranger; one answer, and Telegram keeps nothing."""
    port = free_port()
    settings: dict[str, Any] = {
        "MODE": "webhook",
        "WEBHOOK_URL": f"http://127.0.0.1:{port}/hooks/telegram",
        "WEBHOOK_SECRET": SECRET,
        "PARLOUR_WEB__PORT": str(port),
    }
    server.say("said while down")
    server.hooks.lost = 1
    async with open_gateway(server, EchoModel(), **settings) as up:
        await server.until(lambda: len(server.posts) == 1)
        server.say("let me in", chat=666, sender=666)
        server.say("hello")
        await server.until(lambda: len(server.posts) == 2)
        await server.until(lambda: not server.updates)
        await up.idle()
        assert up.app.supervisor.states()["telegram"]
    assert [post.text for post in server.posts] == ["You said: said while down", "You said: hello"]
    assert server.hooks.answers == [200, 200, 200, 200]
