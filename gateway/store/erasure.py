"""The Erasing port: texts and people out of rows, and out of the pages that deleted rows leave behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

import structlog

from gateway.events import SessionKey
from gateway.ports.journal import Job
from gateway.ports.memory import ErasureFilter, Redaction
from gateway.store.claims import has_jobs_elsewhere, has_turns_elsewhere
from gateway.store.database import LISTED, Database
from gateway.store.engine import StoreEngine
from gateway.store.row_codec import (
    encode_job,
    micros,
    put_job,
    quote,
    read_json,
    read_key,
    sql,
    unquote,
    write_json,
    write_key,
)
from gateway.store.session_queue import ALL
from gateway.store.transcripts import MAKE_STALE
from gateway.store.usage import forget_cap_notices
from gateway.text.json_lines import decode_lines, encode_lines

log = structlog.get_logger(__name__)

_MOMENT = 0.005  # seconds; a transaction of a gateway takes a few milliseconds
_READERS_WAIT = 5.0  # seconds that a scrub waits for transactions that began before it
_AT_ONCE = 500  # rows in one operation: turns' writes come between two of them
_IN_KEYS = sql("key", LISTED)
_TURNS = sql("SELECT DISTINCT turn FROM inbox WHERE", _IN_KEYS, "AND sender = ? AND turn != ''")
_BUSY_TURNS = sql(
    "SELECT DISTINCT turn FROM inbox WHERE ended_at IS NULL AND state IN ('claimed', 'stamped', 'waiting')",
    "AND turn != '' AND",
    _IN_KEYS,
)
_BUSY_JOBS = "SELECT id FROM job WHERE scope = ? AND leased != 0"
_INBOX = sql(
    "SELECT seq, payload FROM inbox WHERE seq > ? AND seq <= ? AND",
    _IN_KEYS,
    "AND (? = '' OR sender = ?) AND (? = 0 OR ended_at IS NOT NULL) ORDER BY seq LIMIT ?",
)
_OUTBOX = sql(
    "SELECT seq, id, payload FROM outbox WHERE seq > ? AND",
    _IN_KEYS,
    "AND (? = 0 OR open IS NULL) ORDER BY seq LIMIT ?",
)
_IDLE = sql(
    "FROM session WHERE key = ?1 AND (?2 = 0 OR used_at < ?2)",
    "AND NOT EXISTS (SELECT 1 FROM inbox WHERE inbox.key = ?1 AND ended_at IS NULL)",
    "AND NOT EXISTS (SELECT 1 FROM unwritten u JOIN record r ON r.seq = u.seq WHERE r.key = ?1)",
)
_SAID = ("text", "command", "quoted", "quoted_name", "quoted_files", "forwarded_from", "attachments")
_OF_SENDER = sql("SELECT payload, seq FROM inbox WHERE ended_at IS NOT NULL AND sender = ? AND", _IN_KEYS)
_ANONYMOUS = "UPDATE inbox SET sender = '', payload = ? WHERE seq = ?"


class SqlErasure:
    """Takes texts and people out of the journal, beside running turns. Doing it twice is doing it once."""

    def __init__(self, engine: StoreEngine) -> None:
        self._engine = engine

    async def begin(self, job: Job) -> None:
        """Queue the job of an erasure, and return when no transaction runs that began before it.

        From here on, until the job is finished, no transaction stores a record, job, document, history entry,
        note, proposal, result or workspace file of its scope that did not pass its words, whichever gateway it is of.
        """
        columns, writer = encode_job(job), self._engine.writer
        await writer.submit(lambda database: put_job(database, columns))
        look = partial(writer.submit_exclusive, lambda connection: frozenset(connection.running_transactions()))
        running = await look()
        while running:
            await asyncio.sleep(_MOMENT)
            running &= await look()

    async def at_work(self, reach: ErasureFilter) -> frozenset[str]:
        """Return the ids of running turns and jobs within *reach*: they may still write erased data."""
        keys, scope = _keys(reach.keys), quote(reach.scope) if reach.scope is not None else None

        def look(database: Database) -> frozenset[str]:
            found = database.execute(_BUSY_TURNS, (keys,)).fetchall()
            found += database.execute(_BUSY_JOBS, (scope,)).fetchall()
            return frozenset(unquote(each) for (each,) in found)

        return await self._engine.writer.submit(look)

    async def is_in_use_elsewhere(self, scope: str) -> bool:
        """Return True if another gateway runs a turn or a job of *scope*, which may store what it has read before."""
        engine = self._engine
        if not engine.claims.is_shared:
            return False
        return await engine.writer.submit(
            lambda database: (
                has_turns_elsewhere(database, (scope,), engine.owner)
                or has_jobs_elsewhere(database, (scope,), engine.owner)
            )
        )

    async def redact(self, reach: ErasureFilter, change: Redaction) -> int:
        """Pass all texts of users, bot and models through *change*: inbox, steps, records, outbox, jobs, dead letters.

        *change* is called with texts, lists and mappings; a message's text and files are in one mapping. Ids, keys and
        states stay, so that no message is answered or sent twice. Return the number of changed rows.
        """
        keys, sender = _keys(reach.keys), quote(reach.sender)
        turns: frozenset[str] | None = None
        if reach.sender:
            turns = frozenset(turn for (turn,) in await self._engine.fetch(_TURNS, keys, sender))
        changed = await self._in_pieces(partial(_redact_inbox, keys=keys, sender=sender, reach=reach, change=change))
        # Messages first: parts that another worker cuts from one in this transaction are seen by the next.
        for redact in (_redact_message, _redact_parts):
            step = partial(_redact_outbox, keys=keys, turns=turns, reach=reach, redact=partial(redact, change=change))
            changed += await self._in_pieces(step)
        submit = self._engine.writer.submit
        if not reach.is_over:
            changed += await submit(lambda db: _redact_steps(db, keys, turns, change))
            self._engine.may_have_stale = True
            changed += await submit(lambda db: _redact_bodies(db, keys, turns, change))
        changed += await submit(lambda db: _redact_dead(db, keys, turns, change))
        if reach.scope is not None:
            scope = quote(reach.scope)
            changed += await submit(lambda db: _redact_jobs(db, scope, reach.spared_kinds, change))
        return changed

    async def drop_jobs(self, scope: str, *, spare: Collection[str] = ()) -> int:
        """Remove the jobs of *scope* except those of the ids *spare*; return their number."""
        kept = write_json([quote(each) for each in spare])
        return await self._engine.writer.submit(
            lambda db: (
                db.execute(
                    sql("DELETE FROM job WHERE scope = ? AND NOT id", LISTED),
                    (quote(scope), kept),
                ).rowcount
            )
        )

    async def unlink(self, *, person: str, keys: Collection[SessionKey]) -> None:
        """Remove a person and their chats from the usage rows; the installation's totals stay right."""
        chats = _keys(keys)

        def change(database: Database) -> None:
            database.execute("UPDATE usage SET person = '' WHERE person = ? AND person != ''", (quote(person),))
            database.execute(sql("UPDATE usage SET chat = '' WHERE chat != '' AND chat", LISTED), (chats,))
            forget_cap_notices(database, [quote(person), *(write_key(key.parent) for key in keys)])

        await self._engine.writer.submit(change)

    async def anonymise(self, *, sender: str, keys: Collection[SessionKey]) -> None:
        """Take the id and name of *sender* out of ended inbox rows of *keys*."""
        given = (quote(sender), _keys(keys))

        def change(database: Database) -> None:
            found = database.execute(_OF_SENDER, given)
            database.executemany(_ANONYMOUS, [(_without_sender(payload), seq) for payload, seq in found])

        await self._engine.writer.submit(change)

    async def drop_sessions(
        self, keys: Collection[SessionKey], *, unused_since: datetime | None = None
    ) -> frozenset[SessionKey]:
        """Remove sessions that nothing is going on in, so that the next message begins a fresh one; return their keys.

        With *unused_since*, only those whose last turn is older.
        """
        since = micros(unused_since) if unused_since is not None else 0
        columns = [write_key(key) for key in keys]

        def drop(database: Database) -> frozenset[SessionKey]:
            gone = set()
            for column in columns:
                if database.execute(sql("DELETE", _IDLE), (column, since)).rowcount:
                    database.execute("DELETE FROM lane WHERE key = ? AND owner = ''", (column,))
                    gone.add(read_key(column))
            return frozenset(gone)

        return await self._engine.writer.submit(drop)

    async def scrub(self) -> bool:
        """Overwrite deleted rows in pages and log. Return False if a reader prevents it; call again later.

        Other writes come between two pieces: half a megabyte of a file, a table of a server.
        """
        await self._engine.remove_objects()
        submit = self._engine.writer.submit_exclusive
        parts, until = await submit(lambda connection: connection.scrub_parts()), time.monotonic() + _READERS_WAIT
        while await submit(lambda connection: connection.has_older_readers()):
            if time.monotonic() > until:
                log.info("store.scrub_later")
                return False
            await asyncio.sleep(_MOMENT)
        for part in parts:  # turns are stored between two of them
            if not await submit(lambda connection, part=part: connection.scrub(part)):  # type: ignore[misc]
                log.info("store.scrub_later")
                return False
        return True

    async def _in_pieces(self, step: Callable[[Database, int], tuple[int, int]]) -> int:
        """Run *step* over ranges of rows until none are left; return the number of changed rows."""
        after, changed = 0, 0
        while after >= 0:
            after, more = await self._engine.writer.submit(partial(_call, step, after))
            changed += more
            await asyncio.sleep(0)
        return changed


