"""Transcripts: turns by session, read beside the writer and changed by compare-and-set.

Every statement names the scope. Changes of many lines hold the writer for one slice at a time; a removal and an
adoption are one operation each, 0.1 to 0.5 s for 50,000 turns.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import structlog

from gateway.events import SessionKey
from gateway.ports.memory import StaleFile, StoredEnd, StoredTurn, StoredWindow, TranscriptHead
from gateway.store.database import FIND_META, LISTED, SET_META, Database, QueryResult
from gateway.store.engine import StorePart, new_transcript
from gateway.store.files import read_texts
from gateway.store.row_codec import (
    micros,
    moment,
    quote,
    read_json,
    read_key,
    sql,
    unquote,
    window_columns,
    write_json,
    write_key,
)
from gateway.text.json_lines import decode_lines

log = structlog.get_logger(__name__)

_MOVED = 400  # turns that are given to another scope in one operation
_NEWEST_MOVED = 64  # of each session, with the link itself
_SLICE = 128  # turns read or changed in one operation
_SCANNED = 512  # turns of a scope read in one operation
_SEEN_BYTES = 16 * 1024  # of lines that are searched in one call
_MOST_BYTES = 4 * 1024 * 1024  # of turns read in one operation, but for the last of them
_COLUMNS = "seq, turn, key, transcript, from_index, to_index, at, outcome, new_transcript, inbox, body"
_OF_CHAT = sql("SELECT", _COLUMNS, "FROM record WHERE scope = ? AND key = ? AND body IS NOT NULL")
_ANCHOR = (
    "SELECT anchor, seq FROM record WHERE scope = ? AND key = ? AND transcript = ? AND anchor IS NOT NULL "
    "AND body IS NOT NULL ORDER BY anchor DESC, seq DESC LIMIT 1"
)
# The last turn that begins at an index or before it: PostgreSQL sorts a whole chat when its end is asked for too.
_HOLDER = (
    "SELECT seq, from_index, to_index FROM record WHERE scope = ? AND key = ? AND transcript = ? AND from_index <= ? "
    "AND to_index > from_index AND body IS NOT NULL ORDER BY seq DESC LIMIT 1"
)
_NEXT = (
    "SELECT min(seq) FROM record WHERE scope = ? AND key = ? AND transcript = ? AND seq > ? "
    "AND to_index > from_index AND body IS NOT NULL"
)
_AFTER = sql(_OF_CHAT, "AND transcript = ? AND seq > ? ORDER BY seq LIMIT ?")
_SNAPSHOT = (
    "SELECT seq, body FROM record WHERE scope = ? AND key = ? AND transcript = ? AND snapshot IS NOT NULL "
    "AND body IS NOT NULL ORDER BY seq DESC LIMIT 1"
)
_SIZES = (
    "SELECT seq, length(body) FROM record WHERE scope = ? AND key = ? AND (? = '' OR transcript = ?) AND seq < ? "
    "AND body IS NOT NULL ORDER BY seq DESC LIMIT ?"
)
_BETWEEN = sql(_OF_CHAT, "AND (? = '' OR transcript = ?) AND seq >= ? AND seq < ? ORDER BY seq")
# From the end, where summaries are made.
_LAST_BEFORE = (
    "SELECT max(seq) FROM record WHERE scope = ? AND key = ? AND transcript = ? AND to_index <= ? "
    "AND to_index > from_index AND body IS NOT NULL"
)
_ONE = sql(_OF_CHAT, "AND turn = ?")
_TRANSCRIPTS = (
    "SELECT transcript FROM record WHERE scope = ? AND key = ? AND body IS NOT NULL "
    "GROUP BY transcript ORDER BY min(seq)"
)
# One session, then those behind it: SQLite has no index for `(key, seq) > (?, ?)`.
_REST = sql(_OF_CHAT, "AND seq > ? ORDER BY seq LIMIT ?")
_LATER = sql("SELECT", _COLUMNS, "FROM record WHERE scope = ? AND key > ? AND body IS NOT NULL")
_LATER_ALL = sql(_LATER, "ORDER BY key, seq LIMIT ?")
_LATER_KEYS = sql(_LATER, "AND key", LISTED, "ORDER BY key, seq LIMIT ?")
_EACH_SESSION = (  # by a step in the index, not by all turns
    "WITH RECURSIVE each (key) AS (SELECT min(key) FROM record WHERE scope = ?1 UNION ALL "
    "SELECT (SELECT min(key) FROM record WHERE scope = ?1 AND key > each.key) FROM each WHERE each.key IS NOT NULL) "
)
_SESSIONS = sql(
    _EACH_SESSION,
    "SELECT key, (SELECT max(seq) FROM record WHERE scope = ?1 AND key = each.key) FROM each WHERE key IS NOT NULL",
)
_FIRSTS = sql(
    _EACH_SESSION,
    "SELECT key, (SELECT min(seq) FROM record WHERE scope = ?1 AND key = each.key) FROM each WHERE key IS NOT NULL",
)
_OLDEST = sql(
    _EACH_SESSION,
    "SELECT min((SELECT at FROM record WHERE scope = ?1 AND key = each.key AND body IS NOT NULL ORDER BY seq LIMIT 1))",
    "FROM each WHERE key IS NOT NULL",
)
_COUNT = "SELECT count(*) FROM (SELECT DISTINCT key, transcript FROM record WHERE scope = ? AND transcript != '') t"
# Of rows in the index alone; a turn that was removed has no transcript.
_HEADS = (
    "SELECT transcript, max(seq) FROM record WHERE scope = ? AND key = ? AND seq > ? AND transcript != '' "
    "GROUP BY transcript"
)
_TURN = "SELECT turn FROM record WHERE scope = ? AND seq = ?"
_COUNTS = "SELECT key, transcript, changes FROM stale_file WHERE scope = ? AND key != ''"
_SET_BODY = "UPDATE record SET body = ? WHERE scope = ? AND seq = ? AND body = ?"
_KNOWN = "SELECT turn, seq, body IS NOT NULL OR transcript = '', at FROM record WHERE scope = ? AND key = ?"
_FILL = (
    "UPDATE record SET body = ?, anchor = ?, snapshot = ?, transcript = ?, from_index = ?, to_index = ?, "
    "new_transcript = ? WHERE scope = ? AND seq = ? AND body IS NULL"
)
_BODIES = "SELECT seq, transcript, body FROM record WHERE scope = ? AND key = ? AND body IS NOT NULL"
_REPLACE = "UPDATE record SET body = ? WHERE scope = ? AND seq = ?"
# Of a chat without a session, whose scope a link has changed.
_TAKE = "UPDATE record SET scope = ? WHERE turn = ? AND key = ? AND body IS NULL"
_INSERT = (
    "INSERT INTO record (turn, key, transcript, outcome, from_index, to_index, inbox, at, new_transcript, failure, "
    "supersedes, scope, anchor, snapshot, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, '', '', ?, ?, ?, ?) "
    "ON CONFLICT DO NOTHING"
)
_INSERT_AT = (
    "INSERT INTO record (seq, turn, key, transcript, outcome, from_index, to_index, inbox, at, new_transcript, "
    "failure, supersedes, scope, anchor, snapshot, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, '', '', ?, ?, ?, ?) "
    "ON CONFLICT DO NOTHING"
)
_SESSION = "SELECT transcript FROM session WHERE scope = ? AND key = ?"
_LENGTHS = (
    "SELECT seq, length(body) FROM record WHERE scope = ? AND key = ? AND transcript = ? AND seq < ? AND seq > ? "
    "AND body IS NOT NULL ORDER BY seq LIMIT ?"
)
_LAST = (
    "SELECT turn, at, body FROM record WHERE scope = ? AND key = ? AND transcript = ? AND seq < ? AND body IS NOT NULL "
    "ORDER BY seq DESC LIMIT 1"
)
_ENDING = (
    "SELECT turn, new_transcript FROM record WHERE scope = ? AND key = ? AND transcript = ? AND body IS NOT NULL "
    "ORDER BY new_transcript = '', seq DESC LIMIT 1"
)
_NEWEST = "SELECT transcript FROM record WHERE scope = ? AND key = ? AND body IS NOT NULL ORDER BY seq DESC LIMIT 1"
_LAST_OF = "SELECT seq FROM record WHERE scope = ? AND key = ? ORDER BY seq DESC LIMIT ?"
_GIVE = "UPDATE record SET scope = ? WHERE scope = ? AND key = ? AND seq >= ?"
_TRANSCRIPTS_OF = "SELECT DISTINCT transcript FROM record WHERE scope = ? AND key = ? AND transcript != ''"
MAKE_STALE = (
    "INSERT INTO stale_file (scope, key, transcript, changes) VALUES (?, ?, ?, 1) "
    "ON CONFLICT (scope, key, transcript) DO UPDATE SET changes = stale_file.changes + 1"
)
# Without a change that search would follow.
_MAKE_ALL_STALE = (
    "INSERT INTO stale_file (scope, key, transcript, changes, written) "
    "SELECT DISTINCT scope, key, transcript, 0, -1 FROM record WHERE transcript != '' "
    "ON CONFLICT (scope, key, transcript) DO UPDATE SET written = -1"
)
_EMPTIED = "body = NULL, transcript = '', new_transcript = '', failure = '', anchor = NULL, snapshot = NULL"
_STALE = "SELECT scope, key, transcript, changes FROM stale_file WHERE changes > written AND key != ''"
_STALE_OF = "SELECT transcript FROM stale_file WHERE changes > written AND scope = ? AND key = ?"
_SET_WRITTEN = "UPDATE stale_file SET written = changes WHERE scope = ? AND key = ? AND transcript = ? AND changes = ?"
# Not before the turns: until then, those who follow the changes must see them.
FORGET_CHANGES = (
    "DELETE FROM stale_file WHERE changes <= written AND key != '' AND NOT EXISTS "
    "(SELECT 1 FROM record WHERE record.scope = stale_file.scope AND record.key = stale_file.key)"
)
_LAPSED = (
    "scope = ? AND at < ? AND seq NOT IN (SELECT seq FROM unwritten) AND (anchor IS NULL AND snapshot IS NULL "
    "OR transcript NOT IN (SELECT transcript FROM session WHERE session.key = record.key))"
)
_OLDER = sql("SELECT", _COLUMNS, "FROM record WHERE scope = ? AND at < ? AND body IS NOT NULL ORDER BY key, seq")
_BEGIN_SESSION = (
    "INSERT INTO session (key, transcript, next_index, created_at, used_at, scope) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT DO NOTHING"
)
_MIRROR = "mirror"  # row of `meta`
_CHANGES = re.compile(rb'"(?:forgotten|rewind)"')  # kinds of lines
_SNAPSHOT_LINE = b'"snapshot"'


class SqlTranscripts(StorePart):
    """The turns of every scope. Methods return when a write is durable, and raise StoreUnavailable otherwise."""

    _adoption = "adopted_turns"

    async def window(self, scope: str, key: SessionKey, transcript: str) -> StoredWindow:
        """Return the turns from the last replay start of *transcript* on."""
        of_transcript = (quote(scope), write_key(key), transcript)

        def read(database: Database) -> tuple[list[Any], int, int | None, bytes, dict[str, str]]:
            replay_from, anchored = database.execute(_ANCHOR, of_transcript).fetchone() or (0, None)
            holder = database.execute(_HOLDER, (*of_transcript, replay_from)).fetchone()
            first, start, end = holder or (-(2**62), 0, 0)
            if end > replay_from:
                replay_from = start
            else:  # it is behind all messages, or they were removed by age
                (first,) = database.execute(_NEXT, (*of_transcript, first)).fetchone()
            # With the turn that has set the start: it also says what is summarised.
            first = min((each for each in (first, anchored) if each is not None), default=-(2**62))
            rows = _slice(database.execute(_AFTER, (*of_transcript, first - 1, _SLICE)))
            earlier = database.execute(_SNAPSHOT, of_transcript).fetchone()
            digests = _snapshot_digests(bytes(earlier[1])) if earlier is not None else ()
            texts = read_texts(database, of_transcript[0], digests) if digests else {}
            if earlier is not None and earlier[0] >= first:
                earlier = None
            return rows, replay_from, anchored, bytes(earlier[1]) if earlier is not None else b"", texts

        rows, replay_from, anchored, snapshot, texts = await self._engine.read(read)
        turns: list[StoredTurn] = []
        while rows:  # the rest of a long one in further operations: others do not wait for all of it
            kept = (row for row in rows if row[0] == anchored or row[5] > replay_from or row[4] == row[5])
            turns += map(_read, kept)
            columns = (*of_transcript, rows[-1][0], _SLICE)
            rows = await self._engine.read(partial(_read_slice, columns=columns)) if _is_full(rows) else []
        return StoredWindow(turns=turns, replay_from=replay_from, snapshot=snapshot, texts=texts)

    async def newest(
        self, scope: str, key: SessionKey, limit: int, *, before: int | None = None, transcript: str = ""
    ) -> Sequence[StoredTurn]:
        """Return at most *limit* turns of *key*, the oldest first: the newest ones, or those with a lower seq.

        With *transcript*, only turns of it. At least one is returned if there is one, and otherwise at most a few
        megabytes.
        """
        chat, end = (quote(scope), write_key(key)), 2**62 if before is None else before

        def read(database: Database) -> list[Any]:
            first, left = end, _MOST_BYTES
            for seq, size in database.execute(_SIZES, (*chat, transcript, transcript, end, limit)).fetchall():
                if left <= 0:
                    break
                first, left = seq, left - size
            return database.execute(_BETWEEN, (*chat, transcript, transcript, first, end)).fetchall()

        return [_read(row) for row in await self._engine.read(read)] if limit > 0 else []

    async def messages(self, scope: str, key: SessionKey, transcript: str, low: int, high: int) -> Sequence[StoredTurn]:
        """Return the turns of *transcript* that have messages with ``low <= i < high``.

        Turns after them that replace or delete messages come too.
        """
        if high <= low:
            return ()
        last: int | None = None
        if low > 0:
            ((last,),) = await self._engine.read_rows(_LAST_BEFORE, quote(scope), write_key(key), transcript, low)
        found: list[StoredTurn] = []
        while page := await self.since(scope, key, transcript, -(2**62) if last is None else last):
            found += [each for each in page if each.from_index < high or _CHANGES.search(each.body)]
            last = page[-1].seq
        return found if any(each.to_index > low for each in found) else ()

    async def since(self, scope: str, key: SessionKey, transcript: str, after: int) -> Sequence[StoredTurn]:
        """Return some turns of *transcript* with a seq higher than *after*, in order; none at the end."""
        columns = (quote(scope), write_key(key), transcript, after, _SLICE)
        found = await self._engine.read(partial(_read_slice, columns=columns))
        return [_read(row) for row in found]

    async def find(self, scope: str, key: SessionKey, turn: str) -> StoredTurn | None:
        """Return one turn of *key*; None if it is not stored."""
        found = await self._engine.read_rows(_ONE, quote(scope), write_key(key), quote(turn))
        return _read(found[0]) if found else None

    async def transcripts(self, scope: str, key: SessionKey) -> Sequence[str]:
        """Return the transcripts of *key*, in the order they began."""
        found = await self._engine.read_rows(_TRANSCRIPTS, quote(scope), write_key(key))
        return [transcript for (transcript,) in found]

    async def scan(
        self, scope: str, *, keys: Collection[SessionKey] | None = None, after: tuple[str, int] | None = None
    ) -> Sequence[StoredTurn]:
        """Return some turns of *scope* by session and seq, those behind *after*; none at the end."""
        return [_read(row) for row in await self._scan(scope, keys, after)]

    async def _scan(
        self, scope: str, keys: Collection[SessionKey] | None, after: tuple[str, int] | None
    ) -> list[tuple[Any, ...]]:
        column = quote(scope)
        key, seq = ("", 0) if after is None else (write_key(SessionKey.parse(after[0])), after[1])
        only = () if keys is None else (write_json([write_key(each) for each in keys]),)

        def read(database: Database) -> list[Any]:
            found = _slice(database.execute(_REST, (column, key, seq, _SCANNED))) if key else []
            later = _LATER_ALL if keys is None else _LATER_KEYS
            return found or _slice(database.execute(later, (column, key, *only, _SCANNED)))

        return await self._engine.read(read)

    async def sessions(self, scope: str) -> Mapping[SessionKey, int]:
        """Return the sessions that have turns in *scope*, or had until recently, with the number of the first."""
        return {read_key(key): first for key, first in await self._engine.read_rows(_FIRSTS, quote(scope))}

    async def heads(self, scope: str, after: Mapping[SessionKey, int]) -> Sequence[TranscriptHead]:
        """Return the last turn of each transcript of *scope* with turns behind those that *after* has of its session.

        Turns of a session are committed in the order of their seqs, so that no lower one appears later.
        """
        column, known = quote(scope), {write_key(key): seq for key, seq in after.items()}

        def read(database: Database) -> list[TranscriptHead]:
            found: list[TranscriptHead] = []
            for key, last in database.execute(_SESSIONS, (column,)).fetchall():
                start = known.get(key, -(2**62))
                if last <= start:
                    continue
                for transcript, seq in database.execute(_HEADS, (column, key, start)).fetchall():
                    (turn,) = database.execute(_TURN, (column, seq)).fetchone()
                    head = TranscriptHead(key=read_key(key), transcript=transcript, seq=seq, turn=unquote(turn))
                    found.append(head)
            return found

        return await self._engine.read(read)

    async def count(self, scope: str) -> tuple[int, datetime | None]:
        """Return the number of transcripts of *scope*, and the time of its oldest turn; None without any."""
        column = quote(scope)

        def read(database: Database) -> tuple[int, datetime | None]:
            (count,) = database.execute(_COUNT, (column,)).fetchone()
            (at,) = database.execute(_OLDEST, (column,)).fetchone()
            return count, moment(at) if at is not None else None

        return await self._engine.read(read)

    async def changes(self, scope: str) -> Mapping[tuple[SessionKey, str], int]:
        """Return the number of changes and removals of stored turns in each transcript that had any."""
        found = await self._engine.read_rows(_COUNTS, quote(scope))
        return {(read_key(key), transcript): count for key, transcript, count in found}

    async def rewrite(
        self,
        scope: str,
        change: Callable[[bytes], bytes],
        *,
        keys: Collection[SessionKey] | None = None,
        may_change: Callable[[bytes], bool] = lambda _: True,
    ) -> int:
        """Apply *change* to every line of *scope*, of each session in order; return the number of changed lines.

        Their transcripts are stale then. *change* runs in a thread, and again for a turn that was changed at the same
        time. A line that it returns empty is removed. Turns for whose lines *may_change* returns False are passed over.
        """

        def apply(rows: Sequence[tuple[Any, ...]]) -> Sequence[_ChangedTurn]:
            return _changed([_read(row) for row in rows if may_change(bytes(row[-1]))], change)

        after: tuple[str, int] | None = None
        changed = 0
        while rows := await self._scan(scope, keys, after):
            changes = await asyncio.to_thread(apply, rows)
            if changes:
                self._engine.may_have_stale = True
                done = await self._engine.writer.submit(partial(_store_changes, scope=quote(scope), changes=changes))
                changed += sum(each.lines for each in done)
                if len(done) != len(changes):
                    continue  # a turn was changed at the same time: this slice is read again
            after = _place(rows[-1])
        return changed

    async def visit(self, scope: str, see: Callable[[bytes], bool]) -> None:
        """Call *see* with the lines of some turns of *scope* after others, by session and seq, until it returns False.

        It runs in a thread.
        """

        def show(rows: Sequence[tuple[Any, ...]]) -> bool:
            at_once: list[bytes] = []
            size = 0
            for row in rows:
                at_once.append(bytes(row[-1]))
                size += len(at_once[-1])
                if size >= _SEEN_BYTES:
                    if not see(b"".join(at_once)):
                        return False
                    at_once, size = [], 0
            return not at_once or see(b"".join(at_once))

        after: tuple[str, int] | None = None
        while rows := await self._scan(scope, None, after):
            if not await asyncio.to_thread(show, rows):
                return
            after = _place(rows[-1])

    async def remove(self, scope: str, *, keys: Collection[SessionKey] | None = None) -> int:
        """Remove the turns of *scope*, or of some of its sessions; return their number."""
        only = "" if keys is None else sql("AND key", LISTED)
        columns = (quote(scope), *(() if keys is None else (write_json([write_key(each) for each in keys]),)))

        def remove(database: Database) -> int:
            return _remove(database, sql("scope = ?", only), columns)

        self._engine.may_have_stale = True
        return await self._engine.writer.submit(remove)

    async def move(self, source: str, target: str, *, keys: Collection[SessionKey] | None = None) -> None:
        """Give the turns of *source*, or of some of its sessions, to *target*, some at a time. Idempotent."""
        scopes = quote(source), quote(target)

        def move(database: Database) -> bool:
            sessions = (
                [key for key, _ in database.execute(_SESSIONS, scopes[:1]).fetchall()]
                if keys is None
                else [write_key(key) for key in keys]
            )
            left = _MOVED
            for key in sessions:
                left -= (moved := _move_some(database, *scopes, key, left))
                if moved and database.execute(_LAST_OF, (scopes[0], key, 1)).fetchone() is None:
                    # The file and the index may have been made of a part.
                    _count_change(database, scopes, scopes[1], key)
                if not left:
                    return True
            return False

        self._engine.may_have_stale = True
        while await self._engine.writer.submit(move):
            pass

    async def lapse(self, scope: str, before: datetime, blank: Callable[[bytes], bytes]) -> int:
        """Remove the turns of *scope* that ended before a time; return their number.

        In a current transcript, those stay that hold its snapshots and replay starts, with their lines as *blank*
        returns them.
        """
        columns = (quote(scope), micros(before))

        def lapse(database: Database) -> int:
            count = _remove(database, _LAPSED, columns)
            left = [_read(row) for row in database.execute(_OLDER, columns).fetchall()]
            _store_changes(database, scope=columns[0], changes=_changed(left, blank))
            return count

        self._engine.may_have_stale = True
        return await self._engine.writer.submit(lapse)

    async def end(self, scope: str, key: SessionKey, transcript: str, *, before: int | None = None) -> StoredEnd:
        """Return the end of *transcript*, or of its turns with a seq lower than *before*."""
        chat = (quote(scope), write_key(key))
        part = (*chat, transcript, 2**62 if before is None else before)

        def read(database: Database) -> StoredEnd:
            turn, at, body = database.execute(_LAST, part).fetchone() or ("", None, b"")
            session = database.execute(_SESSION, chat).fetchone()
            newest = session or database.execute(_NEWEST, chat).fetchone()
            ending = None
            if newest is not None and not (session and newest[0] == transcript):
                ending = database.execute(_ENDING, (*chat, transcript)).fetchone()
                if newest[0] == transcript and (ending is None or not ending[1]):
                    ending = None  # it goes on
            ended = unquote(ending[0]) if ending is not None else ""
            last_at = moment(at) if at is not None else None
            return StoredEnd(last=bytes(body), last_turn=unquote(turn), last_at=last_at, ended=ended)

        return await self._engine.read(read)

    async def size(self, scope: str, key: SessionKey, transcript: str, *, before: int) -> int:
        """Return the bytes of all bodies of *transcript* with a seq lower than *before*. It reads each turn."""
        part, reached, size = (quote(scope), write_key(key), transcript, before), -(2**62), 0

        def read(database: Database) -> list[tuple[int, int]]:
            return database.execute(_LENGTHS, (*part, reached, _SLICE)).fetchall()

        while found := await self._engine.read(read):
            reached = found[-1][0]
            size += sum(length for _, length in found)
        return size

    async def stale_files(self, scope: str | None = None) -> Sequence[StaleFile]:
        """Return the stale transcripts of *scope*; without it, those of the chats of this gateway."""

        def read(database: Database) -> list[StaleFile]:
            is_ours = self._engine.has_chats(database)
            found = [
                StaleFile(scope=unquote(each), key=read_key(key), transcript=transcript, changes=changes)
                for each, key, transcript, changes in database.execute(_STALE).fetchall()
            ]
            return [each for each in found if (is_ours(each.key) if scope is None else each.scope == scope)]

        if scope is not None or self._engine.claims.is_shared:
            return await self._engine.writer.submit(read)
        if not self._engine.may_have_stale:
            return ()
        self._engine.may_have_stale = False  # what is queued from here on sets it again
        files: list[StaleFile] | None = None
        try:
            files = await self._engine.writer.submit(read)
        finally:
            if files != []:  # or nothing is known, because the store is down
                self._engine.may_have_stale = True
        return files

    async def drop_stale(self, file: StaleFile) -> None:
        """Note that *file* was written again, unless its transcript was changed since."""
        columns = (quote(file.scope), write_key(file.key), file.transcript, file.changes)
        await self._engine.execute(_SET_WRITTEN, *columns)

    async def mirror(self) -> str:
        """Return the name of the home's mirror that the stale files are about; "" before the first."""
        found = await self._engine.fetch(FIND_META, _MIRROR)
        return str(found[0][0]) if found else ""

    async def begin_mirror(self, name: str, *, is_whole: bool) -> None:
        """Have the stale files be about the mirror *name*: all of them, or with *is_whole* none."""

        def begin(database: Database) -> None:
            if not is_whole:
                database.execute(_MAKE_ALL_STALE).close()
            database.execute(SET_META, (_MIRROR, name)).close()

        self._engine.may_have_stale = True
        await self._engine.writer.submit(begin)

    async def adopt(self, scope: str, key: SessionKey, turns: Sequence[StoredTurn], *, in_files: bool = False) -> int:
        """Store the turns of *key* that are not stored, or not with their lines; return their number.

        Their files are stale then, unless the turns come from there (*in_files*): then a chat without a session
        continues the last transcript, and turns that are stored get the lines of their files. Files are never older
        than a store that adopts, but for stale ones.

        *turns* are in order; their seqs have no meaning. Turns before the first known one come before all others. Those
        of a stale transcript are adopted behind its last known one only: the others were removed from the store.
        """
        encoded = await asyncio.to_thread(lambda: [_encode(each) for each in turns])

        def adopt(database: Database) -> int:
            if in_files:
                _take_lines(database, scope, key, turns)
            count = _adopt(database, scope, key, turns, encoded)
            if in_files and turns:
                _begin_session(database, scope, key, turns)
            elif count:
                names = dict.fromkeys(each.transcript for each in turns)
                database.executemany(MAKE_STALE, [(quote(scope), write_key(key), name) for name in names])
            return count

        self._engine.may_have_stale = True
        return await self._engine.writer.submit(adopt)


