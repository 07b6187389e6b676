"""An answer in the bytes of a server that speaks OpenAI's chat completions, as its profile says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.fakes.model_zoo.profile import CallForm, EndForm, ErrorForm, ModelProfile, ReasoningForm, UsageForm

SIGNATURE = "CiQBjz1rX-signature"  # opaque data that has to come back
_PIECE = 12  # characters of a text or of arguments in one chunk
_BY_INDEX = frozenset({CallForm.PIECES, CallForm.EMPTY_AGAIN, CallForm.ID_PER_PIECE, CallForm.NAME_IN_TWO})


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooCall:
    """One call; *arguments* are JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooAnswer:
    """What the model says, before it is dressed as its server does."""

    text: str = ""
    calls: tuple[ZooCall, ...] = ()
    reasoning: str = ""
    prompt_tokens: int = 100


def completion(profile: ModelProfile, answer: ZooAnswer) -> dict[str, Any]:
    """Return the answer to a request without a stream."""
    message: dict[str, Any] = {"role": "assistant", "content": _content(profile, answer) or None}
    for delta in _reasoning(profile, answer):
        message |= delta if "content" not in delta else {}
    if calls := [_whole(profile, n, call) for n, call in enumerate(answer.calls)]:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "finish_reason": _finish(profile, answer)}
    return {**_head(profile), "object": "chat.completion", "choices": [choice], "usage": usage(profile, answer)}


def events(profile: ModelProfile, answer: ZooAnswer, *, has_usage: bool) -> Iterator[bytes]:
    """Yield the events of a stream; *has_usage*: the request asked for token counts."""
    form, key = profile.stream, "message" if profile.stream.is_message else "delta"
    every = {"usage": usage(profile, answer)} if form.usage is UsageForm.EVERY else {}
    for delta in _deltas(profile, answer):
        yield _event(profile, {"choices": [{"index": 0, key: delta, "finish_reason": None}], **every})
    if form.end is not EndForm.NOTHING:
        choice: dict[str, Any] = {"index": 0, key: {}, "finish_reason": _finish(profile, answer)}
        if form.usage is UsageForm.CHOICE:
            choice["usage"] = usage(profile, answer)
        last = {"usage": usage(profile, answer)} if form.usage is UsageForm.FINISH else every
        yield _event(profile, {"choices": [choice], **last})
    if has_usage and form.usage is UsageForm.LAST:
        yield _event(profile, {"choices": [], "usage": usage(profile, answer)})
    if form.end is EndForm.DONE:
        yield b"data: [DONE]" + form.line_end * 2


def error_event(form: ErrorForm, body: Any) -> bytes:
    """Return an error inside a stream."""
    data = json.dumps(body).encode()
    if form is ErrorForm.FIELD:
        return b"error: " + data + b"\n\n"
    return (b"event: error\n" if form is ErrorForm.EVENT else b"") + b"data: " + data + b"\n\n"


def usage(profile: ModelProfile, answer: ZooAnswer) -> dict[str, Any]:
    """Return the token counts; some servers count only what was not cached."""
    prompt = answer.prompt_tokens // (4 if profile.counts_new_tokens else 1)
    return {"prompt_tokens": prompt, "completion_tokens": 20, "total_tokens": prompt + 20}


def _head(profile: ModelProfile) -> dict[str, Any]:
    head = {"id": "chatcmpl-1", "created": 1_790_000_000, "model": profile.model.partition("/")[2]}
    return {**head, **profile.stream.more}


def _event(profile: ModelProfile, chunk: Mapping[str, Any]) -> bytes:
    data = json.dumps({**_head(profile), "object": "chat.completion.chunk", **chunk}, ensure_ascii=False)
    return b"data: " + data.encode() + profile.stream.line_end * 2


def _finish(profile: ModelProfile, answer: ZooAnswer) -> str:
    return profile.stream.call_finish if answer.calls else "stop"


