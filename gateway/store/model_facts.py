"""Facts about models over the writer: a row per fact, all of them in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType

from gateway.ports.memory import FACTS_EXPIRE, ModelFact
from gateway.store.database import CachedRows, Database, SharedDatabase, upsert_sql
from gateway.store.engine import StoreEngine
from gateway.store.row_codec import micros, moment, quote, unquote

FactsByName = dict[tuple[str, str], ModelFact]

_PUT = upsert_sql("model_fact", "model", "name", "value", "at", keys=2)
_REMOVE = "DELETE FROM model_fact WHERE model = ? AND name = ?"


def load_facts(database: Database) -> FactsByName:
    """Return every fact by model and name."""
    found = database.execute("SELECT model, name, value, at FROM model_fact")
    facts = (
        ModelFact(model=unquote(model), name=name, value=unquote(value), at=moment(at))
        for model, name, value, at in found
    )
    return {(each.model, each.name): each for each in facts}


def prune_facts(database: SharedDatabase, now: int) -> int:
    """Remove facts that have expired; return their number."""
    count = database.execute(
        "DELETE FROM model_fact WHERE at < ?", (now - FACTS_EXPIRE // timedelta(microseconds=1),)
    ).rowcount
    if count:
        database.changes_cached(CachedRows.MODELS)
    return count


class SqlModelFacts:
    """Facts of all gateways on one database."""

    def __init__(self, engine: StoreEngine, facts: FactsByName) -> None:
        """*facts* are the rows, which `SqlStore.adopt` replaces when another gateway has changed them."""
        self._engine = engine
        self._facts = facts

    def facts(self) -> Mapping[tuple[str, str], ModelFact]:
        """Return every stored fact by model and name, those of the past too. Served from memory."""
        return MappingProxyType(self._facts)

    async def change(self, put: Sequence[ModelFact], remove: Sequence[tuple[str, str]] = ()) -> None:
        """Store *put* and remove others by model and name, in one transaction. Raises StoreUnavailable."""
        rows = [(quote(each.model), each.name, quote(each.value), micros(each.at)) for each in put]
        gone = [(quote(model), name) for model, name in remove]

        def store(database: SharedDatabase) -> None:
            database.executemany(_PUT, rows)
            database.executemany(_REMOVE, gone)
            database.changes_cached(CachedRows.MODELS)

        def adopt(_: None) -> None:
            for place in remove:
                self._facts.pop(place, None)
            self._facts.update({(each.model, each.name): each for each in put})

        await self._engine.writer.submit(store, adopt)
