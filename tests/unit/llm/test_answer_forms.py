"""Forms in which servers write words, errors and ends into an answer, cut anywhere."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.llm.chat_model import ReplyEnding
from agent.llm.completion_stream import CompletionStream
from agent.llm.provider_errors import ProviderHttpError, map_provider_error
from agent.llm.reply_builder import ReplyBuilder
from gateway.errors import ContextOverflow, FailureCause, ModelFailed, ModelRateLimited, ModelRefused, ModelServerFailed
from tests.fakes.llm_context import NOW


def delta(finish: str | None = None, index: int = 0, **message: Any) -> dict[str, Any]:
    """Return one chunk."""
    return {"choices": [{"index": index, "delta": message, "finish_reason": finish}]}


def events(*chunks: object, before: str = "data: ") -> bytes:
    """Return *chunks* as a stream; text is sent as it is."""
    lines = (each if isinstance(each, str) else before + json.dumps(each) for each in (*chunks, "data: [DONE]"))
    return "".join(f"{line}\n\n" for line in lines).encode()


async def read(data: bytes, piece: int, kind: str = "text/event-stream") -> ReplyBuilder:
    """Read *data* in pieces of some bytes."""
    rest = [data[at : at + piece] for at in range(0, len(data), piece)]

    async def get() -> bytes:
        return rest.pop(0) if rest else b""

    gathered = ReplyBuilder("m")
    stream = CompletionStream(get, "m", OSError)
    await stream.open(kind)
    if stream.body is not None:
        gathered.take(stream.body)
    else:
        async for chunk in stream:
            if chunk is not None:
                gathered.add(chunk)
    gathered.close()
    return gathered


HEL, LO, STOP = delta(content="Hel"), delta(content="lo"), delta("stop")
LINES = "".join(f"{json.dumps(each)}\n" for each in (HEL, LO, STOP)).encode()
WORDS: dict[str, bytes] = {
    "lines of JSON": LINES,
    "lines of JSON with an end": LINES + b"[DONE]\n",
    "lines with other line ends in words": LINES.replace(b'"Hel"', '"\u2028Hel"'.encode()),
    "a list of chunks": json.dumps([HEL, LO, STOP]).encode(),
    "no blank line between events": f"data: {json.dumps(HEL)}\ndata: {json.dumps(LO)}\n\n".encode() + events(STOP),
    "data in data": events(HEL, LO, STOP, before="data: data: "),
    "words in brackets": events("data: [PING]", HEL, "data: []", "data: [HEARTBEAT]", LO, STOP),
    "another choice": events(HEL, delta(index=1, content="Bye"), LO, delta("length", index=1), STOP),
    "a result of the provider's tool": events(
        HEL, delta(role="tool", content="found: secret"), delta(content="found: secret"), delta(role="assistant"), LO
    ),
    "parts that are text": events(delta(content=["Hel", {"type": "output_text", "text": {"value": "lo"}}]), STOP),
    "one part": events(delta(content={"type": "text", "text": "Hello"}), STOP),
    "a refusal that is an object": events(delta(content="", refusal={"text": "Hello"}), STOP),
    "fields of odd types": events(delta(tool_calls=True, thinking_blocks=["x", None], content="Hello"), STOP),
    "an error behind the end": events(HEL, LO, STOP, {"error": {"message": "no usage"}}),
    "no object of an error": events(HEL | {"error": {}, "base_resp": {"status_code": 0}}, LO, STOP),
    "a small end": events(HEL, LO).replace(b"[DONE]", b"[done]"),
    "a quoted end": events(HEL, LO).replace(b"[DONE]", b'"[DONE]"'),
}


@pytest.mark.parametrize("data", WORDS.values(), ids=WORDS)
async def test_the_words_are_read(data: bytes) -> None:
    """The answer and nothing else, in whichever form and pieces it comes."""
    for piece in (1, 7, len(data)):
        assert (await read(data, piece)).final_text().strip() == "Hello"


async def test_bytes_that_are_no_text_cost_no_answer() -> None:
    """Half a character and a control character in the words of a chunk."""
    data = events("data: " + json.dumps(HEL)).replace(b"Hel", b"Hel\xe9\x01")
    assert (await read(data, 5)).final_text() == "Hel\ufffd\x01"


FULL = "This model's maximum context length is 4096 tokens"
ERRORS: dict[str, tuple[object, type[ModelFailed], FailureCause | None]] = {
    "vLLM": ({"object": "error", "message": FULL, "code": 400}, ContextOverflow, None),
    "a detail": ({"detail": FULL}, ContextOverflow, None),
    "a status": ({"error": {"status": 429, "message": "slow"}}, ModelRateLimited, None),
    "words beside a status": ({"message": "oops", "status": 500}, ModelServerFailed, None),
    "MiniMax, no money": (
        {"choices": None, "base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}},
        ModelRefused,
        FailureCause.ACCOUNT,
    ),
    "MiniMax, too often": ({"base_resp": {"status_code": 1002, "status_msg": "rate limit"}}, ModelRateLimited, None),
    "MiniMax, too long": (
        {"base_resp": {"status_code": 2013, "status_msg": "invalid params, context window exceeds limit (2013)"}},
        ContextOverflow,
        None,
    ),
    "Cloudflare": ({"success": False, "errors": [{"code": 7009, "message": "at capacity"}]}, ModelRateLimited, None),
    "Gemini's list": ([{"error": {"code": 429, "message": "Resource exhausted"}}], ModelRateLimited, None),
}


@pytest.mark.parametrize(("body", "error", "cause"), ERRORS.values(), ids=ERRORS)
async def test_an_error_in_place_of_an_answer_is_an_error(
    body: object, error: type[ModelFailed], cause: FailureCause | None
) -> None:
    """With status 200, as a body and as an event, and not an empty answer."""
    whole, event = json.dumps(body).encode(), f"data: {json.dumps(body)}\n\n".encode()
    for data in (whole, event, events(HEL)[: -len("data: [DONE]\n\n")] + event):
        with pytest.raises(ProviderHttpError) as raised:
            await read(data, 9)
        failed = map_provider_error(raised.value, "m", NOW)
        assert (type(failed), failed.cause) == (error, cause)


@pytest.mark.parametrize(
    ("reason", "ending"),
    [
        ("stop", ReplyEnding.COMPLETE),
        ("end_turn", ReplyEnding.COMPLETE),
        ("MAX_TOKENS", ReplyEnding.LENGTH),
        ("model_length", ReplyEnding.LENGTH),
        ("SAFETY", ReplyEnding.FILTERED),
        ("sensitive", ReplyEnding.FILTERED),
        ("refusal", ReplyEnding.FILTERED),
        ("network_error", ReplyEnding.BROKEN),
        ("insufficient_system_resource", ReplyEnding.BROKEN),
        ({"type": "stop"}, ReplyEnding.COMPLETE),
    ],
)
async def test_an_end_that_is_no_stop_is_known(reason: Any, ending: ReplyEnding) -> None:
    """Mistral's, GLM's, DeepSeek's, Gemini's and Anthropic's reasons, in any case."""
    assert (await read(events(HEL, delta(reason)), 7)).ending is ending


@pytest.mark.parametrize("place", ["chunk", "choice", "x_groq"])
@pytest.mark.parametrize("names", [("prompt_tokens", "completion_tokens"), ("input_tokens", "output_tokens")])
async def test_figures_are_found_where_servers_put_them(place: str, names: tuple[str, str]) -> None:
    """Beside the choices, in a choice as Moonshot has them, or in Groq's own field."""
    figures = {"usage": dict(zip(names, (5, 2), strict=True))}
    last = delta("stop")
    if place == "choice":
        last["choices"][0] |= figures
    else:
        last |= figures if place == "chunk" else {"x_groq": figures}
    found = (await read(events(HEL, last), 9)).tokens()
    assert found is not None
    assert (found.input, found.output) == (5, 2)
