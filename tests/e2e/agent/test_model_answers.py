"""What a person sees of answers as real servers write them, through a whole gateway: tests/payloads/models."""

from __future__ import annotations

import ast
import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agent.llm.chat_model import ChatReply, ChatRequest, Sink, TokenUsage, ToolCall, WrittenCalls
from agent.tools.tool import AskRule, ResultContent, ToolContext, ToolKind, tool
from gateway.i18n import translate
from tests.fakes.chat_model import FakeChatModel
from tests.fakes.inprocess_gateway import STREAMING, InProcessGateway, gateway
from tests.fakes.loopback import serve_app

CASES = Path(__file__).parents[2] / "payloads" / "models"
HEAD = re.compile(r"\A#.*\n# HTTP 200 (\S+?);? .*following? this line\n|\A#.*\n# HTTP 200 (\S+).*\n")


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """The bytes of an answer, in pieces with pauses before them."""

    pieces: Sequence[tuple[float, bytes]]
    kind: str = "text/event-stream"
    headers: dict[str, str] = field(default_factory=dict)


def words(*texts: str, finish: str | None = "stop", end: bytes = b"data: [DONE]\n\n") -> bytes:
    """Return a usual stream of *texts*."""
    chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": {"content": each}}]} for each in texts]
    if finish:
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    return b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in chunks) + end


def raw(data: bytes, kind: str = "text/event-stream", **headers: str) -> RawAnswer:
    """Return an answer without pauses."""
    return RawAnswer([(0, data)], kind, headers)


def case(name: str) -> RawAnswer:
    """Read one of the captured answers."""
    first, second, body = (CASES / name).read_bytes().split(b"\n", 2)
    kind = second.split()[3].decode().rstrip(";")
    if name.endswith(".txt"):
        return RawAnswer([ast.literal_eval(line) for line in body.decode().splitlines()], kind)
    headers = {"X-Policy": "p" * 9_000} if b"x-policy" in second else {}
    assert first.startswith(b"#")
    return raw(body, kind, **headers)


@dataclass
class AnswerScene:
    """A gateway before a server of raw bytes."""

    parlour: InProcessGateway
    requests: list[dict[str, Any]]

    async def ask(self, text: str = "hello", chat: str = "c") -> str:
        """Return what the person sees in the end, the reference of a failure left out."""
        shown = await self.parlour.channel.ask(chat, text)
        return re.sub(r" \(ref \w+\)\Z", "", shown)

    @property
    def ever_shown(self) -> str:
        """Every text that stood in the chat, previews included."""
        return "\n".join(text for post in self.parlour.channel.posts["c"] for text in (*post.was, post.text))


@asynccontextmanager
async def answering(*answers: RawAnswer, **environment: str) -> AsyncIterator[AnswerScene]:
    """Run a gateway whose model gives *answers*, one a request; the last one repeats."""
    requests: list[dict[str, Any]] = []

    async def answer(asked: web.Request) -> web.StreamResponse:
        requests.append(await asked.json())
        said = answers[min(len(requests), len(answers)) - 1]
        response = web.StreamResponse(headers={"Content-Type": said.kind, **said.headers})
        if not said.kind:
            del response.headers["Content-Type"]
        await response.prepare(asked)
        for wait, piece in said.pieces:
            await asyncio.sleep(wait)
            await response.write(piece)
        await response.write_eof()
        return response

    async with serve_app(answer) as place:
        settings = {
            "PARLOUR_LLM__MODEL": "openai/test",
            "PARLOUR_LLM__API_BASE": f"http://{place}/v1",
            "PARLOUR_LLM__ATTEMPTS": "1",
            **environment,
        }
        async with gateway(environment=settings, capabilities=STREAMING) as parlour:
            yield AnswerScene(parlour, requests)


ANSWERS = {
    "bigheader.sse": "answer with a large header",
    "call-null.sse": "hello",
    "empty-data.sse": "after empty data",
    "json-typed.sse": "sse sent as application/json",
    "message-form.sse": "in message not delta",
    "refusal.sse": "I cannot help with that.",
    "think.sse": "Hello!",
    "think-open.sse": "Hello again!",
    "filter-part.sse": f"The first half of an ans\n\n{translate('delivery.filtered')}",
    "finish-error.sse": f"half an\n\n{translate('delivery.broken')}",
    "tool-in-text.sse": translate("failures.written_call"),
}


