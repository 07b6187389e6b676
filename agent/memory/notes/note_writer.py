"""Base of the note writers of [002]: a workspace's memory folder, a model, and a clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from agent.memory.model_calls import LlmProvider, call_provider
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import utc_now

DEADLINE = timedelta(seconds=60)


class NoteWriter:
    """Writes into `memory/` by asking a model. Times are of *zone*; *deadline* is that of a call."""

    def __init__(
        self,
        workspace: Path,
        provider: LlmProvider,
        model: str,
        *,
        zone: str = "UTC",
        deadline: timedelta = DEADLINE,
        disk: Disk | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self.memory_dir = Path(workspace) / "memory"
        self.provider = provider
        self.model = model
        self._zone = zone
        self._deadline = deadline
        self._disk = disk or Disk()
        self._now = now

    def _local_now(self) -> datetime:
        return self._now().astimezone(ZoneInfo(self._zone))

    async def _ask(self, *attempts: tuple[str, str, Mapping[str, Any]]) -> Any:
        """Return the response to the first attempt that the provider accepts, or UnusableAnswer. Never raises.

        An attempt is a system prompt, a text, and further arguments of `chat`.
        """
        asked = [
            {"messages": [{"role": "system", "content": system}, {"role": "user", "content": text}], **more}
            for system, text, more in attempts
        ]
        return await call_provider(self.provider, self.model, asked, deadline=self._deadline)
