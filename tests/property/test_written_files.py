"""Whatever writes files of a scope, a save stores them; it looks at what was written, and not at the scope."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.memory.documents.file_documents import FileDocumentStore
from agent.memory.storage import scope_scan
from agent.memory.storage.disk import Disk
from agent.memory.storage.scope_scan import scan_scope
from agent.memory.storage.written_files import note_writes
from gateway.errors import StoreUnavailable
from tests.property.test_scope_file_sync import (
    ANN,
    BOB,
    LossyStore,
    append,
    database,
    die,
    opened,
    put,
    stored,
    tree,
)

AREAS = ("sessions", "attachments", "blobs", "results", "files", "memory")


class ScopeWriters:
    """Every part of the program that writes into a scope, over one home."""

    def __init__(self, home: Path) -> None:
        self._home, self._disk = home, Disk()
        self._open: dict[str, int] = {}
        self._documents = FileDocumentStore(home)

    async def write(self, kind: str, scope: str, text: str) -> None:
        """Let the part *kind* write, change or remove something."""
        blocking = self._blocking(scope, text).get(kind)
        if blocking is not None:
            await asyncio.to_thread(blocking)
        elif kind == "document":
            was = (await self._documents.read(scope, "MEMORY.md")).rev
            await self._documents.write(scope, "MEMORY.md", f"- {text}\n", was=was, why="a test")
        else:
            await asyncio.to_thread(
                self._disk.replace, self._home / scope / "attachments" / f"a{len(text)}", text.encode()
            )

    def _blocking(self, scope: str, text: str) -> Mapping[str, Callable[[], object]]:
        folder = self._home / scope
        return {
            "transcript": lambda: self._disk.write(self._transcript(scope), f"{text}\n".encode()),
            "cut": lambda: self._disk.truncate(self._transcript(scope), len(text)),
            "segment": lambda: self._roll(folder / "results/y.jsonl", len(text)),
            "result": lambda: self._disk.replace(folder / "results" / f"r{len(text)}", text.encode()),
            "remove area": lambda: self._remove(folder / AREAS[len(text) % len(AREAS)]),
        }

    def _transcript(self, scope: str) -> int:
        """Return the descriptor of a transcript, which stays open."""
        if scope not in self._open:
            self._open[scope] = self._disk.open_append(self._home / scope / "results/x.jsonl")
        return self._open[scope]

    def _roll(self, path: Path, number: int) -> None:
        if not path.exists():
            self._disk.replace(path, b"one\n")
        else:
            self._disk.rename(path, path.with_name(f"y.{number}.jsonl"))

    def _remove(self, folder: Path) -> None:
        self.close()
        if folder.exists():
            self._disk.remove_folder(folder)

    def close(self) -> None:
        """Close the transcripts."""
        while self._open:
            self._disk.close(self._open.popitem()[1])


KINDS = sorted([*ScopeWriters(Path())._blocking("", ""), "document", "attachment"])
TEXTS = ("a", "ab", "a", "bab", "")


async def check_stored(store: LossyStore, home: Path, scope: str) -> None:
    """Check that the database has exactly the files that listing the whole scope finds, as they are."""
    found = {each.path: (each.size, each.modified) for each in (await store.files(scope))[1]}
    assert {path: each[:2] for path, each in scan_scope(home / scope, {}).items()} == found


async def test_a_save_stores_what_each_part_has_written(tmp_path: Path) -> None:
    """Also when it writes again after a save: the same, another, or nothing."""
    async with database(tmp_path) as store:
        home = tmp_path / "a"
        sync, writers = await opened(home, store), ScopeWriters(home)
        for kind in (*KINDS, *KINDS):
            for text in TEXTS:
                await writers.write(kind, ANN, text)
                await sync.save((ANN,))
                await check_stored(store, home, ANN)
        writers.close()
        die(sync)


writes = st.tuples(st.sampled_from(KINDS), st.sampled_from([ANN, ANN, BOB]), st.sampled_from(TEXTS), st.booleans())


@settings(max_examples=40)
@given(st.lists(writes, max_size=40))
def test_a_save_stores_what_any_parts_have_written(script: list[tuple[str, str, str, bool]]) -> None:
    """Whatever was written since the last save, in any order; an empty home gets the same bytes in the end."""

    async def run(folder: Path) -> None:
        async with database(folder) as store:
            home = folder / "a"
            sync, writers = await opened(home, store), ScopeWriters(home)
            for kind, scope, text, is_saved in script:
                await writers.write(kind, scope, text)
                if is_saved:
                    await sync.save((scope,))
                    await check_stored(store, home, scope)
            await sync.save((ANN, BOB))
            assert await stored(folder / "b", store) == tree(home)
            writers.close()
            die(sync)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))


async def test_saves_beside_running_writers_miss_nothing(tmp_path: Path) -> None:
    """Threads write while saves look; the save after the last write has everything, without listing the scope."""
    async with database(tmp_path) as store:
        home = tmp_path / "a"
        sync = await opened(home, store)
        begun = threading.Barrier(5)

        def write(number: int) -> None:
            begun.wait()
            for n in range(40):
                append(home, ANN, f"results/{number}.jsonl", b"x" * n + b"\n")
                put(home, ANN, f"memory/{number}.{n % 3}.json", b"%d" % n)
                Disk().remove(home / ANN / f"memory/{number}.{(n + 1) % 3}.json")

        running = [asyncio.create_task(asyncio.to_thread(write, number)) for number in range(4)]
        await asyncio.to_thread(begun.wait)
        while not all(each.done() for each in running):
            await sync.save((ANN,))
            await asyncio.sleep(0)  # a save of nothing does not wait: that the writers have ended is to be noticed
        await asyncio.gather(*running)
        await sync.save((ANN,))
        assert await stored(tmp_path / "b", store) == tree(home)
        die(sync)


async def test_a_write_that_ends_after_a_save_is_stored_by_the_next(tmp_path: Path) -> None:
    """A save that looks in the middle of a write, fails, or is cancelled leaves the file to the next one."""
    async with database(tmp_path) as store:
        home = tmp_path / "a"
        sync = await opened(home, store)
        put(home, ANN, "results/x.jsonl", b"one\n")
        with note_writes(home / ANN / "results/x.jsonl"):
            await sync.save((ANN,))
            (home / ANN / "results/x.jsonl").write_bytes(b"another\n")
        await sync.save((ANN,))
        assert await stored(tmp_path / "b", store) == tree(home)

        async def write_late() -> None:
            put(home, ANN, "results/late.jsonl", b"%d\n" % store.saves)

        store.when_saved = write_late
        put(home, ANN, "results/x.jsonl", b"three\n")
        await sync.save((ANN,))
        store.when_saved = None
        await sync.save((ANN,))
        await check_stored(store, home, ANN)
        put(home, ANN, "USER.md", b"1")
        store.fails_at = store.saves + 1
        with pytest.raises(StoreUnavailable):
            await sync.save((ANN,))
        put(home, ANN, "files/x", b"2")
        cancelled = asyncio.create_task(sync.save((ANN,)))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        await sync.save((ANN,))
        assert await stored(tmp_path / "c", store) == tree(home)
        die(sync)


async def test_a_save_looks_at_what_was_written_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 1,000 files in the scope a line of a transcript costs a few looks, and a save without a change none."""
    async with database(tmp_path) as store:
        home = tmp_path / "a"
        sync = await opened(home, store)
        for n in range(1_000):
            path = home / ANN / "attachments" / f"{n:04}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"%d" % n)
        await sync.save_all()
        looks: list[Path] = []

        def count(module: object, name: str) -> None:
            original = getattr(module, name)

            def look(path: Path) -> object:
                looks.append(path)
                return original(path)

            monkeypatch.setattr(module, name, look)

        count(os, "scandir")
        count(scope_scan, "_sign_file")
        append(home, ANN, "results/x.jsonl", b"one\n")
        await sync.save((ANN,))
        assert 0 < len(looks) < 20
        looks.clear()
        await sync.save((ANN,))
        assert not looks
        monkeypatch.undo()
        assert await stored(tmp_path / "b", store) == tree(home)
        die(sync)


async def test_documents_edited_by_hand_are_stored_with_the_next_turn(tmp_path: Path) -> None:
    """A turn's transcript is written; with it, an editor's documents of the scope and of all are looked at."""
    async with database(tmp_path) as store:
        home = tmp_path / "a"
        sync = await opened(home, store)
        await sync.fetch(ANN)
        for scope, name in ((ANN, "USER.md"), (ANN, "memory/MEMORY.md"), ("shared", "SOUL.md")):
            path = home / scope / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("by hand")
        append(home, ANN, "results/x.jsonl", b"one\n")
        await sync.save((ANN,))
        assert await stored(tmp_path / "b", store) == tree(home)
        (home / ANN / "USER.md").unlink()
        (home / ANN / "files").mkdir()
        (home / ANN / "files/by hand.txt").write_text("another file")
        append(home, ANN, "results/x.jsonl", b"two\n")
        await sync.save((ANN,))
        found = await stored(tmp_path / "c", store)
        assert f"{ANN}/USER.md" not in found
        assert f"{ANN}/files/by hand.txt" not in found
        await sync.save_all()  # which the gateway does once a minute
        assert await stored(tmp_path / "d", store) == tree(home)
        die(sync)
