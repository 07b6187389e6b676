"""Requests to the API, with the gateway killed behind every transaction: the client sends the same request again.

The gateway runs once and its home is copied behind every transaction. Each copy is started, and the client goes on with
the request whose answer it does not have. Some of these lives are killed a second time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from channels.api.keys import ApiKey
from gateway.events import SessionKey
from tests.fakes.home_copies import HomeCopies, HomeCopy, spread
from tests.fakes.inprocess_gateway import InProcessGateway, gateway
from tests.fakes.running_api import ON, EchoModel
from tests.faults.matrix import IS_FULL

WORDS = ("hello", "and more", "the end")
CHAT = SessionKey("api", "ann/work")
FORMS = ("whole", "stream", "keyed")
KILLS = 12  # the forms share them; `CROSSINGS=full` plays each change in every form


@dataclass
class Client:
    """A program that keeps its history, and sends each message until it has the answer."""

    is_stream: bool
    has_keys: bool
    secret: str = ""
    answers: list[str] = field(default_factory=list)

    async def speak(self, inside: InProcessGateway) -> None:
        """Go on from the message whose answer is missing."""
        async with AsyncOpenAI(
            base_url=f"{inside.app.web.url}v1", api_key=self.secret, default_headers={"X-Parlour-Chat": "work"}
        ) as client:
            while len(self.answers) < len(WORDS):
                self.answers.append(await self._ask(client))

    async def _ask(self, client: AsyncOpenAI) -> str:
        number = len(self.answers)
        history: list[Any] = []
        for said, answer in zip(WORDS, self.answers, strict=False):
            history += [{"role": "user", "content": said}, {"role": "assistant", "content": answer}]
        history.append({"role": "user", "content": WORDS[number]})
        headers = {"Idempotency-Key": f"message {number}"} if self.has_keys else {}
        if not self.is_stream:
            whole = await client.chat.completions.create(model="parlour", messages=history, extra_headers=headers)
            return whole.choices[0].message.content or ""
        stream = await client.chat.completions.create(
            model="parlour", messages=history, stream=True, extra_headers=headers
        )
        return "".join([text async for text in _texts(stream)])


async def _texts(stream: Any) -> AsyncIterator[str]:
    async for chunk in stream:
        for choice in chunk.choices:
            yield choice.delta.content or ""


async def _wrong(inside: InProcessGateway, client: Client) -> str:
    """Return which promise is broken; "" if none is."""
    lines = await inside.app.memory.sessions.displayed_messages(CHAT, limit=100)
    said = [line.text for line in lines if line.role == "user"]
    answered = [line.text for line in lines if line.role == "assistant"]
    if said != [*WORDS] or answered != client.answers:
        return f"said {said}, answered {answered}, received {client.answers}"
    return "" if all(words in answer for words, answer in zip(WORDS, answered, strict=True)) else f"answers {answered}"


@pytest.mark.timeout(0 if IS_FULL else 240)
@pytest.mark.parametrize("form", FORMS)
async def test_killed_behind_every_change_a_message_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Each message is stored once and answered once, and the client has that answer."""
    client, wrong = Client(form == "stream", form == "keyed"), list[str]()

    async def lead(folder: str, begin: HomeCopy) -> list[HomeCopy]:
        client.answers = list(begin.state)
        copies, model = HomeCopies(tmp_path / folder, lambda: tuple(client.answers)), EchoModel()
        async with gateway(home=begin.home, model=model, kind=copies.plugin({}), environment=ON) as inside:
            if not client.secret:
                client.secret, key = await inside.app.apis[0].create_key("ann")
                assert isinstance(key, ApiKey)
            with copies.recorded(inside, {}, monkeypatch):
                copies.take()
                await client.speak(inside)
                await inside.idle()
            if broken := await _wrong(inside, client):
                wrong.append(f"{folder}: {broken}")
        return copies.copies

    whole = await lead("whole", HomeCopy(tmp_path / "home", {}, ()))
    assert len(whole) > 10
    played = spread(whole, len(whole) if IS_FULL else KILLS)
    for n, copy in played if IS_FULL else played[FORMS.index(form) :: len(FORMS)]:
        again = await lead(f"killed at {n}", copy)
        for m, twice in spread(again, 1, n):
            await lead(f"killed at {n} and {m}", twice)
    assert not wrong, "\n".join(wrong)
