"""What the commands ask about a person's rights: how much is kept, by which rules, who reads it, and having it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from agent.memory.rights.export import Exports
from agent.memory.rights.inventory import Account, account


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the operator decided, as far as it is about what is kept and who reads it."""

    models: tuple[str, ...] = ()  # that are sent conversations; none = nothing leaves the machine
    listens: str = ""  # the model that is sent voice messages
    embeds: str = ""  # the model that is sent what is to be found by meaning
    retention_days: int = 0  # 0 = kept until somebody has it forgotten
    has_uploads: bool = False  # files can be added on the page


class RightsDesk:
    """Everything is of one scope, which comes from the event."""

    def __init__(self, home: Path, facts: Facts, exports: Exports) -> None:
        self._home = home
        self.facts = facts
        self.exports = exports

    async def account(self, scope: str) -> Account:
        """Count what is kept in *scope*."""
        await self.exports.flush()
        return await asyncio.to_thread(account, self._home, scope)
