"""Changes that bring an older store to the tables of this version, applied in order by `schema.prepare`.

The oldest is that of 0.2.0. Each change is made in the tables of gateway/store/tables.py as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from gateway.errors import SchemaTooOld
from gateway.store.database import Database
from gateway.store.files import encode_texts, put_texts
from gateway.store.row_codec import (
    moment,
    read_json,
    read_lines,
    unquote,
    window_columns,
    with_end,
    write_json,
)
from gateway.store.tables import run_script
from gateway.text.json_lines import encode_lines

Migration: TypeAlias = Callable[[Database], None]

# Counts of caps over several gateways (gateway/store/usage.py); without rows where one gateway counts.
_SHARED_CAPS = """
CREATE TABLE cap_count (
    name TEXT NOT NULL, worker TEXT NOT NULL, until INTEGER NOT NULL, spent INTEGER NOT NULL, held INTEGER NOT NULL,
    PRIMARY KEY (name, worker)
) WITHOUT ROWID;
CREATE TABLE cap_entry (
    name TEXT NOT NULL, entry TEXT NOT NULL, at INTEGER NOT NULL, PRIMARY KEY (name, entry)
) WITHOUT ROWID;
ALTER TABLE cap_told ADD COLUMN turn TEXT NOT NULL DEFAULT '';
"""

# Windows of chats at several gateways, and frames for them (gateway/store/shared_windows.py).
_WINDOWS = """
CREATE TABLE watch (
    chat TEXT NOT NULL, worker TEXT NOT NULL, opening INTEGER NOT NULL, PRIMARY KEY (chat, worker)
) WITHOUT ROWID;
CREATE TABLE frame (
    worker TEXT NOT NULL, sender TEXT NOT NULL, number INTEGER NOT NULL, key TEXT NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (worker, sender, number)
) WITHOUT ROWID;
"""

_SCOPE_REVISIONS = """
ALTER TABLE scope ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
ALTER TABLE scope ADD COLUMN recent TEXT NOT NULL DEFAULT '';
ALTER TABLE scope_file ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
CREATE INDEX scope_file_revision ON scope_file (scope, revision);
CREATE TABLE scope_removal (
    scope TEXT NOT NULL, digest TEXT NOT NULL, revision INTEGER NOT NULL, PRIMARY KEY (scope, digest)
) WITHOUT ROWID;
"""

# Contents in an object store; none without one.
_SCOPE_OBJECTS = """
ALTER TABLE scope_file ADD COLUMN object TEXT NOT NULL DEFAULT '';
CREATE TABLE unused_object (name TEXT PRIMARY KEY, due INTEGER NOT NULL) WITHOUT ROWID;
"""

# What models have shown to take and to lack (agent/llm/model_abilities.py).
_MODEL_FACTS = """
CREATE TABLE model_fact (
    model TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, at INTEGER NOT NULL, PRIMARY KEY (model, name)
) WITHOUT ROWID;
"""

# Turns stay with their lines (gateway/store/transcripts.py); `anchor` is the replay start that a turn has set.
# `unwritten` has the snapshot texts of turns that are in no file yet, `stale_file` the transcripts whose files have
# lines that were changed since. `record_chat` has the transcript, so that one that begins is known to be empty without
# the rows of all earlier ones.
_TURN_LINES = """
ALTER TABLE record ADD COLUMN anchor INTEGER;
ALTER TABLE record ADD COLUMN snapshot INTEGER;
ALTER TABLE record ADD COLUMN body BLOB;
CREATE INDEX record_chat ON record (scope, key, seq, transcript);
CREATE INDEX record_anchor ON record (scope, key, transcript, anchor) WHERE anchor IS NOT NULL;
CREATE INDEX record_snapshot ON record (scope, key, transcript, seq) WHERE snapshot IS NOT NULL;
CREATE INDEX record_removed ON record (at) WHERE body IS NULL;
CREATE TABLE unwritten (seq INTEGER PRIMARY KEY, key TEXT NOT NULL, blobs TEXT NOT NULL);
CREATE INDEX unwritten_key ON unwritten (key);
CREATE TABLE stale_file (
    scope TEXT NOT NULL, key TEXT NOT NULL, transcript TEXT NOT NULL, changes INTEGER NOT NULL,
    PRIMARY KEY (scope, key, transcript)
) WITHOUT ROWID;
"""

# History entries, messages without a summary and notes as their files have them (gateway/store/history.py), and short
# texts by name: keys and uses of lines, flushed cycles.
_HISTORY = """
CREATE TABLE history (
    scope TEXT PRIMARY KEY, cursor INTEGER NOT NULL, dream_cursor INTEGER NOT NULL, entries TEXT NOT NULL,
    keys TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE history_entry (
    scope TEXT NOT NULL, cursor INTEGER NOT NULL, entry TEXT NOT NULL, is_raw INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (scope, cursor)
);
CREATE INDEX history_entry_id ON history_entry (scope, entry);
CREATE TABLE raw_message (
    scope TEXT NOT NULL, n INTEGER NOT NULL, entry TEXT NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (scope, n)
);
CREATE INDEX raw_message_entry ON raw_message (scope, entry, n);
CREATE TABLE note_file (
    scope TEXT NOT NULL, name TEXT NOT NULL, owner TEXT NOT NULL, rev TEXT NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (scope, name)
);
CREATE TABLE memory_mark (
    scope TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,
    PRIMARY KEY (scope, kind, name)
) WITHOUT ROWID;
"""

# `changes` stays: the search index and open windows follow it. A file is stale while `written` is behind.
_FOLLOWED_CHANGES = """
ALTER TABLE stale_file ADD COLUMN written INTEGER NOT NULL DEFAULT 0;
CREATE INDEX stale_file_due ON stale_file (scope) WHERE changes > written;
"""

# Files of scopes (gateway/store/files.py), and the bytes of those that are in the database, in pieces.
_FILES = """
CREATE TABLE stored_file (
    scope TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, at INTEGER NOT NULL, is_untrusted INTEGER NOT NULL,
    original TEXT NOT NULL, sha256 TEXT NOT NULL, size INTEGER NOT NULL, place TEXT NOT NULL,
    PRIMARY KEY (scope, kind, name)
) WITHOUT ROWID;
CREATE TABLE file_piece (
    scope TEXT NOT NULL, place TEXT NOT NULL, n INTEGER NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (scope, place, n)
);
"""


def _keep_lines(database: Database) -> None:
    """Put the lines of records that are in no file yet into their rows, and name the scope that each belongs to."""
    run_script(database, _TURN_LINES)
    database.execute(
        "UPDATE record SET scope = (SELECT scope FROM session WHERE session.key = record.key) "
        "WHERE key IN (SELECT key FROM session)"  # links did not change it
    )
    found = database.execute(
        "SELECT r.turn, r.from_index, r.to_index, r.inbox, r.outcome, r.at, b.seq, b.key, b.body "
        "FROM body b JOIN record r ON r.seq = b.seq ORDER BY b.seq"
    ).fetchall()
    for turn, start, end, inbox, outcome, at, seq, key, body in found:
        lines, blobs = read_lines(body)
        lines = with_end(unquote(turn), lines, (start, end), read_json(inbox), outcome, moment(at))
        database.execute(
            "UPDATE record SET body = ?, anchor = ?, snapshot = ? WHERE seq = ?",
            (encode_lines(lines), *window_columns(lines), seq),
        )
        database.execute("INSERT INTO unwritten (seq, key, blobs) VALUES (?, ?, ?)", (seq, key, write_json(blobs)))
    database.execute("DROP TABLE body")


def _keep_texts(database: Database) -> None:
    """Store the texts of snapshots that are in no file yet, of the turns that have them."""
    found = database.execute(
        "SELECT r.scope, r.at, u.blobs FROM unwritten u JOIN record r ON r.seq = u.seq ORDER BY u.seq"
    ).fetchall()
    for scope, at, blobs in found:
        put_texts(database, scope, encode_texts(read_json(blobs)), moment(at))
    database.execute("ALTER TABLE unwritten DROP COLUMN blobs")


# Documents line by line (gateway/store/documents.py). A line is alive from the change `added` to the change `removed`.
_DOCUMENT_LINES = """
CREATE TABLE memory_scope (scope TEXT PRIMARY KEY, number INTEGER NOT NULL, epoch TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE document (
    scope TEXT NOT NULL, name TEXT NOT NULL, rev TEXT NOT NULL, changed INTEGER NOT NULL, PRIMARY KEY (scope, name)
) WITHOUT ROWID;
CREATE TABLE document_line (
    scope TEXT NOT NULL, document TEXT NOT NULL, line INTEGER NOT NULL, added INTEGER NOT NULL, removed INTEGER,
    place TEXT NOT NULL, text TEXT NOT NULL,
    PRIMARY KEY (scope, document, line, added)
) WITHOUT ROWID;
CREATE INDEX document_line_alive ON document_line (scope, document, place) WHERE removed IS NULL;
CREATE TABLE document_change (
    scope TEXT NOT NULL, number INTEGER NOT NULL, id TEXT NOT NULL, at INTEGER NOT NULL, why TEXT NOT NULL,
    author TEXT NOT NULL, names TEXT NOT NULL, undoes TEXT NOT NULL,
    PRIMARY KEY (scope, number)
) WITHOUT ROWID;
"""

# Changes of memory that wait for a yes (gateway/store/proposals.py); they were files of the home.
_PROPOSALS = """
CREATE TABLE proposal (
    scope TEXT NOT NULL, name TEXT NOT NULL, at INTEGER NOT NULL, expires_at INTEGER NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (scope, name)
) WITHOUT ROWID;
"""

# A journal never had rows in them. On PostgreSQL, the first start takes these over, and drops the tables.
_DROP_SCOPE_FILES = (
    "DROP TABLE scope; DROP TABLE scope_file; DROP TABLE scope_piece; DROP TABLE scope_removal; DROP TABLE scope_state"
)

# Pruning alone read them (a file lost them before), and they cost every message a page each (gateway/store/upkeep.py).
_NO_INDEX_OF_ENDS = (
    "DROP INDEX IF EXISTS inbox_ended; DROP INDEX IF EXISTS outbox_ended; DROP INDEX IF EXISTS dedupe_seq"
)
# A worker's first row that may have a reaction, in place of a note for each reaction (gateway/store/records.py).
_FIRST_ROWS = (
    "INSERT INTO note (channel, name, value) SELECT DISTINCT channel, 'first_row/', "
    "(SELECT coalesce(min(seq), 0) || '' FROM inbox WHERE ended_at IS NULL) FROM note "
    "WHERE name >= 'reaction/' AND name < 'reaction0'; "
    "DELETE FROM note WHERE name >= 'reaction/' AND name < 'reaction0'"
)


def _script(statements: str) -> Migration:
    return lambda database: run_script(database, statements)


def drop_scope_files(database: Database) -> None:
    """Drop the tables of files as releases before 0.3 had them."""
    run_script(database, _DROP_SCOPE_FILES)


OLDEST = 11
MIGRATIONS: Mapping[int, Migration] = {
    12: _script(_SHARED_CAPS),
    13: _script(_WINDOWS),
    14: _script(_SCOPE_REVISIONS),
    15: _script(_SCOPE_OBJECTS),
    16: _script(_MODEL_FACTS),
    17: _keep_lines,
    18: _script(_DOCUMENT_LINES),
    19: _script(_PROPOSALS),
    20: _script(_HISTORY),
    21: _script(_FOLLOWED_CHANGES),
    22: _script(_FILES),
    23: _keep_texts,
    24: drop_scope_files,
    25: _script(_NO_INDEX_OF_ENDS),
    26: _script(_FIRST_ROWS),
    27: _script("DROP INDEX unwritten_key; ALTER TABLE unwritten DROP COLUMN key"),
}
# Those that take something away, so that no gateway of the version before may run (docs/adr/0089-rolling-upgrades.md).
ALONE = frozenset({17, 19, 23, 24, 25, 26, 27})


def require_known(version: int) -> None:
    """Raise SchemaTooOld for a store that cannot be upgraded; 0 is a new one."""
    if 0 < version < OLDEST:
        raise SchemaTooOld(f"the store has schema {version}")
