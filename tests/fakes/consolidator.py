"""Providers as the seeds have them: an async `chat` that calls `save_memory`, or does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

ENTRY = "[2026-03-06 14:20] Created FastAPI server with basic routes."


def saving(memory_update: str, history_entry: str = ENTRY) -> SimpleNamespace:
    """Return a response that calls the tool as it should."""
    arguments = {"history_entry": history_entry, "memory_update": memory_update}
    call = SimpleNamespace(name="save_memory", arguments=arguments)
    return SimpleNamespace(content=None, tool_calls=[call])


class ScriptedProvider:
    """Gives the responses of its script in turn, the last one for ever; raises those that are exceptions.

    A response may be a function of the prompt. `asked` keeps what it was asked.
    """

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.asked: list[dict[str, Any]] = []

    async def chat(self, **asked: Any) -> Any:
        """Answer."""
        self.asked.append(asked)
        response = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(response, BaseException):
            raise response
        return response(self.prompt) if callable(response) else response

    @property
    def prompt(self) -> str:
        """What the user's message of the last call said."""
        return str(self.asked[-1]["messages"][-1]["content"])


class SlowProvider(ScriptedProvider):
    """Waits in every call until it is let go; does *meanwhile* when it is called."""

    def __init__(self, *script: Any, meanwhile: Callable[[], None] | None = None) -> None:
        super().__init__(*script)
        self.is_asked = asyncio.Event()
        self.go_on = asyncio.Event()
        self._meanwhile = meanwhile
        if meanwhile is not None:
            self.go_on.set()

    async def chat(self, **asked: Any) -> Any:
        """Wait, then answer."""
        self.is_asked.set()
        if self._meanwhile is not None:
            self._meanwhile()
        await self.go_on.wait()
        return await super().chat(**asked)
