"""Serves every profile over real HTTP, in a thread of its own: a client that blocks its event loop still gets answers.

What the model says depends on the last mark ``zoo-<act>-<name>`` in the last message of the user, see `ZooAct`. The
server refuses what its profile refuses, before anything else, and remembers each request with what became of it.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from aiohttp import web

from tests.fakes.loopback import serve_app
from tests.fakes.model_zoo import native_wire, openai_wire
from tests.fakes.model_zoo.openai_wire import ZooAnswer, ZooCall, error_event
from tests.fakes.model_zoo.profile import CallForm, ErrorForm, ModelProfile, Protocol, Refusal
from tests.fakes.strict_requests import violations

TOOL = "look_up"  # the tool that the model calls, with one argument `word`
THOUGHT = "SECRETTHOUGHT: the user wants an answer, so I give one."  # nobody may ever read it
_WORDS = ("tea", "sea")
_MARK = re.compile(r"zoo-(\w+)-(\w+)")
_BEAT = 0.3  # seconds between two keep-alives


class ZooAct(StrEnum):
    """What a mark asks of the server."""

    QUESTION = "question"
    SILENCE = "silence"  # a question that the model thinks about
    CALL = "call"  # one call of the tool
    CALLS = "calls"  # two calls in one answer
    LIMIT = "limit"  # a rate limit first
    FAILED = "failed"  # the refusal of a wrong key, whatever the key


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooRequest:
    """One request. `refusal` says why it was refused: a rule, "overflow", "limit", "early" or "key"."""

    profile: str
    name: str  # of the mark
    body: Mapping[str, Any]  # in OpenAI's form
    tokens: int = 0  # of the prompt
    refusal: str = ""


@dataclass(slots=True)
class ModelZoo:
    """The servers and what they were asked. `window` is how many tokens of four bytes each of them takes."""

    profiles: Mapping[str, ModelProfile]
    window: int
    host: str = ""
    windows: dict[str, int] = field(default_factory=dict)  # of a profile, where it is not `window`
    requests: list[ZooRequest] = field(default_factory=list)
    _free_at: dict[tuple[str, str], float] = field(default_factory=dict)  # when a rate limit is over
    _written: set[tuple[str, str]] = field(default_factory=set)  # marks whose call was written as text
    _calls: int = 0

    def api_base(self, profile: ModelProfile) -> str:
        """Return the address for the settings."""
        return f"http://{self.host}/{profile.name}{profile.path}"

    def key(self, profile: ModelProfile) -> str:
        """Return the key that this server takes."""
        return f"zoo-key-{profile.name}"

    def of(self, profile: ModelProfile, name: str = "") -> list[ZooRequest]:
        """Return the requests to one server, of one mark if *name* is given."""
        return [each for each in self.requests if each.profile == profile.name and name in ("", each.name)]

    def _window(self, profile: ModelProfile) -> int:
        return self.windows.get(profile.name, self.window)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer whatever comes to any of the servers."""
        profile = self.profiles.get(request.path.split("/")[1])
        if profile is None:
            return web.json_response({"error": "no such server"}, status=404)
        if request.path.endswith("/api/show"):
            capabilities = ["completion", "tools", "vision"]
            return web.json_response({"model_info": {}, "capabilities": capabilities, "template": "{{ .Tools }}"})
        if request.method == "GET":
            return web.json_response({"object": "list", "data": [{"id": profile.model.partition("/")[2]}]})
        body = json.loads(await request.read())
        is_streamed = bool(body.get("stream")) or "streamGenerateContent" in request.path
        asked = body if profile.protocol is Protocol.OPENAI else native_wire.as_openai(profile.protocol, body)
        act, name = _mark(asked)
        tokens = _weigh(asked)
        why, refusal = self._refusal(profile, request, asked, act, name, tokens)
        self.requests.append(ZooRequest(profile=profile.name, name=name, body=asked, tokens=tokens, refusal=why))
        if refusal is not None:
            return await self._refuse(request, profile, refusal, tokens, is_streamed=is_streamed)
        answer = self._answer(profile, asked, act, name, tokens)
        if is_streamed:
            with suppress(ConnectionError):  # the client has left
                return await self._stream(request, profile, answer, body, act)
            return web.Response()
        is_plain = profile.protocol is Protocol.OPENAI
        return web.json_response((openai_wire if is_plain else native_wire).completion(profile, answer))

    def _refusal(
        self, profile: ModelProfile, request: web.Request, body: Mapping[str, Any], act: str, name: str, tokens: int
    ) -> tuple[str, Refusal | None]:
        """Return why the request is refused and how; ("", None) if it is not."""
        if _key_of(request) != self.key(profile) or act == ZooAct.FAILED:
            return "key", profile.bad_key
        if broken := violations(body, profile.refuses.keys()):
            rule = next(each for each in profile.refuses if broken[0].startswith(f"{each}:"))
            return broken[0], profile.refuses[rule]
        if tokens > self._window(profile) and profile.overflow is not None:
            return "overflow", profile.overflow
        if act == ZooAct.LIMIT and profile.limit is not None:
            now = time.monotonic()
            free_at = self._free_at.get((profile.name, name))
            if free_at is None:
                self._free_at[profile.name, name] = now + profile.limit.wait
                return "limit", profile.limit
            if now < free_at:
                return "early", profile.limit
        return "", None

    async def _refuse(
        self, request: web.Request, profile: ModelProfile, refusal: Refusal, tokens: int, *, is_streamed: bool
    ) -> web.StreamResponse:
        text = refusal.body if isinstance(refusal.body, str) else json.dumps(refusal.body, ensure_ascii=False)
        figures = {"window": str(self._window(profile)), "tokens": str(tokens), "key": self.key(profile)}
        for name, value in figures.items():
            text = text.replace(f"%{name}%", value)
        if refusal.form is not ErrorForm.STATUS and is_streamed:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            await response.write(error_event(refusal.form, json.loads(text)))
            await response.write_eof()
            return response
        data = b"" if refusal.body is None else text.encode()
        kind = {"Content-Type": refusal.content_type} if data else {}
        return web.Response(status=refusal.status, body=data, headers={**kind, **refusal.headers})

    def _answer(self, profile: ModelProfile, body: Mapping[str, Any], act: str, name: str, tokens: int) -> ZooAnswer:
        if saved := _saved(body):
            return ZooAnswer(calls=(self._call(profile, 0, "save_memory", saved),), prompt_tokens=tokens)
        offered = {each["function"]["name"] for each in body.get("tools") or []}
        results, words = _results(body), _WORDS[: 2 if act == ZooAct.CALLS else 1]
        if act in (ZooAct.CALL, ZooAct.CALLS) and not results and TOOL in offered:
            if profile.stream.calls is CallForm.TEXT and (profile.name, name) not in self._written:
                self._written.add((profile.name, name))
                calls = [{"name": TOOL, "arguments": {"word": word}} for word in words]
                text = "\n".join(f"<tool_call>\n{json.dumps(each)}\n</tool_call>" for each in calls)
                return ZooAnswer(text=text, prompt_tokens=tokens)
            if profile.stream.calls not in (CallForm.TEXT, CallForm.IGNORED):
                made = [self._call(profile, n, TOOL, {"word": word}) for n, word in enumerate(words)]
                return ZooAnswer(calls=tuple(made), reasoning=THOUGHT, prompt_tokens=tokens)
        said = "; ".join(results) if act in (ZooAct.CALL, ZooAct.CALLS) and results else ""
        if act in (ZooAct.CALL, ZooAct.CALLS) and not results:
            said = "I cannot look things up"
        if _has_picture(body):
            said = "I see a picture"
        elif "cannot see" in _words(body["messages"][_last_user(body)]):
            said = "I cannot see the picture"
        text = f"Answer {name}: {said}." if said else f"Answer {name}."
        return ZooAnswer(text=text, reasoning=THOUGHT, prompt_tokens=tokens)

    def _call(self, profile: ModelProfile, n: int, tool: str, arguments: Mapping[str, Any]) -> ZooCall:
        self._calls += 1
        call_id = profile.stream.call_id.replace("%n%", f"{self._calls % 100:02}").replace("%i%", str(n))
        return ZooCall(id=call_id, name=tool, arguments=json.dumps(arguments))

    async def _stream(
        self, request: web.Request, profile: ModelProfile, answer: ZooAnswer, body: Mapping[str, Any], act: str
    ) -> web.StreamResponse:
        form = profile.stream
        headers = {"Content-Type": form.content_type}
        if form.header_bytes:
            headers["X-Policy"] = "x" * form.header_bytes
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        await response.write(form.head)
        if profile.protocol is Protocol.OPENAI:
            has_usage = bool((body.get("stream_options") or {}).get("include_usage"))
            events = openai_wire.events(profile, answer, has_usage=has_usage)
        else:
            events = native_wire.events(profile, answer)
        for n, event in enumerate(events):
            await response.write(event)
            if not n and act == ZooAct.SILENCE:
                end = time.monotonic() + form.silence
                while time.monotonic() < end:
                    await response.write(form.keepalive)
                    await asyncio.sleep(_BEAT)
        await response.write_eof()
        return response


