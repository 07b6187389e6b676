"""A whole backend: the ports above over one engine."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from gateway.ports.access import AccessStore
from gateway.ports.account_links import AccountLinkStore
from gateway.ports.alerts import AlertStore
from gateway.ports.caps import CapUsageStore, SharedCapStore
from gateway.ports.channel import ChannelState
from gateway.ports.documents import DocumentChangeStore
from gateway.ports.earlier_files import EarlierFileStore
from gateway.ports.erasure import ErasureStore
from gateway.ports.files import FileStore
from gateway.ports.history import HistoryRowStore
from gateway.ports.journal import JobQueue, Journal, PreferenceStore, TurnRecordStore, UsageReports
from gateway.ports.model_facts import ModelFactStore
from gateway.ports.outbox import Outbox
from gateway.ports.proposals import ProposalStore
from gateway.ports.transcripts import TranscriptStore
from gateway.ports.workers import ConnectionClaims, SharedWindows

BLANK_AFTER = timedelta(days=7)  # texts of ended rows are blanked
EXPIRES = timedelta(hours=24)  # older messages expire, with one notice per chat


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """The settings that the journal needs."""

    queued_per_chat: int = 100
    queued: int = 10_000
    merge: str = "split"  # split, burst or off; a gateway has the setting's
    burst: int = 20  # rows that may merge under `burst`
    split_length: int = 4_000  # a message this long, followed by another within `split_seconds`, is half of a paste
    split_seconds: float = 2.0
    backlog_minutes: float = 10.0  # older messages are answered in one turn per chat and sender
    expires: timedelta = EXPIRES
    blank_after: timedelta = BLANK_AFTER
    zone: str = "UTC"  # IANA; days of this zone sum old usage
    is_shared: bool = False  # with other gateways: the chats are divided among them


class Store(Protocol):
    """The ports over one engine; opened and closed by the composition root."""

    journal: Journal
    outbox: Outbox
    records: TurnRecordStore
    transcripts: TranscriptStore
    documents: DocumentChangeStore
    proposals: ProposalStore
    history: HistoryRowStore
    files: FileStore
    jobs: JobQueue
    people: PreferenceStore
    usage: UsageReports
    caps: CapUsageStore
    shared_caps: SharedCapStore | None  # None = this process counts all that its caps limit
    links: AccountLinkStore
    access: AccessStore
    alerts: AlertStore
    models: ModelFactStore
    erasing: ErasureStore
    earlier_files: EarlierFileStore | None  # None = an engine that has never had any
    connections: ConnectionClaims | None  # None = this process has every connection
    windows: SharedWindows | None  # None = this process serves every window

    def state(self, channel: str) -> ChannelState:
        """Return the notes of one channel block."""

    def note_started(self) -> None:
        """Note that the gateway has started: from here on it is dead to others when its event loop does not answer."""

    async def wait_replaced(self) -> None:
        """Return when other gateways have taken over the work of this one, which must end; otherwise never."""

    async def check(self) -> None:
        """Do one durable write; raise StoreUnavailable when that fails."""

    async def find_damage(self) -> str:
        """Read all data; return the error line if they are damaged, otherwise "". A server checks its own."""

    async def verify(self) -> None:
        """Do the same if the last process was killed, and raise UserError if the data are damaged."""

    async def stamp(self) -> None:
        """Note outside of the data how far it has come, so that a start notices older data. Raises StoreUnavailable."""

    async def backup(self, target: Path) -> None:
        """Write a consistent copy of the engine's data to *target* while running."""

    async def prune(self) -> int:
        """Remove rows past their retention; return their number."""

    async def close(self, *, has_served: bool = True) -> None:
        """Write the queue, then close. A clean close resets the count of unclean stops.

        If the process has not *has_served* users, the count stays: reading a home proves nothing about crashes.
        """
