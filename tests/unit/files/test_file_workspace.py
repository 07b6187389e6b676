"""The workspace of a scope: files written, replaced, appended to, deleted and restored within its limits."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.files import file_workspace as module
from agent.files.file_workspace import (
    FileChange,
    FileTooLarge,
    FileWorkspace,
    InvalidFileName,
    ScopeWorkspaces,
    WorkspaceFull,
    merge_workspaces,
)
from gateway.errors import StoreUnavailable
from gateway.store.files import SqlFiles
from tests.fakes.store import open_inline_store

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
ANN, BOB = "people/ann", "people/bob"
LARGE = b"large" * 20_000  # its bytes are no part of its row


class SteppedClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> SteppedClock:
    """Noon."""
    return SteppedClock()


@pytest.fixture
async def files(tmp_path: Path) -> AsyncIterator[SqlFiles]:
    """The files of a store."""
    store = await open_inline_store(tmp_path / "journal.db")
    yield store.files
    await store.close()


@pytest.fixture
def workspace(files: SqlFiles, clock: SteppedClock) -> FileWorkspace:
    """A workspace for 1,000 bytes."""
    return FileWorkspace(files, ANN, most_bytes=1_000, now=clock)


async def write(
    workspace: FileWorkspace, name: str, text: str, *, key: str = "k", is_untrusted: bool = False
) -> FileChange:
    """Replace or create a file."""
    return await workspace.replace(name, text.encode(), key=key, is_untrusted=is_untrusted)


async def text_of(workspace: FileWorkspace, name: str) -> str | None:
    """Return a file's text."""
    content = await workspace.read(name)
    return None if content is None else content.data.decode()


def files_in(folder: Path) -> list[Path]:
    """Return the files in a folder, the journal's left out."""
    return [each for each in folder.rglob("*") if each.is_file() and not each.name.startswith("journal.db")]


async def names(workspace: FileWorkspace) -> list[str]:
    """Return the names of all files."""
    return sorted(each.name for each in await workspace.list_files())


async def marked(workspace: FileWorkspace) -> set[str]:
    """Return the names of the files that hold untrusted text."""
    return {each.name for each in await workspace.list_files() if each.is_untrusted}


async def test_a_new_workspace_is_empty(workspace: FileWorkspace, files: SqlFiles) -> None:
    """Nothing is created by looking."""
    assert (await workspace.list_files(), await workspace.deleted_files()) == ([], [])
    assert await workspace.read("a.txt") is None
    assert await files.files(ANN) == []


async def test_names_differ_by_case_and_keep_their_spelling(workspace: FileWorkspace) -> None:
    """`Trips/Rome 2027.csv` is not `trips/rome 2027.csv`; accents may be characters of their own."""
    assert await workspace.create("Trips/Rome 2027.csv", b"a,b\n", is_untrusted=False) == FileChange(4)
    assert await names(workspace) == ["Trips/Rome 2027.csv"]
    assert await text_of(workspace, "trips/rome 2027.csv") is None
    await workspace.create("Menu\u0308.txt", b"soup", is_untrusted=False)
    assert await text_of(workspace, "Men\u00fc.txt") == "soup"


async def test_create_replaces_nothing(workspace: FileWorkspace) -> None:
    """Another file of that name is kept; the same bytes again have no effect."""
    assert await workspace.create("a.txt", b"one", is_untrusted=False)
    assert await workspace.create("a.txt", b"two", is_untrusted=False) is None
    assert await workspace.create("a.txt", b"one", is_untrusted=False) == FileChange(3)
    assert await text_of(workspace, "a.txt") == "one"


