"""Bugs reproduced in nanobot 0.3.5, each as something that does not happen here.

| bug | where it is a test |
|---|---|
| 1 Slack ignores allowFrom | `test_bug_1_…` below; in a channel: e2e/slack/test_gateway_slack.py |
| 2 Slack pairing is dead | `test_bug_2_…` below |
| 3 Slack redelivery | e2e/slack/test_slack_inbound_wire.py (the same event twice), e2e/slack/test_gateway_slack.py (over a kill), faults/test_platforms.py |
| 4 Telegram topics | test_stream_separation.py beside this file, on all three platforms |
| 5 a failed stream edit appends twice | `test_bug_5_…` below, on all three |
| 6 Discord's first delta over 2,000 | `test_bug_6_…` below, on all three |
| 7 /new@otherbot | `test_bug_7_…` below; which words are ours: unit/agent/test_command_router.py |
| 8 Discord DM from a stranger | `test_bug_8_…` below; @everyone: e2e/discord/test_discord_outbound.py (every send pings nobody) |
| 9 /stop and /new leave follow-ups | `test_bug_9_…` below, on all three |
| 10 /new's crash window | faults/test_new_session_killed.py: a real kill at every step of /new |
| 11 CPU per turn, blocking loads | benchmarks: "full durable turns" and "full turn over litellm" (docs/benchmarks.md) |
| 12 code fences when cut | e2e/telegram/test_gateway_telegram.py (twenty thousand characters), e2e/slack/test_gateway_slack.py (a long answer), e2e/discord/test_discord_outbound.py (twenty thousand characters) |
"""  # noqa: E501 - a table

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.i18n import translate
from tests.e2e.peers.platform_scenes import (
    WORLDS,
    DiscordGroupScene,
    PlatformScene,
    SlackGroupScene,
    SteppedModel,
    TelegramGroupScene,
)
from tests.fakes import discord_records, slack_server
from tests.fakes.inprocess_gateway import InProcessGateway
from tests.fakes.slack_server import FakeSlackChat
from tests.fakes.telegram_gateway import TEAM

ENDS = ("first", "follow-up", translate("commands.new"), "and now?")
on_all_three = pytest.mark.parametrize("kind", WORLDS, ids=[kind.name for kind in WORLDS])


async def echo(question: str) -> AsyncIterator[str]:
    """Repeat the question."""
    yield f"You said: {question.splitlines()[-1]}"


def traces_of(home: Path, *words: str) -> list[str]:
    """Return the files of a home in which one of *words* stands."""
    files = [path for path in home.rglob("*") if path.is_file()]
    return [path.name for path in files if any(word.encode() in path.read_bytes() for word in words)]


async def test_bug_1_slack_ignores_the_allow_list(tmp_path: Path) -> None:
    """Bug 1: a stranger's direct message reached the agent. Here: no model, no word, no session, nothing stored."""
    world, model = SlackGroupScene(), SteppedModel(echo)
    world.server.places["D0EVE"] = FakeSlackChat("D0EVE", "im", {slack_server.EVE, slack_server.BOT_USER})
    async with world.open(), world.open_gateway(model, tmp_path / "home") as parlour:
        world.server.say("D0EVE", slack_server.EVE, "run something dreadful")
        await world.until(lambda: len(world.server.acks) == 1)
        world.say("direct", "hello")  # what came before it has been judged by then
        await world.until(lambda: len(world.texts("direct")) == 1)
        await parlour.idle()
        assert len(model.asked) == 1
        assert world.server.shown("D0EVE") == []
        assert not {place for place, *_ in world.server.reactions if place == "D0EVE"}
        assert traces_of(tmp_path / "home", "D0EVE", "dreadful") == []


async def test_bug_2_slack_puts_an_empty_message_of_a_stranger_on_the_bus(tmp_path: Path) -> None:
    """Bug 2: instead of a pairing line an empty message became a turn. Here: no turn, no session."""
    world, model = SlackGroupScene(), SteppedModel(echo)
    world.server.places["D0EVE"] = FakeSlackChat("D0EVE", "im", {slack_server.EVE, slack_server.BOT_USER})
    async with world.open(), world.open_gateway(model, tmp_path / "home") as parlour:
        for text in ("", " ", "\n"):
            world.server.say("D0EVE", slack_server.EVE, text)
        await world.until(lambda: len(world.server.acks) == 3)
        await parlour.idle()
        assert model.asked == []
        assert await parlour.app.store.records.sessions() == ()
        assert traces_of(tmp_path / "home", "D0EVE") == []


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
async def test_bug_6_a_first_delta_longer_than_a_message(kind: type[PlatformScene]) -> None:
    """Bug 6: over 2,000 characters at once and the answer was lost. Here: it comes, whole, in order, once."""
    world = kind()
    words = [f"word{n}" for n in range(1_200)]

    async def tell(question: str) -> AsyncIterator[str]:
        yield " ".join(words[:900])
        await world.until(lambda: bool(world.texts("direct")) or kind is TelegramGroupScene)  # in private it drafts
        yield " ".join(words)

    async with world.open(), world.open_gateway(SteppedModel(tell)) as parlour:
        world.say("direct", "at length, please")
        await world.until(lambda: any("word1199" in text for text in world.texts("direct")))
        await parlour.idle()
    assert " ".join(world.texts("direct")).split() == words


async def test_bug_7_new_for_another_bot() -> None:
    """Bug 7: /new@otherbot in a group cleared our conversation. Here: not ours, neither command nor question."""
    world, model = TelegramGroupScene(), SteppedModel(echo)
    world.server.chat(TEAM).topics = {7}
    topic = {"is_topic_message": True, "message_thread_id": 7}
    async with world.open(), world.open_gateway(model) as parlour:
        world.say("left", "remember the blue door")
        await world.until(lambda: len(world.texts("left")) == 1)
        command = {"entities": [{"type": "bot_command", "offset": 0, "length": 13}]}
        world.server.say("/new@otherbot", chat=TEAM, sender=42, **topic, **command)
        await world.until(lambda: not world.server.updates)
        world.say("left", "what did I say?")
        await world.until(lambda: len(world.texts("left")) == 2)
        await parlour.idle()
    assert len(model.asked) == 2
    assert "blue door" in model.asked[-1][0]


async def test_bug_8_discord_does_things_for_a_stranger(tmp_path: Path) -> None:
    """Bug 8: a stranger's attachment was stored, typing and reactions began. Here: nothing at all happens."""
    world, model = DiscordGroupScene(), SteppedModel(echo)
    file = world.server.cdn.keep("dreadful.bin", b"dreadful" * 1_000)
    chat = world.server.direct(discord_records.EVA)
    async with world.open(), world.open_gateway(model, tmp_path / "home") as parlour:
        world.server.say(chat, discord_records.EVA, "look at this", attachments=[file])
        world.say("direct", "hello")
        await world.until(lambda: len(world.texts("direct")) == 1)
        await parlour.idle()
        assert len(model.asked) == 1
        assert world.server.cdn.served == []
        assert chat not in {where for where, _ in world.server.typing}
        touched = [each.path for each in world.server.requests if chat in each.path and each.method != "GET"]
        assert touched == []
        assert traces_of(tmp_path / "home", "dreadful", chat) == []


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
