"""Caps through the whole gateway: one who floods, tools without end, and who has no cap."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import time_machine

from agent.llm.chat_model import TokenUsage
from agent.llm.scripted_model import ScriptEntry
from agent.tools.tool import ToolContext, ToolKind, tool
from gateway.access.usage_caps import COUNTED
from gateway.admission import AdmissionGrant, AdmissionPolicy, AllowEntry, GroupPolicy
from gateway.events import InboundKind, OutboundKind, SessionKey
from gateway.i18n import translate
from tests.fakes.held_model import HeldScriptModel
from tests.fakes.inprocess_gateway import InProcessGateway, gateway

HALL = AdmissionPolicy(
    channel="pocket", entries=frozenset({AllowEntry(AdmissionGrant.CHAT, "hall")}), group_policy=GroupPolicy.OPEN
)
NOON = datetime(2026, 11, 21, 11, 0, tzinfo=UTC)
# Noon in a zone of its own, and a window that nothing is summarised out of.
BERLIN = {"PARLOUR_TIMEZONE": "Europe/Berlin", "PARLOUR_AGENTS__DEFAULTS__MEMORY_WINDOW": "10000"}


async def count_usage(parlour: InProcessGateway) -> tuple[int, int]:
    """Return the calls and tokens that the usage rows tell of."""
    found = await parlour.app.store.usage.totals(since=NOON - timedelta(days=1))
    return sum(each["calls"] for each in found), sum(each["tokens_in"] + each["tokens_out"] for each in found)


async def turns(parlour: InProcessGateway) -> Counter[str]:
    """Return how many turns of each person asked a model since noon."""
    counted = await parlour.app.store.caps.load_usage(window=NOON, day=NOON, purposes=COUNTED)
    return Counter(each.person.removeprefix("pocket%3a") for each in counted.turns)


def notices(parlour: InProcessGateway, chat: str = "hall") -> list[str]:
    """Return the lines of ours that stand in a chat."""
    return [post.text for post in parlour.channel.posts.get(chat, []) if post.kind is OutboundKind.NOTICE]


@asynccontextmanager
async def at_noon(**given: Any) -> AsyncIterator[tuple[InProcessGateway, time_machine.Traveller]]:
    """Run a gateway at noon of a day that a test moves on."""
    environment = {**BERLIN, **given.pop("environment", {})}
    with time_machine.travel(NOON, tick=True) as traveller:
        async with gateway(policy=HALL, environment=environment, **given) as parlour:
            yield parlour, traveller


async def test_a_burst_holds_up_nobody() -> None:
    """50 messages at once in one chat: a thread beside it is answered meanwhile, and who writes behind them after 20.

    What waits of a sender who is past the cap ends with the one line that says so.
    """
    model = HeldScriptModel(held=[1])
    async with at_noon(model=model) as (parlour, _):
        for n in range(50):
            await parlour.channel.say("hall", f"b{n}", sender="bob", group=True)
        await model.called(1)
        assert await parlour.channel.ask("hall/7", "there?", sender="eve", group=True) == "answer 2"
        _, answered = await parlour.channel.say("hall", "and I?", sender="ann", group=True)
        model.go(1)
        await answered
        await parlour.idle()
        assert len(model.asked) == 20 + 1 + 1
        assert await turns(parlour) == Counter(bob=20, eve=1, ann=1)
        [line] = notices(parlour)
        assert line == translate("caps.person_turns", limit=20, until="12:10")
        assert parlour.channel.posts["hall"][-1].text == f"answer {len(model.asked)}"
        assert len(parlour.channel.posts["hall"]) == 20 + 1 + 1
        [refused] = parlour.app.refusals.recent()
        assert (refused.sender, refused.times) == ("bob", 30)
        assert 'parlour_cap_refusals_total{cap="person-turns"} 30.0' in parlour.app.meter.text().decode()
        # What people see of it survives: each of them wrote what they wrote.
        shown = await parlour.app.memory.sessions.displayed_messages(SessionKey("pocket", "hall"), limit=200)
        assert {f"b{n}" for n in range(50)} <= {line.text for line in shown}


async def test_who_is_past_a_cap_still_has_the_commands() -> None:
    """Commands are never capped and are no turns; and when the line's time has come, there is an answer again."""
    model = HeldScriptModel()
    async with at_noon(model=model, environment={"PARLOUR_CAPS__PERSON_TURNS_PER_10_MIN": "1"}) as (parlour, traveller):
        bob: dict[str, Any] = {"sender": "bob", "group": True}
        assert "Background jobs" in await parlour.channel.ask("hall", "/status", **bob)
        assert await parlour.channel.ask("hall", "one", **bob) == "answer 1"
        assert "12:10" in await parlour.channel.ask("hall", "two", **bob)
        for n in range(30):
            assert "Today: 1 model call" in await parlour.channel.ask("hall", "/usage", number=f"u{n}", **bob)
        assert await parlour.channel.ask("hall", "/stop", **bob) == translate("commands.nothing_to_stop")
        traveller.shift(timedelta(minutes=10))
        assert await parlour.channel.ask("hall", "three", sent_at=datetime.now(UTC), **bob) == "answer 2"


