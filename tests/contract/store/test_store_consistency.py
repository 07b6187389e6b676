"""Faults of the tables and files of a store that `parlour store check` finds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.ports.memory import FileKind, HistoryEntry, NoteChange
from gateway.store.closed_store import read_store
from gateway.store.database import Database
from gateway.store.engine import StoreLimits
from gateway.store.sql_store import SqlStore
from gateway.store.sqlite import FILE, open_store
from gateway.store.upkeep import TableCheck, check_tables, damaged_files
from tests.contract.store.conftest import StoreBackend
from tests.fakes.memory import SCOPE
from tests.fakes.turns import answer, next_delivery, parts_of, said

DAMAGES = {
    "parts of a missing answer": "DELETE FROM outbox WHERE 'x' = ?",
    "turns behind the next index of their conversation": "UPDATE session SET next_index = 0 WHERE 'x' = ?",
    "turns with lines that cannot be read": "UPDATE record SET body = ?",
    "document lines of a missing change": "DELETE FROM document_change WHERE 'x' = ?",
    "document lines of a missing document": "DELETE FROM document WHERE 'x' = ?",
    "documents with other lines than were stored": "UPDATE document_line SET text = ?",
    "history entries behind the cursor of their history": "UPDATE history SET cursor = 0 WHERE 'x' = ?",
    "raw messages of a missing history entry": "DELETE FROM history_entry WHERE 'x' = ?",
    "notes with another text than was stored": "UPDATE note_file SET body = ?",
}


async def fill(store: SqlStore, backend: StoreBackend) -> None:
    """Store an answer in parts, a document, a summary, a raw message, a note and a file."""
    await answer(store, said(), "hello")
    delivery = await next_delivery(store)
    await store.outbox.freeze(delivery.message, parts_of(delivery.message, 2))
    await store.documents.write(SCOPE, "MEMORY.md", "- tea\n- dog\n", was="", why="t1")
    await store.documents.write(
        SCOPE, "MEMORY.md", "- tea\n", was=(await store.documents.read(SCOPE, "MEMORY.md")).rev, why="t2"
    )
    await store.history.append(SCOPE, HistoryEntry(timestamp="2026-11-21 21:00", content="Talk.", entry="e1"))
    raw = HistoryEntry(timestamp="2026-11-21 21:00", content="Raw.", entry="e2")
    await store.history.keep_raw(SCOPE, raw, [{"role": "user", "content": "a kite"}])
    await store.history.write(SCOPE, notes={"2026-11-22.md": NoteChange(was=None, body=b"- tea\n")})
    await store.files.put(SCOPE, FileKind.ATTACHMENT, b"photo", at=backend.wall.now())


async def check(store: SqlStore) -> TableCheck:
    """Check the tables."""
    assert isinstance(store, SqlStore)
    return await store._engine.writer.submit(check_tables)


async def test_a_store_without_faults_has_none(store: SqlStore, backend: StoreBackend) -> None:
    """The rows are counted."""
    await fill(store, backend)
    found = await check(store)
    assert found.faults == []
    wanted = {"turns": 1, "documents": 1, "changes of documents": 2, "history entries": 2, "notes": 1, "files": 1}
    assert {name: found.counts[name] for name in wanted} == wanted
    assert [each async for each in damaged_files(store.files)] == []


async def test_what_changes_beside_a_check_is_no_fault(tmp_path: Path) -> None:
    """Gateways go on writing while the tables are read, statement by statement."""
    store = await open_store(tmp_path, "", StoreLimits())
    loop = asyncio.get_running_loop()

    async def write(text: str) -> None:
        now = await store.documents.read(SCOPE, "MEMORY.md")
        assert await store.documents.write(SCOPE, "MEMORY.md", text, was=now.rev, why="t")

    def read(database: Database) -> list[list[Any]]:
        statement = "SELECT rev FROM document"
        before = database.execute(statement).fetchall()
        asyncio.run_coroutine_threadsafe(write("- coffee\n"), loop).result()
        assert not check_tables(database).faults
        return [before, database.execute(statement).fetchall()]

    try:
        await write("- tea\n")
        found = await asyncio.to_thread(read_store, tmp_path / FILE, "", read)
    finally:
        await store.close()
    assert found is not None
    assert found[0] == found[1]


@pytest.mark.parametrize("fault", DAMAGES)
async def test_rows_that_were_lost_or_changed_are_found(store: SqlStore, backend: StoreBackend, fault: str) -> None:
    """Each has its own name."""
    await fill(store, backend)
    assert isinstance(store, SqlStore)
    value = b"{torn" if "body" in DAMAGES[fault] else "x"
    await store._engine.writer.submit(lambda database: database.execute(DAMAGES[fault], (value,)).close())
    faults = (await check(store)).faults
    assert fault in {each.what for each in faults if each.count}


async def test_files_with_other_bytes_are_found(store: SqlStore, backend: StoreBackend) -> None:
    """They are named, and the others are not."""
    await fill(store, backend)
    assert isinstance(store, SqlStore)
    await store.files.put(SCOPE, FileKind.TEXT, b"whole", at=backend.wall.now())
    damage = "UPDATE file_piece SET data = ? WHERE place IN (SELECT place FROM stored_file WHERE kind = 'attachment')"
    await store._engine.writer.submit(lambda database: database.execute(damage, (b"other",)).close())
    ((scope, file, reason),) = [each async for each in damaged_files(store.files)]
    assert (scope, file.kind, bool(reason)) == (SCOPE, FileKind.ATTACHMENT, True)
