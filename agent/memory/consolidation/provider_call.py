"""Asking a provider, as [001] has them: anything with an async `chat`. One deadline per call; never raises."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Protocol

import structlog

from agent.memory.consolidation.answer import ConsolidationAnswer, UnusableAnswer, parse_answer
from agent.memory.consolidation.consolidation_prompt import TOOL_CHOICE, messages, messages_without_tools, tools
from gateway.errors import ContextOverflow, ModelRateLimited, ModelRefused, ModelTimeout, ModelUnreachable

log = structlog.get_logger(__name__)

TOO_LONG = "the prompt is too long"  # the reason of an Unusable that asking again does not mend
_NOT_NOW = (TimeoutError, OSError, ModelRateLimited, ModelUnreachable, ModelTimeout)
_REFUSED = (ModelRefused, TypeError, ValueError, NotImplementedError)
_ABOUT_TOOLS = re.compile(r"tool|\b400\b|bad.?request|unsupported|not support|invalid", re.IGNORECASE)


class LlmProvider(Protocol):
    """What the seeds call an LLMProvider."""

    async def chat(self, **asked: Any) -> Any:
        """Take `messages`, `model`, `tools` and `tool_choice`; return `.content` and `.tool_calls`."""
        ...


async def request_consolidation(
    provider: LlmProvider, model: str, memory: str, lines: Sequence[str], *, deadline: timedelta
) -> ConsolidationAnswer | UnusableAnswer:
    """Return what the model makes of the conversation.

    The tool is forced; a provider that refuses that is asked with `auto`, and one that refuses tools without them.
    """
    response = await call_provider(provider, model, _attempts(memory, lines), deadline=deadline)
    if isinstance(response, UnusableAnswer):
        return response
    return parse_answer(getattr(response, "content", None), getattr(response, "tool_calls", None))


async def call_provider(
    provider: LlmProvider, model: str, attempts: Iterable[dict[str, Any]], *, deadline: timedelta
) -> Any:
    """Return the provider's response to the first of *attempts* that it does not refuse; Unusable when there is none.

    An attempt is what `chat` takes. What is no refusal (busy, unreachable, too late) ends the matter for now.
    """
    refused = ""
    for attempt in attempts:
        try:
            async with asyncio.timeout(deadline.total_seconds()):
                response = await provider.chat(model=model, **attempt)
        except _NOT_NOW as error:
            log.warning("consolidation.not_now", error=type(error).__name__)
            return UnusableAnswer(type(error).__name__)
        except ContextOverflow:
            return UnusableAnswer(TOO_LONG)
        except Exception as error:  # noqa: BLE001 - the provider's boundary: its libraries raise whatever they like
            if type(error).__name__ == "ContextWindowExceededError":  # litellm's own, in the hands of a library
                return UnusableAnswer(TOO_LONG)
            if not isinstance(error, _REFUSED) and not _ABOUT_TOOLS.search(f"{type(error).__name__} {error}"):
                # No trace and no text of it: providers quote what they were sent.
                log.warning("consolidation.provider_failed", error=type(error).__name__)
                return UnusableAnswer(type(error).__name__)
            refused = type(error).__name__
            continue
        if getattr(response, "finish_reason", None) == "error":  # some return what others raise
            refused = "the provider's error"
            if _ABOUT_TOOLS.search(str(getattr(response, "content", None))):
                continue
            return UnusableAnswer(refused)
        return response
    log.warning("consolidation.refused", error=refused)
    return UnusableAnswer(f"refused: {refused}")


def _attempts(memory: str, lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    yield {"messages": messages(memory, lines), "tools": tools(), "tool_choice": dict(TOOL_CHOICE)}
    yield {"messages": messages(memory, lines), "tools": tools(), "tool_choice": "auto"}
    yield {"messages": messages_without_tools(memory, lines)}
