"""The model used when none is configured: it has no network and the same tools as any other.

Its first answer in a conversation explains how to configure a model, unless an earlier answer did.
"""

from __future__ import annotations

import json
import re

from agent.llm.chat_model import ChatModel, ChatReply, ChatRequest, ModelConfig, Sink, TokenUsage, ToolCall
from agent.tools.memory_tools import NOTHING, REMEMBERED, facts_in
from gateway.errors import ModelRefused
from gateway.i18n import LANGUAGES, translate
from gateway.installation import operator_command

_HEAD = re.compile(r"\A\[[^\]\n]*\]\s*")  # when and who, as a user line may begin
NAME = "offline"
_ORDER = re.compile(r"(please\s+)?remember\b(\s+that\b)?[\s:,]*", re.IGNORECASE)


def open_model(config: ModelConfig) -> ChatModel:
    """Return the offline model; nothing of *config* matters but its name."""
    return OfflineModel(config.model or NAME)


class OfflineModel:
    """Stores facts on request, searches memory for everything else, and says that it can do no more."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Call a memory tool first, then put its result into words. Reads nothing but the request."""
        if request.purpose != "answer":
            raise ModelRefused(f"{self.name}: answers messages only; it cannot do {request.purpose}")
        last = max((n for n, m in enumerate(request.messages) if m["role"] == "user"), default=-1)
        said = _HEAD.sub("", str(request.messages[last]["content"])).strip() if last >= 0 else ""
        command = operator_command("init")
        setup = "" if _is_told(request, command) else _setup_line(request.language, command)
        if any(said == translate("web.try_help", language) for language in LANGUAGES):
            return self._reply(f"{translate('offline.abilities', request.language)}\n\n{setup}".strip(), sink)
        order = None if said.endswith("?") else _ORDER.match(said)
        fact = said[order.end() :] if order else ""
        name, arguments = ("remember", {"fact": fact}) if fact else ("memory_search", {"query": said})
        results = [str(m["content"]) for m in request.messages[last + 1 :] if m["role"] == "tool"]
        if said and not results and any(tool["function"]["name"] == name for tool in request.tools):
            call = ToolCall(f"{request.turn}-{len(request.messages)}", name, json.dumps(arguments, ensure_ascii=False))
            return ChatReply(text="", tool_calls=(call,), model=self.name, tokens=TokenUsage(), cost=0.0)
        text = _answer_text(fact, results[-1] if results else "error: ", request.language, setup)
        return self._reply(text, sink)

    def _reply(self, text: str, sink: Sink | None) -> ChatReply:
        if sink is not None:
            for words in re.finditer(r"(?:\S+\s*){1,4}", text):
                sink(text[: words.end()])
        return ChatReply(text=text, tool_calls=(), model=self.name, tokens=TokenUsage(), cost=0.0)

    def price(self, tokens: TokenUsage) -> float | None:  # noqa: ARG002 - the protocol's signature
        """Return 0: it calls no provider."""
        return 0.0

    async def warm(self) -> None:
        """Nothing to load."""

    async def close(self) -> None:
        """Nothing to close."""


def is_offline(name: str) -> bool:
    """Return True if *name* is this model's, whatever follows its colon."""
    return name.partition(":")[0] == NAME


def hint(language: str) -> str:
    """Return the line that names the question to which this model has an answer; the page suggests it."""
    return translate("offline.hint", language, question=translate("web.try_help", language))


def _setup_line(language: str, command: str) -> str:
    """Return the ways to a model: the button of the page, which owners see there, and the command."""
    return translate("offline.setup", language, command=command, button=translate("web.connect", language))


def _is_told(request: ChatRequest, command: str) -> bool:
    return any(m["role"] == "assistant" and command in str(m["content"]) for m in request.messages)


def _answer_text(fact: str, result: str, language: str, setup: str) -> str:
    if fact and result == REMEMBERED:
        return translate("offline.remembered", language, fact=fact)
    if fact:
        return translate("offline.not_remembered", language)
    ending = f"{translate('offline.no_model', language)} {setup}" if setup else ""
    if result.startswith("error: "):
        return f"{translate('offline.not_searched', language)} {ending}".strip()
    facts = [] if result.startswith(NOTHING) else facts_in(result)
    if facts:
        found = translate("offline.found", language, hits="\n".join(f"- {line}" for line in facts))
        return f"{found}\n\n{ending}".strip()
    return f"{translate('offline.nothing', language)} {ending or hint(language)}"
