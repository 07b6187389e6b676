"""A gateway on the relay platform whose codec takes the process with it at one word.

`python -m tests.fakes.crashing_channel HOME RELAY [cured]` runs it until SIGTERM, or until somebody
writes the word; a cured one ignores it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import Any

from gateway.admission import AdmissionPolicy, AllowEntry
from gateway.app.composition import run
from gateway.app.context import ExtraChannel, ExtraPlugins
from gateway.channel import Channel, ChannelContext
from gateway.errors import OutcomeUnknown, RetryLater, StoreUnavailable, UnreadableEvent
from gateway.logs import configure_logs
from gateway.ports.channel import EventOrigin, PlatformEvent
from gateway.settings import Settings
from tests.fakes.relay import RelayChannel, RelayKind, RelaySettings

POISON = "arsenic"
GIBBERISH = "gibberish"
_PAUSE = 0.05
CURED = sys.argv[3:] == ["cured"]


class CarefulChannel(RelayChannel):
    """A relay channel that hands every event over as the port says."""

    async def run(self) -> None:
        """Poll; while the gateway is cautious one event is taken from a poll, and the rest comes again."""
        while True:
            try:
                news = await self._call("GET", f"/updates?after={self._accepted}")
                self._is_ready = True
                for update in news[:1] if self._intake.is_cautious else news:
                    await self._take(update)
                    self._accepted = update["update"]
            except (RetryLater, OutcomeUnknown, StoreUnavailable):
                self._is_ready = False
                await asyncio.sleep(_PAUSE)

    async def _take(self, update: dict[str, Any]) -> None:
        origin = EventOrigin(chat=update["chat"], sender=update["sender"], is_direct=True)
        event = PlatformEvent(channel=self.name, id=str(update["update"]), raw=json.dumps(update), origin=origin)
        await self._intake.handle(event, lambda: self.replay(event))

    async def replay(self, event: PlatformEvent) -> None:
        """Read the event and hand it over."""
        update = json.loads(event.raw)
        if POISON in update["text"] and not CURED:
            os.kill(os.getpid(), signal.SIGKILL)
        if GIBBERISH in update["text"]:
            raise UnreadableEvent("a text that is none")
        await self._intake.receive(self._parse(update))


class CarefulKind(RelayKind):
    """The kind of it."""

    def open(self, context: ChannelContext) -> Channel:
        """Build the channel."""
        return CarefulChannel(context.name, context.settings, context.intake)


def main(home: str, relay: str) -> None:
    """Run the gateway."""
    configure_logs(level="info", form="json", secrets=())
    channel = ExtraChannel(
        name="relay",
        kind=CarefulKind(),
        settings=RelaySettings(base_url=relay),
        policy=AdmissionPolicy(channel="relay", entries=frozenset({AllowEntry.parse("*")})),
    )
    settings = Settings.model_validate({"home": home, "timezone": "UTC", "web": {"port": 0}})
    asyncio.run(run(settings, plugins=ExtraPlugins(channels=(channel,))))


if __name__ == "__main__":
    main(*sys.argv[1:3])