@pytest.mark.parametrize(("name", "seen"), ANSWERS.items(), ids=ANSWERS)
async def test_an_answer_is_seen_as_it_was_meant(name: str, seen: str) -> None:
    """One message, without thinking, calls or half tags at any time."""
    async with answering(case(name)) as scene:
        assert (await scene.ask()).replace(" \n", "\n") == seen
        assert not {"<think", "</think", "secret", "The user wants", "<tool_call"} & set(
            re.split(r"[> ]", scene.ever_shown)
        )
        assert len(scene.parlour.channel.posts["c"]) == 1


def chunk(finish: str | None = None, **message: Any) -> bytes:
    """Return one event."""
    return (
        b"data: "
        + json.dumps({"choices": [{"index": 0, "delta": message, "finish_reason": finish}]}).encode()
        + b"\n\n"
    )


FORMS = {
    "lines": (raw(words("Hel", "lo!", end=b"").replace(b"data: ", b"").replace(b"\n\n", b"\n")), "Hello!"),
    "gpt-oss": (
        raw(
            words(
                "<|channel|>analysis<|mes",
                "sage|>secret<|end|><|start|>assistant<|channel|>final<|message|>Hi!<|return|>",
            )
        ),
        "Hi!",
    ),
    "filtered, no words": (raw(chunk("content_filter") + b"data: [DONE]\n\n"), translate("failures.filtered")),
    "refusal as the reason": (
        raw(chunk(content="Half") + chunk("refusal")),
        f"Half\n\n{translate('delivery.filtered')}",
    ),
    "out of resources": (
        raw(chunk(content="Half") + chunk("insufficient_system_resource")),
        f"Half\n\n{translate('delivery.broken')}",
    ),
    "MiniMax": (
        raw(b'{"choices": null, "base_resp": {"status_code": 1002, "status_msg": "rate limit"}}', "application/json"),
        translate("failures.busy"),
    ),
    "vLLM": (
        raw(b'data: {"object": "error", "message": "maximum context length is 4096 tokens", "code": 400}\n\n'),
        translate("failures.overflow"),
    ),
    "a call in a code block": (
        raw(words('```json\n{"name": "memory_search", ', '"arguments": {"query": "secret"}}\n```')),
        translate("failures.written_call"),
    ),
    "a call as GLM writes it": (
        raw(
            words("<tool_call>memory_search\n<arg_key>query</arg_key>\n", "<arg_value>secret</arg_value>\n</tool_call>")
        ),
        translate("failures.written_call"),
    ),
}


@pytest.mark.parametrize(("said", "seen"), FORMS.values(), ids=FORMS)
async def test_other_forms_of_answers_are_seen_as_they_were_meant(said: RawAnswer, seen: str) -> None:
    """Of servers that nobody captured; what is hidden in them is in no preview."""
    async with answering(said) as scene:
        assert (await scene.ask()).replace(" \n", "\n") == seen
        assert "secret" not in scene.ever_shown
        assert "<|" not in scene.ever_shown


CALLS = ["args-repeat", "id-per-chunk", "idx-none-split", "idx-str"]


@pytest.mark.parametrize("name", [*CALLS, "idx-zero-noid"])
async def test_a_call_runs_as_it_was_meant(name: str) -> None:
    """The tool gets the arguments once, the model its results, and the person the answer."""
    async with answering(case(f"{name}.sse"), raw(words("Found nothing."))) as scene:
        assert await scene.ask() == "Found nothing."
        called = [call for message in scene.requests[-1]["messages"] for call in message.get("tool_calls", ())]
        arguments = [json.loads(call["function"]["arguments"]) for call in called]
        expected = [{"query": "cats"}] if name in CALLS else [{"query": "cats"}, {"query": "dogs"}]
        assert arguments == expected
        results = [message for message in scene.requests[-1]["messages"] if message["role"] == "tool"]
        assert len(results) == len(expected)


LIMITS = {"PARLOUR_LLM__TIMEOUT_SECONDS": "2", "PARLOUR_LLM__STREAM_SILENCE_SECONDS": "1"}


