"""Previews on Telegram's wire tell nothing about a configured secret (docs/attacks.md, attack 93)."""

from __future__ import annotations

from agent.llm.chat_model import ChatReply, ChatRequest, Sink
from tests.fakes.telegram_gateway import EchoModel, open_gateway
from tests.fakes.telegram_server import TelegramServer, telegram_now

SECRET = "kq7wzmvbxpt-93"
KNOWN = SECRET[:4]  # the attack tries to learn the next letter
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
    """The preview of a guess is the same for each letter, the right one too."""
    async with telegram_now() as server:
        model = GuessingModel()
        async with open_gateway(server, model, PARLOUR_LLM__API_KEY=SECRET):
            shown = [await preview_of(server, model, f"It begins with {KNOWN}{each}") for each in "az0mZ-"]
            assert "z" in SECRET[len(KNOWN)]
    assert shown == ["It begins with"] * len(shown)


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
