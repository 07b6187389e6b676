"""The CapUsageStore port on SQLite: usage rows of the current windows, and sent notifications."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from datetime import datetime

from gateway.ports.caps import CapNotice, CapUsage, SpentTokens, StartedTurn
from gateway.store.engine import StoreEngine
from gateway.store.row_codec import micros, moment, quote, sql, unquote, write_json

_OURS = "AND turn != '' AND purpose IN (SELECT value FROM json_each(?2))"
_BEGUN = sql("SELECT turn, person, chat, is_own, min(at) FROM usage WHERE at > ?1", _OURS, "GROUP BY turn")
_SPENT = sql(
    "SELECT person, chat, is_own, sum(tokens_in) + sum(tokens_out) FROM usage WHERE at >= ?1",
    _OURS,
    "GROUP BY person, chat, is_own",
)
_TOLD = "SELECT name, chat, until, most FROM cap_told"
_TELL = "INSERT OR REPLACE INTO cap_told (name, chat, until, most) VALUES (?, ?, ?, ?)"
_ENDED = "DELETE FROM cap_told WHERE name = ? AND NOT (until = ? AND most = ?)"
_FORGET = "DELETE FROM cap_told WHERE substr(name, instr(name, '/') + 1) = ?1 OR chat = ?1"


class SqliteCapUsage:
    """Implements `CapRows` over the writer."""

    def __init__(self, engine: StoreEngine) -> None:
        self._engine = engine

    async def load_usage(self, *, window: datetime, day: datetime, purposes: Iterable[str]) -> CapUsage:
        """Return the counts of the current windows."""
        wanted = write_json(sorted(purposes))

        def read(database: sqlite3.Connection) -> CapUsage:
            turns = database.execute(_BEGUN, (micros(window), wanted)).fetchall()
            tokens_spent = database.execute(_SPENT, (micros(day), wanted)).fetchall()
            notices = database.execute(_TOLD).fetchall()
            return CapUsage(
                turns=tuple(
                    StartedTurn(
                        turn=unquote(turn),
                        person=unquote(person),
                        chat=unquote(chat),
                        is_own=bool(is_own),
                        at=moment(at),
                    )
                    for turn, person, chat, is_own, at in turns
                ),
                tokens=tuple(
                    SpentTokens(person=unquote(person), chat=unquote(chat), is_own=bool(is_own), tokens=tokens)
                    for person, chat, is_own, tokens in tokens_spent
                ),
                notices=tuple(
                    CapNotice(name=unquote(name), chat=unquote(chat), until=moment(until), limit=most)
                    for name, chat, until, most in notices
                ),
            )

        return await self._engine.writer.submit(read)


def mark_notified(database: sqlite3.Connection, notices: Iterable[CapNotice]) -> None:
    """Note sent cap notifications in place of those of earlier windows."""
    notices = tuple(notices)
    database.executemany(_ENDED, [(quote(each.name), micros(each.until), each.limit) for each in notices])
    database.executemany(
        _TELL, [(quote(each.name), quote(each.chat), micros(each.until), each.limit) for each in notices]
    )


def prune(database: sqlite3.Connection, now: int) -> int:
    """Remove windows that have ended."""
    return database.execute("DELETE FROM cap_told WHERE until < ?", (now,)).rowcount


def forget(database: sqlite3.Connection, names: Iterable[str]) -> None:
    """Remove what is noted of people and chats (as columns have them)."""
    database.executemany(_FORGET, [(name,) for name in names])
