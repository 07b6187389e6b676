"""Schema of the journal: one migration per version, applied in order by `schema.prepare`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

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
from gateway.text.json_lines import encode_lines

Migration: TypeAlias = Callable[[Database], None]

# States of inbox rows that have not ended: waiting, claimed, stamped (released), control, noted.
# Times are microseconds since 1970. Indices are few because each costs a page per commit.
_CONVERSATIONS = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE inbox (
    seq INTEGER PRIMARY KEY,
    key TEXT NOT NULL,
    state TEXT NOT NULL,
    turn TEXT NOT NULL DEFAULT '',
    sender TEXT NOT NULL,
    sent_at INTEGER NOT NULL,
    message_id TEXT NOT NULL,
    album TEXT NOT NULL DEFAULT '',
    length INTEGER NOT NULL,
    alone INTEGER NOT NULL,
    role TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    crashes INTEGER NOT NULL DEFAULT 0,
    accepted_at INTEGER NOT NULL,
    ended_at INTEGER,
    payload TEXT NOT NULL
);
CREATE INDEX inbox_open ON inbox (key, state, sent_at, ended_at) WHERE ended_at IS NULL;
CREATE INDEX inbox_ended ON inbox (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE dedupe (
    name TEXT NOT NULL, revision TEXT NOT NULL, seq INTEGER NOT NULL,
    PRIMARY KEY (name, revision)
) WITHOUT ROWID;
CREATE INDEX dedupe_seq ON dedupe (seq);

CREATE TABLE lane (
    key TEXT PRIMARY KEY,
    owner TEXT NOT NULL DEFAULT '',
    epoch INTEGER NOT NULL DEFAULT 0,
    turn TEXT NOT NULL DEFAULT '',
    told_at INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

CREATE TABLE session (
    key TEXT PRIMARY KEY,
    transcript TEXT NOT NULL,
    next_index INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    used_at INTEGER NOT NULL,
    last_turn TEXT NOT NULL DEFAULT '',
    scope TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;

CREATE TABLE step (
    turn TEXT NOT NULL, n INTEGER NOT NULL, kind TEXT NOT NULL, call TEXT NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (turn, n)
) WITHOUT ROWID;

CREATE TABLE record (
    seq INTEGER PRIMARY KEY,
    turn TEXT NOT NULL UNIQUE,
    key TEXT NOT NULL,
    transcript TEXT NOT NULL,
    outcome TEXT NOT NULL,
    from_index INTEGER NOT NULL,
    to_index INTEGER NOT NULL,
    inbox TEXT NOT NULL,
    at INTEGER NOT NULL,
    new_transcript TEXT NOT NULL,
    failure TEXT NOT NULL,
    supersedes TEXT NOT NULL,
    scope TEXT NOT NULL
);
CREATE TABLE body (seq INTEGER PRIMARY KEY, key TEXT NOT NULL, body TEXT NOT NULL);
CREATE INDEX body_key ON body (key);

CREATE TABLE outbox (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    key TEXT NOT NULL,
    open INTEGER,
    ended_at INTEGER,
    payload TEXT NOT NULL
);
CREATE INDEX outbox_open ON outbox (key, open, seq) WHERE open IS NOT NULL;
CREATE INDEX outbox_ended ON outbox (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE part (
    message TEXT NOT NULL,
    n INTEGER NOT NULL,
    state TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    message_id TEXT NOT NULL DEFAULT '',
    adopted TEXT NOT NULL DEFAULT '',
    reason TEXT NOT NULL DEFAULT '',
    at INTEGER NOT NULL,
    payload TEXT NOT NULL,
    PRIMARY KEY (message, n)
) WITHOUT ROWID;

CREATE TABLE usage (
    turn TEXT NOT NULL, person TEXT NOT NULL, chat TEXT NOT NULL, purpose TEXT NOT NULL, model TEXT NOT NULL,
    tokens_in INTEGER NOT NULL, tokens_out INTEGER NOT NULL, tokens_cached INTEGER NOT NULL, cost REAL,
    at INTEGER NOT NULL
);
CREATE INDEX usage_at ON usage (at);
CREATE INDEX usage_turn ON usage (turn);

CREATE TABLE dead (
    id TEXT PRIMARY KEY, turn TEXT NOT NULL, key TEXT NOT NULL, reason TEXT NOT NULL, at INTEGER NOT NULL
);
CREATE INDEX dead_turn ON dead (turn);

CREATE TABLE job (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    scope TEXT NOT NULL,
    payload TEXT NOT NULL,
    due_at INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    leased INTEGER NOT NULL DEFAULT 0,
    reason TEXT NOT NULL DEFAULT ''
);
CREATE INDEX job_due ON job (leased, due_at);
CREATE INDEX job_scope ON job (scope);

CREATE TABLE preference (
    subject TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (subject, name)
) WITHOUT ROWID;

CREATE TABLE note (
    channel TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (channel, name)
) WITHOUT ROWID;
"""

