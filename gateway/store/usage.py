"""Usage rows and their sums."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gateway.ports.journal import UsageRow
from gateway.store.base import Engine
from gateway.store.rows import micros, moment, quote, sql, unquote

_COLUMNS = "turn, person, chat, purpose, model, tokens_in, tokens_out, tokens_cached, cost, at"
_INSERT = sql("INSERT INTO usage (", _COLUMNS, ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
_OF_TURN = sql("SELECT", _COLUMNS, "FROM usage WHERE turn = ? ORDER BY at, rowid")
_TOTALS = (
    "SELECT purpose, model, count(*), sum(tokens_in), sum(tokens_out), sum(tokens_cached), "
    "CASE WHEN count(cost) = count(*) THEN sum(cost) END FROM usage "
    "WHERE at >= ? AND (? = '' OR person = ?) AND (? = '' OR chat = ?) "
    "GROUP BY purpose, model ORDER BY purpose, model"
)


def encode_usage(row: UsageRow) -> tuple[Any, ...]:
    """Return a usage row's columns."""
    return (
        quote(row.turn),
        quote(row.person),
        quote(row.chat),
        row.purpose,
        quote(row.model),
        row.tokens_in,
        row.tokens_out,
        row.tokens_cached,
        row.cost,
        micros(row.at),
    )


def insert_usage(database: sqlite3.Connection, columns: tuple[Any, ...]) -> None:
    """Store a usage row."""
    database.execute(_INSERT, columns)


def usage_of(database: sqlite3.Connection, turn: str) -> tuple[UsageRow, ...]:
    """Return the turn's usage rows, in order."""
    found = database.execute(_OF_TURN, (turn,))
    return tuple(
        UsageRow(
            turn=unquote(columns[0]),
            person=unquote(columns[1]),
            chat=unquote(columns[2]),
            purpose=columns[3],
            model=unquote(columns[4]),
            tokens_in=columns[5],
            tokens_out=columns[6],
            tokens_cached=columns[7],
            cost=columns[8],
            at=moment(columns[9]),
        )
        for columns in found
    )


class SqliteUsage:
    """Sums over usage rows (see the Usage port)."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def totals(self, *, since: datetime, person: str = "", chat: str = "") -> tuple[Mapping[str, Any], ...]:
        """Return the sums per purpose and model."""
        who, where = quote(person), quote(chat)
        found = await self._engine.writer.submit(
            lambda database: database.execute(_TOTALS, (micros(since), who, who, where, where)).fetchall()
        )
        names = ("purpose", "model", "calls", "tokens_in", "tokens_out", "tokens_cached", "cost")
        return tuple(dict(zip(names, columns, strict=True)) | {"model": unquote(columns[1])} for columns in found)
