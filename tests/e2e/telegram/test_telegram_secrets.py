"""A secret that the model prints: nobody reads it, and neither the journal nor a transcript keeps it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from agent.llm.chat_model import ChatReply, ChatRequest, Sink, TokenUsage
from gateway.text.redaction import REDACTED
from tests.fakes.chat_model import FakeChatModel
from tests.fakes.telegram_gateway import TEAM, mention, open_gateway
from tests.fakes.telegram_server import TelegramServer, open_telegram

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