async def test_what_is_replaced_can_be_restored(workspace: FileWorkspace, clock: SteppedClock) -> None:
    """The id brings the old file back; what was there then can be restored in its turn."""
    assert (await write(workspace, "a.txt", "one", key="1")).trash_id == ""
    change = await write(workspace, "a.txt", "two", key="2")
    assert [(each.name, each.original, each.size, each.at) for each in await workspace.deleted_files()] == [
        (change.trash_id, "a.txt", 3, NOON)
    ]
    clock.now += timedelta(hours=1)
    assert await workspace.restore(change.trash_id) == "a.txt"
    assert await text_of(workspace, "a.txt") == "one"
    assert await workspace.restore(change.trash_id) == "a.txt"  # again: no effect
    (two,) = await workspace.deleted_files()
    assert await workspace.restore(two.name) == "a.txt"
    assert await text_of(workspace, "a.txt") == "two"
    assert await workspace.restore("faaaaaaaa") is None


async def test_a_file_that_changed_after_its_restoration_is_not_said_to_be_back(
    workspace: FileWorkspace, clock: SteppedClock
) -> None:
    """The old id is unknown then; what was restored has a new one."""
    await write(workspace, "a.txt", "one", key="1")
    change = await write(workspace, "a.txt", "two", key="2")
    await workspace.restore(change.trash_id)
    clock.now += timedelta(hours=1)
    again = await write(workspace, "a.txt", "three", key="3")
    assert await workspace.restore(change.trash_id) is None
    assert await workspace.restore(again.trash_id) == "a.txt"
    assert await text_of(workspace, "a.txt") == "one"


async def test_a_call_that_runs_again_changes_nothing(workspace: FileWorkspace) -> None:
    """Replacing, appending and deleting with the same key: the same result, and later changes stay."""
    await write(workspace, "a.txt", "one", key="1")
    first = await write(workspace, "a.txt", "two", key="2")
    assert await write(workspace, "a.txt", "two", key="2") == first
    assert await workspace.append("a.txt", b"!", key="3", is_untrusted=False) == FileChange(4)
    assert await workspace.append("a.txt", b"!", key="3", is_untrusted=False) == FileChange(4)
    assert await workspace.append("a.txt", b"!", key="4", is_untrusted=False) == FileChange(5)
    assert await workspace.append("a.txt", b"!", key="3", is_untrusted=False) == FileChange(5)
    assert (await write(workspace, "a.txt", "two", key="2")).trash_id == first.trash_id
    assert await text_of(workspace, "a.txt") == "two!!"
    deleted = await workspace.delete("a.txt", key="5")
    assert deleted is not None
    assert await workspace.delete("a.txt", key="5") == deleted
    assert await workspace.delete("a.txt", key="6") is None
    assert await workspace.restore(deleted.trash_id) == "a.txt"
    assert await workspace.delete("a.txt", key="5") == FileChange(0)
    assert await text_of(workspace, "a.txt") == "two!!"
    assert await workspace.restore(first.trash_id) == "a.txt"
    assert await text_of(workspace, "a.txt") == "one"


async def test_calls_at_once_lose_nothing(workspace: FileWorkspace) -> None:
    """Appends of one file all arrive, and of two creations of one name the first counts."""
    await asyncio.gather(*(workspace.append("a.txt", b"%d\n" % n, key=f"{n}", is_untrusted=False) for n in range(10)))
    assert sorted((await text_of(workspace, "a.txt") or "").split()) == sorted(map(str, range(10)))
    made = await asyncio.gather(*(workspace.create("b.txt", b"%d" % n, is_untrusted=False) for n in range(5)))
    assert [each is not None for each in made].count(True) == 1


async def test_files_of_tainted_calls_are_marked(workspace: FileWorkspace) -> None:
    """An append keeps the mark, a clean replacement ends it, and a restored file has its own."""
    await write(workspace, "a.txt", "theirs", is_untrusted=True, key="1")
    await workspace.append("a.txt", b" and ours", key="2", is_untrusted=False)
    content = await workspace.read("a.txt")
    assert content is not None
    assert (content.data, content.is_untrusted) == (b"theirs and ours", True)
    change = await write(workspace, "a.txt", "ours", key="3")
    assert await marked(workspace) == set()
    assert await workspace.restore(change.trash_id) == "a.txt"
    assert await marked(workspace) == {"a.txt"}
    await workspace.append("b.txt", b"clean", key="4", is_untrusted=False)
    await workspace.append("b.txt", b"theirs", key="5", is_untrusted=True)
    assert await marked(workspace) == {"a.txt", "b.txt"}


