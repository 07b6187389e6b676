"""The platform and the model of the explored gateways, in the explorer's own process."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.isolation_canaries import CANARY
from tests.faults.explorer.truth import Truth

TOKEN = re.compile(r"\bm\d+q\b")
_ANSWER = re.compile(r"re (m\d+q):")
_ECHOED = 4
_SLOWEST = 1.2  # seconds of the model
_NOT_QUICK = 4  # one answer in so many takes longer than an instant


@dataclass(frozen=True, slots=True)
class WirePost:
    """A part on the platform."""

    id: str
    chat: str
    text: str
    part: str
    reply_to: str
    is_marked: bool


@dataclass(slots=True)
class WirePlatform:
    """Shows what gateways send, and answers as their model; every prompt is looked at."""

    truth: Truth
    knows_keys: bool
    posts: list[WirePost] = field(default_factory=list)
    lose: int = 0  # so many next posts are shown, and the reply is lost
    prompts: dict[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)  # the last one for each token
    marked: int = 0
    prompt_count: int = 0
    _waiting: dict[str, list[asyncio.Future[str]]] = field(default_factory=dict)

    def handlers(self) -> Mapping[str, Any]:
        """Return what gateways may call."""
        return {"show": self._show, "find": self._find, "think": self._think}

    async def reply(self, number: str, seconds: float) -> str:
        """Return the first text that replies to a message; "" if there is none after *seconds*."""
        for post in self.posts:
            if post.reply_to == number:
                return post.text
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(number, []).append(future)
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            return ""

    def answers(self, chat: str) -> list[str]:
        """Return the tokens of a chat's answers, as they were shown."""
        return [found[1] for post in self.posts if post.chat == chat and (found := _ANSWER.match(post.text))]

    async def _show(self, chat: str, text: str, part: str, reply_to: str, kind: str, is_marked: bool) -> str:
        post = WirePost(f"p{len(self.posts) + 1}", chat, text, part, reply_to, is_marked)
        self.posts.append(post)
        self.marked += is_marked
        self.truth.show(reply_to, part, is_marked=is_marked)
        if (found := _ANSWER.match(text)) is not None:
            self.truth.answer(chat, found[1], part, is_marked=is_marked)
        for future in self._waiting.pop(reply_to, ()):
            if not future.done():
                future.set_result(text)
        if self.lose:
            self.lose -= 1
            return ""
        return post.id

    async def _find(self, part: str) -> str | None:
        if not self.knows_keys:
            return None
        return next((post.id for post in self.posts if post.part == part), "")

    async def _think(
        self, chat: str, purpose: str, messages: Sequence[Mapping[str, Any]], tools: Sequence[str]
    ) -> Mapping[str, str]:
        where = chat.partition(":")[2].partition("/")[0]
        sent = json.dumps(messages, ensure_ascii=False)
        self.prompt_count += 1
        if purpose != "answer":
            if where:
                self.truth.look(f"{purpose} prompt", where, sent, 0)
            return _summary(str(messages[-1]["content"]), tools)
        tokens = TOKEN.findall(str(messages[-1]["content"]))
        token = tokens[-1] if tokens else ""
        message = next((each for each in self.truth.messages.values() if token and each.token == token), None)
        self.truth.look(f"prompt for {token or 'a message'}", where, sent, message.sent_at if message else 0)
        self.prompts[token] = messages
        number = hashlib.sha256(token.encode()).digest()[0]
        await asyncio.sleep(_SLOWEST * number / 255 if number % _NOT_QUICK == 0 else 0)
        # An answer that mixes two accounts' words would stay with the older one after an unlink.
        words = [word for word in dict.fromkeys(CANARY.findall(sent)) if self.truth.is_of(word, where)][-_ECHOED:]
        return {"text": f"re {token}: I know {' '.join(words)}", "tool": "", "arguments": ""}


def _summary(shown: str, tools: Sequence[str]) -> Mapping[str, str]:
    """Summarise as a good model does: what was known stays, and one new fact comes in a line of its own."""
    memory = shown.partition("Long-term Memory\n")[2].partition("\n\n## Conversation")[0]
    said = [line for line in shown.partition("## Conversation")[2].splitlines() if "] USER" in line]
    words = list(dict.fromkeys(word for line in said for word in CANARY.findall(line)))
    new = [f"- told of {word}" for word in words[:1] if word not in memory]
    kept = [] if memory == "(empty)" else [memory]
    entry = f"[2026-11-22 10:00] They spoke of {', '.join(words) or 'the weather'}."
    name = tools[0] if tools else "save_memory"
    saved = {"history_entry": entry, "memory_update": "\n".join([*kept, *new]) or "- they met"}
    arguments = saved if name == "save_memory" else {"slug": "talk", "summary": entry}
    return {"text": "", "tool": name, "arguments": json.dumps(arguments)}
