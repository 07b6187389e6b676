"""A quotation is trusted no more than what it quotes, on servers of each platform (docs/attacks.md, attack 92)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agent.llm.chat_model import ChatReply, ChatRequest, Sink
from gateway.events import InboundMessage, Sender, SessionKey
from tests.e2e.agent.test_taint import ORDER, ObedientModel
from tests.e2e.discord.test_gateway_discord import CALL
from tests.e2e.discord.test_gateway_discord import open_gateway as open_discord_gateway
from tests.fakes.discord_records import ANN as DISCORD_ANN
from tests.fakes.discord_records import GENERAL
from tests.fakes.discord_server import open_discord
from tests.fakes.inprocess_files import InProcessFilePlugin, PlatformFiles
from tests.fakes.inprocess_gateway import gateway
from tests.fakes.slack_gateway import open_gateway as open_slack_gateway
from tests.fakes.slack_server import ANN as SLACK_ANN
from tests.fakes.slack_server import BOB as SLACK_BOB
from tests.fakes.slack_server import BOT_USER, DM, slack_server
from tests.fakes.telegram_gateway import TEAM, mention, open_gateway
from tests.fakes.telegram_server import TelegramServer, telegram_now

ASKED = "will be remembered if the person says yes: they are asked when this answer is sent"
KEPT = "will be remembered when this answer is sent"
STRANGER = {"id": 99, "is_bot": False, "first_name": "Mallory"}
PERSON = {"id": 42, "is_bot": False, "first_name": "Ann"}
OTHER_BOT = {"id": 77, "is_bot": True, "first_name": "News", "username": "news_bot"}
PASSED_ON: dict[str, Any] = {"forward_origin": {"type": "user", "sender_user": STRANGER, "date": 1}}


async def say(server: TelegramServer, up: Any, text: str, *, posts: int = 1, **fields: Any) -> None:
    """Let Ann write in her chat, and wait until the bot has sent so many more messages."""
    seen = len(server.posts)
    server.say(text, **fields)
    await server.until(lambda: len(server.posts) >= seen + posts)
    await up.idle()


async def test_a_tainted_answer_stays_tainted_when_it_is_quoted_after_new() -> None:
    """The fresh conversation holds nothing of the forwarded message; the quotation of the answer does."""
    model = ObedientModel()
    async with telegram_now() as server, open_gateway(server, model) as up:
        await say(server, up, f"remember: {ORDER}", **PASSED_ON)
        (answer,) = server.posts
        assert ORDER in answer.text
        await say(server, up, "/new")
        await say(server, up, "keep this", reply_to_message=server.message_of(answer), posts=2)
        assert model.told == [ASKED]


async def test_a_clean_answer_is_quoted_without_a_question() -> None:
    """It was made with nothing of others in the prompt, and is found by its message id after /new."""
    model = ObedientModel()
    async with telegram_now() as server, open_gateway(server, model) as up:
        await say(server, up, "my dog is called Rex")
        (answer,) = server.posts
        await say(server, up, "/new")
        await say(server, up, "keep this: Rex", reply_to_message=server.message_of(answer))
        assert model.told == [KEPT]


async def test_a_question_about_untrusted_words_is_untrusted_when_it_is_quoted() -> None:
    """The question shows the order; it is no answer that was made without it."""
    model = ObedientModel()
    async with telegram_now() as server, open_gateway(server, model) as up:
        await say(server, up, f"keep this: {ORDER}", posts=2, **PASSED_ON)
        question = server.posts[-1]
        assert ORDER in question.text
        await say(server, up, "/new")
        await say(server, up, "keep this", reply_to_message=server.message_of(question), posts=2)
        assert model.told[-1] == ASKED


@pytest.mark.parametrize(
    ("author", "expected"),
    [
        pytest.param({"from": OTHER_BOT}, ASKED, id="another bot"),
        pytest.param(
            {"from": STRANGER, "sender_chat": {"id": -5, "type": "channel", "title": "x"}}, ASKED, id="channel"
        ),
        pytest.param({"from": {"id": 42, "is_bot": False, "first_name": "Ann"}, **PASSED_ON}, ASKED, id="forward"),
        pytest.param(
            {"from": {"id": 42, "is_bot": False, "first_name": "Ann"}, "via_bot": OTHER_BOT}, ASKED, id="inline"
        ),
        pytest.param({"from": {"id": 43, "is_bot": False, "first_name": "Ben"}}, KEPT, id="colleague"),
        pytest.param({"from": {"id": 42, "is_bot": False, "first_name": "Ann"}}, KEPT, id="own"),
    ],
)
async def test_in_an_admitted_group_people_are_quoted_and_programs_are_not(
    author: dict[str, Any], expected: str
) -> None:
    """The group is admitted as a whole; what posts into it without being a person is still untrusted."""
    model = ObedientModel()
    async with telegram_now() as server, open_gateway(server, model, ALLOW_FROM=f"chat:{TEAM}") as up:
        server.chat(TEAM).admins = {42}
        quoted = {"message_id": 3, "chat": {"id": TEAM, "type": "supergroup"}, "date": 1, "text": ORDER, **author}
        text = "@parlour_bot keep this"
        await say(server, up, text, chat=TEAM, reply_to_message=quoted, **mention(text))
        assert model.told == [expected]


LISTS: dict[str, dict[str, Any]] = {
    "checklist": {"checklist": {"title": "Trip", "tasks": [{"id": 1, "text": ORDER}], "others_can_add_tasks": True}},
    "poll": {"poll": {"id": "1", "question": "What?", "options": [{"text": ORDER, "added_by_user": STRANGER}]}},
    "own checklist": {"checklist": {"title": "Trip", "tasks": [{"id": 1, "text": ORDER}]}},
}


@pytest.mark.parametrize("kind", LISTS)
async def test_a_list_that_others_add_to_is_not_its_senders(kind: str) -> None:
    """Tasks and options have no author, or another one; an edit of such a list is no message of its sender either."""
    model = ObedientModel()
    async with telegram_now() as server, open_gateway(server, model) as up:
        listed = {"message_id": 3, "chat": {"id": 42, "type": "private"}, "date": 1, "from": PERSON, **LISTS[kind]}
        is_asked = kind != "own checklist"
        await say(server, up, "keep this", reply_to_message=listed, posts=2 if is_asked else 1)
        assert model.told == [ASKED if is_asked else KEPT]


@pytest.mark.parametrize("kind", ["webhook", "another bot", "person"])
async def test_a_webhook_is_nobody_on_discord(kind: str) -> None:
    """A webhook and another bot in an admitted server are not its people."""
    model = ObedientModel()
    async with (
        open_discord() as discord,
        open_discord_gateway(discord, model=model, ALLOW_FROM=f"chat:{GENERAL}") as up,
    ):
        fields = {"webhook": {"webhook_id": "4711"}, "another bot": {}, "person": {}}[kind]
        posted = discord.say(GENERAL, DISCORD_ANN, ORDER, **fields)
        if kind != "person":
            _, message = discord.find(posted)
            message["author"] = {**message["author"], "id": "4711", "bot": kind == "another bot"}
        discord.say(GENERAL, DISCORD_ANN, f"{CALL} keep this", reply_to=posted)
        await discord.until(lambda: bool(discord.chat(GENERAL)))
        await up.idle()
        assert model.told == [KEPT if kind == "person" else ASKED]


@pytest.mark.parametrize(
    ("comment", "share", "expected"),
    [
        pytest.param("keep this", {"author_id": SLACK_BOB}, KEPT, id="colleague"),
        pytest.param("keep this", {"author_id": SLACK_BOB, "bot_id": "B1"}, ASKED, id="app"),
        pytest.param("keep this", {"author_id": "U0NOBODY"}, ASKED, id="unknown"),
        pytest.param("", {"author_id": "ours"}, ASKED, id="our answer alone"),
    ],
)
async def test_what_is_shared_on_slack_is_its_authors(comment: str, share: dict[str, str], expected: str) -> None:
    """A share of an app's message, or of an answer of the bot that is not known, is no person's word."""
    model = ObedientModel()
    async with slack_server() as server, open_slack_gateway(server, model=model) as up:
        await server.until(lambda: bool(server.called("auth.test")))
        shown = {
            "is_share": True,
            "text": f"keep this: {ORDER}",
            "author_name": "x",
            "channel_id": "C0ELSE",
            "ts": "1.2",
        }
        shown |= {**share, "author_id": BOT_USER if share["author_id"] == "ours" else share["author_id"]}
        server.say(DM, SLACK_ANN, comment, attachments=[shown])
        await server.until(lambda: bool(server.shown(DM)))
        await up.idle()
        assert model.told == [expected]


async def test_an_edit_of_a_forwarded_message_does_not_make_it_its_senders() -> None:
    """It is edited after /new: the note of the edit is as untrusted as the message was."""
    model = ObedientModel()
    async with gateway(model=model) as up:
        sent: dict[str, Any] = {
            "key": SessionKey("pocket", "ann"),
            "message_id": "1",
            "sender": Sender(id="ann"),
            "sent_at": datetime.now(UTC),
            "is_forwarded": True,
        }
        await up.app.intake.receive(InboundMessage(text="hello", **sent))
        await up.channel.posted("ann", 1)
        await up.channel.ask("ann", "/new")
        await up.app.intake.receive(InboundMessage(text=ORDER, revision="2", **sent))
        await up.channel.ask("ann", "keep this")
        assert model.told == [ASKED]


async def test_forwarded_words_in_the_background_are_nobodys_own() -> None:
    """A colleague forwarded them into the group before the bot was called."""
    model, sources = ObedientModel(), PlatformFiles()
    async with gateway(model=model, kind=InProcessFilePlugin(sources)) as up:
        now = datetime.now(UTC)
        said = sources.tell("g", ORDER, by="Ben", at=now - timedelta(minutes=9))
        sources.said["g"] = [replace(said, is_forwarded=True)]
        await up.channel.ask("g", "keep this", group=True, is_admin=True, sent_at=now)
        assert model.told == [ASKED]


async def test_a_forward_that_is_taken_into_a_running_question_taints_it() -> None:
    """A comment and the message that it is about are one question, and its calls are asked about."""

    class HeldOnce(ObedientModel):
        """Answers the comment alone never."""

        def __init__(self) -> None:
            super().__init__()
            self.asked = asyncio.Event()

        async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
            if request.purpose == "answer" and not self.asked.is_set():
                self.asked.set()
                await asyncio.Event().wait()
            return await super().complete(request, sink=sink)

    model = HeldOnce()
    async with telegram_now() as server, open_gateway(server, model, PARLOUR_AGENT__MERGE="burst") as up:
        server.say("keep this, please")
        await model.asked.wait()
        await say(server, up, f"keep this: {ORDER}", posts=2, **PASSED_ON)
    assert model.told == [ASKED]
