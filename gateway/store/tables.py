"""The tables of this version for both engines, in SQLite's types; `postgres/schema.py` replaces these by its own.

A change of a table is written here and as a migration (gateway/store/migrations.py). There are few indices, because
each costs a page a commit. Pruning reads rows in the order of their numbers (gateway/store/upkeep.py).
"""

from __future__ import annotations

from gateway.store.database import Database

VERSION = 27
SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

-- States of rows that have not ended: waiting, claimed, stamped (released), control, noted. Times are microseconds
-- since 1970.
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

CREATE TABLE dedupe (
    name TEXT NOT NULL, revision TEXT NOT NULL, seq INTEGER NOT NULL,
    PRIMARY KEY (name, revision)
) WITHOUT ROWID;

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

-- Turns and their lines (transcripts.py). `anchor` is the replay start that a turn has set. `record_chat` has the
-- transcript, so that one that begins is known to be empty without the rows of all earlier ones.
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
    scope TEXT NOT NULL,
    anchor INTEGER,
    snapshot INTEGER,
    body BLOB
);
CREATE INDEX record_chat ON record (scope, key, seq, transcript);
CREATE INDEX record_anchor ON record (scope, key, transcript, anchor) WHERE anchor IS NOT NULL;
CREATE INDEX record_snapshot ON record (scope, key, transcript, seq) WHERE snapshot IS NOT NULL;
CREATE INDEX record_removed ON record (at) WHERE body IS NULL;

CREATE TABLE outbox (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    key TEXT NOT NULL,
    open INTEGER,
    ended_at INTEGER,
    payload TEXT NOT NULL
);
CREATE INDEX outbox_open ON outbox (key, open, seq) WHERE open IS NOT NULL;