async def test_no_file_exceeds_the_space(workspace: FileWorkspace, files: SqlFiles, clock: SteppedClock) -> None:
    """A file that does not fit is not stored; the line names the largest. Deleted files count until they are gone."""
    await write(workspace, "large.bin", "x" * 600, key="1")
    await write(workspace, "small.bin", "x" * 100, key="2")
    before = await files.files(ANN)
    with pytest.raises(WorkspaceFull, match=r"the workspace is full \(1 KB\); the largest: large.bin, 600 bytes"):
        await workspace.create("more.bin", b"x" * 301, is_untrusted=False)
    with pytest.raises(WorkspaceFull):
        await workspace.append("small.bin", b"x" * 301, key="3", is_untrusted=False)
    assert await files.files(ANN) == before
    await workspace.append("small.bin", b"x" * 300, key="4", is_untrusted=False)
    await workspace.delete("large.bin", key="5")
    with pytest.raises(WorkspaceFull) as full:
        await workspace.create("more.bin", b"x" * 500, is_untrusted=False)
    assert full.value.trash == 600
    workspaces = ScopeWorkspaces(files, most_mb=1, now=clock)
    assert await workspaces.expire_trash() == 0
    clock.now += timedelta(days=7, seconds=1)
    assert await workspaces.expire_trash() == 1
    assert await workspace.create("more.bin", b"x" * 500, is_untrusted=False)
    assert {each.kind.value for each in await files.files(ANN)} == {"workspace"}  # records of calls are gone, too


async def test_writers_at_once_stay_within_the_space(workspace: FileWorkspace) -> None:
    """Ten files of 200 bytes in a space of 1,000: five are stored."""
    writes = (workspace.create(f"{n}.bin", b"%d" % n * 200, is_untrusted=False) for n in range(10))
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert sum(isinstance(each, WorkspaceFull) for each in results) == 5
    assert len(await workspace.list_files()) == 5


async def test_restored_files_count_once(workspace: FileWorkspace) -> None:
    """A restored file takes its space once, and cannot be restored again."""
    await write(workspace, "a.bin", "x" * 600)
    change = await workspace.delete("a.bin", key="1")
    assert change is not None
    await workspace.restore(change.trash_id)
    assert await workspace.deleted_files() == []
    assert await workspace.create("b.bin", b"x" * 400, is_untrusted=False)


async def test_deleted_files_of_all_scopes_expire(files: SqlFiles, clock: SteppedClock) -> None:
    """A week later the periodic clean-up removes them, everywhere."""
    workspaces = ScopeWorkspaces(files, most_mb=1, now=clock)
    for scope in (ANN, "chats/pocket%3ag", "shared", ""):
        await workspaces.of(scope).create("old.txt", b"old", is_untrusted=False)
        await workspaces.of(scope).delete("old.txt", key="k")
    assert await workspaces.expire_trash() == 0
    clock.now += timedelta(days=7, seconds=1)
    assert await workspaces.expire_trash() == 4
    assert await files.scopes() == []


async def test_the_trash_is_emptied_at_once(workspace: FileWorkspace, tmp_path: Path) -> None:
    """What a person removes for good cannot be restored, and its bytes are gone, those of a large file too."""
    workspace = FileWorkspace(workspace.store, ANN, most_bytes=1_000_000, now=workspace.now)
    await write(workspace, "a.txt", "secret " * 20_000, key="1")
    change = await workspace.delete("a.txt", key="2")
    assert change is not None
    assert await workspace.empty_trash() == 1
    assert await workspace.restore(change.trash_id) is None
    assert not [path for path in files_in(tmp_path) if b"secret" in path.read_bytes()]