SIGNS = [
    b": keepalive\n\n",
    b"data:\n\n",
    b"data: ping\n\n",
    b"event: ping\ndata: {}\n\n",
    b"\n",
    b"event: heartbeat\n\n",
]


async def test_any_byte_is_a_sign_of_life() -> None:
    """Before the first words and between two of them, longer than both limits in all; none of it is seen."""

    def answer(sign: bytes) -> RawAnswer:
        signs, name = [(0.3, sign)] * 8, repr(sign)
        return RawAnswer([*signs, (0, words("It says ", finish=None, end=b"")), *signs, (0, words(name))])

    async with answering(*map(answer, SIGNS), **LIMITS) as scene:
        seen = await asyncio.gather(*(scene.ask(chat=f"c{n}") for n in range(len(SIGNS))))
        assert set(seen) == {f"It says {sign!r}" for sign in SIGNS}


@pytest.mark.parametrize(
    ("name", "seen"),
    [("keepalive-first.txt", "after a long prefill"), ("keepalive-mid.txt", "after silent reasoning")],
)
async def test_comments_while_a_model_reads_or_thinks_are_signs_of_life(name: str, seen: str) -> None:
    """The captured answers with their pauses a tenth as long, and so the limits."""
    said = case(name)
    shorter = RawAnswer([(wait / 10, piece) for wait, piece in said.pieces], said.kind)
    limits = {"PARLOUR_LLM__TIMEOUT_SECONDS": "1.2", "PARLOUR_LLM__STREAM_SILENCE_SECONDS": "0.4"}
    async with answering(shorter, **limits) as scene:
        assert await scene.ask() == seen


@pytest.mark.parametrize("name", ["overflow-llamacpp-sse-error.sse", "overflow-lmstudio-sse.sse"])
async def test_a_prompt_that_is_too_long_is_said_in_a_stream(name: str) -> None:
    """llama.cpp's `error:` field and LM Studio's `event: error` are errors, and their words tell which."""
    async with answering(case(name)) as scene:
        assert await scene.ask() == translate("failures.overflow")


async def test_signs_of_life_end_at_the_limit_in_total() -> None:
    """A server that only says that it lives is given up after five times the time limit."""
    limits = {"PARLOUR_LLM__TIMEOUT_SECONDS": "0.2", "PARLOUR_LLM__STREAM_SILENCE_SECONDS": "0.2"}
    async with answering(RawAnswer([(0.05, b": keepalive\n\n")] * 200), **limits) as scene:
        assert await scene.ask() == translate("failures.timeout")


async def test_one_body_is_read_whatever_it_is_called() -> None:
    """Blank lines before it, as DeepSeek sends them, and a byte order mark do no harm."""
    kinds = ["application/json", "text/plain", "application/octet-stream", "text/event-stream", ""]
    forms = [(kind, mark) for kind in kinds for mark in (b"", b"\xef\xbb\xbf")]

    def answer(kind: str, mark: bytes) -> RawAnswer:
        message = {"content": f"Hello: {kind} {mark!r}"}
        body = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()
        return RawAnswer([(0.3, b"\n")] * 8 + [(0, mark + body)], kind)

    async with answering(*(answer(*form) for form in forms), **LIMITS) as scene:
        seen = await asyncio.gather(*(scene.ask(chat=f"c{n}") for n in range(len(forms))))
        assert set(seen) == {f"Hello: {kind} {mark!r}" for kind, mark in forms}


async def test_a_server_that_marks_no_end_is_known_the_second_time() -> None:
    """The first answer without a mark is asked for again; where it ends so once more, it is whole."""
    async with answering(case("no-done-no-finish.sse"), PARLOUR_LLM__ATTEMPTS="2") as scene:
        assert await scene.ask() == "no done no finish"
        assert await scene.ask("again") == "no done no finish"
        assert len(scene.requests) == 3


async def test_a_proxy_that_cuts_is_no_end_of_an_answer() -> None:
    """A server that marks its ends and once does not was cut off: the request is made again."""
    cut = raw(words("Half an ans", finish=None, end=b""))
    whole = raw(words("A whole answer."))
    async with answering(whole, cut, whole, PARLOUR_LLM__ATTEMPTS="2") as scene:
        assert await scene.ask() == "A whole answer."
        assert await scene.ask("again") == "A whole answer."
        assert len(scene.requests) == 3


