"""What is written down about a model server: how it streams, what it refuses, and in which words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from tests.fakes.strict_requests import RequestRule


class Protocol(StrEnum):
    """The API that the server speaks."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    GEMINI = "gemini"
    OLLAMA = "ollama"


class CallForm(StrEnum):
    """How calls come in a stream."""

    PIECES = "pieces"  # id and name first, then the arguments in pieces; every piece has the call's index
    WHOLE = "whole"  # each call in one chunk
    TOGETHER = "together"  # all calls in one chunk
    NO_INDEX = "no_index"  # in pieces, none of which has an index
    INDEX_ZERO = "index_zero"  # each call in one chunk, all with the index 0
    INDEX_TEXT = "index_text"  # in pieces, the index as text
    ID_PER_PIECE = "id_per_piece"  # in pieces, each with an id of its own
    EMPTY_AGAIN = "empty_again"  # in pieces; later ones repeat id and name as empty text
    REPEATED = "repeated"  # whole, and then the same once more
    NAME_IN_TWO = "name_in_two"  # the name in two pieces
    OBJECT = "object"  # arguments as an object
    TEXT = "text"  # written into the answer: the server has no parser for this model
    IGNORED = "ignored"  # tools are accepted, and the model never hears of them


class ReasoningForm(StrEnum):
    """Where the model's reasoning is."""

    NONE = "none"
    CONTENT = "reasoning_content"
    FIELD = "reasoning"
    DETAILS = "reasoning_details"  # with the field `reasoning`
    TAGS = "tags"  # <think>…</think> in the answer
    OPEN_TAG = "open_tag"  # only the end of it: the template has written the start
    PARTS = "parts"  # content as a list with parts of type `thinking`


class EndForm(StrEnum):
    """How a stream ends."""

    DONE = "done"  # a finish reason, then [DONE]
    NO_DONE = "no_done"  # a finish reason, then the end of the response
    NOTHING = "nothing"  # the end of the response


class UsageForm(StrEnum):
    """Where a stream has its token counts."""

    LAST = "last"  # in a chunk of its own, if `stream_options` asks for it
    FINISH = "finish"  # in the chunk with the finish reason
    CHOICE = "choice"  # there, inside the choice
    EVERY = "every"  # in each chunk
    NONE = "none"


class ErrorForm(StrEnum):
    """How a refusal comes."""

    STATUS = "status"
    DATA = "data"  # status 200, then an event with an error in a stream
    EVENT = "event"  # the same, named `error`
    FIELD = "field"  # status 200, then a line `error: {…}`, which is no event at all


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One error. ``%window%``, ``%tokens%`` and ``%key%`` in its text become figures and the key that was sent."""

    status: int
    body: Any = None  # JSON; text is sent as it is; None = no body
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    content_type: str = "application/json"
    form: ErrorForm = ErrorForm.STATUS
    wait: float = 0.0  # seconds that a rate limit lasts, as the header or the text says


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamForm:
    """How an answer is streamed."""

    content_type: str = "text/event-stream"
    calls: CallForm = CallForm.PIECES
    call_id: str = "call_%n%abcdefghijklmnopqrst"  # %n% grows with each call of the server; %i% begins anew each time
    call_finish: str = "tool_calls"
    reasoning: ReasoningForm = ReasoningForm.NONE
    end: EndForm = EndForm.DONE
    usage: UsageForm = UsageForm.LAST
    head: bytes = b""  # sent first: a comment, or a chunk without choices
    keepalive: bytes = b""  # sent again and again during silent reasoning
    silence: float = 0.0  # seconds of it, before the answer to a question
    line_end: bytes = b"\n"
    header_bytes: int = 0  # of one response header
    empty_calls: Any = ()  # what pieces of text have as `tool_calls`; () = no such key
    is_message: bool = False  # `message` in place of `delta`
    more: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))  # fields of every completion


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """One provider or server, with one model. `source` says where each peculiarity is documented or reported."""

    name: str  # of the model in the settings, and of the server's path
    title: str
    model: str  # as litellm names it
    source: str
    protocol: Protocol = Protocol.OPENAI
    path: str = "/v1"  # of the API's address, behind the profile's own path
    stream: StreamForm = field(default_factory=StreamForm)
    refuses: Mapping[RequestRule, Refusal] = field(default_factory=lambda: MappingProxyType({}))
    overflow: Refusal | None = None  # None: what is too long is cut silently
    limit: Refusal | None = None  # None: there is no rate limit
    bad_key: Refusal = field(
        default_factory=lambda: Refusal(status=401, body={"error": {"message": "Invalid API key", "code": 401}})
    )
    is_seeing: bool = True  # the operator has said so; a server that refuses pictures does it all the same
    counts_new_tokens: bool = False  # `prompt_tokens` has only what was not cached
    note: str = ""  # for docs/models.md: what is known of it

    @property
    def has_tools(self) -> bool:
        """The model hears of tools, and its calls arrive as calls."""
        return RequestRule.TOOLS not in self.refuses and self.stream.calls not in (CallForm.TEXT, CallForm.IGNORED)

    @property
    def is_through_litellm(self) -> bool:
        """Litellm's code is between."""
        return not self.model.startswith(("openai/", "litellm_proxy/", "lm_studio/"))
