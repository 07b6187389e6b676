"""What runs beside the turns: channels that are restarted when they fail, the daily prune, the owner's view of both."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta

import structlog

from gateway.errors import StoreDown
from gateway.ports import Channel, Meter, Store

log = structlog.get_logger(__name__)

_FIRST_PAUSE = timedelta(seconds=1)
_LONGEST_PAUSE = timedelta(minutes=1)
_PRUNE_EVERY = timedelta(hours=6)


class Supervisor:
    """Keeps channels alive: one that ends is started again with back-off and degrades alone."""

    def __init__(self, channels: Mapping[str, Channel], *, meter: Meter) -> None:
        self._channels = channels
        self._meter = meter
        self._tried: set[str] = set()

    async def run(self) -> None:
        """Run every channel until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for name, channel in self._channels.items():
                tasks.create_task(self._keep(name, channel), name=f"channel {name}")

    def states(self) -> Mapping[str, bool | None]:
        """Return per channel: None = not tried yet, False = degraded, True = hears its platform."""
        states: dict[str, bool | None] = {}
        for name, channel in self._channels.items():
            is_ready = channel.is_ready()
            states[name] = is_ready if is_ready or name in self._tried else None
            self._meter.gauge("channel_ready", float(is_ready), channel=name)
        return states

    async def _keep(self, name: str, channel: Channel) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                await channel.run()
                log.warning("channel.ended", channel=name)
            except Exception:  # the channel boundary: it degrades alone
                log.exception("channel.failed", channel=name)
            self._tried.add(name)
            self._meter.count("channel_restarts", channel=name)
            await asyncio.sleep(pause.total_seconds())
            pause = min(pause * 2, _LONGEST_PAUSE)


async def prune_for_ever(store: Store) -> None:
    """Remove what is past its time, at start and every few hours."""
    while True:
        try:
            removed = await store.prune()
        except StoreDown:
            log.warning("prune.store_down")
        else:
            log.info("prune.done", rows=removed)
        await asyncio.sleep(_PRUNE_EVERY.total_seconds())