def _snapshot_digests(body: bytes) -> list[str]:
    """Return the digests of the texts of the last snapshot in the lines of a turn."""
    for line in reversed(decode_lines(b"\n".join(each for each in body.split(b"\n") if _SNAPSHOT_LINE in each))):
        if line.get("kind") == "snapshot" and isinstance(line.get("blobs"), Mapping):
            return [str(digest) for digest in line["blobs"].values()]
    return []


def _slice(result: QueryResult) -> list[Any]:
    """Return the first rows, until their bodies are a few megabytes."""
    rows: list[Any] = []
    left = _MOST_BYTES
    for row in result:
        rows.append(row)
        left -= len(row[-1])
        if left <= 0:
            break
    result.close()
    return rows


def _read_slice(database: Database, columns: Sequence[Any]) -> list[Any]:
    return _slice(database.execute(_AFTER, columns))


def _is_full(rows: Sequence[Any]) -> bool:
    """Return True if more rows may follow a slice."""
    return len(rows) == _SLICE or sum(len(row[-1]) for row in rows) >= _MOST_BYTES


def _place(row: Sequence[Any]) -> tuple[str, int]:
    """Return what a scan goes on behind."""
    return str(read_key(row[2])), row[0]


def _read(columns: tuple[Any, ...]) -> StoredTurn:
    seq, turn, key, transcript, start, end, at, outcome, new_transcript, inbox, body = columns
    return StoredTurn(
        seq=seq,
        turn=unquote(turn),
        key=read_key(key),
        transcript=transcript,
        from_index=start,
        to_index=end,
        at=moment(at),
        outcome=outcome,
        new_transcript=new_transcript,
        inbox=tuple(read_json(inbox)),
        body=bytes(body),
    )


