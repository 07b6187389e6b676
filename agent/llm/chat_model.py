"""Chat models as the agent sees them: one request in, one reply or one error out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeAlias, runtime_checkable

from gateway.errors import ModelAbility, ModelFailed
from gateway.events import PlatformAccount
from gateway.net.addresses import hide_password

Sink: TypeAlias = Callable[[str], None]  # takes the full text so far; the last one wins

# 40 parts of Telegram's 4,096: a longer text is no answer any more (docs/guarantees.md).
ANSWER_CHARS = 150_000


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool the model wants run. `arguments` is the model's raw JSON, valid or not."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of one call. `cached` is the part of `input` that the provider read from its prompt cache."""

    input: int = 0
    output: int = 0
    cached: int = 0
    is_estimate: bool = False  # the provider gave no figures; characters / 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One call.

    `messages` are OpenAI's; an assistant message may also carry `thinking` exactly as a `ChatReply`
    had it, which goes to the model it came from and to no other. Keys are sent in the order given,
    so that equal messages are equal bytes.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: str | Mapping[str, Any] = ""  # OpenAI's; "" = the model decides
    turn: str
    purpose: str = "answer"
    account: PlatformAccount | None = None  # charged with the call; None: background work
    chat: str = ""
    weight: int = 0  # what messages and tools are reckoned at (agent/base/transcript_lines.py); 0 = nobody reckoned
    max_tokens: int | None = None
    effort: str = ""  # how long the model thinks: none, low, medium or high; "" = as the provider has it
    language: str = "en"  # of the chat, for a model whose words are ours (agent/tools/offline_model.py)
    without: frozenset[ModelAbility] = frozenset()  # what the model lacks and is not sent; ModelClient sets it


class ReplyEnding(StrEnum):
    """The end of a text."""

    COMPLETE = "complete"
    LENGTH = "length"  # the model's limit of tokens, or `ANSWER_CHARS`
    FILTERED = "filtered"  # by its provider
    REPEATED = "repeated"  # the text repeated itself; one copy is left
    BROKEN = "broken"  # an error, or the end of the connection


@dataclass(frozen=True, slots=True)
class WrittenCalls:
    """Tool calls that a model wrote as text. The author of any text that it reads can have it write some."""

    calls: tuple[ToolCall, ...]  # without ids; () = they cannot be read
    is_whole: bool  # nothing else stands in the answer
    is_expected: bool  # the model wrote its calls so when it was tried


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReply:
    """A model's reply: text, tool calls or both; never empty.

    Text is valid Unicode (no lone surrogates) and at most `ANSWER_CHARS` long; it has no thinking in it.
    """

    text: str
    tool_calls: tuple[ToolCall, ...]
    model: str  # as configured, so that usage rows and prices agree
    tokens: TokenUsage
    cost: float | None  # US dollars; None = unknown
    # What the provider wants back, for the model that made it only: {"model": its name, "message": keys of the message,
    # "calls": [keys of each call, by its position in `tool_calls`]}; the last two may be missing.
    thinking: Mapping[str, Any] | None = None
    ending: ReplyEnding = ReplyEnding.COMPLETE
    # Calls in the text, which is "" then: not run but by agent/turns/agent_loop.py, and never shown.
    written: WrittenCalls | None = None

    @property
    def is_cut(self) -> bool:
        """The text is not all that the model would have said."""
        return self.ending is not ReplyEnding.COMPLETE


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One model as the operator configured it. Times are seconds."""

    model: str
    label: str = ""  # the name that the settings have for it; "" = its own
    api_base: str = ""
    api_key: str = ""
    timeout: float = 120.0  # for a whole plain answer, and for the first piece of a streamed one
    stream_silence: float = 30.0  # between two pieces
    context_window: int | None = None
    vision: str = "auto"  # auto, on or off: whether it looks at pictures
    prices: tuple[float, float] | None = None  # US dollars of a million tokens in and out; None = litellm's table
    proxy: str = ""  # for gateway.net; may hold a password
    client: str = "auto"  # litellm = always through it; auto = our own where the server speaks OpenAI's protocol

    def __repr__(self) -> str:
        """Never show the key."""
        return f"ModelConfig(model={self.model!r}, api_base={hide_password(self.api_base)!r})"


@runtime_checkable
class SupportsVision(Protocol):
    """A model that can say if it accepts pictures. A model without this protocol gets none."""

    async def sees(self) -> bool:
        """Return True if requests may contain pictures. Does not block the event loop."""


@runtime_checkable
class SupportsFacts(Protocol):
    """A model of which is kept what it has shown to take and to lack."""

    writes_calls_as_text: bool  # as its trial has shown; ModelClient sets it

    @property
    def kept_as(self) -> str:
        """The name under which that is kept: the model's own, and a digest of its server's address."""


@runtime_checkable
class SupportsContextWindow(Protocol):
    """A model that knows the size of its context window."""

    @property
    def sized_as(self) -> str:
        """The name under which that is kept: servers of the operator's may call different models the same."""

    async def window(self) -> int | None:
        """Return the tokens of prompt and answer together, or None if unknown. Does not block the event loop."""


Price: TypeAlias = Callable[[TokenUsage], float | None]  # US dollars; None = the model has no known price


@runtime_checkable
class SupportsPrice(Protocol):
    """A model that knows its price before a call. The calls of others cost what their replies say."""

    def price(self, tokens: TokenUsage) -> float | None:
        """Return US dollars, or None if unknown. Call `warm` first: it loads the prices."""


class ChatModel(Protocol):
    """A model. Stateless between calls; calls may run side by side."""

    name: str

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Return the model's reply; raise only errors of the `ModelFailed` tree.

                One call makes one request, without retries. With *sink* the answer is streamed: *sink* is called
        with the full text so far, now and then and once more at the end. The error carries the usage of
        a failed call (`usage_of_error`).
        """

    async def warm(self) -> None:
        """Load what the first call would otherwise wait for, off the event loop; safe to call again."""

    async def close(self) -> None:
        """Close connections. Calls still running fail."""


def attach_usage(error: ModelFailed, reply: ChatReply) -> ModelFailed:
    """Note on *error* what the failed call took: *reply* as far as it came. Returns *error*."""
    error.spent = reply
    return error


def usage_of_error(error: ModelFailed) -> ChatReply | None:
    """Return the known or estimated usage of a failed call, or None."""
    return error.spent if isinstance(error.spent, ChatReply) else None


def estimate(request: ChatRequest, text: str = "") -> TokenUsage:
    """Guess the tokens of a call that ended without figures: a token is about four characters."""
    parts = [*map(_without_bytes, request.messages), *request.tools]
    sent = sum(len(json.dumps(part, ensure_ascii=False, default=str)) for part in parts)
    return TokenUsage(input=sent // 4, output=(len(text) + 3) // 4, is_estimate=True)


_PICTURE = {"type": "image_url", "image_url": {"url": "." * 4_000}}  # about a thousand tokens, however many bytes


def _without_bytes(message: Mapping[str, Any]) -> Mapping[str, Any]:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    is_picture = [isinstance(part, Mapping) and part.get("type") == "image_url" for part in content]
    return {**message, "content": [_PICTURE if is_p else part for part, is_p in zip(content, is_picture, strict=True)]}
