"""The scripted servers do what their profiles say: they refuse in those words, and answer in that form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import aiohttp
import pytest

from tests.fakes.model_zoo import PROFILES
from tests.fakes.model_zoo.profile import CallForm, EndForm, ErrorForm, ModelProfile, Protocol, Refusal, UsageForm
from tests.fakes.model_zoo.server import TOOL, ModelZoo, open_zoo
from tests.fakes.strict_requests import RequestRule as R

WINDOW = 4_000
TOOLS = [{"type": "function", "function": {"name": TOOL, "parameters": {"type": "object", "properties": {}}}}]
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


@pytest.fixture(scope="module")
def zoo() -> Iterator[ModelZoo]:
    """All servers; nobody changes them."""
    with open_zoo(PROFILES, window=WINDOW) as servers:
        yield servers


def user(text: str) -> dict[str, Any]:
    """Return a message of the user."""
    return {"role": "user", "content": text}


def called(number: int = 0, **more: Any) -> dict[str, Any]:
    """Return an assistant's message with a call."""
    call = {"id": f"abcdefgh{number}", "type": "function", "function": {"name": TOOL, "arguments": "{}"}}
    return {"role": "assistant", "content": None, "tool_calls": [{**call, **more}]}


RESULT = {"role": "tool", "tool_call_id": "abcdefgh0", "content": "tea is amber"}
AFTER_CALL = [user("a"), called(), RESULT]
# A request that breaks the rule, and as few others as may be.
BROKEN: Mapping[R, Mapping[str, Any]] = {
    R.ARGUMENTS: {"messages": [user("a"), called(function={"name": TOOL, "arguments": ""}), RESULT], "tools": TOOLS},
    R.NAMES: {"messages": [user("a"), called(function={"name": "a b", "arguments": "{}"}), RESULT], "tools": TOOLS},
    R.IDS: {"messages": [user("a"), called(id="x" * 46), {**RESULT, "tool_call_id": "x" * 46}], "tools": TOOLS},
    R.NINE: {"messages": [user("a"), called(id="call_0"), {**RESULT, "tool_call_id": "call_0"}], "tools": TOOLS},
    R.PAIRS: {"messages": [user("a"), RESULT, {"role": "assistant", "content": "b"}, user("c")]},
    R.ROLES: {"messages": [user("a"), user("b")]},
    R.CONTENT: {"messages": [user("a"), {"role": "assistant", "content": ""}, user("b")]},
    R.PICTURES: {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, PICTURE]}]},
    R.TOOLS: {"messages": [user("a")], "tools": TOOLS},
    R.UNDECLARED: {"messages": AFTER_CALL},
    R.STREAM_OPTIONS: {"messages": [user("a")], "stream_options": {"include_usage": True}},
    R.STREAM: {"messages": [user("a")], "stream": True},
    R.SYSTEM: {"messages": [{"role": "system", "content": "s"}, user("a")]},
    R.NO_REASONING: {"messages": [user("a"), {**called(), "reasoning": "r"}, RESULT], "tools": TOOLS},
    R.REASONING: {"messages": AFTER_CALL, "tools": TOOLS},
    R.DETAILS: {"messages": AFTER_CALL, "tools": TOOLS},
    R.SIGNATURE: {"messages": AFTER_CALL, "tools": TOOLS},
}
OPENAI = [each for each in PROFILES.values() if each.protocol is Protocol.OPENAI]
REFUSED = [(each, rule) for each in OPENAI for rule in each.refuses]


async def post(zoo: ModelZoo, profile: ModelProfile, body: Mapping[str, Any], key: str = "") -> tuple[int, str]:
    """Send a request; return the status and the body."""
    headers = {"Authorization": f"Bearer {key or zoo.key(profile)}"}
    address = f"{zoo.api_base(profile)}/chat/completions"
    # One server sends a header that is longer than aiohttp takes by itself.
    async with (
        aiohttp.ClientSession(max_field_size=1 << 16) as session,
        session.post(address, json={"model": "m", **body}, headers=headers) as response,
    ):
        return response.status, await response.text()


def filled(zoo: ModelZoo, profile: ModelProfile, refusal: Refusal, tokens: int = 0) -> str:
    """Return the body of a refusal as it is sent."""
    text = refusal.body if isinstance(refusal.body, str) else json.dumps(refusal.body or "", ensure_ascii=False)
    for name, value in {"window": zoo.window, "tokens": tokens, "key": zoo.key(profile)}.items():
        text = text.replace(f"%{name}%", str(value))
    return "" if refusal.body is None else text