@dataclass(frozen=True, slots=True)
class _ChangedTurn:
    """A turn whose body is to be replaced, if it is still as it was read."""

    turn: StoredTurn
    body: bytes
    lines: int  # that differ


def _changed(turns: Sequence[StoredTurn], change: Callable[[bytes], bytes]) -> list[_ChangedTurn]:
    changes: list[_ChangedTurn] = []
    for turn in turns:
        before = [raw + b"\n" for raw in turn.body.split(b"\n")[:-1]]
        after = [change(raw) for raw in before]
        lines = sum(old != new for old, new in zip(before, after, strict=True))
        if lines:
            changes.append(_ChangedTurn(turn, b"".join(after), lines))
    return changes


def _store_changes(database: Database, *, scope: str, changes: Sequence[_ChangedTurn]) -> Sequence[_ChangedTurn]:
    """Store the changes of turns that are as they were read; return those."""
    done = [
        each
        for each in changes
        if database.execute(_SET_BODY, (each.body, scope, each.turn.seq, each.turn.body)).rowcount
    ]
    stale = dict.fromkeys((scope, write_key(each.turn.key), each.turn.transcript) for each in done)
    database.executemany(MAKE_STALE, stale)
    return done


def move_newest(database: Database, source: str, target: str, *, keys: Collection[str] | None = None) -> None:
    """Give the newest turns of the scope *source*, or of some sessions of it, to *target*, which `move` completes.

    All arguments are column values. What windows and pages begin with is there with the transaction that links.
    """
    sessions = [key for key, _ in database.execute(_SESSIONS, (source,)).fetchall()] if keys is None else keys
    for key in sessions:
        _count_change(database, (source, target), source, key)
        _move_some(database, source, target, key, _NEWEST_MOVED)