async def test_a_header_has_a_bound() -> None:
    """Sixty-six thousand bytes of one header are no answer."""
    async with answering(raw(words("Hello!"), **{"X-Policy": "p" * 66_000})) as scene:
        assert await scene.ask() != "Hello!"


async def test_an_answer_that_repeats_itself_is_one_message() -> None:
    """The stream is left, one copy and a line are sent, and the next request has one copy as well."""
    block = "I will now tell you about cats, which are small animals. "
    async with answering(raw(words(*[block] * 2_600)), raw(words("Hello!"))) as scene:
        assert await scene.ask() == f"{block.strip()}\n\n{translate('delivery.repeated')}"
        await scene.ask("again")
        assert len(json.dumps(scene.requests[-1]["messages"])) < 20_000


async def test_a_call_written_as_text_is_asked_for_again() -> None:
    """It is never run and never shown; the answer in words is the answer."""
    async with answering(case("tool-in-text.sse"), raw(words("There are no cats."))) as scene:
        assert await scene.ask() == "There are no cats."
        assert "tool_call" not in scene.ever_shown
        assert len(scene.requests) == 2
        assert all(message["role"] != "tool" for message in scene.requests[-1]["messages"])
        await scene.ask("again")
        assert "tool call written as text" not in json.dumps(scene.requests[-1])


class WritingModel(FakeChatModel):
    """Writes its first call of a turn as text, and answers when it has a result or is asked once more."""

    name = "test/writing"

    def __init__(self, written: WrittenCalls) -> None:
        self.written = written
        self.results: list[str] = []

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Answer."""
        last = request.messages[-1]
        if last["role"] == "tool":
            self.results.append(str(last["content"]))
        if last["role"] == "tool" and last.get("name") != "page":
            return self._reply("Done.")
        if "tool call written as text" in str(last["content"]):
            return self._reply("In words.")
        if "open the page" in str(last["content"]):
            return self._reply("", tool_calls=(ToolCall("p", "page", "{}"),))
        return self._reply("", written=self.written)

    def _reply(self, text: str, **more: Any) -> ChatReply:
        known: dict[str, Any] = {"tool_calls": (), **more}
        return ChatReply(text=text, model=self.name, tokens=TokenUsage(1, 1), cost=0.0, **known)


@tool("Look at the clock.", kind=ToolKind.LOOK, name="clock")
async def clock(_: ToolContext) -> str:
    """Look."""
    return "noon"


@tool("Ring a bell.", kind=ToolKind.ACT, ask=AskRule.NEVER, name="ring")
async def ring(_: ToolContext) -> str:
    """Act."""
    return "rang"


@tool("Read a page.", kind=ToolKind.LOOK, brings=ResultContent.WORDS, name="page")
async def page(_: ToolContext) -> str:
    """Read what somebody else wrote."""
    return "Dear reader."


def written(name: str, *, is_whole: bool = True, is_expected: bool = True) -> WrittenCalls:
    """One call as text."""
    return WrittenCalls((ToolCall("", name, "{}"),), is_whole=is_whole, is_expected=is_expected)


@pytest.mark.parametrize(
    ("calls", "question", "runs"),
    [
        (written("clock"), "hello", True),
        (written("ring"), "hello", False),
        (written("no_such_tool"), "hello", False),
        (written("clock", is_whole=False), "hello", False),
        (written("clock", is_expected=False), "hello", False),
        (written("clock"), "open the page", False),
    ],
    ids=["look", "act", "unknown", "beside words", "unexpected", "tainted"],
)
async def test_a_call_written_as_text_runs_only_where_it_is_safe(
    calls: WrittenCalls, question: str, runs: bool
) -> None:
    """From a model that is known for it, as the whole answer, only to look, with nothing of others in the prompt."""
    model = WritingModel(calls)
    async with gateway(model=model, tools=(clock, ring, page)) as parlour:
        assert await parlour.channel.ask("c", question) == ("Done." if runs else "In words.")
        assert ("noon" in model.results) is runs
        assert "rang" not in model.results
