"""Service behind `/privacy` and `/export`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from agent.memory.privacy.data_inventory import ScopeInventory, count_scope
from agent.memory.privacy.export_jobs import ExportJobs


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyFacts:
    """Settings about stored data and the models that receive it."""

    models: tuple[str, ...] = ()  # remote models that receive conversations
    listens: str = ""  # the model that receives voice messages
    embeds: str = ""  # the model that receives texts for vector search
    retention_days: int = 0  # 0 = no limit
    has_uploads: bool = False  # files can be uploaded on the page


class PrivacyService:
    """Counts and exports the data of a scope, which comes from the event."""

    def __init__(self, home: Path, facts: PrivacyFacts, exports: ExportJobs) -> None:
        self._home = home
        self.facts = facts
        self.exports = exports

    async def count(self, scope: str) -> ScopeInventory:
        """Count the data of *scope*."""
        await self.exports.flush()
        return await asyncio.to_thread(count_scope, self._home, scope)