def _move_some(database: Database, source: str, target: str, key: str, limit: int) -> int:
    """Move the newest turns of a session that are not moved yet; return their number."""
    found = database.execute(_LAST_OF, (source, key, limit)).fetchall()
    if found:
        database.execute(_GIVE, (target, source, key, found[-1][0]))
    return len(found)


def _count_change(database: Database, scopes: Sequence[str], scope: str, key: str) -> None:
    """Have the transcripts that a session has in *scope* stale in all *scopes*."""
    found = database.execute(_TRANSCRIPTS_OF, (scope, key)).fetchall()
    database.executemany(MAKE_STALE, [(each, key, transcript) for each in scopes for (transcript,) in found])


def _remove(database: Database, where: str, columns: Sequence[Any]) -> int:
    """Remove the turns of a condition, and note that their files are stale.

    That there was a turn stays known for a while (gateway/store/upkeep.py): a file of it at another home is not a loss,
    and a commit of it that is repeated does nothing.
    """
    where = sql("body IS NOT NULL AND", where)
    found = database.execute(sql("SELECT DISTINCT scope, key, transcript FROM record WHERE", where), columns).fetchall()
    database.executemany(MAKE_STALE, found)
    database.execute(sql("DELETE FROM unwritten WHERE seq IN (SELECT seq FROM record WHERE", where, ")"), columns)
    return database.execute(sql("UPDATE record SET", _EMPTIED, "WHERE", where), columns).rowcount