async def test_tools_without_end_stop_at_the_cap() -> None:
    """Before each further call of a turn it is asked again: the turn ends with one plain line, within the cap."""

    @tool("Look.", kind=ToolKind.LOOK, name="look")
    async def look(_: ToolContext) -> str:
        return "seen"

    steps = [ScriptEntry(calls=(("look", f'{{"n": {n}}}'),), tokens=TokenUsage(4_900, 100, 0)) for n in range(25)]
    model = HeldScriptModel(*steps)
    async with at_noon(model=model, tools=[look], environment={"PARLOUR_CAPS__PERSON_TOKENS_PER_DAY": "20000"}) as (
        parlour,
        traveller,
    ):
        line = await parlour.channel.ask("hall", "look around", sender="bob", group=True)
        assert line == translate("caps.person_tokens", until="2026-11-22 00:00")
        await parlour.channel.say("hall", "and now?", sender="bob", group=True)
        await parlour.idle()
        assert len(model.asked) == 4
        assert await count_usage(parlour) == (4, 20_000)
        assert len(parlour.channel.posts["hall"]) == 1
        traveller.shift(timedelta(hours=12))
        await parlour.channel.say("hall", "and now?", sender="bob", group=True, sent_at=datetime.now(UTC))
        await model.called(5)


async def test_what_asks_itself_stops() -> None:
    """A job that nobody typed is capped like somebody who came in by a place: one line, and no further calls."""
    model = HeldScriptModel()
    async with at_noon(model=model) as (parlour, _):
        await parlour.channel.ask("hall", "remind me", sender="bob", group=True)
        await parlour.idle()
        for _ in range(30):
            await parlour.app.submit(SessionKey("pocket", "hall"), "do it again")
            await parlour.idle()
        assert len(model.asked) == 1 + 20
        assert notices(parlour) == [translate("caps.own_turns", limit=20, until="12:10")]


async def test_a_retry_is_no_way_round() -> None:
    """Whoever is past the cap may ask again as often as they like: it is answered when it may be."""
    model = HeldScriptModel()
    async with at_noon(model=model, environment={"PARLOUR_CAPS__PERSON_TURNS_PER_10_MIN": "2"}) as (parlour, _):
        for n in range(2):
            await parlour.channel.ask("hall", f"m{n}", sender="bob", group=True)
        for _ in range(3):
            await parlour.channel.say("hall", "/retry", sender="bob", group=True, kind=InboundKind.COMMAND)
            await parlour.idle()
        assert len(model.asked) == 2


async def test_a_place_has_caps_of_its_own() -> None:
    """`chats` sets them for a chat with its threads, or takes them away; elsewhere it is as everywhere."""
    places = '{"pocket:hall": {"caps": {"chat_turns_per_10_min": 2, "person_turns_per_10_min": 0}}}'
    model = HeldScriptModel()
    async with at_noon(model=model, environment={"PARLOUR_CHATS": places}) as (parlour, _):
        for n in range(3):
            await parlour.channel.ask(f"hall/{n}", f"m{n}", sender="bob", group=True)
        assert len(model.asked) == 2
        assert notices(parlour, "hall/2") == [translate("caps.chat_turns", limit=2, until="12:10")]
        usage = await parlour.channel.ask("hall", "/usage", sender="bob", group=True)
        assert "This chat has used its 2 messages in ten minutes. It can continue at 12:10" in usage
        assert "You can send" not in usage


async def test_who_is_let_in_by_name_has_no_cap() -> None:
    """The same chat, twenty-five questions each: who is named is answered all of them, who came in by the place 20."""
    named = AdmissionPolicy(
        channel="pocket",
        entries=frozenset({AllowEntry(AdmissionGrant.CHAT, "hall"), AllowEntry(AdmissionGrant.USER, "ann")}),
        group_policy=GroupPolicy.OPEN,
    )
    model = HeldScriptModel()
    with time_machine.travel(NOON, tick=True):
        async with gateway(model=model, policy=named, environment=BERLIN) as parlour:
            for n in range(25):
                for who in ("ann", "bob"):
                    await parlour.channel.say("hall", f"{who} {n}", sender=who, group=True)
            await parlour.idle()
            assert await turns(parlour) == Counter(ann=25, bob=20)