def test_there_are_enough_of_them() -> None:
    """At least thirty providers and servers, each with its source; litellm is between for those that need it."""
    assert len(PROFILES) >= 30
    assert all(each.source and each.title for each in PROFILES.values())
    through = {each.model.partition("/")[0] for each in PROFILES.values() if each.is_through_litellm}
    assert through >= {"gemini", "anthropic", "mistral", "deepseek", "groq", "ollama_chat"}


@pytest.mark.parametrize(("profile", "rule"), REFUSED, ids=[f"{each.name}-{rule}" for each, rule in REFUSED])
async def test_what_a_server_refuses(zoo: ModelZoo, profile: ModelProfile, rule: R) -> None:
    """A request that breaks a rule gets the status and the words of the profile, and no other server's."""
    status, text = await post(zoo, profile, BROKEN[rule])
    reason = zoo.of(profile)[-1].refusal.partition(":")[0]
    assert reason in profile.refuses
    refusal = profile.refuses[R(reason)]
    assert (status, text) == (refusal.status, filled(zoo, profile, refusal))
    # A broken rule may break another one that the server has too: then that one is reported.
    assert reason == rule or len(profile.refuses) > 1


@pytest.mark.parametrize("profile", OPENAI, ids=lambda each: each.name)
async def test_keys_limits_and_long_prompts(zoo: ModelZoo, profile: ModelProfile) -> None:
    """A wrong key, a rate limit and a long prompt are refused as the profile says; after the wait, it answers."""
    status, text = await post(zoo, profile, {"messages": [user("a")]}, key="wrong")
    assert (status, text) == (profile.bad_key.status, filled(zoo, profile, profile.bad_key))
    status, text = await post(zoo, profile, {"messages": [user("a" * 5 * WINDOW)]})
    if profile.overflow is None:
        assert status == 200
    else:
        tokens = 5 * WINDOW // 4
        assert abs(tokens - WINDOW) > 100
        assert status == profile.overflow.status
        assert zoo.of(profile)[-1].refusal == "overflow"
    name = profile.name.replace("-", "")
    if profile.limit is not None:
        first = await post(zoo, profile, {"messages": [user(f"zoo-limit-{name}")]})
        assert first == (profile.limit.status, filled(zoo, profile, profile.limit))
        again, _ = await post(zoo, profile, {"messages": [user(f"zoo-limit-{name}")]})
        assert again == (profile.limit.status if profile.limit.wait else 200)


@pytest.mark.parametrize(
    "profile", [each for each in OPENAI if R.STREAM not in each.refuses], ids=lambda each: each.name
)
async def test_the_form_of_a_stream(zoo: ModelZoo, profile: ModelProfile) -> None:
    """Call pieces, end marks and token counts of a stream are those of the profile."""
    act = "call" if profile.has_tools else "question"
    asked = {"messages": [user(f"zoo-{act}-s")], "stream": True, **({"tools": TOOLS} if profile.has_tools else {})}
    if R.STREAM_OPTIONS not in profile.refuses:
        asked["stream_options"] = {"include_usage": True}
    status, text = await post(zoo, profile, asked)
    assert status == 200
    lines = [line.removeprefix("data:").strip() for line in text.splitlines() if line.startswith("data:")]
    chunks = [json.loads(line) for line in lines if line not in ("", "[DONE]")]
    assert ("[DONE]" in lines) == (profile.stream.end is EndForm.DONE)
    assert any(chunk.get("usage") for chunk in chunks) == (
        profile.stream.usage not in (UsageForm.NONE, UsageForm.CHOICE)
    )
    deltas = [choice.get("delta") or choice.get("message") or {} for chunk in chunks for choice in chunk["choices"]]
    pieces = [piece for delta in deltas for piece in delta.get("tool_calls") or () if piece]
    if profile.has_tools:
        assert pieces
        assert all("index" in piece for piece in pieces) == (profile.stream.calls is not CallForm.NO_INDEX)


@pytest.mark.parametrize("form", [ErrorForm.DATA, ErrorForm.EVENT, ErrorForm.FIELD])
async def test_errors_inside_a_stream(zoo: ModelZoo, form: ErrorForm) -> None:
    """Such a server answers with status 200, and the stream holds nothing but the error."""
    profile = next(each for each in OPENAI if each.overflow is not None and each.overflow.form is form)
    status, text = await post(zoo, profile, {"messages": [user("a" * 5 * WINDOW)], "stream": True})
    begin = {ErrorForm.DATA: "data: {", ErrorForm.EVENT: "event: error\ndata: {", ErrorForm.FIELD: "error: {"}
    assert status == 200
    assert text.startswith(begin[form])
