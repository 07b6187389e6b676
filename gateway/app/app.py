"""Everything that was built, as a whole: what is started, asked and stopped."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from agent.house import AgentHouse
from agent.llm.choices import Models
from agent.llm.client import ModelClient
from agent.memory.dream.dreamer import Dreamer
from agent.memory.files.projector import Projector
from agent.memory.links.linker import Linker
from agent.memory.search.recall import Recall
from agent.memory.sessions import StoredSessions
from agent.memory.work.background import Background
from agent.memory.work.jobs import MemoryJobs
from agent.pool import Pool
from gateway.app.addressee import addressee, is_private
from gateway.app.alerts import AlertDesk
from gateway.app.people import PeopleDesk
from gateway.app.second_tries import SecondTries
from gateway.delivery import Deliverer
from gateway.errors import UserMistake
from gateway.events import InboundKind, InboundMessage, Role, SessionKey, turn_id
from gateway.home import Home
from gateway.intake import GatewayIntake
from gateway.people.caps import Ledger
from gateway.people.refusals import RefusalLog
from gateway.ports import (
    Channel,
    Store,
    Verdict,
)
from gateway.services import Supervisor
from gateway.settings import Settings
from gateway.web.metrics import PrometheusMeter
from gateway.web.server import WebServer

_MOST_DELAYED = 20  # chats that operators are shown


@dataclass(slots=True, kw_only=True)
class App:
    """Everything that was built, for `run`, for the control socket and for tests."""

    settings: Settings
    home: Home
    store: Store
    meter: PrometheusMeter
    pool: Pool
    house: AgentHouse
    intake: GatewayIntake
    sessions: StoredSessions
    projector: Projector
    recall: Recall
    memory_jobs: MemoryJobs
    linker: Linker
    background: Background
    dreamer: Dreamer
    deliverer: Deliverer
    model: ModelClient  # the usual one
    models: Models
    refusals: RefusalLog
    caps: Ledger
    alerts: AlertDesk
    people: PeopleDesk
    channels: Mapping[str, Channel]
    kinds: Mapping[str, str]  # block name -> platform kind
    supervisor: Supervisor
    second_tries: SecondTries
    web: WebServer
    started_at: float = field(default_factory=time.monotonic)

    def readiness(self) -> Mapping[str, bool | None]:
        """Return the channels' states, for /readyz and operators."""
        return self.supervisor.states()

    async def work(self) -> Mapping[str, Any]:
        """Return how the work beside the turns stands, and what models took today, for operators."""
        work: dict[str, Any] = {"alerts": await self.alerts.told()}
        delayed = self.deliverer.delayed()
        work |= {"delayed_chats": len(delayed), "delayed": delayed[:_MOST_DELAYED]}
        if self.channels:
            work["page"] = self.web.url
        work |= {"jobs": await self.background.work(), "background_budget": await self.background.budget()}
        zone, now = self.settings.timezone, datetime.now(UTC)
        midnight = now.astimezone(ZoneInfo(zone)).replace(hour=0, minute=0, second=0, microsecond=0)
        work["today"] = await self.store.usage.by("day", since=midnight, until=now, zone=zone)
        waits = self.people.pairing.waiting()
        places = sum(each.is_place for each in waits)
        work["waits"] = {"people": len(waits) - places, "places": places}
        trouble = self.recall.trouble()
        return {**work, "search": f"by words alone: {trouble}"} if trouble else work

    @asynccontextmanager
    async def still(self) -> AsyncIterator[None]:
        """Hold while nothing may write files: what was committed is projected first, then jobs and projector wait."""
        async with self.memory_jobs.still(), self.projector.still():
            yield

    async def submit(self, key: SessionKey, text: str) -> str:
        """Accept *text* as a job of ours in the session *key*; return its turn's id. Raises UserMistake."""
        if key.channel not in self.kinds:
            known = ", ".join(sorted(self.kinds))
            raise UserMistake(f"there is no channel called {key.channel}; there are: {known}")
        sessions = await self.store.records.sessions()
        chat_kind, sender = addressee(key, self.kinds[key.channel], sessions)
        message = InboundMessage(
            key=key,
            message_id=f"job:send/{secrets.token_hex(8)}",
            sender=sender,
            text=text,
            sent_at=datetime.now(UTC),
            kind=InboundKind.JOB,
            chat_kind=chat_kind,
            is_private=is_private(key, sessions),
        )
        accepted = await self.intake.accept(message, Role.OWNER)
        if accepted.verdict is Verdict.FULL:
            raise UserMistake(f"{key} has too many messages waiting; try again when some are answered")
        return turn_id(message)
