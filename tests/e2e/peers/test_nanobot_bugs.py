"""Bugs reproduced in nanobot 0.3.5, each as something that does not happen here.

| bug | where it is a test |
|---|---|
| 1 Slack ignores allowFrom | e2e/slack/test_gateway_slack.py (a stranger costs nothing) |
| 2 Slack pairing is dead | e2e/slack/test_gateway_slack.py (a stranger costs nothing), an empty message among theirs |
| 3 Slack redelivery | e2e/slack/test_gateway_slack.py (the same event twice), e2e/slack/test_slack_killed.py (over a kill), faults/test_platforms.py |
| 4 Telegram topics | test_stream_separation.py beside this file, on all three platforms |
| 5 a failed stream edit appends twice | `test_bug_5_…` below, on all three |
| 6 Discord's first delta over 2,000 | `test_bug_6_…` below, on all three |
| 7 /new@otherbot | e2e/telegram/test_gateway_telegram.py (another bot's command); which words are ours: unit/agent/test_command_router.py |
| 8 Discord DM from a stranger | e2e/discord/test_gateway_discord.py (a stranger with a file); @everyone: e2e/discord/test_discord_outbound.py (every send pings nobody) |
| 9 /stop and /new leave follow-ups | `test_bug_9_…` below, on all three |
| 10 /new's crash window | faults/test_memory_killed.py: a real kill at every step of /new |
| 11 CPU per turn, blocking loads | benchmarks: "full durable turns" and "full turn over litellm" (docs/benchmarks.md) |
| 12 code fences when cut | e2e/telegram/test_gateway_telegram.py (twenty thousand characters), e2e/slack/test_gateway_slack.py (a long answer), e2e/discord/test_discord_outbound.py (twenty thousand characters) |
"""  # noqa: E501 - a table

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.i18n import translate
from tests.e2e.peers.platform_scenes import (
    WORLDS,
    PlatformScene,
    SteppedModel,
)
from tests.fakes.inprocess_gateway import InProcessGateway

ENDS = ("first", "follow-up", translate("commands.new"), "and now?")
on_all_three = pytest.mark.parametrize("kind", WORLDS, ids=[kind.name for kind in WORLDS])


@on_all_three
@pytest.mark.parametrize("is_done", [True, False], ids=["reply lost", "never arrived"])
async def test_bug_5_a_failed_stream_edit_appends_twice(kind: type[PlatformScene], is_done: bool) -> None:
    """Bug 5: the retry of a failed edit appended its words again. Here: every text shown is the answer's beginning."""
    world = kind()
    words = [f"word {n} of a long story, " for n in range(6)]

    async def tell(question: str) -> AsyncIterator[str]:
        for n in range(1, len(words) + 1):
            if n in (2, 4):
                world.fail_edit(is_done=is_done)
            yield "".join(words[:n])
            if n == 1:
                await world.until(lambda: len(world.texts("left")) == 1)
            elif n in (2, 4):
                while world.failures:  # noqa: ASYNC110 - a call that never arrives wakes nobody
                    await asyncio.sleep(0.005)

    async with world.open(), world.open_gateway(SteppedModel(tell)) as parlour:
        world.say("left", "tell me a story")
        whole = "".join(words).strip()
        await world.until(lambda: whole in world.texts("left"))
        await parlour.idle()
    (message,) = world.stand("left")
    assert all(whole.startswith(text) for text in message.texts)
    assert message.text == whole


@on_all_three
async def test_bug_9_follow_ups_run_after_stop(kind: type[PlatformScene]) -> None:
    """Bug 9: /stop left follow-ups that ran later. Here: they end with it, it says how many, and none is ever asked."""
    world = kind()
    goes_on, asked = asyncio.Event(), asyncio.Event()

    async def tell(question: str) -> AsyncIterator[str]:
        asked.set()
        if "first" in question:
            await goes_on.wait()
        yield f"You said: {question.splitlines()[-1]}"

    model = SteppedModel(tell)
    async with world.open(), world.open_gateway(model) as parlour:
        world.say("direct", "first")
        await asked.wait()
        for n in range(2):
            world.say("direct", f"follow-up {n}")
        await queued(parlour, 3)
        world.say("direct", "!stop")
        await world.until(
            lambda: any(translate("commands.stopped", queued=2) in text for text in world.texts("direct"))
        )
        goes_on.set()
        await parlour.idle()
        world.say("direct", "and now?")
        await world.until(lambda: any("and now?" in text for text in world.texts("direct")))
        await parlour.idle()
    assert len(model.asked) == 2
    assert not any("You said" in text and "follow-up" in text for text in world.texts("direct"))


@on_all_three
async def test_bug_9_follow_ups_run_inside_the_new_session(kind: type[PlatformScene]) -> None:
    """Bug 9: what was queued before /new ran inside the new session. Here: it is answered in the old one, and over."""
    world = kind()
    goes_on, asked = asyncio.Event(), asyncio.Event()

    async def tell(question: str) -> AsyncIterator[str]:
        asked.set()
        await goes_on.wait()
        yield f"You said: {question.splitlines()[-1]}"

    model = SteppedModel(tell)
    async with world.open(), world.open_gateway(model) as parlour:
        world.say("direct", "first")
        await asked.wait()
        world.say("direct", "follow-up")
        await queued(parlour, 2)
        world.say("direct", "!new")
        await queued(parlour, 3)
        goes_on.set()
        await world.until(lambda: any(translate("commands.new") in text for text in world.texts("direct")))
        world.say("direct", "and now?")
        await world.until(lambda: any("and now?" in text for text in world.texts("direct")))
        await parlour.idle()
    first, follow_up, last = model.asked
    assert "first" in first[0]
    assert "follow-up" in follow_up[-1]
    assert len(last) == 1, "the new session begins with its own first words"
    places = [next(n for n, text in enumerate(world.texts("direct")) if end in text) for end in ENDS]
    assert places == sorted(places)


async def queued(parlour: InProcessGateway, number: int) -> None:
    """Return when so many messages are with us and not at their end."""
    while True:
        depth = await parlour.app.store.journal.depth()
        if depth["queued"] + depth["running"] >= number:
            return
        await asyncio.sleep(0.005)
