"""Caps in money through the whole gateway, over HTTP: what is refused, what a kill leaves, what a person reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import time_machine

from gateway.access.usage_caps import COUNTED
from gateway.i18n import translate
from tests.fakes.inprocess_gateway import STREAMING, InProcessGateway, gateway
from tests.fakes.openai_server import FakeOpenAI, ModelFault, ScriptedAnswer, open_server

NOON = datetime(2026, 11, 21, 11, 0, tzinfo=UTC)
MIDNIGHT = "2026-11-22 00:00"
# A dollar for a million tokens of an answer: each call reserves 1,000 micro-dollars, and the 20 tokens cost 20.
RESERVED, COST = 1_000, 20
HANG = ScriptedAnswer(fault=ModelFault.HANG)


@asynccontextmanager
async def priced(server: FakeOpenAI, **given: Any) -> AsyncIterator[tuple[InProcessGateway, time_machine.Traveller]]:
    """Run a gateway whose model has a price of the operator's, at noon."""
    environment = {
        "PARLOUR_TIMEZONE": "Europe/Berlin",
        "PARLOUR_LLM__MODEL": "priced",
        "PARLOUR_LLM__MODELS__PRICED__MODEL": "openai/test",
        "PARLOUR_LLM__MODELS__PRICED__API_BASE": server.base,
        "PARLOUR_LLM__MODELS__PRICED__USD_PER_MILLION_INPUT": "0",
        "PARLOUR_LLM__MODELS__PRICED__USD_PER_MILLION_OUTPUT": "1",
        "PARLOUR_AGENT__SHUTDOWN_GRACE_SECONDS": "0",  # calls that hang are not waited for
        **given.pop("environment", {}),
    }
    with time_machine.travel(NOON, tick=True) as traveller:
        async with gateway(environment=environment, **given) as parlour:
            yield parlour, traveller


async def cost_since_noon(parlour: InProcessGateway) -> int:
    """Return the micro-dollars that the usage rows tell of."""
    counted = await parlour.app.store.caps.load_usage(window=NOON, day=NOON, purposes=COUNTED)
    return sum(each.cost for each in counted.tokens)


async def test_a_call_that_would_exceed_a_cap_is_not_made() -> None:
    """The price of an answer has to fit beside what is spent; a new day answers again."""
    async with open_server() as server:
        cap = {"PARLOUR_CAPS__PERSON_USD_PER_DAY": "0.00105"}
        async with priced(server, environment=cap) as (parlour, traveller):
            for n in range(3):
                assert (await parlour.channel.ask("c", f"question {n}")).startswith("Answer")
            line = translate("caps.person_cost", limit="$0.00105", until=MIDNIGHT)
            assert await parlour.channel.ask("c", "one more") == line
            await parlour.channel.say("c", "and more")
            await parlour.idle()
            assert len(server.requests) == 3
            assert await cost_since_noon(parlour) == 3 * COST
            metrics = parlour.app.meter.text().decode()
            assert 'parlour_cap_refusals_total{cap="person-cost"} 2.0' in metrics
            assert "The limit resets at" in await parlour.channel.ask("c", "/usage")
            traveller.shift(timedelta(hours=14))
            assert (await parlour.channel.ask("c", "good morning", sent_at=datetime.now(UTC))).startswith("Answer")


async def test_a_kill_between_reservation_and_settlement_counts_as_reserved(tmp_path: Path) -> None:
    """Nobody knows what the call has cost: after the restart its price is spent, and the turn ends with the line."""
    cap = {"PARLOUR_CAPS__CHAT_USD_PER_DAY": "0.0015"}
    async with open_server([HANG]) as server:
        async with priced(server, environment=cap, home=tmp_path / "home") as (parlour, _):
            await parlour.channel.say("c", "and?")
            await server.arrived.wait()
            while await cost_since_noon(parlour) == 0:  # noqa: ASYNC110 - written by no event of ours
                await asyncio.sleep(0.01)
            killed = parlour.kill(tmp_path / "killed")
        async with priced(server, environment=cap, home=killed) as (parlour, _):
            await parlour.idle()
            line = translate("caps.chat_cost", limit="$0.0015", until=MIDNIGHT)
            assert [post.text for post in parlour.channel.posts["c"]] == [line]
            assert await cost_since_noon(parlour) == RESERVED
        assert len(server.requests) == 1


async def test_a_stopped_call_costs_what_its_tokens_cost() -> None:
    """/stop: the provider bills what it has read and written, so that is counted."""
    async with open_server([ScriptedAnswer(text="a long story " * 40, fault=ModelFault.PAUSE)]) as server:
        cap = {"PARLOUR_CAPS__USD_PER_DAY": "1"}
        async with priced(server, environment=cap, capabilities=STREAMING) as (parlour, _):
            _, answered = await parlour.channel.say("c", "tell me")
            await server.arrived.wait()
            await asyncio.sleep(0.2)  # until half of the stream is here
            await parlour.channel.say("c", "/stop")
            await answered
            await parlour.idle()
            assert 0 < await cost_since_noon(parlour) < RESERVED


async def test_a_model_without_a_price_is_answered_and_noted() -> None:
    """A cap in money cannot hold for it; the operator reads so, once."""
    async with open_server() as server:
        environment = {
            "PARLOUR_LLM__MODEL": "openai/test",
            "PARLOUR_LLM__API_BASE": server.base,
            "PARLOUR_CAPS__USD_PER_DAY": "0.000001",
        }
        async with gateway(environment=environment) as parlour:
            for n in range(2):
                assert (await parlour.channel.ask("c", f"question {n}")).startswith("Answer")
            assert parlour.app.usage_recorder.unpriced_models == {"openai/test"}


async def test_an_owner_sets_the_dollars_of_one_person() -> None:
    """`/quota` sets, shows and removes them, beside the other caps of the person."""
    async with open_server() as server, priced(server) as (parlour, _):
        ask = parlour.channel.ask
        assert "`pocket:7`: $0.50 a day" in await ask("c", "/quota 7 usd 0.50")
        assert "12 tokens a day, $2.00 a day" in await ask("c", "/quota 7 tokens 12 usd $2")
        assert "Used today: $0.00 of $2.00." in await ask("c", "/quota 7")
        assert "cost without limit" in await ask("c", "/quota 7 usd 0")
        assert "$" not in await ask("c", "/quota 7 usd default")
        assert "Name one person" in await ask("c", "/quota 7 usd -1")