def _encode(turn: StoredTurn) -> tuple[Any, ...]:
    """Return the columns of an adopted turn, all but its seq and scope."""
    return (
        *(quote(turn.turn), write_key(turn.key), turn.transcript, turn.outcome, turn.from_index, turn.to_index),
        *(json.dumps(list(turn.inbox)), micros(turn.at), turn.new_transcript),
        *(window_columns(decode_lines(turn.body)), turn.body),
    )


def _adopt(
    database: Database, scope: str, key: SessionKey, turns: Sequence[StoredTurn], encoded: Sequence[tuple[Any, ...]]
) -> int:
    chat = (quote(scope), write_key(key))
    known = _read_known(database, chat)
    missing = [(chat[0], quote(each.turn), chat[1]) for each in turns if each.turn not in known]
    if missing and database.executemany(_TAKE, missing).rowcount > 0:
        known = _read_known(database, chat)
    removed = set(map(id, _removed(database, scope, key, turns, known)))
    new = [
        (each, columns)
        for each, columns in zip(turns, encoded, strict=True)
        if each.turn not in known and id(each) not in removed
    ]
    earlier = set(map(id, _before_known(turns, known)))
    (lowest,) = database.execute("SELECT coalesce(min(seq), 1) FROM record").fetchone()
    first = min(lowest, 1) - sum(id(each) in earlier for each, _ in new)
    count = 0
    for each, columns in new:
        *plain, window, body = columns
        values = (*plain, quote(scope), *window, body)
        if id(each) in earlier:
            count += database.execute(_INSERT_AT, (first, *values)).rowcount
            first += 1
        else:
            count += database.execute(_INSERT, values).rowcount
    if others := len({each.turn for each, _ in new}) - count:  # as of a file that somebody has copied
        log.warning("transcripts.turns_of_other_chats", session=str(key), turns=others)
    for each, columns in zip(turns, encoded, strict=True):
        if each.turn in known and not known[each.turn][1]:
            _, _, transcript, _, start, end, _, _, new_transcript, window, body = columns
            fields = (body, *window, transcript, start, end, new_transcript)
            count += database.execute(_FILL, (*fields, quote(scope), known[each.turn][0])).rowcount
    return count