CREATE TABLE part (
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

-- `calls` is more than 1 where the rows of a day were folded. `call` is the id of a running call, 'day' in a folded
-- row, the key of a tool call. `is_own`: the turn was started by a job.
CREATE TABLE usage (
    turn TEXT NOT NULL, person TEXT NOT NULL, chat TEXT NOT NULL, purpose TEXT NOT NULL, model TEXT NOT NULL,
    tokens_in INTEGER NOT NULL, tokens_out INTEGER NOT NULL, tokens_cached INTEGER NOT NULL, cost REAL,
    at INTEGER NOT NULL, calls INTEGER NOT NULL DEFAULT 1, call TEXT NOT NULL DEFAULT '',
    is_own INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX usage_at ON usage (at);
CREATE INDEX usage_open ON usage (call, turn) WHERE call != '' AND call != 'day';

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
    reason TEXT NOT NULL DEFAULT '',
    worker TEXT NOT NULL DEFAULT ''
);
CREATE INDEX job_due ON job (leased, due_at);
CREATE INDEX job_scope ON job (scope);

CREATE TABLE preference (
    subject TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (subject, name)
) WITHOUT ROWID;

CREATE TABLE note (
    channel TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (channel, name)
) WITHOUT ROWID;

-- `unwritten` has the turns that are in no file yet, `stale_file` the transcripts whose files have lines that were
-- changed since. `changes` stays: the search index and open windows follow it. A file is stale while `written` is
-- behind.
CREATE TABLE unwritten (seq INTEGER PRIMARY KEY);
CREATE TABLE stale_file (
    scope TEXT NOT NULL, key TEXT NOT NULL, transcript TEXT NOT NULL, changes INTEGER NOT NULL,
    written INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (scope, key, transcript)
) WITHOUT ROWID;
CREATE INDEX stale_file_due ON stale_file (scope) WHERE changes > written;
CREATE TABLE account (
    identity TEXT PRIMARY KEY, person TEXT NOT NULL, at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE account_chat (key TEXT PRIMARY KEY, identity TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE link_note (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE move (id TEXT PRIMARY KEY, at INTEGER NOT NULL, payload TEXT NOT NULL) WITHOUT ROWID;
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

CREATE TABLE cap_told (
    name TEXT NOT NULL, chat TEXT NOT NULL, until INTEGER NOT NULL, most INTEGER NOT NULL,
    turn TEXT NOT NULL DEFAULT '', PRIMARY KEY (name, chat)
) WITHOUT ROWID;

CREATE TABLE alert (cause TEXT PRIMARY KEY, since INTEGER NOT NULL, payload TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE alert_post (
    seq INTEGER PRIMARY KEY, body TEXT NOT NULL, at INTEGER NOT NULL, attempts INTEGER NOT NULL DEFAULT 0,
    due_at INTEGER NOT NULL
);

-- A worker that ends in order removes its row: another one that is found was killed. `claim` has a row for each
-- chat that a worker has claimed, none where there is one worker.
CREATE TABLE worker (
    name TEXT PRIMARY KEY, host TEXT NOT NULL, process INTEGER NOT NULL, version TEXT NOT NULL,
    started_at INTEGER NOT NULL, beat_at INTEGER NOT NULL, shares INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE claim (name TEXT PRIMARY KEY, worker TEXT NOT NULL, at INTEGER NOT NULL) WITHOUT ROWID;
-- Counts of caps over several gateways (usage.py), without rows where one gateway counts.
CREATE TABLE cap_count (
    name TEXT NOT NULL, worker TEXT NOT NULL, until INTEGER NOT NULL, spent INTEGER NOT NULL, held INTEGER NOT NULL,
    PRIMARY KEY (name, worker)
) WITHOUT ROWID;
CREATE TABLE cap_entry (
    name TEXT NOT NULL, entry TEXT NOT NULL, at INTEGER NOT NULL, PRIMARY KEY (name, entry)
) WITHOUT ROWID;
-- Windows of chats at several gateways, and frames for them (shared_windows.py).
CREATE TABLE watch (
    chat TEXT NOT NULL, worker TEXT NOT NULL, opening INTEGER NOT NULL, PRIMARY KEY (chat, worker)
) WITHOUT ROWID;
CREATE TABLE frame (
    worker TEXT NOT NULL, sender TEXT NOT NULL, number INTEGER NOT NULL, key TEXT NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (worker, sender, number)
) WITHOUT ROWID;
-- What models have shown to take and to lack (agent/llm/model_abilities.py).
CREATE TABLE model_fact (
    model TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, at INTEGER NOT NULL, PRIMARY KEY (model, name)
) WITHOUT ROWID;
-- Documents line by line (documents.py). A line is alive from the change `added` to the change `removed`.
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
-- History entries, messages without a summary and notes as their files have them (history.py), and short texts by
-- name: keys and uses of lines, flushed cycles.
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
-- Changes of memory that wait for a yes (proposals.py).
CREATE TABLE proposal (
    scope TEXT NOT NULL, name TEXT NOT NULL, at INTEGER NOT NULL, expires_at INTEGER NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (scope, name)
) WITHOUT ROWID;
-- Files of scopes (files.py), the bytes of those that are in the database, in pieces, and contents in an object
-- store or folder to which nothing refers.
CREATE TABLE stored_file (
    scope TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, at INTEGER NOT NULL, is_untrusted INTEGER NOT NULL,
    original TEXT NOT NULL, sha256 TEXT NOT NULL, size INTEGER NOT NULL, place TEXT NOT NULL,
    PRIMARY KEY (scope, kind, name)
) WITHOUT ROWID;
CREATE TABLE file_piece (
    scope TEXT NOT NULL, place TEXT NOT NULL, n INTEGER NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (scope, place, n)
);
CREATE TABLE unused_object (name TEXT PRIMARY KEY, due INTEGER NOT NULL) WITHOUT ROWID;
"""


def run_script(database: Database, script: str) -> None:
    """Run the statements of a script in the transaction that is open, which `executescript` would commit."""
    for statement in script.split(";"):
        if statement.strip():
            database.execute(statement)