@pytest.mark.parametrize("most", [3])
async def test_the_number_of_files_is_limited(
    workspace: FileWorkspace, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """So many files, and so many deleted ones; what is there can still be changed and deleted."""
    monkeypatch.setattr(module, "MOST_FILES", most)
    for n in range(most):
        await write(workspace, f"{n}.txt", "x", key=f"{n}")
    with pytest.raises(WorkspaceFull, match="3 files"):
        await write(workspace, "more.txt", "x")
    await workspace.append("0.txt", b"y", key="append", is_untrusted=False)
    for n in range(most):
        assert await workspace.delete(f"{n}.txt", key=f"delete {n}")
    await write(workspace, "more.txt", "x", key="more")
    with pytest.raises(WorkspaceFull, match="3 deleted files"):
        await write(workspace, "more.txt", "y")
    assert await workspace.delete("more.txt", key="delete more")
    with pytest.raises(WorkspaceFull, match="3 deleted files"):
        await write(workspace, "new.txt", "x")


async def test_a_large_file_is_neither_written_nor_read(
    workspace: FileWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused by its size."""
    await write(workspace, "b.txt", "x" * 11)
    with pytest.raises(FileTooLarge, match=r"b.txt is larger than 10 bytes"):
        await workspace.read("b.txt", most=10)
    monkeypatch.setattr(module, "FILE_BYTES", 10)
    with pytest.raises(FileTooLarge):
        await workspace.create("a.txt", b"x" * 11, is_untrusted=False)
    with pytest.raises(FileTooLarge):
        await workspace.append("b.txt", b"x", key="append", is_untrusted=False)


async def test_received_files_cannot_be_changed(workspace: FileWorkspace) -> None:
    """`received/` names what people sent."""
    with pytest.raises(InvalidFileName, match="cannot be changed"):
        await write(workspace, "received/a.txt", "x")
    with pytest.raises(InvalidFileName, match="cannot be changed"):
        await workspace.create("received/a.txt", b"x", is_untrusted=False)
    with pytest.raises(InvalidFileName, match="cannot be changed"):
        await workspace.append("received/a.txt", b"x", key="k", is_untrusted=False)
    with pytest.raises(InvalidFileName, match="cannot be changed"):
        await workspace.delete("received/a.txt", key="k")


async def test_linking_accounts_joins_their_workspaces(files: SqlFiles, clock: SteppedClock) -> None:
    """Every file is kept, marks too, under a number where both had one of that name; deleted files stay restorable."""
    workspaces = ScopeWorkspaces(files, most_mb=1, now=clock)
    ann, bob = workspaces.of(ANN), workspaces.of(BOB)
    await ann.create("list.csv", b"of Ann", is_untrusted=False)
    await ann.create("same.txt", b"same", is_untrusted=False)
    await bob.create("list.csv", b"of Bob", is_untrusted=True)
    await bob.create("same.txt", b"same", is_untrusted=False)
    await bob.create("old.txt", b"old", is_untrusted=False)
    change = await bob.delete("old.txt", key="k")
    assert change is not None
    for _ in range(2):  # the second time without effect
        await merge_workspaces(files, BOB, ANN)
        found = {each.name: (await ann.read(each.name), each.is_untrusted) for each in await ann.list_files()}
        assert {name: (content and content.data, mark) for name, (content, mark) in found.items()} == {
            "list.csv": (b"of Ann", False),
            "list.csv.2": (b"of Bob", True),
            "same.txt": (b"same", False),
        }
    assert await ann.restore(change.trash_id) == "old.txt"
    assert await files.files(BOB) == []


async def test_erasing_reaches_files_and_deleted_copies(workspace: FileWorkspace, files: SqlFiles) -> None:
    """Each file is passed once with its name; a deleted file that would change goes, and a preview changes nothing."""
    await write(workspace, "a.txt", "keep\nsecret\n", key="1")
    await write(workspace, "a.txt", "keep\nsecret two\n", key="2", is_untrusted=True)
    await write(workspace, "b.txt", "keep", key="3")

    def clear(name: str, data: bytes) -> bytes | None:
        return b"".join(line for line in data.splitlines(keepends=True) if b"secret" not in line)

    before = await files.files(ANN)
    assert await workspace.erase(clear, is_preview=True) == ["a.txt"]
    assert await files.files(ANN) == before
    assert await workspace.erase(clear) == ["a.txt"]
    assert await text_of(workspace, "a.txt") == "keep\n"
    assert await marked(workspace) == {"a.txt"}
    assert await workspace.deleted_files() == []
    assert await workspace.erase(lambda *_: None) == ["a.txt", "b.txt"]
    assert await workspace.list_files() == []


async def test_erasing_reaches_the_name_of_a_restored_file(workspace: FileWorkspace, files: SqlFiles) -> None:
    """The record of the restoration has the name, and goes with the words in it."""
    await write(workspace, "zeppelin.txt", "x", key="1")
    change = await workspace.delete("zeppelin.txt", key="2")
    assert change is not None
    await workspace.restore(change.trash_id)
    assert await workspace.erase(lambda name, data: None if "zeppelin" in name else data) == ["zeppelin.txt"]
    assert not [each for each in await files.files(ANN) if "zeppelin" in each.name + each.original]


async def test_a_change_during_an_erasure_is_looked_at_too(workspace: FileWorkspace) -> None:
    """A file that was replaced between being read and being cleared is cleared as it is then."""
    await write(workspace, "a.txt", "secret", key="1")
    loop = asyncio.get_running_loop()
    is_first = True

    def clear(name: str, data: bytes) -> bytes | None:
        nonlocal is_first
        if is_first:
            is_first = False
            asyncio.run_coroutine_threadsafe(write(workspace, "a.txt", "secret two", key="2"), loop).result()
        return data.replace(b"secret", b"")

    await workspace.erase(clear)
    assert await text_of(workspace, "a.txt") == " two"
    assert await workspace.deleted_files() == []


@pytest.mark.parametrize("mark", [False, True])
async def test_a_name_is_a_file_or_a_folder(workspace: FileWorkspace, mark: bool) -> None:
    """Whatever the marks: no file in a file, and no file where a folder is."""
    await workspace.create("a/b", b"x", is_untrusted=mark)
    with pytest.raises(InvalidFileName, match="folder where a file is needed"):
        await workspace.create("a/b/c", b"x", is_untrusted=False)
    with pytest.raises(InvalidFileName, match="folder where a file is needed"):
        await workspace.replace("a", b"x", key="k", is_untrusted=not mark)
    assert await names(workspace) == ["a/b"]


HOSTILE = [
    *("../secret.txt", "inner/../a.txt", "/etc/passwd", "", ".", "..", "a.txt/", "/proc/self/environ", "a\0.txt"),
    *("x" * 300, "//a.txt", "./a.txt", "..\\secret.txt", "../people/bob/a.txt", "inner\n/b.txt/..", "a.txt\u202e"),
    *("../../people/bob/a.txt", "people/bob/a.txt", "%2e%2e/bob/a.txt", ".trash/x", "bytes/a.txt", "~/a.txt"),
]


@pytest.mark.parametrize("name", HOSTILE)
async def test_no_name_leaves_its_scope(files: SqlFiles, clock: SteppedClock, tmp_path: Path, name: str) -> None:
    """Attacks 44 to 56: whatever a model calls a file, nothing of the disk or of another scope is read or changed."""
    workspaces = ScopeWorkspaces(files, most_mb=1, now=clock)
    await workspaces.of(BOB).create("a.txt", b"of Bob", is_untrusted=False)
    (tmp_path / "secret.txt").write_text("secret")
    ann, bobs = workspaces.of(ANN), await files.files(BOB)
    for change in (
        lambda: ann.create(name, b"planted" * 20_000, is_untrusted=False),
        lambda: ann.replace(name, b"planted too", key=name, is_untrusted=True),
        lambda: ann.append(name, b"planted", key=name, is_untrusted=False),
        lambda: ann.read(name),
        lambda: ann.delete(name, key=name),
    ):
        try:
            found = await change()
        except InvalidFileName:
            continue
        assert getattr(found, "data", b"planted")[:7] == b"planted"
    assert await files.files(BOB) == bobs
    own = {path.relative_to(tmp_path).parts[:2] for path in files_in(tmp_path)}
    assert own <= {("secret.txt",), ("people", "ann")}
    assert (tmp_path / "secret.txt").read_text() == "secret"


async def test_the_last_changed_comes_first(workspace: FileWorkspace, clock: SteppedClock) -> None:
    """In the listing, and among deleted files."""
    for n in range(3):
        clock.now += timedelta(minutes=1)
        await write(workspace, f"{n}.txt", "x", key=f"{n}")
    assert [each.name for each in await workspace.list_files()] == ["2.txt", "1.txt", "0.txt"]
    for n in (1, 0, 2):
        clock.now += timedelta(minutes=1)
        await workspace.delete(f"{n}.txt", key=f"d{n}")
    assert [each.original for each in await workspace.deleted_files()] == ["2.txt", "0.txt", "1.txt"]


CHANGES: dict[str, Callable[[FileWorkspace], Awaitable[object]]] = {
    "create": lambda at: at.create("a/new.txt", LARGE, is_untrusted=False),
    "replace": lambda at: at.replace("a/kept.txt", LARGE, key="k", is_untrusted=True),
    "append": lambda at: at.append("a/kept.txt", LARGE, key="k", is_untrusted=True),
    "delete": lambda at: at.delete("a/kept.txt", key="k"),
    "restore": lambda at: at.restore(module._derive_id("before", "old.txt")),
}


class FailingSubmit:
    """A writer's `submit` whose operation number *left* fails, or is stored and fails then."""

    def __init__(self, submit: Callable[..., Any], left: int, *, is_stored: bool) -> None:
        self.left = left
        self._submit = submit
        self._is_stored = is_stored

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.left -= 1
        if self.left != 0:
            return self._submit(*arguments, **options)
        if self._is_stored:
            self._submit(*arguments, **options)
        future = asyncio.get_running_loop().create_future()
        future.set_exception(StoreUnavailable("the connection is lost"))
        return future


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize("kind", CHANGES)
async def test_a_change_that_fails_anywhere_can_run_again(
    tmp_path: Path, clock: SteppedClock, monkeypatch: pytest.MonkeyPatch, kind: str, is_stored: bool
) -> None:
    """A reader finds the old files or the new ones, and the same call leaves what it would have left at once.

    One operation after the other fails, or is stored and its result is lost.
    """
    states: list[tuple[object, object]] = []
    for fails_at in itertools.count(1):
        (tmp_path / f"{fails_at}").mkdir()
        store = await open_inline_store(tmp_path / f"{fails_at}" / "journal.db")
        at = FileWorkspace(store.files, ANN, most_bytes=1_000_000, now=clock)
        await at.create("a/kept.txt", b"kept" * 20_000, is_untrusted=False)
        await at.create("old.txt", b"old" * 30_000, is_untrusted=False)
        await at.delete("old.txt", key="before")
        before, writer = await state_of(at), store._engine.writer
        failing = FailingSubmit(writer.submit, fails_at, is_stored=is_stored)
        with monkeypatch.context() as patch, suppress(StoreUnavailable):
            patch.setattr(writer, "submit", failing)
            await CHANGES[kind](at)
        found = await state_of(at)
        await CHANGES[kind](at)
        states.append((found, await state_of(at)))
        await store.close()
        if failing.left > 0:  # nothing failed
            break
    new = states[-1][0]
    assert len(states) > 3
    assert before != new
    assert all(found in (before, new) and again == new for found, again in states)


async def state_of(at: FileWorkspace) -> object:
    """Return what a reader finds: names, contents and marks, and what can be restored."""
    files = {each.name: (await at.read(each.name), each.is_untrusted) for each in await at.list_files()}
    return files, sorted((each.original, each.size) for each in await at.deleted_files())
