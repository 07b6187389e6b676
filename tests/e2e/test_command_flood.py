"""One member floods a chat with commands: others' answers come first, and what waits has a limit."""

from __future__ import annotations

import asyncio

from gateway.channel import Channel, ChannelContext
from gateway.events import DeliveryReceipt, MessagePart
from gateway.ports.channel import IntakeVerdict
from tests.fakes.inprocess_gateway import InProcessChannel, InProcessGateway, InProcessPlugin, InstantModel, gateway

FLOOD = 2_000
SHARE = 150  # of the 300 that may wait in a chat, one member has half


class SlowChat(InProcessChannel):
    """A platform that takes nothing more in the chat `flood` until it is told to."""

    def __init__(self, context: ChannelContext) -> None:
        super().__init__(context)
        self.gate = asyncio.Event()

    async def send(self, part: MessagePart, *, may_be_duplicate: bool = False) -> DeliveryReceipt:
        """Wait where the chat is slow."""
        if part.key.chat == "flood":
            await self.gate.wait()
        return await super().send(part, may_be_duplicate=may_be_duplicate)


class SlowKind(InProcessPlugin):
    """Opens the slow platform."""

    def open(self, context: ChannelContext) -> Channel:
        """Build the channel."""
        self.channel = SlowChat(context)
        return self.channel


async def flood(parlour: InProcessGateway) -> int:
    """Let Mal send 2,000 commands in a group; return how many were taken."""
    said = [await parlour.channel.say("flood", "/status", sender="mal", group=True) for _ in range(FLOOD)]
    return sum(accepted.verdict is IntakeVerdict.ACCEPTED for accepted, _ in said)


async def all_committed(parlour: InProcessGateway) -> None:
    """Return when no turn waits or runs; what they said may still be on its way."""
    while True:
        if not (await parlour.app.store.journal.depth())["queued"] and not parlour.app.pool.turns:
            return
        await asyncio.sleep(0.005)


async def test_two_thousand_commands_delay_nobody() -> None:
    """No more of them wait than may; Ann is answered elsewhere at once, and in that very group before all but one."""
    kind = SlowKind()
    async with gateway(kind=kind, model=InstantModel()) as parlour:
        slow = kind.channel
        assert isinstance(slow, SlowChat)
        taken = await flood(parlour)
        await (await parlour.channel.say("quiet", "hello"))[1]
        assert "flood" not in slow.posts
        _, question = await parlour.channel.say("flood", "what about the roof?", group=True)
        accepted, _ = await parlour.channel.say("flood", "/help", group=True)
        assert accepted.verdict is IntakeVerdict.ACCEPTED
        await all_committed(parlour)
        slow.gate.set()
        await question
        before = [post.text for post in slow.posts["flood"]]
        await parlour.idle()
    assert taken <= SHARE + 1
    assert before[-1].startswith("answer to")
    assert len(before) <= 3  # behind what was being sent, and the line that it is too much
