"""What commands see of the house, over the ports; the composition root gives it its pool last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agent.pool import Pool
from gateway.events import InboundMessage, Role, SessionKey
from gateway.ports import AcceptedAs, InboxRow, Journal, Lease, People, Sessions, ShownLine, Usage


@dataclass(slots=True, kw_only=True)
class AgentHouse:
    """Implements `agent.commands.House`."""

    journal: Journal
    sessions: Sessions
    people: People
    sums: Usage
    default_zone: str
    facts: Callable[[], Mapping[str, Any]]  # version, model, uptime_seconds, workers
    pool: Pool | None = None  # the pool runs the commands that ask for it, so it is built after

    async def stop(self, key: SessionKey, *, sender: str) -> tuple[bool, int]:
        """Stop turn and queue; an empty sender means everybody's."""
        if self.pool is None:
            return False, await self.journal.drop(key, sender=sender)
        return await self.pool.stop(key, sender=sender)

    async def waiting(self, key: SessionKey) -> tuple[InboxRow, ...]:
        """Return what waits in the chat, the running turn's rows included."""
        return await self.journal.waiting(key)

    def running(self, key: SessionKey) -> Lease | None:
        """Return the turn at work."""
        running = self.pool.running(key) if self.pool else None
        return running.lease if running else None

    def doing(self, key: SessionKey) -> str:
        """Return the tool at work, or an empty string."""
        running = self.pool.running(key) if self.pool else None
        return running.doing if running else ""

    async def shown(self, key: SessionKey, *, limit: int) -> tuple[ShownLine, ...]:
        """Return what people saw."""
        return await self.sessions.shown(key, limit=limit)

    async def accept(self, message: InboundMessage, role: Role) -> bool:
        """Put a synthetic row in the lane; False when the lane is full."""
        accepted = await self.journal.accept(message, role=role, is_control=False)
        return accepted.outcome is not AcceptedAs.FULL

    async def usage(self, *, since: datetime, person: str = "", chat: str = "") -> Sequence[Mapping[str, Any]]:
        """Return sums over usage rows."""
        return await self.sums.totals(since=since, person=person, chat=chat)

    async def prefer(self, subject: str, name: str, value: str) -> None:
        """Store a choice of a person or chat."""
        await self.people.prefer(subject, name, value)

    def zone(self, scope: str) -> str:
        """Return the IANA time zone in force in *scope*."""
        return self.people.preferences(scope).get("timezone", self.default_zone)

    async def status(self) -> Mapping[str, Any]:
        """Return the facts of /status."""
        depth = await self.journal.depth()
        return {**self.facts(), "busy": self.pool.busy if self.pool else 0, "queued": depth["queued"]}
