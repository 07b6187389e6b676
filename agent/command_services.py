"""What commands see of the house, over the ports; the composition root gives it its pool last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agent.chat_profiles import ChatProfiles, EffectiveSetting
from agent.memory.account_links.link_offers import AccountLinkService
from agent.memory.consolidation.raw_archive import archive_now
from agent.memory.dream.dream_service import DreamService
from agent.memory.editing.staged_changes import StagedChangeStore
from agent.memory.erasure.erase_service import EraseService
from agent.memory.jobs.job_runner import JobRunner
from agent.memory.privacy.privacy_service import PrivacyService
from agent.memory.storage import transcript_lines as build
from agent.memory.versioning.memory_service import MemoryService
from agent.turn import RunningTurn
from agent.worker_pool import WorkerPool
from gateway.events import InboundMessage, OutboundKind, Role, SessionKey
from gateway.ports import (
    AcceptOutcome,
    DisplayedMessage,
    InboxRow,
    Job,
    Journal,
    LocaleProvider,
    MessageOutcome,
    Outbox,
    PreferenceStore,
    SearchIndex,
    SessionReader,
    TurnRecord,
    TurnRecordStore,
    UsageStore,
)
from gateway.ports.access import AccessControl
from gateway.ports.caps import CapAllowance, UsageCaps
from gateway.ports.pairing import PairingRequests

_ANSWER = OutboundKind.ANSWER


@dataclass(slots=True, kw_only=True)
class AgentCommandServices:
    """Implements `agent.commands.House`."""

    journal: Journal
    outbox: Outbox
    records: TurnRecordStore
    sessions: SessionReader
    people: PreferenceStore
    sums: UsageStore
    recall: SearchIndex
    memory: MemoryService
    forgetter: EraseService
    staging: StagedChangeStore
    rights: PrivacyService
    linking: AccountLinkService
    access: AccessControl
    dreams: DreamService
    pairing: PairingRequests
    locales: LocaleProvider
    profiles: ChatProfiles
    settings: Callable[[SessionKey, str, str], Sequence[EffectiveSetting]]  # of a chat, its guild and scope
    now: Callable[[], datetime]
    facts: Callable[[], Mapping[str, Any]]  # version, uptime_seconds, workers
    pool: WorkerPool | None = None  # the pool runs the commands that ask for it, so it is built after
    background: JobRunner | None = None  # as the pool
    caps: UsageCaps | None = None  # without, nobody is under any
    day_zone: str = "UTC"  # whose days caps and sums go by
    new_waits: bool = False  # /new answers when its archive is summarised [000]

    def in_force(self, key: SessionKey, guild: str, scope: str) -> Sequence[EffectiveSetting]:
        """Return what is in force in the chat, and who decided it."""
        return self.settings(key, guild, scope)

    async def stop(self, key: SessionKey, *, sender: str) -> tuple[bool, int]:
        """Stop turn and queue; an empty sender means everybody's."""
        if self.pool is None:
            return False, await self.journal.drop(key, sender=sender)
        stopped, dropped = await self.pool.stop(key, sender=sender)
        # Whose answer is on its way is not in the outbox, so only who may stop everybody's stops that.
        if not stopped and not sender:
            stopped = await self._hold_back(key)
        return stopped, dropped

    async def stop_in_threads(self, chat: SessionKey, *, sender: str) -> tuple[bool, int]:
        """Stop what *sender* has in the threads of *chat*."""
        return (False, 0) if self.pool is None else await self.pool.stop_in_threads(chat, sender=sender)

    async def _hold_back(self, key: SessionKey) -> bool:
        """Keep what is not on its way yet of answers under delivery; the transcript says what was shown."""
        held_back = False
        turns = {each.message.turn for each in await self.outbox.undelivered(key) if each.message.kind is _ANSWER}
        for turn in sorted(turns):
            shown = await self.outbox.cancel(turn)
            session = await self.journal.session(key)
            record = TurnRecord(
                turn=f"{turn}.cut",
                key=key,
                transcript=session.transcript,
                scope=session.scope,
                outcome=MessageOutcome.STOPPED,
                lines=(build.cut(turn, shown),),
                from_index=session.next_index,
                to_index=session.next_index,
                inbox=(),
                at=self.now(),
            )
            await self.records.append(record)
            held_back = True
        return held_back

    async def waiting_messages(self, key: SessionKey) -> tuple[InboxRow, ...]:
        """Return what waits in the chat, the running turn's rows included."""
        return await self.journal.waiting_rows(key)

    def running(self, key: SessionKey) -> RunningTurn | None:
        """Return the running turn."""
        return self.pool.running(key) if self.pool else None

    async def archive(self, job: Job) -> bool:
        """Do a `summarise` job now where /new is to wait for it; False when it failed and nothing may be cleared."""
        if not self.new_waits or self.background is None or not self.background.can_do(job.kind):
            return True
        return await archive_now(job, self.background.do, self.background.jobs)

    async def displayed_messages(self, key: SessionKey, *, limit: int) -> tuple[DisplayedMessage, ...]:
        """Return what people saw."""
        return await self.sessions.displayed_messages(key, limit=limit)

    async def accept(self, message: InboundMessage, role: Role) -> bool:
        """Put a synthetic row in the lane; False when the lane is full."""
        accepted = await self.journal.accept(message, role=role, is_control=False)
        return accepted.outcome is not AcceptOutcome.FULL

    async def usage(self, *, since: datetime, person: str = "", chat: str = "") -> Sequence[Mapping[str, Any]]:
        """Return sums over usage rows."""
        accounts = [each.identity for each in self.linking.accounts(self.linking.person(person))] or [person]
        sums = [await self.sums.totals(since=since, person=each, chat=chat) for each in accounts]
        return [row for each in sums for row in each]

    def allowances(self, row: InboxRow, person: str) -> Sequence[CapAllowance]:
        """Return how the sender of *row* stands with the caps that they are under."""
        return self.caps.allowances(row.message, person) if self.caps else ()

    async def prefer(self, subject: str, name: str, value: str) -> None:
        """Store a choice of a person or chat."""
        await self.people.prefer(subject, name, value)

    def zone(self, scope: str) -> str:
        """Return the IANA time zone in force in *scope*."""
        return self.locales.zone(scope)

    def language(self, key: SessionKey) -> str:
        """Return the language that a chat is spoken to in."""
        return self.locales.language(key)

    def chosen(self, subject: str) -> Mapping[str, str]:
        """Return the choices of a person or chat."""
        return self.people.preferences(subject)

    async def status(self) -> Mapping[str, Any]:
        """Return the facts of /status."""
        depth = await self.journal.depth()
        facts = {**self.facts(), "busy": self.pool.busy if self.pool else 0, "queued": depth["queued"]}
        work = await self.background.work() if self.background else ()
        return {**facts, "work": work, "budget": await self.background.budget() if self.background else None}
