"""Usage records of model calls: opened before a call, closed with its usage however it ended."""

from __future__ import annotations

from typing import Protocol

from agent.llm.chat_model import ChatReply, ChatRequest


class CallRecord(Protocol):
    """The open usage record of one call."""

    def end(self, usage: ChatReply | None, *, was_refused: bool = False) -> None:
        """Close the record with its usage; None = unknown usage.

        Unknown usage costs an unknown amount, unless the request *was_refused*: the provider bills nothing for it.
        """
        ...


class UsageRecorder(Protocol):
    """Records every request to every model, once per request that is sent."""

    def begin_call(self, request: ChatRequest, model: str) -> CallRecord:
        """Open the record of a call to *model*. Raises CapReached if a usage cap would be exceeded."""
        ...