_ACCOUNT_LINKS = """
CREATE TABLE account (
    identity TEXT PRIMARY KEY, person TEXT NOT NULL, at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE account_chat (key TEXT PRIMARY KEY, identity TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE link_note (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE move (id TEXT PRIMARY KEY, at INTEGER NOT NULL, payload TEXT NOT NULL) WITHOUT ROWID;
"""

# usage.calls: more than 1 where the rows of a day were folded; usage.call: id of a running call, 'day' in a folded row,
# key of a tool call;
# usage.is_own: the turn was started by a job, not by a message.
_ACCESS_CAPS_ALERTS = """
CREATE TABLE access (
    channel TEXT NOT NULL, who TEXT NOT NULL, standing TEXT NOT NULL, decided_by TEXT NOT NULL, at INTEGER NOT NULL,
    name TEXT NOT NULL DEFAULT '', PRIMARY KEY (channel, who)
) WITHOUT ROWID;
CREATE TABLE access_note (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE audit (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, at INTEGER NOT NULL, decided_by TEXT NOT NULL,
    place TEXT NOT NULL, what TEXT NOT NULL, whom TEXT NOT NULL, outcome TEXT NOT NULL
);
CREATE INDEX audit_at ON audit (at);

ALTER TABLE usage ADD COLUMN calls INTEGER NOT NULL DEFAULT 1;
ALTER TABLE usage ADD COLUMN call TEXT NOT NULL DEFAULT '';
ALTER TABLE usage ADD COLUMN is_own INTEGER NOT NULL DEFAULT 0;
CREATE INDEX usage_person ON usage (person, at);
CREATE TABLE cap_told (
    name TEXT NOT NULL, chat TEXT NOT NULL, until INTEGER NOT NULL, most INTEGER NOT NULL, PRIMARY KEY (name, chat)
) WITHOUT ROWID;

CREATE TABLE alert (cause TEXT PRIMARY KEY, since INTEGER NOT NULL, payload TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE alert_post (
    seq INTEGER PRIMARY KEY, body TEXT NOT NULL, at INTEGER NOT NULL, attempts INTEGER NOT NULL DEFAULT 0,
    due_at INTEGER NOT NULL
);
"""

# Until version 3 a chat's admin was stored as 'steward', a member as 'anyone'.
_ROLES = """
UPDATE inbox SET role = 'admin' WHERE role = 'steward';
UPDATE inbox SET role = 'member' WHERE role = 'anyone';
"""

# Fewer pages per turn: rows of parts, which change three times, stand in their order and only their index is spread;
# usage is found by its turn while a call runs, and by `parlour turn`, which may read the whole table.
_FEWER_PAGES = """
CREATE TABLE new_part (
    message TEXT NOT NULL,
    n INTEGER NOT NULL,
    state TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    message_id TEXT NOT NULL DEFAULT '',
    adopted TEXT NOT NULL DEFAULT '',
    reason TEXT NOT NULL DEFAULT '',
    at INTEGER NOT NULL,
    payload TEXT NOT NULL,
    PRIMARY KEY (message, n)
);
INSERT INTO new_part SELECT * FROM part;
DROP TABLE part;
ALTER TABLE new_part RENAME TO part;
DROP INDEX IF EXISTS usage_turn;
CREATE INDEX IF NOT EXISTS usage_open ON usage (call, turn) WHERE call != '' AND call != 'day';
"""

# A part is found by the number of its message: its index is written at its end, not at a page for each part.
_PARTS_BY_NUMBER = """
CREATE TABLE numbered_part (
    message INTEGER NOT NULL,
    n INTEGER NOT NULL,
    state TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    message_id TEXT NOT NULL DEFAULT '',
    adopted TEXT NOT NULL DEFAULT '',
    reason TEXT NOT NULL DEFAULT '',
    at INTEGER NOT NULL,
    payload TEXT NOT NULL,
    PRIMARY KEY (message, n)
);
INSERT INTO numbered_part
    SELECT o.seq, n, state, attempts, message_id, adopted, reason, at, part.payload
    FROM outbox o JOIN part ON part.message = o.id ORDER BY o.seq, n;
DROP TABLE part;
ALTER TABLE numbered_part RENAME TO part;
"""


