"""Archives of MEMORY.md when accounts are linked and unlinked."""

from __future__ import annotations

from pathlib import Path

from agent.memory.account_links.memory_merge import MemoryMerger
from agent.memory.documents.scope_documents import ScopeDocuments
from agent.memory.editing.memory_archive import USED, MemoryArchive
from agent.memory.history.history_log import add_keys, line_fingerprint, load_keys
from agent.memory.storage.disk import Disk
from tests.fakes.documents import FakeDocuments
from tests.fakes.memory import START

ANN, BOB = "people/telegram%3a1", "people/slack%3at%3a2"
LIMIT = 2_000
KEYS = {
    ANN: {line_fingerprint("telegram:1 owns item number 0 of the collection"): "one"},
    BOB: {line_fingerprint("slack:t:2 owns item number 0 of the collection"): "two"},
}


def documents_of(home: Path) -> ScopeDocuments:
    """Return documents with a low ceiling."""
    archive = MemoryArchive(max_chars=LIMIT, now=lambda: START)

    async def fit(scope: str, before: str, text: str) -> str:
        (home / scope / "memory").mkdir(parents=True, exist_ok=True)
        return archive.fit(home / scope / "memory", before, text)

    return ScopeDocuments(FakeDocuments(), fit=fit)


async def fill(documents: ScopeDocuments, scope: str, name: str) -> None:
    """Remember so much as *name* that the first lines move to the archive."""
    for n in range(60):
        now = await documents.read(scope, "MEMORY.md")
        text = f"{now.text}- {name} owns item number {n} of the collection\n"
        await documents.write(scope, "MEMORY.md", text, was=now.rev, why="remember:t", by=name)


def archive(home: Path, scope: str) -> str:
    """Return the scope's one archive."""
    [path] = (home / scope / "memory").glob("*.archive.md")
    return path.read_text()


async def test_archives_are_joined_and_taken_apart_by_the_lines_authors(tmp_path: Path) -> None:
    """Linked, both archives of a day are one; unlinked, each account has its own lines again."""
    documents = documents_of(tmp_path)
    await fill(documents, ANN, "telegram:1")
    await fill(documents, BOB, "slack:t:2")
    for scope, keys in KEYS.items():
        add_keys(tmp_path / scope / "memory", Disk(), keys, (await documents.read(scope, "MEMORY.md")).text)
    merger = MemoryMerger(home=tmp_path, changes=documents.changes, disk=Disk())
    await merger.merge_documents("m1", BOB, ANN, source_account="slack:t:2", target_account="telegram:1")
    memory = (await documents.read(ANN, "MEMORY.md")).text
    merger.merge_files("m1", BOB, ANN, memory, accounts=("slack:t:2", "telegram:1"))
    joined = archive(tmp_path, ANN)
    assert "- telegram:1 owns item number 0 " in joined
    assert "- slack:t:2 owns item number 0 " in joined
    assert not (tmp_path / ANN / "memory" / USED).exists()
    assert load_keys(tmp_path / ANN / "memory", Disk()) == KEYS[ANN] | KEYS[BOB]
    assert len(list((tmp_path / ANN / "memory").glob("[0-9]*.md"))) == 1
    for path in sorted((tmp_path / BOB).rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    await merger.split("m2", ANN, BOB, "slack:t:2", lambda _: "", "telegram:1")
    assert {each: load_keys(tmp_path / each / "memory", Disk()) for each in KEYS} == KEYS
    assert "slack:t:2" not in archive(tmp_path, ANN)
    assert "- telegram:1 owns item number 0 " in archive(tmp_path, ANN)
    assert "telegram:1" not in archive(tmp_path, BOB)
    assert "- slack:t:2 owns item number 0 " in archive(tmp_path, BOB)
