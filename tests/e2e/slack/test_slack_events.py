"""Every payload of Slack's goes through the door of the gateway: what cannot be read is set aside and acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import UnreadableEvent
from gateway.events import InboundMessage
from gateway.ports.channel import IntakeResult, PlatformEvent
from gateway.quarantine import Quarantine, list_events
from tests.fakes.meter import FakeMeter
from tests.fakes.slack import running, slack
from tests.fakes.slack_server import ANN, BOB, DM, ROOM, slack_server
from tests.fakes.web_services import FakePageServices


class QuarantineServices(FakePageServices):
    """A gateway with the real quarantine, in which some words break us."""

    def __init__(self, folder: Path, *, unclean_stops: int = 0) -> None:
        super().__init__()
        self.folder = folder
        self.ids: list[str] = []
        self.inside = self.most_inside = self.poisoned = 0
        self._quarantine = Quarantine(
            folder, unclean_stops=unclean_stops, meter=FakeMeter(), now=lambda: datetime.now(UTC)
        )
        self.is_cautious = self._quarantine.is_cautious

    async def handle(self, event: PlatformEvent, work: Callable[[], Awaitable[None]]) -> None:
        """Handle as the gateway does."""
        self.ids.append(event.id)
        await self._quarantine.handle(event, work)

    async def receive(self, message: InboundMessage, **options: Any) -> IntakeResult:
        """Break on poison; note how many are here at once."""
        self.inside += 1
        self.most_inside = max(self.inside, self.most_inside)
        for _ in range(50):
            await asyncio.sleep(0)
        self.inside -= 1
        if "poison" in message.text:
            self.poisoned += 1
            raise ZeroDivisionError("a bug that some words have")
        return await super().receive(message, **options)


UNREADABLE: list[dict[str, Any]] = [
    {"type": "message"},
    {"type": "message", "channel": DM, "ts": "x", "user": ANN},
    {"type": "message", "channel": {"id": DM}, "ts": "1700000000.000100", "user": ANN},
    {"type": "message", "channel": DM, "ts": "1700000000.000100", "files": [{"size": "many"}]},
    {"type": "message", "subtype": "message_changed", "channel": DM},
    {},
]


async def test_what_cannot_be_read_is_quarantined_and_acknowledged(tmp_path: Path) -> None:
    """A poisoned shape is kept for the operator, Slack is told, and the messages around it are answered."""
    services = QuarantineServices(tmp_path)
    async with slack_server() as server, running(server, services):
        server.say(DM, ANN, "before")
        events = [server.event(event) for event in UNREADABLE]
        server.say(DM, ANN, "after")
        await server.until(lambda: len(server.acks) == len(UNREADABLE) + 2)
        assert sorted(heard.text for heard in services.accepted) == ["after", "before"]
        assert {each.channel for each in list_events(tmp_path)} == {"slack"}
        assert len(list_events(tmp_path)) == len(UNREADABLE)
        assert set(events) <= set(services.ids)
        assert len(server.deliveries) == len(UNREADABLE) + 2


async def test_what_breaks_us_comes_again_twice_and_is_then_set_aside(tmp_path: Path) -> None:
    """Not acknowledged twice, quarantined and acknowledged the third time; its chat goes on all the while."""
    services = QuarantineServices(tmp_path)
    async with slack_server() as server, running(server, services):
        server.ack_within = 0.3  # more than a machine under load takes to hear the second one
        server.say(DM, ANN, "poison")
        server.say(DM, ANN, "and on")
        await server.until(lambda: len(server.acks) == 2)
        assert services.poisoned == 3
        assert [heard.text for heard in services.accepted] == ["and on"]
        assert "it failed 3 times: ZeroDivisionError" in [each.reason for each in list_events(tmp_path)]


@pytest.mark.parametrize("unclean_stops", [0, 2])
async def test_after_two_kills_events_are_handled_one_at_a_time(tmp_path: Path, unclean_stops: int) -> None:
    """Then whatever kills us is known: one event at a time over all chats; else chats go beside each other."""
    services = QuarantineServices(tmp_path, unclean_stops=unclean_stops)
    async with slack_server() as server, running(server, services):
        for place, user in ((DM, ANN), (ROOM, BOB), (DM, ANN), (ROOM, ANN)):
            server.say(place, user, "hello")
        await server.until(lambda: len(server.acks) == 4)
        assert len(services.accepted) == 4
        assert (services.most_inside == 1) is (unclean_stops == 2)
        assert list_events(tmp_path) == ()


async def test_an_event_keeps_its_name(tmp_path: Path) -> None:
    """Slack's id where it gives one, a command's trigger; in history kind, chat and ts: always the same."""
    services = QuarantineServices(tmp_path)
    async with slack_server() as server:
        async with running(server, services):
            server.say(DM, ANN, "first")
            await server.until(lambda: len(server.acks) == 1)
            trigger = server.slash(DM, ANN, "/parlour", "help")
            await server.until(lambda: len(server.acks) == 2)
            assert services.ids == server.acks
            assert services.ids[1] == trigger
        ts = server.say(DM, ANN, "while away", quiet=True)
        services.ids.clear()
        async with running(server, services):
            assert services.ids == [f"message/{DM}/{ts}"]


async def test_frames_that_are_no_events_change_nothing() -> None:
    """Broken JSON, unknown kinds and payloads without an event leave the connection and the channel standing."""
    async with slack() as up:
        for frame in ("", "[]", "x", "{}", '{"type": "nobody", "envelope_id": "e"}', '{"type": "events_api"}'):
            await up.server.garble(frame)
        up.server.say(DM, ANN, "still there?")
        await up.server.until(lambda: len(up.server.acks) == 1)
        assert [heard.text for heard in up.services.accepted] == ["still there?"]
        assert up.server.connections == 1


def test_unreadable_is_our_own_word() -> None:
    """The codec raises nothing else for a shape that it does not know, and says no word of the payload."""
    from channels.slack.parse import SlackBotIdentity, parse_event

    me = SlackBotIdentity(user="U0PARLOUR", bot="B0PARLOUR", team="T0HOME", handle="parlour")
    for event in UNREADABLE:
        with pytest.raises(UnreadableEvent) as error:
            parse_event({"type": "event_callback", "event": event}, me, in_threads=True, now=datetime.now(UTC))
        assert DM not in str(error.value)
