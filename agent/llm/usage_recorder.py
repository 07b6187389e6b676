"""Where model calls are accounted for: opened before one is made, closed with what it took, however it ended."""

from __future__ import annotations

from typing import Protocol

from agent.llm.chat_model import ChatReply, ChatRequest


class CallRecord(Protocol):
    """A call under way."""

    def end(self, spent: ChatReply | None, *, was_refused: bool = False) -> None:
        """Close it with what it took; None = nothing that is known of.

        What that cost is unknown, unless it *was_refused*: then the provider did nothing, and bills nothing.
        """
        ...


class UsageRecorder(Protocol):
    """Every call of every model goes through them, once per request that leaves the house."""

    def begin_call(self, request: ChatRequest, model: str) -> CallRecord:
        """Open a call to *model*. Raises CapReached (gateway/ports/caps.py) when a cap has no room for it."""
        ...
