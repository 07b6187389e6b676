"""A long answer before the platforms' servers: what stands in the chat only grows, to the answer's first message."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gateway.delivery.part_planner import GrowingText
from gateway.events import MessagePart, OutboundKind, OutboundMessage
from gateway.i18n import translate
from gateway.text import LengthUnit
from gateway.text.redaction import SecretRedactor
from tests.fakes.channel_harness import ChannelHarness
from tests.fakes.discord_harness import DiscordHarness
from tests.fakes.slack_harness import SlackHarness
from tests.fakes.telegram_harness import TelegramHarness
from tests.fakes.web_services import FakePageServices
from tests.unit.delivery.test_growing_previews import LONG, letters

HARNESSES: list[ChannelHarness] = [DiscordHarness(), SlackHarness(), TelegramHarness()]
TURN = "tabcdefghijklmnop"
STEPS = 13  # fewer edits than a group may have in a burst: what is beyond is dropped, and only time brings it back


@pytest.mark.parametrize("harness", HARNESSES, ids=lambda harness: harness.kind.name)
async def test_what_stands_in_the_chat_only_grows(harness: ChannelHarness) -> None:
    """30,000 characters: each edit that the server took shows more, the full one says so, the answer begins with it."""
    async with harness.open(FakePageServices()) as platform, platform.join() as ann:
        channel, able = platform.channel, platform.channel.capabilities

        def render(text: str, row: int = 0, least: int = 0) -> list[MessagePart]:
            kind = OutboundKind.ANSWER if row else OutboundKind.PREVIEW
            message = OutboundMessage(id=f"{TURN}.{row}", key=platform.key, text=text, kind=kind)
            return list(channel.render(message, least=least))

        note = translate("delivery.goes_on")
        growing = GrowingText(render, SecretRedactor(), limit=able.text_limit, unit=LengthUnit(able.unit), note=note)
        ident = ""
        for n in range(1, STEPS + 1):
            part = growing.grow(LONG[: 4_500 * n // STEPS])
            if part is not None and ident:
                await channel.edit(ident, part)
            elif part is not None:
                ident = (await channel.send(part)).message_id
            if part is not None:
                await ann.shown.until(lambda: bool(ann.shown.previews))
        assert growing.grow(LONG) is None
        await ann.shown.until(lambda: note in ann.shown.previews[-1])
        await channel.edit(ident, render(LONG, 1, len(growing.shown))[0])
        await ann.shown.until(lambda: ident in ann.shown.messages)
        shown = [*ann.shown.previews, ann.shown.messages[ident]]
    assert len(shown) > 5
    for before, after in pairwise(map(letters, shown)):
        assert after.startswith(before)
