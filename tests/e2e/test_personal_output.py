"""Who reads what commands tell about a person, on servers of each platform (docs/attacks.md, attack 95)."""

from __future__ import annotations

import pytest

from agent.base.scopes import quote
from gateway.i18n import translate
from tests.fakes.slack_gateway import CALL
from tests.fakes.slack_gateway import open_gateway as open_slack_gateway
from tests.fakes.slack_server import ANN, BOB, ROOM, slack_server
from tests.fakes.slack_workspace import FakeSlackChat
from tests.fakes.telegram_gateway import TEAM, EchoModel, open_gateway
from tests.fakes.telegram_server import telegram_now

PERSONAL = (
    *("memory", "memory pending", "memory log", "memory why tea", "search tea", "files", "privacy"),
    *("settings", "tools", "tools last", "usage", "people"),
)


@pytest.mark.parametrize("topic", [None, 7], ids=["group", "topic"])
async def test_on_telegram(topic: int | None) -> None:
    """In a group it comes to the sender's own chat; the group sees nothing of it."""
    more = {} if topic is None else {"message_thread_id": topic, "is_topic_message": True}
    async with telegram_now() as server, open_gateway(server, EchoModel()) as up:
        server.chat(42)
        server.chat(TEAM).admins = {42}
        for n, command in enumerate(PERSONAL, 1):
            name = f"/{command.partition(' ')[0]}"
            entities = [{"type": "bot_command", "offset": 0, "length": len(name)}]
            server.say(f"/{command}", chat=TEAM, entities=entities, **more)
            await server.until(lambda n=n: len(server.posts) >= n)  # type: ignore[misc]
            await up.idle()
            assert [post.chat for post in server.posts[n - 1 :]] == [42], command


async def test_on_telegram_a_long_answer_of_a_closed_chat_stays_out_of_the_group() -> None:
    """Ann never pressed Start: no part of it is moved into the topic or its group, which get one line."""
    topic = {"message_thread_id": 7, "is_topic_message": True}
    async with telegram_now() as server, open_gateway(server, EchoModel()) as up:
        server.chat(42).blocked = True
        server.chat(TEAM).admins, server.chat(TEAM).topics = {42}, {7}
        scope = f"chats/{quote(f'telegram:{TEAM}')}"
        folder = up.home / scope / "memory"
        folder.mkdir(parents=True)
        (folder / "MEMORY.md").write_text("".join(f"- tea {n} {'leaves ' * 100}\n" for n in range(12)))
        await up.app.memory_files.settle(scope)
        server.say("/memory", chat=TEAM, entities=[{"type": "bot_command", "offset": 0, "length": 7}], **topic)
        await server.until(lambda: bool(server.posts))
        await up.idle()
        assert {post.text for post in server.posts} == {translate("telegram.write_first")}
        server.chat(42).blocked = False
        server.say("/memory", chat=TEAM, entities=[{"type": "bot_command", "offset": 0, "length": 7}], **topic)
        await server.until(lambda: any("leaves" in post.text for post in server.posts))
        await up.idle()
        assert len([post for post in server.posts if "leaves" in post.text]) > 1
        assert {post.chat for post in server.posts if "leaves" in post.text} == {42}


@pytest.mark.parametrize(
    ("kind", "how"), [("channel", "slash"), ("group", "mention"), ("mpim", "thread"), ("mpim", "slash")]
)
async def test_in_slack(kind: str, how: str) -> None:
    """In channels, private ones and chats of several people it is shown to the sender alone."""
    async with slack_server() as server, open_slack_gateway(server) as up:
        server.places["G0SOME"] = FakeSlackChat("G0SOME", kind, {ANN, BOB, *server.places[ROOM].members})
        thread = server.say("G0SOME", BOB, "talk of others") if how == "thread" else ""
        for n, command in enumerate(PERSONAL, 1):
            if how == "slash":
                server.slash("G0SOME", ANN, "/parlour", command)
            else:
                server.say("G0SOME", ANN, f"{CALL} /{command}", thread=thread)
            await server.until(lambda n=n: len(server.places["G0SOME"].whispers) >= n)  # type: ignore[misc]
        await up.idle()
        assert {each["user"] for each in server.places["G0SOME"].whispers} == {ANN}
        assert server.shown("G0SOME") == []
        assert server.shown("G0SOME", thread) == []
