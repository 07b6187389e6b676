"""A gateway that tells its owners: a real store on a file, delivery to platforms that outlive it, the watch, kills."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from gateway.access.pairing_service import OwnerAddress
from gateway.alerts.alert_state import STALE, WebhookOrigin, is_unnotified
from gateway.alerts.monitor import AlertMonitor, AlertRecipients, OwnerDirectory, Source
from gateway.delivery import DeliveryContext, OutboxDispatcher
from gateway.events import SessionKey
from gateway.store.outbox import SqlOutbox
from gateway.store.sql_store import SqlStore
from gateway.store.writer import Operation
from gateway.web.metrics import PrometheusRecorder
from tests.fakes.clock import VirtualClock
from tests.fakes.memory_channel import KEYED, FakeChannel, MemoryPlatform
from tests.fakes.store import InlineWriter, kill, open_inline_store

T = TypeVar("T")

_ABLE = replace(KEYED, text_limit=4_000)
OWNER_HERE, OWNER_THERE = SessionKey("telegram", "1"), SessionKey("slack", "U1")


@dataclass
class AlertScene:
    """One installation: its folder, its platforms, who owns it, what can be wrong, and the process that runs now."""

    folder: Path
    clock: VirtualClock
    sources: Callable[[AlertScene], Mapping[str, Source]]
    owners: list[tuple[SessionKey, ...]] = field(default_factory=lambda: [(OWNER_HERE, OWNER_THERE)])
    hears: dict[str, bool | None] = field(default_factory=lambda: {"telegram": True, "slack": True})
    pages: tuple[SessionKey, ...] = ()
    posts: bool = False
    language: str = "en"
    runs: int = 0

    def __post_init__(self) -> None:
        self.platforms = {name: MemoryPlatform() for name in ("telegram", "slack", "web")}
        self.posted = asyncio.Event()

    async def start(self, *, mortal: int | None = None) -> None:
        """Open the store, deliver and watch; *mortal*: the process dies before its operation of that number."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.store: SqlStore = await open_inline_store(self.folder / "journal.db", clock=self.clock.now)
        self.died = asyncio.Event()
        self.writer.connection.execute("PRAGMA synchronous = OFF")
        if mortal is not None:
            self._doom(mortal)
        self.channels = {
            name: FakeChannel(platform, name=name, capabilities=_ABLE) for name, platform in self.platforms.items()
        }
        self.channels["web"].watched = False
        meter = PrometheusRecorder(strict=True)
        self.deliverer = OutboxDispatcher(
            self.channels, DeliveryContext(outbox=self.store.outbox, meter=meter, now=self.clock.now)
        )
        ways = OwnerDirectory(
            people=self._people,
            channels=self.channels,
            connection_states=lambda: self.hears,
            unreachable=lambda: self.store.alerts.unreached_chats(self.clock.now() - STALE),
            pages=self.pages,
        )
        audiences = AlertRecipients(
            ways=ways,
            locale_of=lambda _: (self.language, "Europe/Berlin"),
            posts=self.posts,
            origin=WebhookOrigin(host="house", version="1.2.3"),
            posted=self.posted,
        )
        self.watch = AlertMonitor(self.store.alerts, self.sources(self), audiences, meter=meter, now=self.clock.now)
        self.tasks = [asyncio.create_task(self.deliverer.run()), asyncio.create_task(self.watch.run())]

    async def _people(self) -> list[list[OwnerAddress]]:
        return [[OwnerAddress(key, key.chat) for key in keys] for keys in self.owners]

    @property
    def writer(self) -> InlineWriter:
        """The store's writer; set its `fault` and the disk is full."""
        assert isinstance(self.store.outbox, SqlOutbox)
        writer = self.store.outbox._engine.writer
        assert isinstance(writer, InlineWriter)
        return writer

    def _doom(self, number: int) -> None:
        writer, submit, asked = self.writer, self.writer.submit, 0

        def mortal(
            operation: Operation[Any], then: Callable[[Any], None] | None = None, **how: Any
        ) -> asyncio.Future[Any]:
            nonlocal asked
            asked += 1
            if asked == number:
                self._copy()
                self.died.set()
            if asked >= number:
                return asyncio.get_running_loop().create_future()  # nobody answers any more
            return submit(operation, then, **how)

        writer.submit = mortal  # type: ignore[method-assign]

    def _copy(self) -> None:
        self.runs += 1
        self.copy = kill(self.folder / "journal.db", self.folder.parent / f"run-{self.runs}").parent

    async def kill(self) -> None:
        """End the process without its knowing; its files are as they were when it died."""
        if not self.died.is_set():
            self._copy()
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)
        self.writer.connection.close()
        self.folder = self.copy

    async def stop(self) -> None:
        """End the process in order."""
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)
        await self.store.close()

    async def standing(self) -> list[str]:
        """Return how each cause that was told or should be stands, and how many addresses know of it."""
        alerts = [alert for alert in await self.store.alerts.all() if alert.line]
        return [f"{each.cause}: {'untold' if is_unnotified(each) else 'told'}, {each.owners.told}" for each in alerts]

    async def until(self, minutes: float) -> None:
        """Let the clock run to so many minutes since the test began, or to the death of the process."""
        left = minutes * 60 - self.clock.seconds
        dying = asyncio.create_task(self.died.wait())
        await asyncio.wait({dying}, timeout=left)
        dying.cancel()

    def told(self, key: SessionKey) -> list[str]:
        """Return what stands in an owner's own chat."""
        return self.platforms[key.channel].texts(key)
