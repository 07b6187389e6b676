"""The Erasing port: texts and people out of rows, and out of the pages that deleted rows leave behind."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any

import structlog

from gateway.events import SessionKey
from gateway.ports.erasure import ErasureFilter, Redaction
from gateway.store.engine import StoreEngine
from gateway.store.row_codec import micros, quote, read_json, read_key, sql, unquote, write_json, write_key
from gateway.store.usage import forget_cap_notices

log = structlog.get_logger(__name__)

_AT_ONCE = 500  # rows in one operation: turns' writes come between two of them
_IN_MEMORY = 64 * 1024 * 1024  # bytes of a journal that is rebuilt in memory; a larger one in a temporary file
_IN_KEYS = "key IN (SELECT value FROM json_each(?))"
_TURNS = sql("SELECT DISTINCT turn FROM inbox WHERE", _IN_KEYS, "AND sender = ? AND turn != ''")
_BUSY_TURNS = sql(
    "SELECT DISTINCT turn FROM inbox WHERE ended_at IS NULL AND state IN ('claimed', 'stamped', 'waiting')",
    "AND turn != '' AND",
    _IN_KEYS,
)
_BUSY_JOBS = "SELECT id FROM job WHERE scope = ? AND leased != 0"
_INBOX = sql(
    "SELECT seq, payload FROM inbox WHERE seq > ? AND (?2 = 0 OR seq <= ?2) AND", _IN_KEYS.replace("?", "?3"),
    "AND (?4 = '' OR sender = ?4) AND (NOT ?5 OR ended_at IS NOT NULL) ORDER BY seq LIMIT ?6",
)  # fmt: skip
_OUTBOX = sql(
    "SELECT seq, id, payload FROM outbox WHERE seq > ? AND",
    _IN_KEYS,
    "AND (NOT ? OR open IS NULL) ORDER BY seq LIMIT ?",
)
_IDLE = sql(
    "FROM session WHERE key = ?1 AND (?2 = 0 OR used_at < ?2)",
    "AND NOT EXISTS (SELECT 1 FROM inbox WHERE inbox.key = ?1 AND ended_at IS NULL)",
    "AND NOT EXISTS (SELECT 1 FROM body WHERE body.key = ?1)",
)
_SAID = ("text", "command", "quoted", "attachments")
_ANONYMOUS = (
    "UPDATE inbox SET sender = '', payload = json_set(json_remove(payload, '$.by.name', '$.by.roles', '$.by.team'), "
    "'$.by.id', '') WHERE ended_at IS NOT NULL AND sender = ?2 AND"
)


class SqliteErasure:
    """Forgets (see the Erasing port)."""

    def __init__(self, engine: StoreEngine) -> None:
        self._engine = engine

    async def at_work(self, reach: ErasureFilter) -> frozenset[str]:
        """Return the ids of running turns and jobs."""
        keys, scope = _keys(reach.keys), quote(reach.scope) if reach.scope is not None else None

        def look(database: sqlite3.Connection) -> frozenset[str]:
            found = database.execute(_BUSY_TURNS, (keys,)).fetchall()
            found += database.execute(_BUSY_JOBS, (scope,)).fetchall()
            return frozenset(unquote(each) for (each,) in found) - reach.spare

        return await self._engine.writer.submit(look)

    async def redact(self, reach: ErasureFilter, change: Redaction) -> int:
        """Put what was said through *change*, some rows at a time."""
        keys, sender = _keys(reach.keys), quote(reach.sender)
        turns: frozenset[str] | None = None
        if reach.sender:
            found = await self._engine.writer.submit(lambda db: db.execute(_TURNS, (keys, sender)).fetchall())
            turns = frozenset(turn for (turn,) in found)
        changed = await self._in_pieces(partial(_redact_inbox, keys=keys, sender=sender, reach=reach, change=change))
        changed += await self._in_pieces(partial(_redact_outbox, keys=keys, turns=turns, reach=reach, change=change))
        submit = self._engine.writer.submit
        if not reach.is_over:
            changed += await submit(lambda db: _redact_steps(db, keys, turns, change))
            changed += await submit(lambda db: _redact_bodies(db, keys, turns, change))
        changed += await submit(lambda db: _redact_dead(db, keys, turns, change))
        if reach.scope is not None:
            scope = quote(reach.scope)
            changed += await submit(lambda db: _redact_jobs(db, scope, reach.spare, change))
        return changed

    async def drop_jobs(self, scope: str, *, spare: Collection[str] = ()) -> int:
        """Remove every job of *scope* but *spare*."""
        kept = write_json([quote(each) for each in spare])
        return await self._engine.writer.submit(
            lambda db: (
                db.execute(
                    "DELETE FROM job WHERE scope = ? AND id NOT IN (SELECT value FROM json_each(?))",
                    (quote(scope), kept),
                ).rowcount
            )
        )

    async def unlink(self, *, person: str, keys: Collection[SessionKey]) -> None:
        """Take a person and their chats out of the usage rows."""
        chats = _keys(keys)

        def change(database: sqlite3.Connection) -> None:
            database.execute("UPDATE usage SET person = '' WHERE person = ? AND person != ''", (quote(person),))
            database.execute(
                "UPDATE usage SET chat = '' WHERE chat != '' AND chat IN (SELECT value FROM json_each(?))", (chats,)
            )
            forget_cap_notices(database, [quote(person), *(write_key(key.parent) for key in keys)])

        await self._engine.writer.submit(change)

    async def anonymise(self, *, sender: str, keys: Collection[SessionKey]) -> None:
        """Take the sender out of ended rows."""
        statement = sql(_ANONYMOUS, _IN_KEYS.replace("?", "?1"))
        await self._engine.writer.submit(lambda db: db.execute(statement, (_keys(keys), quote(sender))).close())

    async def drop_sessions(
        self, keys: Collection[SessionKey], *, unused_since: datetime | None = None
    ) -> frozenset[SessionKey]:
        """Remove idle sessions."""
        since = micros(unused_since) if unused_since is not None else 0
        columns = [write_key(key) for key in keys]

        def drop(database: sqlite3.Connection) -> frozenset[SessionKey]:
            gone = set()
            for column in columns:
                if database.execute(sql("DELETE", _IDLE), (column, since)).rowcount:
                    database.execute("DELETE FROM lane WHERE key = ? AND owner = ''", (column,))
                    gone.add(read_key(column))
            return frozenset(gone)

        return await self._engine.writer.submit(drop)

    async def scrub(self) -> bool:
        """Rebuild the file without what was deleted, and empty its log."""
        is_done = await self._engine.writer.submit_exclusive(scrub)
        if not is_done:
            log.info("store.scrub_later")
        return is_done

    async def _in_pieces(self, step: Callable[[sqlite3.Connection, int], tuple[int, int]]) -> int:
        """Run *step* over ranges of rows until none are left; return the number of changed rows."""
        after, changed = 0, 0
        while after >= 0:
            after, more = await self._engine.writer.submit(partial(_call, step, after))
            changed += more
            await asyncio.sleep(0)
        return changed


def _call(
    step: Callable[[sqlite3.Connection, int], tuple[int, int]], after: int, database: sqlite3.Connection
) -> tuple[int, int]:
    return step(database, after)


def _keys(keys: Iterable[SessionKey]) -> str:
    return write_json([write_key(key) for key in keys])


def _redact_inbox(
    database: sqlite3.Connection, after: int, *, keys: str, sender: str, reach: ErasureFilter, change: Redaction
) -> tuple[int, int]:
    found = database.execute(_INBOX, (after, reach.upto, keys, sender, reach.is_over, _AT_ONCE)).fetchall()
    changes = [(new, seq) for seq, payload in found if (new := _change_fields(payload, _SAID, change)) is not None]
    database.executemany("UPDATE inbox SET payload = ? WHERE seq = ?", changes)
    return (found[-1][0] if len(found) == _AT_ONCE else -1), len(changes)


def _redact_outbox(
    database: sqlite3.Connection,
    after: int,
    *,
    keys: str,
    turns: frozenset[str] | None,
    reach: ErasureFilter,
    change: Redaction,
) -> tuple[int, int]:
    found = database.execute(_OUTBOX, (after, keys, reach.is_over, _AT_ONCE)).fetchall()
    changed = 0
    for seq, id_, payload in found:
        if turns is not None and id_.rpartition(".")[0] not in turns:
            continue
        new = _change_fields(payload, ("text", "attachments", "calls"), change)
        if new is not None:
            database.execute("UPDATE outbox SET payload = ? WHERE seq = ?", (new, seq))
        changed += (new is not None) + _redact_parts(database, id_, change)
    return (found[-1][0] if len(found) == _AT_ONCE else -1), changed


def _redact_parts(database: sqlite3.Connection, message: str, change: Redaction) -> int:
    changes = []
    for n, payload, reason in database.execute("SELECT n, payload, reason FROM part WHERE message = ?", (message,)):
        fields = read_json(payload)
        plain = fields.get("plain", fields.get("text", ""))
        after = {**fields, **{name: change(fields[name]) for name in ("file", "calls") if name in fields}}
        if change(plain) != plain or change(fields.get("text", "")) != fields.get("text", ""):
            # Without a payload the plain text is sent; a part of the markup could not be.
            after |= {"text": "", "plain": change(plain)}
        said = quote(change(unquote(reason)))
        if after != fields or said != reason:
            changes.append((write_json(after), said, message, n))
    database.executemany("UPDATE part SET payload = ?, reason = ? WHERE message = ? AND n = ?", changes)
    return len(changes)


def _redact_steps(database: sqlite3.Connection, keys: str, turns: frozenset[str] | None, change: Redaction) -> int:
    open_turns = {turn for (turn,) in database.execute(_BUSY_TURNS, (keys,))}
    changes = []
    for turn in open_turns if turns is None else open_turns & turns:
        for n, body in database.execute("SELECT n, body FROM step WHERE turn = ?", (turn,)):
            if (new := _other(body, change)) is not None:
                changes.append((new, turn, n))
    database.executemany("UPDATE step SET body = ? WHERE turn = ? AND n = ?", changes)
    return len(changes)


def _redact_bodies(database: sqlite3.Connection, keys: str, turns: frozenset[str] | None, change: Redaction) -> int:
    found = database.execute(
        sql("SELECT b.seq, r.turn, b.body FROM body b JOIN record r ON r.seq = b.seq WHERE", f"b.{_IN_KEYS}"), (keys,)
    ).fetchall()
    mine = [(seq, body) for seq, turn, body in found if turns is None or turn in turns]
    changes = [(new, seq) for seq, body in mine if (new := _other(body, change)) is not None]
    database.executemany("UPDATE body SET body = ? WHERE seq = ?", changes)
    return len(changes)


def _redact_dead(database: sqlite3.Connection, keys: str, turns: frozenset[str] | None, change: Redaction) -> int:
    found = database.execute(sql("SELECT id, turn, reason FROM dead WHERE", _IN_KEYS), (keys,)).fetchall()
    changes = [
        (quote(change(unquote(reason))), id_)
        for id_, turn, reason in found
        if (turns is None or turn in turns) and change(unquote(reason)) != unquote(reason)
    ]
    database.executemany("UPDATE dead SET reason = ? WHERE id = ?", changes)
    return len(changes)


def _redact_jobs(database: sqlite3.Connection, scope: str, spare: frozenset[str], change: Redaction) -> int:
    found = database.execute("SELECT seq, id, payload, reason FROM job WHERE scope = ?", (scope,)).fetchall()
    changes = []
    for seq, id_, payload, reason in found:
        new = _other(payload, change)
        said = quote(change(unquote(reason)))
        if unquote(id_) not in spare and (new is not None or said != reason):
            changes.append((payload if new is None else new, said, seq))
    database.executemany("UPDATE job SET payload = ?, reason = ? WHERE seq = ?", changes)
    return len(changes)


def _change_fields(payload: str, names: Iterable[str], change: Redaction) -> str | None:
    """Return a payload whose fields *names* and sender's name went through *change*; None when nothing changed."""
    fields: Mapping[str, Any] = read_json(payload)
    after = {**fields, **change({name: fields[name] for name in names if name in fields})}
    by = fields.get("by")
    if isinstance(by, dict) and "name" in by:
        after["by"] = {**by, "name": change(by["name"])}
    return None if after == fields else write_json(after)


