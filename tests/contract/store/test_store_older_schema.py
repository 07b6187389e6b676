"""A store that the version before has left is judged before it is changed."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from agent.memory.storage.session_file_writer import SessionFileWriter
from gateway.app.lost_turns import describe_loss, find_lost_turns
from gateway.home import Home
from gateway.ports.store import StoreLimits
from gateway.store.sqlite import open_file
from tests.fakes.memory import exchange, talk

# What the last migration adds and takes away, as far as a comparison with the files reads it.
_BEFORE = (
    "DROP TABLE stale_file",
    "DROP TABLE unwritten",
    "CREATE TABLE body (seq INTEGER PRIMARY KEY, key TEXT NOT NULL, body TEXT NOT NULL)",
)


async def test_turns_that_a_journal_of_the_version_before_has_lost_are_found(tmp_path: Path) -> None:
    """The first start of a new version refuses an older journal, too, and `parlour accept-loss` names the turns."""
    home = Home(tmp_path / "home")
    home.path.mkdir(mode=0o700)
    for records in (talk(2), [exchange(2, 4)]):
        if home.journal.exists():
            shutil.copy(home.journal, tmp_path / "older.db")
        store = await open_file(home.journal, StoreLimits())
        for record in records:
            await store.records.append(record)
        await SessionFileWriter(home.path, store.records, store.transcripts).flush()
        await store.close()
    shutil.copy(tmp_path / "older.db", home.journal)
    with closing(sqlite3.connect(home.journal)) as journal:
        for statement in _BEFORE:
            journal.execute(statement)
    assert "lacks turns" in describe_loss(home, "")
    assert len(find_lost_turns(home, "").turns) == 1
