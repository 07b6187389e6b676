"""Rows that every worker keeps in memory, and the editions by which it learns that another worker has changed them.

Access, links of accounts, the choices of people and facts about models are read at every message, and logins of the
page at every request, so they are served from memory. A transaction that changes them writes a new edition. Every
transaction of a worker begins with a look at the editions, in the statement that is its fence, and reads rows of a new
edition again: a transaction's result is therefore never newer than the caches (docs/adr/0080-claims.md).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType

from gateway.ports.channel import CACHED_NOTES
from gateway.ports.memory import FACTS_EXPIRE, ModelFact
from gateway.store import access, account_links
from gateway.store.access import AccessSnapshot
from gateway.store.account_links import LinkSnapshot
from gateway.store.database import SET_META, CachedRows, Database, SharedDatabase, upsert_sql
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


EDITIONS = "SELECT string_agg(name || ' ' || value, ',' ORDER BY name) FROM meta WHERE name LIKE 'edition.%'"
_NOTES = "SELECT channel, name, value FROM note WHERE name LIKE ?"


@dataclass(frozen=True, slots=True)
class CachedSnapshot:
    """Rows that were read again; None = unchanged."""

    access: AccessSnapshot | None
    links: LinkSnapshot | None
    choices: dict[str, dict[str, str]] | None
    notes: dict[str, dict[str, str]] | None
    models: FactsByName | None


@dataclass(slots=True)
class SharedCaches:
    """Receives rows that were read again, on the event loop."""

    adopt: Callable[[CachedSnapshot], None] = lambda _: None


def write_edition(database: Database, rows: CachedRows) -> str:
    """Write a new edition of *rows*, in the transaction that changes them; return it."""
    edition = secrets.token_hex(6)
    database.execute(SET_META, (f"edition.{rows}", edition))
    return edition


def parse_editions(column: str | None) -> dict[str, str]:
    """Return editions by name, of the column that `EDITIONS` returns."""
    pairs = (each.split(" ") for each in (column or "").split(",") if each)
    return {name.removeprefix("edition."): edition for name, edition in pairs}


def read_again(database: Database, changed: Collection[str]) -> CachedSnapshot:
    """Return the groups of rows that have *changed*."""
    return CachedSnapshot(
        access=access.load(database) if CachedRows.ACCESS in changed else None,
        links=account_links.load(database) if CachedRows.LINKS in changed else None,
        choices=load_choices(database) if CachedRows.CHOICES in changed else None,
        notes=load_notes(database) if CachedRows.NOTES in changed else None,
        models=load_facts(database) if CachedRows.MODELS in changed else None,
    )


def load_choices(database: Database) -> dict[str, dict[str, str]]:
    """Return every person's and chat's choices, by subject."""
    choices: dict[str, dict[str, str]] = {}
    for subject, name, value in database.execute("SELECT subject, name, value FROM preference"):
        choices.setdefault(unquote(subject), {})[unquote(name)] = unquote(value)
    return choices


def load_notes(database: Database) -> dict[str, dict[str, str]]:
    """Return the notes that channels have in memory, by channel."""
    notes: dict[str, dict[str, str]] = {}
    for channel, name, value in database.execute(_NOTES, (f"{quote(CACHED_NOTES)}%",)):
        notes.setdefault(channel, {})[unquote(name)] = unquote(value)
    return notes
