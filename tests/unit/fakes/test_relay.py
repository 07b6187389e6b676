"""The relay platform behaves as the fault tests rely on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from gateway.errors import OutcomeUnknown, RetryLater, SendRefused, StoreUnavailable
from gateway.events import InboundMessage, MessagePart, OutboundMessage, SessionKey
from gateway.ports import IntakeResult, IntakeVerdict
from tests.fakes.open_intake import OpenDoor
from tests.fakes.relay import TEXT_LIMIT, RelayChannel, RelayServer, RelaySettings, open_relay

KEY = SessionKey("relay", "c1")


class RefusingIntake(OpenDoor):
    """An intake that refuses so many messages before it takes any."""

    def __init__(self, refusals: int = 0) -> None:
        self.refusals = refusals
        self.taken: list[InboundMessage] = []
        self.took = asyncio.Event()

    async def receive(self, message: InboundMessage) -> IntakeResult:
        """Take the message, or be down."""
        if self.refusals:
            self.refusals -= 1
            raise StoreUnavailable("not now")
        self.taken.append(message)
        self.took.set()
        return IntakeResult(verdict=IntakeVerdict.ACCEPTED)


def part(text: str, number: int = 1) -> MessagePart:
    """Make a part of one turn."""
    return MessagePart(id=f"t1.1.{number}", key=KEY, payload=text, plain=text)


@asynccontextmanager
async def open_channel(
    relay: RelayServer, scene: RefusingIntake, *, send_key: bool = True
) -> AsyncIterator[RelayChannel]:
    """Build a channel that does not poll yet."""
    channel = RelayChannel("relay", RelaySettings(base_url=relay.base, send_key=send_key), scene)
    try:
        yield channel
    finally:
        await channel.close()


async def poll(channel: RelayChannel, until: asyncio.Event) -> None:
    """Let the channel poll until *until*."""
    polling = asyncio.create_task(channel.run())
    await until.wait()
    polling.cancel()
    with suppress(asyncio.CancelledError):
        await polling


async def test_an_update_comes_again_until_the_gateway_had_it() -> None:
    """What the intake could not store is handed out again; a later poll confirms what it stored."""
    async with open_relay() as relay:
        relay.say("c1", "first")
        relay.say("c1", "second")
        scene = RefusingIntake(refusals=2)
        async with open_channel(relay, scene) as channel:
            polling = asyncio.create_task(channel.run())
            while relay.confirmed < 2:
                await relay.wait_changed()
            polling.cancel()
            with suppress(asyncio.CancelledError):
                await polling
        assert [message.text for message in scene.taken] == ["first", "second"]


@pytest.mark.parametrize(("forgets", "again"), [(True, 1), (False, 0)])
async def test_a_new_client_is_handed_what_was_not_confirmed(forgets: bool, again: int) -> None:
    """A platform that remembers confirmations hands out nothing twice; one that forgets them hands out everything."""
    relay = RelayServer(forgets_acks=forgets)
    async with open_relay(relay):
        relay.say("c1", "first")
        relay.confirmed = 1
        relay.say("c1", "second")
        scene = RefusingIntake()
        async with open_channel(relay, scene) as channel:
            await poll(channel, scene.took)
        assert scene.taken[0].text == ("first" if again else "second")


@pytest.mark.parametrize("knows_keys", [True, False])
async def test_a_lost_reply_is_unknown_and_a_key_makes_the_resend_harmless(knows_keys: bool) -> None:
    """Posted, the reply lost: outcome unknown. With keys it is found and not shown twice, without it is."""
    relay = RelayServer(knows_keys=knows_keys, lose_replies=1)
    async with open_relay(relay), open_channel(relay, RefusingIntake(), send_key=knows_keys) as channel:
        with pytest.raises(OutcomeUnknown):
            await channel.send(part("hello"))
        if knows_keys:
            found = await channel.find(part("hello"))
            assert found is not None
            assert found.message_id == "m1"
            assert await channel.find(part("other", 2)) is None
        else:
            with pytest.raises(OutcomeUnknown):
                await channel.find(part("hello"))
        await channel.send(part("hello"), may_be_duplicate=True)
        assert [message.is_marked for message in relay.chat("c1")] == ([False] if knows_keys else [False, True])


async def test_an_edit_replaces_the_text_and_keeps_every_version() -> None:
    """What stands under an id is replaced; an id that is not there is refused for good."""
    async with open_relay() as relay, open_channel(relay, RefusingIntake()) as channel:
        receipt = await channel.send(part("so far"))
        await channel.edit(receipt.message_id, part("so far, so good"))
        assert relay.chat("c1")[0].versions == ["so far", "so far, so good"]
        with pytest.raises(SendRefused):
            await channel.edit("m9", part("nothing there"))


async def test_a_platform_that_is_away_was_not_sent_anything() -> None:
    """A refused connection is no unknown outcome: the part can be sent again later."""
    async with open_relay() as relay:
        base = relay.base
    gone = RelayChannel("relay", RelaySettings(base_url=base), RefusingIntake())
    with pytest.raises(RetryLater):
        await gone.send(part("hello"))
    await gone.close()


def test_a_long_answer_makes_parts_that_fit() -> None:
    """Every part is within the platform's limit, numbered from one, and the same each time."""
    channel = RelayChannel("relay", RelaySettings(base_url="http://127.0.0.1:1"), RefusingIntake())
    message = OutboundMessage(id="t1.1", key=KEY, text="A sentence of some length. " * 20)
    parts = channel.render(message)
    assert all(len(each.payload) <= TEXT_LIMIT for each in parts)
    assert [each.id for each in parts] == [f"t1.1.{n}" for n in range(1, len(parts) + 1)]
    assert channel.render(message) == parts