def _take_lines(database: Database, scope: str, key: SessionKey, turns: Sequence[StoredTurn]) -> None:
    """Give turns that are stored the lines of their files: an older store would bring back what was erased since.

    Turns of stale transcripts keep theirs, which are newer, and so do those with lines that the file has lost.
    """
    chat = (quote(scope), write_key(key))
    known = {seq: turn for turn, (seq, has_body, _) in _read_known(database, chat).items() if has_body}
    bodies = {each.turn: each.body for each in turns}
    if bodies.keys() & set(known.values()):
        stale = {transcript for (transcript,) in database.execute(_STALE_OF, chat).fetchall()}
        changes = [
            (taken, chat[0], seq)
            for seq, transcript, body in database.execute(_BODIES, chat).fetchall()
            if transcript not in stale
            and (taken := bodies.get(known[seq], body)) != bytes(body)
            and taken.count(b"\n") == bytes(body).count(b"\n")
        ]
        database.executemany(_REPLACE, changes)


def _read_known(database: Database, chat: tuple[str, str]) -> Mapping[str, tuple[int, Any, int]]:
    """Return the number and the time of each turn of a session, and whether it has its lines."""
    found = database.execute(_KNOWN, chat).fetchall()
    return {unquote(turn): (seq, has_body, at) for turn, seq, has_body, at in found}


