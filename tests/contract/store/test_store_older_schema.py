"""A store that the version before has left is judged before it is changed."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from agent.memory.adoption import adopt_transcripts
from agent.memory.storage.session_file_writer import SessionFileWriter
from gateway.app.lost_turns import describe_loss, find_lost_turns
from gateway.events import SessionKey
from gateway.home import Home
from gateway.ports.memory import StoredTurn
from gateway.store.engine import StoreLimits
from gateway.store.sqlite import open_file
from tests.fakes.memory import ProcessCrash, exchange, talk

OF_STAMPS = ("store", "count", "schema", "at")  # of 0.2.0
BOBS_SCOPE = "people/telegram%3a43"

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


async def test_a_take_over_that_was_killed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns whose rows had gone by age are no loss while they are in files alone, although older ones are rows."""
    home = Home(tmp_path / "home")
    home.path.mkdir(mode=0o700)
    store = await open_file(home.journal, StoreLimits())
    for record in (*talk(2), exchange(7, 0, key=SessionKey("telegram", "43"), scope=BOBS_SCOPE)):
        await store.records.append(record)
    await SessionFileWriter(home.path, store.records, store.transcripts).flush()
    await store.close()
    stamp = home.journal.with_name("journal.stamp")
    as_then = {name: value for name, value in json.loads(stamp.read_text()).items() if name in OF_STAMPS}
    stamp.write_text(json.dumps(as_then))
    with closing(sqlite3.connect(home.journal)) as journal, journal:
        journal.execute("DELETE FROM record")
    assert describe_loss(home, "") == ""
    store = await open_file(home.journal, StoreLimits())
    adopt = store.transcripts.adopt

    async def die_at_bobs(scope: str, key: SessionKey, turns: Sequence[StoredTurn], *, in_files: bool = False) -> int:
        if scope == BOBS_SCOPE:
            raise ProcessCrash
        return await adopt(scope, key, turns, in_files=in_files)

    monkeypatch.setattr(store.transcripts, "adopt", die_at_bobs)
    with pytest.raises(ProcessCrash):
        await adopt_transcripts(home.path, store.transcripts, await store.records.sessions())
    await store.close()
    assert describe_loss(home, "") == ""
