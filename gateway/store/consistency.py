"""Check the tables of a store: their numbers of rows, rows that refer to missing ones, and texts against their digests.

The tables are read on another connection than the gateways use, and nothing is changed. Files are read as their users
read them, since their bytes may be outside the database.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gateway.errors import FileUnavailable
from gateway.ports.memory import ScopeFile, rev_of
from gateway.store.database import Database
from gateway.store.files import SqlFiles
from gateway.store.history import rev_of_note
from gateway.store.row_codec import unquote
from gateway.text.json_lines import decode_line

_AT_ONCE = 200  # turns
_COUNTED = {
    "turns": "SELECT count(*) FROM record WHERE transcript != ''",
    "messages that wait": "SELECT count(*) FROM inbox WHERE ended_at IS NULL",
    "documents": "SELECT count(*) FROM document",
    "changes of documents": "SELECT count(*) FROM document_change",
    "history entries": "SELECT count(*) FROM history_entry",
    "notes": "SELECT count(*) FROM note_file",
    "proposals": "SELECT count(*) FROM proposal",
    "jobs": "SELECT count(*) FROM job",
    "files": "SELECT count(*) FROM stored_file",
}
# Each statement returns how many rows refer to one that is missing.
_REFERENCES = {
    "parts of a missing answer": (
        "SELECT count(*) FROM part WHERE NOT EXISTS (SELECT 1 FROM outbox WHERE outbox.seq = part.message)"
    ),
    "turns behind the next index of their conversation": (
        "SELECT count(*) FROM session WHERE EXISTS (SELECT 1 FROM record WHERE record.scope = session.scope "
        "AND record.key = session.key AND record.transcript = session.transcript "
        "AND record.to_index > session.next_index)"
    ),
    "document lines of a missing change": (
        "SELECT count(*) FROM document_line AS l WHERE NOT EXISTS (SELECT 1 FROM document_change AS c "
        "WHERE c.scope = l.scope AND c.number = l.added) OR (l.removed IS NOT NULL AND NOT EXISTS "
        "(SELECT 1 FROM document_change AS c WHERE c.scope = l.scope AND c.number = l.removed))"
    ),
    "document lines of a missing document": (
        "SELECT count(*) FROM document_line AS l WHERE removed IS NULL AND NOT EXISTS "
        "(SELECT 1 FROM document AS d WHERE d.scope = l.scope AND d.name = l.document)"
    ),
    "history entries behind the cursor of their history": (
        "SELECT count(*) FROM history_entry AS e WHERE NOT EXISTS "
        "(SELECT 1 FROM history AS h WHERE h.scope = e.scope AND h.cursor >= e.cursor)"
    ),
    "raw messages of a missing history entry": (
        "SELECT count(*) FROM raw_message AS r WHERE NOT EXISTS "
        "(SELECT 1 FROM history_entry AS e WHERE e.scope = r.scope AND e.entry = r.entry)"
    ),
}
_BODIES = "SELECT seq, body FROM record WHERE seq > ? AND body IS NOT NULL ORDER BY seq LIMIT ?"
_DOCUMENTS = "SELECT scope, name FROM document ORDER BY scope, name"
_DOCUMENT = (
    "SELECT d.rev, l.text FROM document AS d LEFT JOIN document_line AS l ON l.scope = d.scope AND l.document = d.name "
    "AND l.removed IS NULL WHERE d.scope = ? AND d.name = ? ORDER BY l.place"
)
_NOTES = "SELECT rev, body FROM note_file"


@dataclass(frozen=True, slots=True)
class TableFault:
    """Rows that are not as they were stored."""

    what: str
    count: int


@dataclass(frozen=True, slots=True)
class TableCheck:
    """Numbers of rows, and the faults."""

    counts: Mapping[str, int]
    faults: Sequence[TableFault]


def check_tables(database: Database) -> TableCheck:
    """Read all turns, documents and notes, and count rows that refer to missing ones."""
    counts = {name: _count(database, statement) for name, statement in _COUNTED.items()}
    faults = [TableFault(name, _count(database, statement)) for name, statement in _REFERENCES.items()]
    faults.append(TableFault("turns with lines that cannot be read", sum(map(_is_unreadable, _bodies(database)))))
    faults.append(TableFault("documents with other lines than were stored", _count_changed_documents(database)))
    changed = sum(rev != rev_of_note(bytes(body)) for rev, body in database.execute(_NOTES))
    faults.append(TableFault("notes with another text than was stored", changed))
    return TableCheck(counts, [fault for fault in faults if fault.count])


async def damaged_files(files: SqlFiles) -> AsyncIterator[tuple[str, ScopeFile, str]]:
    """Read every file; yield the scope, the file and the reason of each whose bytes are not what was stored."""
    for scope in await files.scopes():
        for file in await files.files(scope):
            try:
                async for _ in files.stream(scope, file):
                    pass
            except FileUnavailable as error:
                if await files.find(scope, file.kind, file.name) == file:  # not replaced while it was read
                    yield scope, file, str(error)


def _count(database: Database, statement: str) -> int:
    (count,) = database.execute(statement).fetchone()
    return int(count)


def _bodies(database: Database) -> Iterator[bytes]:
    last = -(2**62)
    while rows := database.execute(_BODIES, (last, _AT_ONCE)).fetchall():
        last = rows[-1][0]
        yield from (bytes(body) for _, body in rows)


def _is_unreadable(body: bytes) -> bool:
    *lines, rest = body.split(b"\n")
    return bool(rest) or any(decode_line(line) is None for line in lines)


def _count_changed_documents(database: Database) -> int:
    return sum(_is_changed(database, *key) for key in database.execute(_DOCUMENTS).fetchall())


def _is_changed(database: Database, scope: str, name: str) -> bool:
    rows = database.execute(_DOCUMENT, (scope, name)).fetchall()
    text = "\n".join(unquote(line) for _, line in rows if line is not None)
    return bool(rows) and rows[0][0] != rev_of(text)
