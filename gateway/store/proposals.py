"""Proposals over the writer: a row for each change of memory that waits for a yes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from gateway.ports.journal import Job
from gateway.ports.memory import MemoryProposal
from gateway.store.database import LOCKED, Database
from gateway.store.engine import StorePart
from gateway.store.erased_words import ErasedWords, store_cleared
from gateway.store.row_codec import micros, moment, quote, read_json, sql, unquote, write_json

_COLUMNS = "name, at, expires_at, body"
_PUT = sql("INSERT INTO proposal (scope,", _COLUMNS, ") VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING")
_OF_SCOPE = sql("SELECT", _COLUMNS, "FROM proposal WHERE scope = ?")
_PENDING = sql(_OF_SCOPE, "AND expires_at >= ? ORDER BY at, name")
_IN_GROUPS = sql("SELECT scope,", _COLUMNS, "FROM proposal WHERE scope LIKE 'chats/%' AND name = ?")
_BODY = sql("SELECT body FROM proposal WHERE scope = ? AND name = ?", LOCKED)
_SET_BODY = "UPDATE proposal SET body = ? WHERE scope = ? AND name = ?"
_REMOVE = "DELETE FROM proposal WHERE scope = ? AND name = ?"
_CLEAR = "DELETE FROM proposal WHERE scope = ?"
_MOVE = "UPDATE proposal SET scope = ? WHERE scope = ? AND name = ?"


class SqlProposals(StorePart):
    """The proposals of every scope. Methods return when a write is durable, and raise StoreUnavailable otherwise."""

    _adoption = "adopted_proposals"

    async def put(self, scope: str, proposals: Sequence[MemoryProposal]) -> None:
        """Store the proposals whose names are new, in one transaction."""

        def put(database: Database, changes: Sequence[MemoryProposal]) -> None:
            rows = [
                (quote(scope), quote(each.name), micros(each.at), micros(each.expires_at), write_json(each.body))
                for each in changes
            ]
            database.executemany(_PUT, rows).close()

        await store_cleared(self._engine, scope, proposals, _clear, put)

    async def pending(self, scope: str, at: datetime) -> Sequence[MemoryProposal]:
        """Return the proposals that have not expired at the time *at*, the oldest first."""
        return [_read(row) for row in await self._engine.fetch(_PENDING, quote(scope), micros(at))]

    async def find_in_groups(self, name: str) -> Sequence[tuple[str, MemoryProposal]]:
        """Return the proposals *name* of groups, each with its scope, expired ones too."""
        return [(unquote(scope), _read(row)) for scope, *row in await self._engine.fetch(_IN_GROUPS, quote(name))]

    async def replace(self, scope: str, old: MemoryProposal, new: MemoryProposal) -> bool:
        """Replace the body of a proposal that is still *old*; return False if it is not."""
        column = quote(scope)
        return await self._engine.writer.submit(lambda database: _store_change(database, column, old, new))

    async def rewrite(self, scope: str, change: Callable[[MemoryProposal], MemoryProposal | None]) -> int:
        """Replace the proposals of *scope*, expired ones too, by what *change* returns, and remove those without.

        Returns the number of changed ones. *change* runs in a thread. It runs again for a proposal that was changed at
        the same time.
        """
        column, changed = quote(scope), 0
        while True:
            old = [_read(row) for row in await self._engine.fetch(_OF_SCOPE, column)]
            new = await asyncio.to_thread(lambda: [change(each) for each in old])  # noqa: B023 - awaited here
            pairs = [(before, after) for before, after in zip(old, new, strict=True) if before != after]

            def store(database: Database, pairs: Sequence[tuple[MemoryProposal, MemoryProposal | None]] = pairs) -> int:
                return sum(_store_change(database, column, before, after) for before, after in pairs)

            done = await self._engine.writer.submit(store) if pairs else 0
            changed += done
            if done == len(pairs):
                return changed

    async def remove(self, scope: str, name: str) -> None:
        """Remove a proposal, if it exists."""
        await self._engine.execute(_REMOVE, quote(scope), quote(name))

    async def clear(self, scope: str) -> None:
        """Remove every proposal of *scope*."""
        await self._engine.execute(_CLEAR, quote(scope))


def _clear(
    words: ErasedWords, erasures: Sequence[Job], proposals: Sequence[MemoryProposal]
) -> Sequence[MemoryProposal]:
    cleared = (words.clear_proposal(erasures, each) for each in proposals)
    return [each for each in cleared if each is not None]


def _read(row: Sequence[Any]) -> MemoryProposal:
    name, at, expires_at, body = row
    return MemoryProposal(name=unquote(name), at=moment(at), expires_at=moment(expires_at), body=read_json(body))


def _store_change(database: Database, scope: str, before: MemoryProposal, after: MemoryProposal | None) -> bool:
    """Store a change of a proposal that is as it was read; return False if it is not."""
    columns = (scope, quote(before.name))
    found = database.execute(_BODY, columns).fetchone()
    if found is None or read_json(found[0]) != before.body:
        return False
    if after is None:
        database.execute(_REMOVE, columns).close()
    else:
        database.execute(_SET_BODY, (write_json(after.body), *columns)).close()
    return True


def move_proposals(
    database: Database, source: str, target: str, *, keys: frozenset[str] | None = None, account: str = ""
) -> None:
    """Give the proposals of the scope *source* to *target*, both as column values.

    With *keys* only those that are asked in one of these sessions, and those of no session that *account* is asked.
    """
    for name, body in database.execute("SELECT name, body FROM proposal WHERE scope = ?", (source,)).fetchall():
        fields = read_json(body)
        session, person = str(fields.get("session") or ""), fields.get("person")
        if keys is not None and (session not in keys if session else person != account):
            continue
        if database.execute(_BODY, (target, name)).fetchone() is None:
            database.execute(_MOVE, (target, source, name))
        else:  # names are digests of a cause: both are one proposal
            database.execute(_REMOVE, (source, name))


def prune_proposals(database: Database, now: int) -> int:
    """Remove the proposals that have expired; return their number."""
    return database.execute("DELETE FROM proposal WHERE expires_at < ?", (now,)).rowcount
