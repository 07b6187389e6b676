"""Requests and answers of the APIs that are not OpenAI's: Anthropic's, Gemini's and Ollama's.

A request becomes one in OpenAI's form, so that one script and one set of rules read them all. The answers are written
from the providers' published formats: Anthropic API reference, "Streaming messages"; Gemini API reference,
"streamGenerateContent"; Ollama's docs/api.md, "Generate a chat completion".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.fakes.model_zoo.openai_wire import SIGNATURE, ZooAnswer, usage
from tests.fakes.model_zoo.profile import ModelProfile, Protocol

_PIECE = 12


def as_openai(protocol: Protocol, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request in OpenAI's form."""
    return {Protocol.ANTHROPIC: _from_anthropic, Protocol.GEMINI: _from_gemini, Protocol.OLLAMA: _from_ollama}[
        protocol
    ](body)


def completion(profile: ModelProfile, answer: ZooAnswer) -> dict[str, Any]:
    """Return the answer to a request without a stream."""
    if profile.protocol is Protocol.ANTHROPIC:
        blocks = list(_blocks(answer))
        return {**_message(answer), "content": blocks, "stop_reason": _stop_reason(answer)}
    if profile.protocol is Protocol.GEMINI:
        return _candidate(profile, answer, list(_parts(answer)), finish="STOP")
    return _ollama_line(profile, answer, _ollama_message(answer), done=True)


def events(profile: ModelProfile, answer: ZooAnswer) -> Iterator[bytes]:
    """Yield the pieces of a stream."""
    if profile.protocol is Protocol.ANTHROPIC:
        yield from _anthropic_events(answer)
    elif profile.protocol is Protocol.GEMINI:
        for part in _parts(answer):
            yield _data(_candidate(profile, answer, [part]))
        yield _data(_candidate(profile, answer, [{"text": ""}], finish="STOP"))
    else:
        message = _ollama_message(answer)
        for start in range(0, len(answer.text), _PIECE):
            piece = {"role": "assistant", "content": answer.text[start : start + _PIECE]}
            yield json.dumps(_ollama_line(profile, answer, piece)).encode() + b"\n"
        if answer.calls or answer.reasoning:
            message["content"] = ""
            yield json.dumps(_ollama_line(profile, answer, message)).encode() + b"\n"
        end = {"role": "assistant", "content": ""}
        yield json.dumps(_ollama_line(profile, answer, end, done=True)).encode() + b"\n"


def _data(body: Mapping[str, Any], name: str = "") -> bytes:
    return (f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(body).encode() + b"\n\n"


def _text(content: Any) -> str:
    parts = content if isinstance(content, list) else [{"text": content}]
    return "\n".join(str(part["text"]) for part in parts if part.get("text"))


def _from_anthropic(body: Mapping[str, Any]) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    if body.get("system"):
        messages.append({"role": "system", "content": _text(body["system"])})
    for message in body["messages"]:
        blocks = message["content"]
        if isinstance(blocks, str):
            blocks = [{"type": "text", "text": blocks}]
        calls = [
            {"id": each["id"], "function": {"name": each["name"], "arguments": json.dumps(each["input"])}}
            for each in blocks
            if each["type"] == "tool_use"
        ]
        messages += [
            {"role": "tool", "tool_call_id": each["tool_use_id"], "content": _text(each.get("content"))}
            for each in blocks
            if each["type"] == "tool_result"
        ]
        content = [_anthropic_part(each) for each in blocks if each["type"] in ("text", "image")]
        if content or calls:
            said = {"role": message["role"], "content": content}
            messages.append({**said, "tool_calls": calls} if calls else said)
    tools = [{"type": "function", "function": {"name": each.get("name")}} for each in body.get("tools") or []]
    return {"messages": messages, "tools": tools, "stream": body.get("stream")}


def _anthropic_part(block: Mapping[str, Any]) -> dict[str, Any]:
    return dict(block) if block["type"] == "text" else {"type": "image_url", "image_url": {"url": "data:"}}


def _from_gemini(body: Mapping[str, Any]) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    system = body.get("system_instruction") or body.get("systemInstruction")
    if system:
        messages.append({"role": "system", "content": _text(system["parts"])})
    waiting: list[str] = []  # ids of calls, which Gemini has none of, by order
    for number, turn in enumerate(body["contents"]):
        calls: list[dict[str, Any]] = []
        content: list[dict[str, Any]] = []
        for n, part in enumerate(turn["parts"]):
            call, result = part.get("functionCall") or part.get("function_call"), _result(part)
            if call:
                function = {"name": call["name"], "arguments": json.dumps(call.get("args") or {})}
                signature = {"google": {"thought_signature": part.get("thoughtSignature", "")}}
                calls.append({"id": f"g{number}-{n}", "function": function, "extra_content": signature})
            elif result:
                call_id = waiting.pop(0) if waiting else "none"
                messages.append(
                    {"role": "tool", "tool_call_id": call_id, "content": json.dumps(result.get("response"))}
                )
            elif "text" in part and not part.get("thought"):
                content.append({"type": "text", "text": part["text"]})
            elif "inline_data" in part or "inlineData" in part:
                content.append({"type": "image_url", "image_url": {"url": "data:"}})
        waiting += [call["id"] for call in calls]
        if content or calls:
            said = {"role": "assistant" if turn.get("role") == "model" else "user", "content": content}
            messages.append({**said, "tool_calls": calls} if calls else said)
    tools = [
        {"type": "function", "function": {"name": each["name"]}}
        for group in body.get("tools") or []
        for each in group.get("functionDeclarations") or group.get("function_declarations") or []
    ]
    return {"messages": messages, "tools": tools}


def _result(part: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return part.get("functionResponse") or part.get("function_response")


def _from_ollama(body: Mapping[str, Any]) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    waiting: list[str] = []
    for number, message in enumerate(body["messages"]):
        said: dict[str, Any] = {"role": message["role"], "content": message.get("content") or ""}
        if message.get("images"):
            picture = {"type": "image_url", "image_url": {"url": "data:"}}
            said["content"] = [{"type": "text", "text": message.get("content")}, picture]
        if calls := message.get("tool_calls"):
            said["tool_calls"] = [
                {
                    "id": f"o{number}-{n}",
                    "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])},
                }
                for n, call in enumerate(calls)
            ]
            waiting += [call["id"] for call in said["tool_calls"]]
        if message["role"] == "tool":
            said["tool_call_id"] = waiting.pop(0) if waiting else "none"
        messages.append(said)
    return {"messages": messages, "tools": body.get("tools") or [], "stream": body.get("stream")}


def _message(answer: ZooAnswer) -> dict[str, Any]:
    counts = {"input_tokens": answer.prompt_tokens, "output_tokens": 20}
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "stop_sequence": None,
        "usage": counts,
    }


def _stop_reason(answer: ZooAnswer) -> str:
    return "tool_use" if answer.calls else "end_turn"


def _blocks(answer: ZooAnswer) -> Iterator[dict[str, Any]]:
    if answer.reasoning:
        yield {"type": "thinking", "thinking": answer.reasoning, "signature": SIGNATURE}
    if answer.text:
        yield {"type": "text", "text": answer.text}
    for call in answer.calls:
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}