def _script(statements: str) -> Migration:
    def migrate(database: Database) -> None:
        # Not executescript, which would commit the transaction that the migration runs in.
        for statement in statements.split(";"):
            if statement.strip():
                database.execute(statement)

    return migrate


def _without_nul(database: Database) -> None:
    """Put U+001F between the parts of dedupe names, where NUL was: PostgreSQL stores no NUL."""
    found = database.execute("SELECT name, revision FROM dedupe").fetchall()
    changes = [(name.replace("\0", "\x1f"), revision.replace("\0", "\x1f"), name, revision) for name, revision in found]
    database.executemany("UPDATE dedupe SET name = ?, revision = ? WHERE name = ? AND revision = ?", changes)


# A person's usage is read from the rows since a time: of older days there is a sum. A turn has no page for it.
_NO_INDEX_OF_PEOPLE = "DROP INDEX IF EXISTS usage_person"

# A worker that ends in order removes its row: another one that is found was killed, as `clean` said until version 7.
_WORKERS = """
CREATE TABLE worker (
    name TEXT PRIMARY KEY, host TEXT NOT NULL, process INTEGER NOT NULL, version TEXT NOT NULL,
    started_at INTEGER NOT NULL, beat_at INTEGER NOT NULL
) WITHOUT ROWID;
ALTER TABLE job ADD COLUMN worker TEXT NOT NULL DEFAULT '';
INSERT INTO worker (name, host, process, version, started_at, beat_at)
    SELECT 'before', '', 0, '', 0, 0 FROM meta WHERE name = 'clean' AND value = '0';
DELETE FROM meta WHERE name = 'clean';
"""

# A row for each chat that a worker has claimed; none where there is one worker.
_CLAIMS = """
CREATE TABLE claim (name TEXT PRIMARY KEY, worker TEXT NOT NULL, at INTEGER NOT NULL) WITHOUT ROWID;
ALTER TABLE worker ADD COLUMN shares INTEGER NOT NULL DEFAULT 0;
"""

# The files of memory scopes, which PostgreSQL had (gateway/store/earlier_files.py).
_SCOPE_FILES = """
CREATE TABLE scope (scope TEXT PRIMARY KEY, version TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE scope_file (
    scope TEXT NOT NULL, path TEXT NOT NULL, size INTEGER NOT NULL, replaced TEXT NOT NULL, modified INTEGER NOT NULL,
    PRIMARY KEY (scope, path)
) WITHOUT ROWID;
CREATE TABLE scope_piece (
    scope TEXT NOT NULL, path TEXT NOT NULL, start INTEGER NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (scope, path, start)
);
CREATE TABLE scope_state (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""

# Counts of caps over several gateways (gateway/store/cap_counts.py); without rows where one gateway counts.
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
    _script(_TURN_LINES)(database)
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
_add_proposals = _script(_PROPOSALS)

# A journal never had rows in them. On PostgreSQL, the first start takes these over, and drops the tables.
drop_scope_files = _script(
    "DROP TABLE scope; DROP TABLE scope_file; DROP TABLE scope_piece; DROP TABLE scope_removal; DROP TABLE scope_state"
)

MIGRATIONS: Sequence[Migration] = (
    *map(_script, (_CONVERSATIONS, _ACCOUNT_LINKS, _ACCESS_CAPS_ALERTS, _ROLES, _FEWER_PAGES)),
    _without_nul,
    *map(_script, (_NO_INDEX_OF_PEOPLE, _WORKERS, _PARTS_BY_NUMBER, _CLAIMS, _SCOPE_FILES, _SHARED_CAPS, _WINDOWS)),
    *map(_script, (_SCOPE_REVISIONS, _SCOPE_OBJECTS, _MODEL_FACTS)),
    _keep_lines,
    _script(_DOCUMENT_LINES),
    _add_proposals,
    _script(_HISTORY),
    _script(_FOLLOWED_CHANGES),
    _script(_FILES),
    _keep_texts,
    drop_scope_files,
)
# Those that take something away, so that no gateway of the version before may run (docs/adr/0089-rolling-upgrades.md).
ALONE = frozenset({MIGRATIONS.index(each) + 1 for each in (_keep_lines, _add_proposals, _keep_texts, drop_scope_files)})
