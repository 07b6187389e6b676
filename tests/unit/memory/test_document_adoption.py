"""Documents of an earlier release, with every version, become rows; a lost store is filled from its mirror."""

from __future__ import annotations

import asyncio
import shutil
from datetime import timedelta
from pathlib import Path

from agent.memory.adoption import adopt_documents
from agent.memory.editing.document_commits import RepositoryCommit, append_commits, open_repo
from agent.memory.editing.memory_file_writer import MemoryFileWriter
from agent.memory.storage.scope_documents import BY_HAND
from gateway.ports.memory import document_file
from gateway.store.documents import SqlDocuments
from tests.fakes.memory import SCOPE, START, FakeRecords


def commit(home: Path, scope: str, texts: dict[str, str], why: str, minutes: int, by: str = "") -> str:
    """Keep a version as earlier releases did, and its files; return its id."""
    for name, text in texts.items():
        path = home / scope / document_file(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    repository = home / scope / "memory" / ".git"
    repository.parent.mkdir(parents=True, exist_ok=True)
    message = "\n".join([why, *(["", f"By: {by}"] if by else []), ""])
    with open_repo(repository, make=True) as repo:
        data = {name: text.encode() for name, text in texts.items()}
        append_commits(repo, [RepositoryCommit(texts=data, message=message, at=START + timedelta(minutes=minutes))])
        return repo.head().decode()


async def adopt(home: Path, documents: SqlDocuments) -> int:
    """Adopt as a start does."""
    return await adopt_documents(home, documents, lambda: START + timedelta(hours=1))


async def test_every_version_is_a_change_with_its_id(tmp_path: Path) -> None:
    """Cause, person, time and texts are those of the commit; ids that a chat shows stay good; the mirror goes on."""
    records = FakeRecords()
    first = commit(tmp_path, SCOPE, {"MEMORY.md": "- tea\n"}, "t1", 1, by="ann")
    second = commit(tmp_path, SCOPE, {"MEMORY.md": "- tea\n- dog\n", "SOUL.md": "kind\n"}, "dream: 3", 2)
    (tmp_path / SCOPE / "memory" / "epoch.txt").write_text("e5\n")
    assert await adopt(tmp_path, records.documents) == 2
    log = (await records.documents.log(SCOPE, limit=9))[::-1]
    assert [(each.id, each.why, each.by, each.at, each.names) for each in log] == [
        (first, "t1", "ann", START + timedelta(minutes=1), ("MEMORY.md",)),
        (second, "dream: 3", "", START + timedelta(minutes=2), ("MEMORY.md", "SOUL.md")),
    ]
    assert await records.documents.texts(SCOPE, 1) == {"MEMORY.md": "- tea\n"}
    assert await records.documents.texts(SCOPE) == {"MEMORY.md": "- tea\n- dog\n", "SOUL.md": "kind\n"}
    assert await records.documents.epoch(SCOPE) == "e5"
    source = await records.documents.source(SCOPE, "MEMORY.md", "- tea")
    assert source is not None
    assert source.id == first
    assert not (tmp_path / SCOPE / "memory" / "epoch.txt").exists()
    writer = MemoryFileWriter(tmp_path, records.documents, records.history)
    await writer.settle(SCOPE)
    assert (tmp_path / SCOPE / "memory" / "MEMORY.md").read_text() == "- tea\n- dog\n"
    with open_repo(tmp_path / SCOPE / "memory" / ".git", make=False) as repo:
        assert [entry.commit.message.decode().split("\n")[0] for entry in repo.get_walker()] == ["dream: 3", "t1"]
    assert await adopt(tmp_path, records.documents) == 0
    await writer.settle(SCOPE)
    assert [each.why for each in await records.documents.log(SCOPE, limit=9)] == ["dream: 3", "t1"]


async def test_files_that_differ_from_the_newest_version_are_an_edit(tmp_path: Path) -> None:
    """Saved by hand and not noticed before the upgrade; also documents that never had a version."""
    records = FakeRecords()
    commit(tmp_path, SCOPE, {"MEMORY.md": "- tea\n"}, "t1", 1)
    (tmp_path / SCOPE / "memory" / "MEMORY.md").write_bytes("- tea\r\n- ça va\r\n".encode("cp1252"))
    (tmp_path / "SOUL.md").write_text("kind\n")
    assert await adopt(tmp_path, records.documents) == 3
    assert await records.documents.texts(SCOPE) == {"MEMORY.md": "- tea\n- ça va\n"}
    assert await records.documents.texts("") == {"SOUL.md": "kind\n"}
    assert [each.why for each in await records.documents.log(SCOPE, limit=9)] == [BY_HAND, "t1"]


async def test_a_repository_between_two_renames_is_found(tmp_path: Path) -> None:
    """An earlier release was killed while it rewrote the versions."""
    records = FakeRecords()
    commit(tmp_path, SCOPE, {"MEMORY.md": "- tea\n"}, "t1", 1)
    (tmp_path / SCOPE / "memory" / ".git").rename(tmp_path / SCOPE / "memory" / ".git.old")
    assert await adopt(tmp_path, records.documents) == 1
    await MemoryFileWriter(tmp_path, records.documents, records.history).settle(SCOPE)
    assert [each.name for each in (tmp_path / SCOPE / "memory").glob(".git*")] == [".git"]


async def test_a_lost_store_is_filled_from_its_mirror(tmp_path: Path) -> None:
    """Changes keep their ids, and the repository its commits."""
    lost, found = FakeRecords(), FakeRecords()
    for n in range(3):
        now = await lost.documents.read(SCOPE, "MEMORY.md")
        await lost.documents.write(SCOPE, "MEMORY.md", f"{now.text}- {n}\n", was=now.rev, why=f"t{n}", by="ann")
    await MemoryFileWriter(tmp_path, lost.documents, lost.history).settle(SCOPE)
    await adopt(tmp_path, found.documents)
    assert await found.documents.states(SCOPE) == await lost.documents.states(SCOPE)


async def test_a_mirror_that_is_newer_than_its_store_is_merged(tmp_path: Path) -> None:
    """An older database was restored beside it: nothing of the files is overwritten without a word."""
    older, newer = FakeRecords(), FakeRecords()
    for each in (older, newer):
        await each.documents.write(SCOPE, "MEMORY.md", "- tea\n", was="", why="t1")
    rev = (await newer.documents.read(SCOPE, "MEMORY.md")).rev
    await newer.documents.write(SCOPE, "MEMORY.md", "- tea\n- dog\n", was=rev, why="t2")
    await MemoryFileWriter(tmp_path, newer.documents, newer.history).settle(SCOPE)
    await adopt(tmp_path, older.documents)
    await MemoryFileWriter(tmp_path, older.documents, older.history).settle(SCOPE)
    assert await older.documents.texts(SCOPE) == {"MEMORY.md": "- tea\n- dog\n"}


async def test_a_restored_store_writes_its_files(tmp_path: Path) -> None:
    """A backup has no files of documents: they are written from the rows, with their repository."""
    records = FakeRecords()
    await records.documents.write(SCOPE, "MEMORY.md", "- tea\n", was="", why="t1")
    await MemoryFileWriter(tmp_path, records.documents, records.history).settle(SCOPE)
    await asyncio.to_thread(shutil.rmtree, tmp_path / SCOPE)
    await adopt(tmp_path, records.documents)
    await MemoryFileWriter(tmp_path, records.documents, records.history).flush()
    assert (tmp_path / SCOPE / "memory" / "MEMORY.md").read_text() == "- tea\n"