def _removed(
    database: Database, scope: str, key: SessionKey, turns: Sequence[StoredTurn], rows: Mapping[str, Any]
) -> Iterator[StoredTurn]:
    """Yield the turns of stale transcripts that the store lacks because they were removed from it."""
    for (transcript,) in database.execute(_STALE_OF, (quote(scope), write_key(key))).fetchall():
        mine = [each for each in turns if each.transcript == transcript]
        last = max((n for n, each in enumerate(mine) if each.turn in rows), default=len(mine))
        yield from (each for each in mine[:last] if each.turn not in rows)


def _begin_session(database: Database, scope: str, key: SessionKey, turns: Sequence[StoredTurn]) -> None:
    """Have a chat that the store does not know go on with its last transcript, or behind it where that has ended."""
    last = turns[-1]
    mine = [each for each in turns if each.transcript == last.transcript]
    transcript, begun = (new_transcript(), last.at) if last.new_transcript else (last.transcript, mine[0].at)
    next_index = 0 if last.new_transcript else max(each.to_index for each in mine)
    columns = (write_key(key), transcript, next_index, micros(begun), micros(last.at), quote(scope))
    database.execute(_BEGIN_SESSION, columns)


def _before_known(turns: Sequence[StoredTurn], rows: Mapping[str, tuple[int, Any, int]]) -> Iterator[StoredTurn]:
    """Yield the turns that come before all that are stored."""
    if not any(each.turn in rows for each in turns):
        newest = max((at for _, _, at in rows.values()), default=None)
        if not turns or (newest is not None and micros(turns[-1].at) > newest):
            return
        yield from turns
        return
    for each in turns:
        if each.turn in rows:
            return
        yield each