def _key_of(request: web.Request) -> str:
    names = ("x-api-key", "api-key", "x-goog-api-key")
    found = next((request.headers[name] for name in names if name in request.headers), "")
    return found or request.headers.get("Authorization", "").removeprefix("Bearer ") or request.query.get("key", "")


def _last_user(body: Mapping[str, Any]) -> int:
    """Return the place of the last message of the user that has a mark; -1 if there is none."""
    messages = body["messages"]
    marked = (n for n, each in enumerate(messages) if each["role"] == "user" and _MARK.search(_words(each)))
    return max(marked, default=-1)


def _mark(body: Mapping[str, Any]) -> tuple[str, str]:
    place = _last_user(body)
    return _MARK.findall(_words(body["messages"][place]))[-1] if place >= 0 else ("", "")


def _results(body: Mapping[str, Any]) -> list[str]:
    """Return what the tool found for the last question."""
    after: Sequence[Mapping[str, Any]] = body["messages"][_last_user(body) + 1 :]
    texts = [_words(each) for each in after if each["role"] == "tool"]
    return [found for text in texts for found in re.findall(r"\w+ is (?:amber|blue)", text)]


def _words(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    return "\n".join(str(part["text"]) for part in parts if part.get("text"))


def _has_picture(body: Mapping[str, Any]) -> bool:
    content = body["messages"][_last_user(body)].get("content")
    return isinstance(content, list) and any(part.get("type") == "image_url" for part in content)


def _weigh(body: Mapping[str, Any]) -> int:
    """Return the prompt's tokens; a picture counts nothing."""
    words = sum(len(_words(each)) + len(json.dumps(each.get("tool_calls") or "")) for each in body["messages"])
    return (words + len(json.dumps(body.get("tools") or ""))) // 4


def _saved(body: Mapping[str, Any]) -> dict[str, str]:
    """Return what a summary saves; {} for a request that asks for none."""
    if not any(each["function"]["name"] == "save_memory" for each in body.get("tools") or []):
        return {}
    shown = _words(body["messages"][-1])
    memory = shown.partition("Long-term Memory\n")[2].partition("\n\n## Conversation")[0]
    return {"history_entry": "They talked.", "memory_update": memory or "(empty)"}


@contextmanager
def open_zoo(profiles: Mapping[str, ModelProfile], *, window: int = 1_000_000) -> Iterator[ModelZoo]:
    """Serve *profiles* on loopback until the block ends."""
    zoo = ModelZoo(profiles=profiles, window=window)
    ready, loop = threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()

    async def run() -> None:
        async with serve_app(zoo.serve, handler_cancellation=True) as host:
            zoo.host = host
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),), name="model zoo", daemon=True)
    thread.start()
    try:
        assert ready.wait(10), "the server did not start"
        yield zoo
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
