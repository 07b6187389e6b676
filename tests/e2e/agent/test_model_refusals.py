"""What a person sees where a provider refuses: bytes that providers answered with, through a whole gateway."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.admission import AdmissionPolicy, policy_of
from gateway.alerts import monitor
from gateway.errors import FailureCause
from gateway.i18n import translate
from gateway.i18n.failures import BY_NAME, cause_line, failure_line
from tests.e2e.agent.test_model_wire import reference_in
from tests.fakes.inprocess_gateway import PLAIN, STREAMING, InProcessGateway, gateway
from tests.fakes.loopback import serve_app

CASES = Path(__file__).parents[2] / "payloads" / "models"
SMALL = 16_384  # bytes of a request: more is too long for 4,096 tokens
QUESTION = re.compile(r"(\[[^\]]*\] )?my question")
NO_TOOLS = '{"pocket:*": {"tools": {"allow": []}}}'


@dataclass(frozen=True)
class Refusal:
    """An answer as a server sent it."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, name: str) -> Refusal:
        """Read a case: JSON with its status, or a stream below two lines of comment."""
        path = CASES / name
        if path.suffix == ".sse":
            return cls(200, path.read_bytes().split(b"\n", 2)[2], "text/event-stream")
        case = json.loads(path.read_bytes())
        return cls(case["status"], json.dumps(case["body"]).encode(), case["content_type"], case["headers"])

    def response(self) -> web.Response:
        """Return it as a response."""
        return web.Response(
            status=self.status, body=self.body, headers={**self.headers, "Content-Type": self.content_type}
        )


@dataclass
class RefusingServer:
    """A model server that answers, except for requests that *refuses* returns a refusal of."""

    refuses: Callable[[Mapping[str, Any], int], Refusal | None]
    sizes: list[int] = field(default_factory=list)  # of the requests that people caused

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        data = await request.read()
        body = json.loads(data)
        if QUESTION.match(str(body["messages"][-1]["content"])):  # not a job's, which quotes it
            self.sizes.append(len(data))
        if (refusal := self.refuses(body, len(data))) is not None:
            return refusal.response()
        if body.get("stream"):
            chunk = {"choices": [{"index": 0, "delta": {"content": "well"}, "finish_reason": "stop"}]}
            text = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
            return web.Response(text=text, content_type="text/event-stream")
        return web.json_response({"choices": [{"message": {"content": "well"}, "finish_reason": "stop"}]})


@asynccontextmanager
async def open_refusing(
    refuses: Callable[[Mapping[str, Any], int], Refusal | None],
    *,
    streaming: bool = False,
    policy: AdmissionPolicy | None = None,
    **environment: str,
) -> AsyncIterator[tuple[InProcessGateway, RefusingServer]]:
    """Run a gateway before a server that refuses."""
    server = RefusingServer(refuses)
    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/chat/completions", server.handle)
    async with serve_app(app) as place:
        settings = {
            "PARLOUR_LLM__MODEL": "openai/test",
            "PARLOUR_LLM__API_BASE": f"http://{place}/v1",
            "PARLOUR_LLM__API_KEY": "sk-SECRET",
            "PARLOUR_AGENT__MERGE": "off",  # a long question may be half of a paste, whose other half is waited for
            **environment,
        }
        capabilities = STREAMING if streaming else PLAIN
        async with gateway(environment=settings, capabilities=capabilities, policy=policy) as parlour:
            await parlour.app.models.default.warm()
            yield parlour, server


OVERFLOWS = sorted(each.name for each in CASES.glob("overflow-*.json"))
STREAMS = ["overflow-llamacpp-sse-error.sse", "overflow-lmstudio-sse.sse"]
PAGE = Refusal(413, b"<html><title>413 Request Entity Too Large</title></html>", "text/html")
UNKNOWN = [Refusal(status, b'{"error": {"message": "oops"}}') for status in (400, 422, 500)]


@pytest.mark.parametrize(
    "refusal",
    [*map(Refusal.read, (*OVERFLOWS, *STREAMS)), PAGE],
    ids=[*OVERFLOWS, *STREAMS, "page"],
)
async def test_a_prompt_that_is_too_long_is_answered(refusal: Refusal) -> None:
    """However a server says it, the turn goes on with a smaller prompt, and the chat is not stuck."""
    streaming = refusal.content_type != "application/json"
    limits = [10_000_000]

    def refuses(_: Mapping[str, Any], size: int) -> Refusal | None:
        return refusal if size > limits[-1] else None

    async with open_refusing(refuses, streaming=streaming, PARLOUR_CHATS=NO_TOOLS) as (parlour, server):
        for n in range(5):
            assert await parlour.channel.ask("c", f"my question {n} {'lorem ipsum ' * 600}") == "well"
        limits.append(SMALL)
        assert await parlour.channel.ask("c", "my question, and now?") == "well"
        assert await parlour.channel.ask("c", "my question, again?") == "well"
        assert server.sizes[-1] <= SMALL
        await parlour.idle()
        asked = len(server.sizes)
        assert await parlour.channel.ask("c", "my question, and again?") == "well"
        assert len(server.sizes) == asked + 1  # the limit was learned