def _content(profile: ModelProfile, answer: ZooAnswer) -> Any:
    """Return the text of a whole answer, with what a server without a parser leaves in it."""
    form, thought = profile.stream.reasoning, answer.reasoning
    if form is ReasoningForm.TAGS and thought:
        return f"<think>\n{thought}\n</think>\n\n{answer.text}"
    if form is ReasoningForm.OPEN_TAG and thought:
        return f"{thought}\n</think>\n\n{answer.text}"
    if form is ReasoningForm.PARTS and thought:
        parts: list[dict[str, Any]] = [{"type": "thinking", "thinking": [{"type": "text", "text": thought}]}]
        return [*parts, {"type": "text", "text": answer.text}]
    return answer.text


def _reasoning(profile: ModelProfile, answer: ZooAnswer) -> Iterator[dict[str, Any]]:
    """Yield the fields that reasoning has of its own."""
    form, thought = profile.stream.reasoning, answer.reasoning
    if not thought:
        return
    if form in (ReasoningForm.CONTENT, ReasoningForm.FIELD):
        yield {form.value: thought}
    if form is ReasoningForm.DETAILS:
        detail = {"type": "reasoning.text", "text": thought, "signature": SIGNATURE, "index": 0}
        yield {"reasoning": thought, "reasoning_details": [detail]}


def _deltas(profile: ModelProfile, answer: ZooAnswer) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    yield from _reasoning(profile, answer)
    content = _content(profile, answer)
    more = {} if profile.stream.empty_calls == () else {"tool_calls": profile.stream.empty_calls}
    if isinstance(content, list):
        yield from ({"content": [part]} for part in content)
    else:
        pieces = (content[start : start + _PIECE] for start in range(0, len(content), _PIECE))
        yield from ({"content": piece, **more} for piece in pieces)
    if profile.stream.calls is CallForm.TOGETHER and answer.calls:
        yield {"tool_calls": [{"index": n, **_whole(profile, n, call)} for n, call in enumerate(answer.calls)]}
        return
    for n, call in enumerate(answer.calls):
        yield from ({"tool_calls": [piece]} for piece in _call_pieces(profile, n, call))


def _whole(profile: ModelProfile, n: int, call: ZooCall) -> dict[str, Any]:
    """Return a call as a whole; where signatures have to come back, the first one of an answer has one."""
    is_object = profile.stream.calls is CallForm.OBJECT
    arguments: Any = json.loads(call.arguments) if is_object else call.arguments
    whole = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
    if not n and "signature" in profile.refuses:
        whole["extra_content"] = {"google": {"thought_signature": SIGNATURE}}
    return whole


def _call_pieces(profile: ModelProfile, n: int, call: ZooCall) -> Iterator[dict[str, Any]]:
    form, whole = profile.stream.calls, _whole(profile, n, call)
    if form in (CallForm.WHOLE, CallForm.OBJECT):
        yield {"index": n, **whole}
        return
    if form is CallForm.INDEX_ZERO:
        yield {"index": 0, **whole}
        return
    if form is CallForm.REPEATED:
        yield {"index": n, **whole}
        yield {"index": n, **whole, "function": {"name": "", "arguments": call.arguments}}
        return
    number: dict[str, Any] = {"index": n} if form in _BY_INDEX else {}
    if form is CallForm.INDEX_TEXT:
        number = {"index": str(n)}
    names = [call.name]
    if form is CallForm.NAME_IN_TWO:
        names = [call.name[: len(call.name) // 2], call.name[len(call.name) // 2 :]]
    yield {**number, **whole, "function": {"name": names[0], "arguments": ""}}
    yield from ({**number, "function": {"name": rest}} for rest in names[1:])
    for start in range(0, len(call.arguments), _PIECE):
        function: dict[str, Any] = {"arguments": call.arguments[start : start + _PIECE]}
        piece: dict[str, Any] = {**number, "function": function}
        if form is CallForm.EMPTY_AGAIN:
            piece |= {"id": "", "type": "function", "function": {"name": "", **function}}
        if form is CallForm.ID_PER_PIECE:
            piece["id"] = f"{call.id}{start}"
        yield piece