def _other(body: str, change: Redaction) -> str | None:
    before = read_json(body)
    after = change(before)
    return None if after == before else write_json(after)


def scrub(database: sqlite3.Connection) -> bool:
    """Leave nothing in the file but what its rows say. Outside any transaction."""
    with _impatient(database):
        (pages,), (size,) = (database.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
        database.execute(f"PRAGMA temp_store = {'MEMORY' if pages * size <= _IN_MEMORY else 'FILE'}")
        if not _empty_log(database):  # before the file is rebuilt: a reader would keep the old pages
            return False
        try:
            database.execute("VACUUM")
        except sqlite3.OperationalError as error:
            log.warning("store.scrub_failed", error=str(error))
            return False
        return _empty_log(database)


def _empty_log(database: sqlite3.Connection) -> bool:
    row = database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return row is not None and row[0] == 0


@contextmanager
def _impatient(database: sqlite3.Connection) -> Iterator[None]:
    """Do not wait for those who read: turns would wait with us."""
    (before,) = database.execute("PRAGMA busy_timeout").fetchone()
    database.execute("PRAGMA busy_timeout = 100")
    try:
        yield
    finally:
        database.execute(f"PRAGMA busy_timeout = {int(before)}")
        database.execute("PRAGMA temp_store = DEFAULT")