def _anthropic_events(answer: ZooAnswer) -> Iterator[bytes]:
    begun = {**_message(answer), "content": [], "stop_reason": None}
    yield _data({"type": "message_start", "message": begun}, "message_start")
    yield _data({"type": "ping"}, "ping")
    for index, block in enumerate(_blocks(answer)):
        empty: dict[str, dict[str, Any]] = {
            "thinking": {"thinking": "", "signature": ""},
            "text": {"text": ""},
            "tool_use": {"input": {}},
        }
        start = {"type": "content_block_start", "index": index, "content_block": {**block, **empty[block["type"]]}}
        yield _data(start, "content_block_start")
        for delta in _block_deltas(block):
            yield _data({"type": "content_block_delta", "index": index, "delta": delta}, "content_block_delta")
        yield _data({"type": "content_block_stop", "index": index}, "content_block_stop")
    end = {"stop_reason": _stop_reason(answer), "stop_sequence": None}
    yield _data({"type": "message_delta", "delta": end, "usage": {"output_tokens": 20}}, "message_delta")
    yield _data({"type": "message_stop"}, "message_stop")


def _block_deltas(block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if block["type"] == "thinking":
        yield {"type": "thinking_delta", "thinking": block["thinking"]}
        yield {"type": "signature_delta", "signature": block["signature"]}
        return
    kind, key, text = "text_delta", "text", block.get("text", "")
    if block["type"] == "tool_use":
        kind, key, text = "input_json_delta", "partial_json", json.dumps(block["input"])
    for start in range(0, len(text), _PIECE):
        yield {"type": kind, key: text[start : start + _PIECE]}


def _parts(answer: ZooAnswer) -> Iterator[dict[str, Any]]:
    if answer.reasoning:
        yield {"text": answer.reasoning, "thought": True}
    for start in range(0, len(answer.text), _PIECE):
        yield {"text": answer.text[start : start + _PIECE]}
    for n, call in enumerate(answer.calls):
        part: dict[str, Any] = {"functionCall": {"name": call.name, "args": json.loads(call.arguments)}}
        yield part if n else {**part, "thoughtSignature": SIGNATURE}


def _candidate(
    profile: ModelProfile, answer: ZooAnswer, parts: list[dict[str, Any]], *, finish: str = ""
) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    counts = usage(profile, answer)
    metadata = {
        "promptTokenCount": counts["prompt_tokens"],
        "candidatesTokenCount": counts["completion_tokens"],
        "totalTokenCount": counts["total_tokens"],
    }
    return {
        "candidates": [candidate],
        "usageMetadata": metadata,
        "modelVersion": "gemini-2.5-flash",
        "responseId": "r1",
    }


def _ollama_message(answer: ZooAnswer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text}
    if answer.reasoning:
        message["thinking"] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = [
            {"function": {"name": call.name, "arguments": json.loads(call.arguments)}} for call in answer.calls
        ]
    return message


def _ollama_line(
    profile: ModelProfile, answer: ZooAnswer, message: Mapping[str, Any], *, done: bool = False
) -> dict[str, Any]:
    line: dict[str, Any] = {"model": "qwen3:4b", "created_at": "2026-11-28T12:00:00Z", "message": message, "done": done}
    if done:
        counts = usage(profile, answer)
        line |= {"done_reason": "stop", "prompt_eval_count": counts["prompt_tokens"], "eval_count": 20}
    return line
