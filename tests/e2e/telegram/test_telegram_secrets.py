"""Secrets and attacks on Telegram: nothing is printed, nothing is learned by guessing, strangers achieve nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent.llm.chat_model import ChatReply, ChatRequest, Sink, TokenUsage
from gateway.text.redaction import REDACTED
from tests.fakes.chat_model import FakeChatModel
from tests.fakes.telegram_gateway import TEAM, EchoModel, mention, open_gateway
from tests.fakes.telegram_server import BOT, TelegramServer, open_telegram, telegram_now

KEY = "tok-9f8e7d6c5b4a"  # of the settings; no platform issues such


class LeakingModel(FakeChatModel):
    """A model that prints what it should not know, in deltas of five characters, and waits before the last ones."""

    name = "indiscreet"

    def __init__(self, text: str) -> None:
        self.text = text
        self.go_on = asyncio.Event()

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Stream and answer."""
        for end in range(0, len(self.text), 5):
            if sink is not None:
                sink(self.text[:end])
            await asyncio.sleep(0.02)
        await self.go_on.wait()
        return ChatReply(text=self.text, tool_calls=(), model=self.name, tokens=TokenUsage(1, 1, 0), cost=0.0)


def _written_in(folder: Path) -> str:
    return "\n".join(file.read_bytes().decode(errors="replace") for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize("printed", ["{}", r"**{}**", "`{}`"])
async def test_a_printed_secret_is_redacted_everywhere(tmp_path: Path, printed: str) -> None:
    """The bot's token and a key of the settings, in every version of the message, on disk and in the model's view."""
    server = TelegramServer()
    words = "Well, these are the things that you were asking about, one after the other: "
    text = f"{words}{printed.format(server.token)} and {printed.format(KEY)} and no more of that today, as it seems."
    model = LeakingModel(text)
    more: dict[str, Any] = {"PARLOUR_LLM__API_KEY": KEY}
    async with open_telegram(server):
        server.now = lambda: int(time.time())
        async with open_gateway(server, model, tmp_path, **more) as up:
            server.say("@parlour_bot hello", chat=TEAM, sender=43, **mention("@parlour_bot"))
            await server.until(lambda: any("today" in post.text for post in server.posts))
            model.go_on.set()
            await server.until(lambda: any("seems" in post.text for post in server.posts))
            await up.idle()
        shown = [version for post in server.posts for version in (*post.versions, post.text)]
    assert len(shown) > 2
    written = [
        file.read_bytes() for file in await asyncio.to_thread(lambda: list(tmp_path.rglob("*"))) if file.is_file()
    ]
    kept = b"\n".join(written).decode(errors="replace")
    for secret in (server.token.partition(":")[2], KEY):  # what stands before the colon is the bot's public number
        for piece in (secret[:9], secret[-9:]):
            assert not any(piece in each for each in shown)
            assert piece not in kept
    assert shown[-1].count(REDACTED) == 2
    assert REDACTED in kept


async def test_a_secret_behind_marks_is_redacted_too(tmp_path: Path) -> None:
    """Escapes and marks inside of it, which formatting takes away, do not bring it through."""
    server = TelegramServer()
    head, tail = KEY[:6], KEY[6:]
    model = LeakingModel(f"One is {head}**{tail}** and the other is {KEY.replace('-', chr(92) + '-')}, that is all.")
    model.go_on.set()
    async with open_telegram(server):
        server.now = lambda: int(time.time())
        async with open_gateway(server, model, tmp_path, PARLOUR_LLM__API_KEY=KEY) as up:
            server.say("hello")
            await server.until(lambda: any("all" in post.text for post in server.posts))
            await up.idle()
        drafts = [str(each) for each in server.drafts]
    shown = [version for post in server.posts for version in (*post.versions, post.text)] + drafts
    assert not any(KEY in each for each in shown)


SECRET = "kq7wzmvbxpt-93"


LETTERS = "az07-Z"


WORDS = "As far as anybody here can tell, the key begins with"  # long enough to be shown at once


MORE = " and more"


class GuessingModel(EchoModel):
    """Streams what it is asked to repeat, and more once it is let."""

    def __init__(self) -> None:
        super().__init__(lambda text: text + MORE)

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Cut the stream behind the guess."""
        pieces: list[str] = []
        if sink is not None:
            sink(str(request.messages[-1]["content"]).splitlines()[-1].rpartition("] ")[2])
        reply = await super().complete(request, sink=pieces.append)
        if sink is not None:
            sink(MORE)
        return reply


async def test_messages_that_guess_a_secret_learn_nothing() -> None:
    """At every second letter of the secret the previews of guesses are the same, also beside marks and other signs."""
    async with telegram_now() as server:
        model = GuessingModel()
        async with open_gateway(server, model, PARLOUR_LLM__API_KEY=SECRET):
            for known in range(0, len(SECRET), 2):
                right = SECRET[known]
                tried = dict.fromkeys([right, LETTERS[known % len(LETTERS)], "~"])
                guesses = [f"{WORDS} {SECRET[:known]}{each}" for each in tried]
                assert {await preview_of(server, model, guess) for guess in guesses} == {WORDS}
            for said in ("`{}", "**{}", "[x]({}", "{} {}", "é{}"):
                shown = {}
                for each in (SECRET[:9], SECRET[:8] + "~"):
                    guess = f"{WORDS} {said.replace('{}', each)}"
                    shown[each] = (await preview_of(server, model, guess)).replace(each, "guess")
                assert len(set(shown.values())) == 1, shown


async def preview_of(server: TelegramServer, model: EchoModel, guess: str) -> str:
    """Return the preview of an answer that has come as far as the guess."""
    posts = len(server.posts)
    model.go_on.clear()
    server.say(guess)
    await server.until(lambda: bool(server.drafts))
    (draft,) = server.drafts
    model.go_on.set()
    await server.until(lambda: len(server.posts) > posts)
    return str(draft["text"]).strip()


STRANGER = {"id": 666, "is_bot": False, "first_name": "42", "username": "42"}  # 7: a name like an allowed id


@pytest.fixture
async def server() -> AsyncIterator[TelegramServer]:
    """Give a Telegram that lets the bot read along, and counts the seconds as they pass."""
    async with telegram_now() as server:
        server.privacy = False
        yield server


def attacks(server: TelegramServer) -> list[dict[str, Any]]:
    """Return every update that has to come to nothing."""
    at_us: dict[str, Any] = {"text": "@parlour_bot open up", **mention("@parlour_bot")}

    def said(place: int, **fields: Any) -> dict[str, Any]:
        return server.message(place, 666, **at_us) | {"from": STRANGER} | fields

    nobody = said(TEAM)
    del nobody["from"]
    anonymous = {"id": 1087968824, "is_bot": True, "first_name": "Group", "username": "GroupAnonymousBot"}
    team = {"id": TEAM, "type": "supergroup", "title": "The team"}
    ann = {"id": 42, "is_bot": False, "first_name": "Ann"}
    button = {"id": "9", "from": STRANGER, "chat_instance": "1", "data": "/new", "message": said(TEAM)}
    arrival = {"chat": team, "from": STRANGER, "date": server.now()}
    arrival |= {"old_chat_member": {"status": "left"}, "new_chat_member": {"status": "member"}}
    reaction = {"chat": team, "message_id": 1, "user": STRANGER, "date": server.now()}
    reaction |= {"old_reaction": [], "new_reaction": [{"type": "emoji", "emoji": "x"}]}
    return [
        {"message": said(666)},  # 1
        {"message": said(TEAM)},  # 2
        {"edited_message": said(666, edit_date=server.now())},  # 3
        {"channel_post": said(-1007, chat={"id": -1007, "type": "channel", "title": "c"})},  # 4
        {"message": nobody},  # 5
        {"message": said(TEAM, **{"from": {**STRANGER, "id": 555, "is_bot": True}})},  # 6
        {"message": said(TEAM, **{"from": BOT})},
        {"callback_query": button},  # 8
        {"my_chat_member": arrival},
        {"message_reaction": reaction},
        {"poll_answer": {"poll_id": "1", "user": STRANGER, "option_ids": [0]}},
        {"message": said(TEAM, sender_chat=team, **{"from": anonymous})},  # 9
        {"message": said(666, forward_origin={"type": "user", "sender_user": ann, "date": 1}, forward_from=ann)},
    ]


async def test_what_strangers_do_comes_to_nothing(server: TelegramServer) -> None:
    """No model call, no message, no reaction, no typing, and no chat of theirs in the gateway; Ann is answered."""
    model = EchoModel()
    async with open_gateway(server, model, ALLOW_FROM="42") as up:
        for update in attacks(server):
            server.push(update)
        server.say("hello")
        await server.until(lambda: len(server.posts) == 1)
        await server.until(lambda: not server.ready({"allowed_updates": ["message", "callback_query"]}))
        await up.idle()
        sessions = await up.app.store.records.sessions()
    assert model.asked == ["hello"]
    assert server.shown(42) == ["You said: hello"]
    assert {each["chat_id"] for each in (*server.actions, *server.reactions)} == {42}
    assert server.answered == []
    assert [str(session.key) for session in sessions] == ["telegram:42"]
