"""Previews on Telegram's wire tell nothing about a configured secret (docs/attacks.md, attack 93)."""

from __future__ import annotations

from agent.llm.chat_model import ChatReply, ChatRequest, Sink
from tests.fakes.telegram_gateway import EchoModel, open_gateway
from tests.fakes.telegram_server import TelegramServer, telegram_now

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