def _call(step: Callable[[Database, int], tuple[int, int]], after: int, database: Database) -> tuple[int, int]:
    return step(database, after)


def _keys(keys: Iterable[SessionKey]) -> str:
    return write_json([write_key(key) for key in keys])


def _redact_inbox(
    database: Database, after: int, *, keys: str, sender: str, reach: ErasureFilter, change: Redaction
) -> tuple[int, int]:
    found = database.execute(
        _INBOX, (after, reach.upto or ALL, keys, sender, sender, int(reach.is_over), _AT_ONCE)
    ).fetchall()
    changes = [(new, seq) for seq, payload in found if (new := _change_fields(payload, _SAID, change)) is not None]
    database.executemany("UPDATE inbox SET payload = ? WHERE seq = ?", changes)
    return (found[-1][0] if len(found) == _AT_ONCE else -1), len(changes)


def _redact_outbox(
    database: Database,
    after: int,
    *,
    keys: str,
    turns: frozenset[str] | None,
    reach: ErasureFilter,
    redact: Callable[[Database, int, str], int],
) -> tuple[int, int]:
    found = database.execute(_OUTBOX, (after, keys, int(reach.is_over), _AT_ONCE)).fetchall()
    meant = (each for each in found if turns is None or each[1].rpartition(".")[0] in turns)
    changed = sum([redact(database, seq, payload) for seq, _, payload in meant])
    return (found[-1][0] if len(found) == _AT_ONCE else -1), changed


