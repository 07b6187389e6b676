"""What the commands ask about a person's rights: how much is kept, by which rules, who reads it, and having it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from agent.memory.privacy.data_inventory import ScopeInventory, count_scope
from agent.memory.privacy.export_jobs import ExportJobs


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyFacts:
    """What the operator decided, as far as it is about what is kept and who reads it."""

    models: tuple[str, ...] = ()  # that are sent conversations; none = nothing leaves the machine
    listens: str = ""  # the model that is sent voice messages
    embeds: str = ""  # the model that is sent what is to be found by meaning
    retention_days: int = 0  # 0 = kept until somebody has it forgotten
    has_uploads: bool = False  # files can be added on the page


class PrivacyService:
    """Everything is of one scope, which comes from the event."""

    def __init__(self, home: Path, facts: PrivacyFacts, exports: ExportJobs) -> None:
        self._home = home
        self.facts = facts
        self.exports = exports

    async def account(self, scope: str) -> ScopeInventory:
        """Count what is kept in *scope*."""
        await self.exports.flush()
        return await asyncio.to_thread(count_scope, self._home, scope)