@pytest.mark.parametrize("refusal", UNKNOWN, ids=lambda each: str(each.status))
async def test_a_large_prompt_refused_in_unknown_words_is_tried_smaller_once(refusal: Refusal) -> None:
    """Above half of the window it is sent once more with half of it; a small one is not, and the words stay unknown."""
    limits = [10_000_000]

    def refuses(_: Mapping[str, Any], size: int) -> Refusal | None:
        return refusal if size > limits[-1] else None

    async with open_refusing(
        refuses, PARLOUR_CHATS=NO_TOOLS, PARLOUR_LLM__CONTEXT_WINDOW="12000", PARLOUR_LLM__ATTEMPTS="1"
    ) as (parlour, server):
        for n in range(5):
            await parlour.channel.ask("c", f"my question {n} {'lorem ipsum ' * 500}")
        before = len(server.sizes)
        limits.append(server.sizes[-1] * 3 // 4)
        assert await parlour.channel.ask("c", "my question, and now?") == "well"
        assert len(server.sizes) == before + 2
        limits.append(0)
        name = "server_failed" if refusal.status == 500 else "refused"
        text = await parlour.channel.ask("other", "my question, hello")
        assert text == failure_line(BY_NAME[name], reference_in(text))
        assert len(server.sizes) == before + 3


@pytest.mark.parametrize("name", ["gemini429.json", "groq-billing-429.json"])
async def test_an_ordinary_rate_limit_is_waited_for(name: str) -> None:
    """It passes by itself: the request is made again after the time that was named, and the person sees the answer."""
    refusals = [Refusal.read(name)]
    async with open_refusing(lambda _body, _size: refusals.pop() if refusals else None) as (parlour, server):
        assert await parlour.channel.ask("c", "my question, hello") == "well"
        assert len(server.sizes) == 2


ABILITIES: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "llamacpp-nojinja.json": lambda body: "tools" in body,
    "notools.json": lambda body: "tools" in body,
    "vllm-notools.json": lambda body: "tools" in body,
    "nostream.json": lambda body: bool(body.get("stream")),
    "nostreamopt.json": lambda body: "stream_options" in body,
}


@pytest.mark.parametrize("name", ABILITIES)
async def test_a_server_that_lacks_something_answers(name: str) -> None:
    """The same turn goes on without what was refused."""
    refusal, has = Refusal.read(name), ABILITIES[name]
    async with open_refusing(lambda body, _size: refusal if has(body) else None, streaming=True) as (parlour, _):
        assert await parlour.channel.ask("c", "my question, hello") == "well"


async def test_an_owner_who_reads_the_cause_in_the_chat_gets_no_alert_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes to the other owners, and once more to all when the model answers again."""
    monkeypatch.setattr(monitor, "LOOK_EVERY", timedelta(seconds=0.2))
    refusal, cause = PERMANENT[0]
    is_repaired = False
    owners = policy_of("pocket", ["*"], ["pocket:ann", "pocket:dan"], "mention")
    async with open_refusing(lambda *_: None if is_repaired else refusal, policy=owners) as (parlour, _):
        for owner in ("ann", "dan"):
            await parlour.channel.ask(owner, "/status", sender=owner)
        assert cause_line(cause) in await parlour.channel.ask("ann", "my question, hello")
        alert = translate("alerts.model_fault", model="openai/test", reason=cause_line(cause))
        posts = parlour.channel.posts
        await parlour.channel.until(lambda: alert in [post.text for post in posts["dan"]])
        is_repaired = True
        assert await parlour.channel.ask("ann", "my question, hello") == "well"
        over = translate("alerts.over_model_fault", model="openai/test")
        await parlour.channel.until(
            lambda: all(any(over in post.text for post in posts[each]) for each in ("ann", "dan"))
        )
        assert alert not in [post.text for post in posts["ann"]]


def test_every_case_is_asked() -> None:
    """No refusal lies in the folder unused."""
    asked = {*OVERFLOWS, *ABILITIES, "gemini429.json", "groq-billing-429.json"}
    assert {each.name for each in CASES.glob("*.json")} <= asked


PERMANENT = [
    (Refusal(401, b'{"error": {"message": "Incorrect API key provided: sk-SECRET"}}'), FailureCause.KEY),
    (Refusal(402, b'{"error": {"message": "Insufficient Balance"}}'), FailureCause.ACCOUNT),
    (Refusal(404, b'{"error": {"message": "The model `test` does not exist"}}'), FailureCause.MODEL),
]


@pytest.mark.parametrize(("refusal", "cause"), PERMANENT, ids=[each[1] for each in PERMANENT])
async def test_what_a_person_must_repair_is_told_to_the_owner(refusal: Refusal, cause: FailureCause) -> None:
    """The owner reads the cause and the remedy in the chat and as one alert; others read a plain sentence."""
    policy = policy_of("pocket", ["*"], ["pocket:ann"], "mention")
    async with open_refusing(lambda _body, _size: refusal, policy=policy) as (parlour, _):
        for who in ("bob", "bob", "carla"):
            text = await parlour.channel.ask(who, "my question, hello", sender=who)
            assert text == failure_line(BY_NAME["refused"], reference_in(text))
        text = await parlour.channel.ask("ann", "my question, hello")
        assert cause_line(cause) in text
        await parlour.idle()
        alert = translate("alerts.model_fault", model="openai/test", reason=cause_line(cause))
        told = [post.text for posts in parlour.channel.posts.values() for post in posts if post.text == alert]
        assert len(told) == 1
        assert "SECRET" not in str(parlour.channel.posts)