def _redact_message(database: Database, seq: int, payload: str, *, change: Redaction) -> int:
    new = _change_fields(payload, ("text", "attachments", "calls", "links", "sources"), change)
    if new is not None:
        database.execute("UPDATE outbox SET payload = ? WHERE seq = ?", (new, seq))
    return int(new is not None)


def _redact_parts(database: Database, message: int, _: str, *, change: Redaction) -> int:
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


def _redact_steps(database: Database, keys: str, turns: frozenset[str] | None, change: Redaction) -> int:
    open_turns = {turn for (turn,) in database.execute(_BUSY_TURNS, (keys,))}
    changes = []
    for turn in open_turns if turns is None else open_turns & turns:
        for n, body in database.execute("SELECT n, body FROM step WHERE turn = ?", (turn,)):
            if (new := _other(body, change)) is not None:
                changes.append((new, turn, n))
    database.executemany("UPDATE step SET body = ? WHERE turn = ? AND n = ?", changes)
    return len(changes)


def _redact_bodies(database: Database, keys: str, turns: frozenset[str] | None, change: Redaction) -> int:
    """Redact the turns that are in no file yet."""
    found = database.execute(
        sql(
            "SELECT u.seq, r.turn, r.body, r.scope, r.key, r.transcript",
            "FROM unwritten u JOIN record r ON r.seq = u.seq WHERE",
            f"r.{_IN_KEYS}",
        ),
        (keys,),
    ).fetchall()
    mine = [each for each in found if turns is None or each[1] in turns]
    lines = [(encode_lines(map(change, decode_lines(body))), seq, bytes(body)) for seq, _, body, *_ in mine]
    changes = [(new, seq) for new, seq, body in lines if decode_lines(new) != decode_lines(body)]
    database.executemany("UPDATE record SET body = ? WHERE seq = ?", changes)
    changed = {seq for _, seq in changes}
    # The mirror may be writing them as they were.
    database.executemany(MAKE_STALE, {tuple(each[3:]) for each in mine if each[0] in changed})
    return len(changes)


def _redact_dead(database: Database, keys: str, turns: frozenset[str] | None, change: Redaction) -> int:
    found = database.execute(sql("SELECT id, turn, reason FROM dead WHERE", _IN_KEYS), (keys,)).fetchall()
    changes = [
        (quote(change(unquote(reason))), id_)
        for id_, turn, reason in found
        if (turns is None or turn in turns) and change(unquote(reason)) != unquote(reason)
    ]
    database.executemany("UPDATE dead SET reason = ? WHERE id = ?", changes)
    return len(changes)


def _redact_jobs(database: Database, scope: str, spared_kinds: frozenset[str], change: Redaction) -> int:
    found = database.execute("SELECT seq, kind, payload, reason FROM job WHERE scope = ?", (scope,)).fetchall()
    changes = []
    for seq, kind, payload, reason in found:
        new = _other(payload, change)
        said = quote(change(unquote(reason)))
        if kind not in spared_kinds and (new is not None or said != reason):
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


def _without_sender(payload: str) -> str:
    fields = read_json(payload)
    by = {name: value for name, value in fields["by"].items() if name not in ("id", "name", "roles", "team")}
    return write_json({**fields, "by": by})


def _other(body: str, change: Redaction) -> str | None:
    before = read_json(body)
    after = change(before)
    return None if after == before else write_json(after)
