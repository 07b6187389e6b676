"""The ModelFacts port: what one gateway learned of a model is known to all, until it expires."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

from gateway.ports.memory import FACTS_EXPIRE, ModelFact
from tests.contract.store.conftest import StoreBackend
from tests.fakes.shared_workers import Workers
from tests.fakes.turns import START


def _fact(name: str, at: datetime, *, value: str = "", model: str = "openai/test \U0001f642 ab12") -> ModelFact:
    return ModelFact(model=model, name=name, value=value, at=at)


async def test_facts_survive_a_kill(backend: StoreBackend) -> None:
    """Each has one row, the later value counts, and one that was removed is gone."""
    store = await backend.open()
    now = backend.wall.now()
    await store.models.change([_fact("tools", now), _fact("window", now, value="8192 1.0")])
    await store.models.change([_fact("window", now, value="4096 1.2")])
    await store.models.change([_fact("stream", now, model="other")], [("openai/test \U0001f642 ab12", "tools")])
    wanted = [_fact("stream", now, model="other"), _fact("window", now, value="4096 1.2")]
    expected = {(each.model, each.name): each for each in wanted}
    assert store.models.facts() == expected
    assert (await backend.reopen()).models.facts() == expected


async def test_expired_facts_are_pruned(backend: StoreBackend) -> None:
    """A month later the row goes, and a later one stays."""
    store = await backend.open()
    now = backend.wall.now()
    await store.models.change([_fact("tools", now - FACTS_EXPIRE - timedelta(hours=1)), _fact("stream", now)])
    assert await store.prune() == 1
    assert [name for _, name in (await backend.reopen()).models.facts()] == ["stream"]


async def test_another_gateway_knows_a_fact_before_its_next_transaction_ends(team: Workers) -> None:
    """It reads the facts again when they have changed, and has none in its way otherwise."""
    first, second = await team.open(), await team.open()
    await first.models.change([_fact("tools", START)])
    await asyncio.wait_for(second.check(), 60)
    assert [name for _, name in second.models.facts()] == ["tools"]
    await second.models.change([], [("openai/test \U0001f642 ab12", "tools")])
    await asyncio.wait_for(first.check(), 60)
    assert first.models.facts() == {}
