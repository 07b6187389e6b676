"""A model without network that follows a script: for tests, demonstrations and benchmarks.

`scripted` repeats the last user message; `scripted:<file>` reads a JSON list, whose entries are
texts or objects: ``{"text", "calls": [{"name", "arguments"}], "error", "delay", "tokens"}``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from agent.llm.chat_model import ChatModel, ChatReply, ChatRequest, ModelConfig, Sink, TokenUsage, ToolCall
from gateway.errors import (
    ContextOverflow,
    EmptyModelReply,
    InvalidModelReply,
    ModelFailed,
    ModelRateLimited,
    ModelRefused,
    ModelServerFailed,
    ModelTimeout,
    ModelUnreachable,
    SettingsError,
)

_ERRORS: Mapping[str, type[ModelFailed]] = {
    "busy": ModelRateLimited,
    "unreachable": ModelUnreachable,
    "timeout": ModelTimeout,
    "refused": ModelRefused,
    "server_failed": ModelServerFailed,
    "garbled": InvalidModelReply,
    "empty": EmptyModelReply,
    "overflow": ContextOverflow,
}
_NO_TOKENS = TokenUsage()
_PIECE = 16  # characters a stream grows by


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptEntry:
    """One entry of a script. `delay` is seconds before the answer, or the Retry-After of `busy`."""

    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()  # name, raw arguments
    error: str = ""
    delay: float = 0.0
    tokens: TokenUsage = _NO_TOKENS


Script = Sequence[ScriptEntry] | Callable[[ChatRequest, int], ScriptEntry]


def open_model(config: ModelConfig) -> ChatModel:
    """Return the model that *config.model* names; raise SettingsError when its file cannot be read."""
    _, _, path = config.model.partition(":")
    return ScriptedModel(_read(Path(path).expanduser()) if path else echo, name=config.model)


def echo(request: ChatRequest, _n: int) -> ScriptEntry:
    """Repeat the last user message."""
    said = next((m.get("content") for m in reversed(request.messages) if m.get("role") == "user"), "")
    return ScriptEntry(text=str(said) or "…")


class ScriptedModel:
    """Says the entries of *script* in turn, the last one for ever; `requests` is what it was asked."""

    def __init__(self, script: Script, *, name: str = "scripted") -> None:
        self.name = name
        self.requests: list[ChatRequest] = []
        self._script = script

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Answer at once, or as late as the script says."""
        self.requests.append(request)
        n = len(self.requests)
        entry = self._script(request, n) if callable(self._script) else self._script[min(n, len(self._script)) - 1]
        if entry.error:
            raise self._failure(entry)
        if entry.delay:
            await asyncio.sleep(entry.delay)
        if not entry.text and not entry.calls:
            raise EmptyModelReply(f"{self.name}: the script has no more answers")
        if sink is not None and entry.text:
            for end in range(_PIECE, len(entry.text) + _PIECE, _PIECE):
                sink(entry.text[:end])
        calls = tuple(ToolCall(f"call_{n}_{i}", name, arguments) for i, (name, arguments) in enumerate(entry.calls))
        return ChatReply(text=entry.text, tool_calls=calls, model=self.name, tokens=entry.tokens, cost=None)

    async def warm(self) -> None:
        """Nothing to load."""

    async def close(self) -> None:
        """Nothing to close."""

    def _failure(self, entry: ScriptEntry) -> ModelFailed:
        if entry.error == "busy":
            return ModelRateLimited(f"{self.name}: busy", timedelta(seconds=entry.delay) if entry.delay else None)
        return _ERRORS[entry.error](f"{self.name}: {entry.error}")


def _read(path: Path) -> tuple[ScriptEntry, ...]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        script = tuple(_entry(entry) for entry in entries)
    except OSError as error:
        raise SettingsError(f"llm.model: cannot read the script {path}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise SettingsError(f"llm.model: {path} is not a script, a JSON list of texts or objects ({error})") from error
    if not script:
        raise SettingsError(f"llm.model: the script {path} is empty; give it at least one answer")
    return script


def _entry(entry: str | Mapping[str, Any]) -> ScriptEntry:
    if isinstance(entry, str):
        return ScriptEntry(text=entry)
    known = dict(entry)
    calls = tuple((call["name"], _arguments(call.get("arguments", {}))) for call in known.pop("calls", ()))
    tokens = TokenUsage(*known.pop("tokens", ()))
    if known.get("error", "") not in {"", *_ERRORS}:
        raise ValueError(f"unknown error {known['error']!r}")
    return ScriptEntry(calls=calls, tokens=tokens, **known)


def _arguments(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)
