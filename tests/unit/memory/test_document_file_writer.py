"""From the store to MEMORY.md, USER.md and SOUL.md, and back from what a person saves there."""

from __future__ import annotations

import asyncio
import errno
import shutil
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from dulwich.objects import Commit
from dulwich.repo import Repo

from agent.base import disk as disk_module
from agent.base.disk import Disk
from agent.memory.editing.document_commits import RepositoryCommit, append_commits, open_repo
from agent.memory.editing.document_files import LONGEST_EDIT
from agent.memory.editing.memory_file_writer import MemoryFileWriter
from agent.memory.storage.scope_documents import BY_HAND
from gateway.errors import StoreUnavailable
from gateway.ports.memory import DocumentChange, DocumentState, document_file
from gateway.store.documents import SqlDocuments
from tests.fakes.clock import VirtualClock
from tests.fakes.hand_edits import save_by_rename, save_in_place, saves_beside_changes
from tests.fakes.memory import SCOPE, START, CountingDisk, DyingDisk, FakeRecords, FaultyDisk, ProcessCrash

BOBS_SCOPE = "people/telegram%3a43"
TEA, DOG = "- likes tea\n", "- has a dog\n"


class FileClock:
    """A clock of files' times that a test moves on."""

    def __init__(self) -> None:
        """Begin now."""
        self.moved = 0.0

    def __call__(self) -> float:
        """Return seconds since 1970."""
        return time.time() + self.moved


@dataclass
class MirrorScene:
    """A home, its store, and the writer between them, as processes one after the other have it."""

    home: Path
    records: FakeRecords = field(default_factory=FakeRecords)
    later: FileClock = field(default_factory=FileClock)
    has_git: bool = True

    def __post_init__(self) -> None:
        """Begin with the first process."""
        self.restart()

    @property
    def documents(self) -> SqlDocuments:
        """What is true."""
        return self.records.documents

    def restart(self, disk: Disk | None = None) -> None:
        """Have the next process, on a disk of its own."""
        self.writer = self.open_writer(disk)

    def open_writer(self, disk: Disk | None = None, *, is_mirroring: bool = True) -> MemoryFileWriter:
        """Return what a process has after its start."""
        return MemoryFileWriter(
            self.home,
            self.documents,
            self.records.history,
            is_mirroring=is_mirroring,
            has_git=self.has_git,
            disk=disk,
            now=self.later,
        )

    def path(self, name: str = "MEMORY.md", scope: str = SCOPE) -> Path:
        """Return where a document's file is."""
        return self.home / scope / document_file(name)

    async def change(self, text: str, name: str = "MEMORY.md", scope: str = SCOPE, why: str = "t1") -> None:
        """Change a document in the store."""
        now = await self.documents.read(scope, name)
        assert await self.documents.write(scope, name, text, was=now.rev, why=why, by="ann") is not None

    async def text(self, name: str = "MEMORY.md") -> str:
        """Return a document as the store has it."""
        return (await self.documents.read(SCOPE, name)).text

    async def passes(self, count: int = 3) -> None:
        """Flush, with time between, until nothing lingers."""
        for _ in range(count):
            await self.writer.flush()
            self.later.moved += 3

    async def notice(self) -> None:
        """Come to a turn, some time after the last save."""
        self.later.moved += 3
        await self.writer.notice(SCOPE)

    async def passing(self, work: Coroutine[Any, Any, None]) -> None:
        """Do *work* while time passes."""
        task = asyncio.create_task(work)
        while not task.done():
            self.later.moved += 1
            await asyncio.sleep(0.01)
        await task

    async def causes(self) -> list[str]:
        """Return the causes of all changes, the oldest first."""
        return [each.why for each in await self.documents.log(SCOPE, limit=100)][::-1]

    def edit(self, text: str | bytes, name: str = "MEMORY.md") -> None:
        """Save a file as an editor does that writes in place."""
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).write_bytes(text.encode() if isinstance(text, str) else text)

    def found(self) -> bytes:
        """Return all bytes below the scope's folder, those that git has compressed as they are."""
        paths = [path for path in sorted((self.home / SCOPE).rglob("*")) if path.is_file()]
        inflated = [text for path in self.repositories() for text in objects(path)]
        return b"\n".join([*(path.read_bytes() for path in paths), *inflated])

    def repositories(self) -> list[Path]:
        """Return the scope's repositories, those that were set aside too."""
        return sorted((self.home / SCOPE / "memory").glob(".git*"))


@pytest.fixture
def scene(tmp_path: Path) -> MirrorScene:
    """An empty home."""
    return MirrorScene(tmp_path)


def objects(repository: Path) -> Iterator[bytes]:
    """Yield the content of every object in a repository."""
    with Repo(str(repository)) as repo:
        for sha in repo.object_store:
            yield repo[sha].as_raw_string()


def commits(scene: MirrorScene) -> list[tuple[str, str, dict[str, str]]]:
    """Return the message's first line, its last line but one, and the documents of each commit, the oldest first."""
    found: list[tuple[str, str, dict[str, str]]] = []
    with Repo(str(scene.home / SCOPE / "memory" / ".git")) as repo:
        for entry in repo.get_walker():
            commit = entry.commit
            assert isinstance(commit, Commit)
            lines = commit.message.decode().splitlines()
            tree = repo[commit.tree]
            texts = {each.path.decode(): repo[each.sha].as_raw_string().decode() for each in tree.items()}  # type: ignore[attr-defined]
            found.append((lines[0], next(each for each in lines if each.startswith("Change: ")), texts))
    return found[::-1]


# -- changes reach their files -------------------------------------------------------------------------


async def test_a_change_reaches_its_file_and_its_repository(scene: MirrorScene) -> None:
    """The bytes of the store, private; a commit that names the change; nothing is left to write or lies beside."""
    await scene.change(TEA)
    await scene.change("friendly\n", "SOUL.md")
    await scene.passes()
    assert scene.path().read_text() == TEA
    assert scene.path("SOUL.md").read_text() == "friendly\n"
    assert not scene.path("USER.md").exists()
    assert scene.path().stat().st_mode & 0o777 == 0o600
    assert scene.path().parent.stat().st_mode & 0o777 == 0o700
    log = (await scene.documents.log(SCOPE, limit=5))[::-1]
    assert commits(scene) == [
        ("t1", f"Change: {log[0].id}", {"MEMORY.md": TEA}),
        ("t1", f"Change: {log[1].id}", {"MEMORY.md": TEA, "SOUL.md": "friendly\n"}),
    ]
    assert not await scene.documents.stale_paths()
    assert sorted(each.name for each in (scene.path().parent / ".mirror").iterdir()) == [
        "MEMORY.md.json",
        "SOUL.md.json",
    ]


async def test_several_changes_between_two_passes_are_several_commits(scene: MirrorScene) -> None:
    """Each has the text that it made, and the file has the last."""
    for n in range(40):
        await scene.change(TEA * (n + 1), why=f"t{n}")
    await scene.passes()
    assert [(why, texts["MEMORY.md"]) for why, _, texts in commits(scene)] == [
        (f"t{n}", TEA * (n + 1)) for n in range(40)
    ]
    await scene.change(DOG)
    scene.restart()
    await scene.passes()
    assert len(commits(scene)) == 41
    assert scene.path().read_text() == DOG


async def test_without_git_there_is_no_repository(tmp_path: Path) -> None:
    """The files are written all the same."""
    scene = MirrorScene(tmp_path, has_git=False)
    await scene.change(TEA)
    await scene.passes()
    assert scene.path().read_text() == TEA
    assert not scene.repositories()
    assert not await scene.documents.stale_paths()


async def test_an_emptied_document_is_an_empty_file(scene: MirrorScene) -> None:
    """A text that was removed in the store is in no file."""
    await scene.change(TEA)
    await scene.passes()
    await scene.change("")
    await scene.passes()
    assert scene.path().read_text() == ""
    assert await scene.text() == ""
    assert len(await scene.causes()) == 2


async def test_only_scopes_with_debts_are_touched(tmp_path: Path) -> None:
    """A start and a pass read and write nothing of scopes whose files are written."""
    disk = CountingDisk()
    scene = MirrorScene(tmp_path)
    await scene.change(TEA)
    await scene.passes()
    scene.restart(disk)
    await scene.change(DOG, scope=BOBS_SCOPE)
    await scene.passes()
    touched = disk.calls.total()
    scene.restart(disk)
    disk.reset()
    await scene.passes()
    assert not disk.calls
    assert touched
    assert scene.path(scope=BOBS_SCOPE).read_text() == DOG


async def test_deleted_and_rebuilt_it_has_the_same_bytes(scene: MirrorScene) -> None:
    """The files, and every commit under its name."""
    await scene.change(TEA + "\r\n\x0c- ü€😀\u2028no end")
    await scene.change("friendly\n", "SOUL.md")
    await scene.change(TEA + DOG)
    await scene.passes()
    before = {name: scene.path(name).read_bytes() for name in ("MEMORY.md", "SOUL.md")}
    with Repo(str(scene.home / SCOPE / "memory" / ".git")) as repo:
        head = repo.head()
    shutil.rmtree(scene.home / SCOPE)
    scene.restart()
    await scene.passing(scene.writer.rebuild_documents(SCOPE))
    assert {name: scene.path(name).read_bytes() for name in before} == before
    with Repo(str(scene.home / SCOPE / "memory" / ".git")) as repo:
        assert repo.head() == head
    assert len(await scene.causes()) == 3


# -- edits by hand -------------------------------------------------------------------------------------


async def test_an_edit_by_hand_is_a_change(scene: MirrorScene) -> None:
    """It is noticed at the next turn; lines that it left alone keep their source; the file stays as it is."""
    await scene.change(TEA, why="said")
    await scene.passes()
    scene.edit(TEA + DOG)
    await scene.notice()
    assert await scene.text() == TEA + DOG
    assert await scene.causes() == ["said", BY_HAND]
    assert [(await scene.documents.source(SCOPE, "MEMORY.md", line)).why for line in (TEA, DOG)] == ["said", BY_HAND]  # type: ignore[union-attr]
    inode = scene.path().stat().st_ino
    await scene.passes()
    assert scene.path().stat().st_ino == inode
    assert [why for why, *_ in commits(scene)] == ["said", BY_HAND]
    assert not await scene.documents.stale_paths()


async def test_files_that_were_there_first_are_taken_over(scene: MirrorScene) -> None:
    """An operator's SOUL.md, written before the first start; what the store has already is not lost either."""
    await scene.change(DOG)
    scene.edit("friendly\n", "SOUL.md")
    scene.edit(TEA)
    await scene.notice()
    assert await scene.text("SOUL.md") == "friendly\n"
    assert set((await scene.text()).splitlines()) == {"- likes tea", "- has a dog"}


async def test_a_file_of_before_is_no_edit_when_it_was_taken_over_and_corrected_since(scene: MirrorScene) -> None:
    """The first look comes after a correction: the line that it replaced does not come back."""
    scene.edit("- Allergic to penicillin\n- Likes tea\n")
    await scene.change("- Allergic to penicillin\n- Likes tea\n", why="edited by hand")
    await scene.change("- Not allergic to penicillin\n- Likes tea\n")
    await scene.notice()
    assert await scene.text() == "- Not allergic to penicillin\n- Likes tea\n"
    await scene.passes()
    assert scene.path().read_text() == await scene.text()


async def test_nothing_is_read_where_nothing_changed(tmp_path: Path) -> None:
    """A turn costs a few calls of `stat`, also in a scope without a folder."""
    disk = CountingDisk()
    scene = MirrorScene(tmp_path)
    await scene.change(TEA)
    await scene.passes()
    scene.restart(disk)
    await scene.notice()
    await scene.writer.notice(BOBS_SCOPE)
    disk.reset()
    for _ in range(10):
        await scene.notice()
        await scene.writer.notice(BOBS_SCOPE)
    assert not disk.calls
    assert not (tmp_path / BOBS_SCOPE).exists()


class ThreadCounter(ThreadPoolExecutor):
    """The event loop's threads, whose visits are counted."""

    visits = 0

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Count a visit, and make it."""
        self.visits += 1
        return super().submit(*args, **kwargs)


async def test_a_turn_visits_no_thread_where_nothing_changed(scene: MirrorScene) -> None:
    """Every turn asks for edits; files that were looked at cost it some system calls, and no visit of a thread."""
    threads = ThreadCounter(1)
    asyncio.get_running_loop().set_default_executor(threads)
    await scene.change(TEA)
    await scene.passes()
    await scene.notice()
    visits = threads.visits
    assert visits
    for _ in range(3):
        await scene.notice()
    assert threads.visits == visits
    scene.edit(TEA + DOG)
    await scene.notice()
    assert await scene.text() == TEA + DOG


async def test_an_edit_of_the_same_size_in_the_same_moment_is_noticed(scene: MirrorScene) -> None:
    """A file's time does not tell two writes of one moment apart."""
    await scene.change(TEA)
    await scene.passes()
    for n in range(5):
        scene.edit(f"- likes te{n}\n")
        scene.later.moved += 0.2
        await scene.writer.notice(SCOPE)
        assert await scene.text() == f"- likes te{n}\n"


async def test_where_both_changed_both_are_kept(scene: MirrorScene) -> None:
    """The store has moved on since the file was written: other lines are merged, and of one line both stay."""
    await scene.change("- likes tea\n- has a dog\n- lives in Rome\n")
    await scene.passes()
    await scene.change("- likes green tea\n- has a dog\n- lives in Rome\n- plays chess\n")
    scene.edit("- likes black tea\n- has a dog and a cat\n- lives in Rome\n")
    await scene.notice()
    await scene.passes()
    expected = "- likes green tea\n- likes black tea\n- has a dog and a cat\n- lives in Rome\n- plays chess\n"
    assert await scene.text() == expected == scene.path().read_text()


async def test_an_edit_that_waits_for_its_merge_is_the_base_of_the_next(scene: MirrorScene) -> None:
    """A second save, before the file was written, does not take away what the store has and the file never had."""
    await scene.change(TEA)
    await scene.passes()
    await scene.change(TEA + "- plays chess\n")
    scene.edit(DOG + TEA)
    await scene.notice()
    scene.edit(DOG)
    await scene.notice()
    await scene.passes()
    assert await scene.text() == DOG + "- plays chess\n" == scene.path().read_text()


async def test_a_file_that_is_being_saved_is_read_again(scene: MirrorScene) -> None:
    """An editor empties a file, writes half and then the rest: nothing but the whole is taken over."""
    await scene.change(TEA)
    await scene.passes()
    later = scene.later.moved = 0
    scene.edit("")
    await scene.writer.notice(SCOPE)
    scene.edit(DOG[:5])
    await scene.writer.notice(SCOPE)
    await scene.writer.flush()
    assert await scene.text() == TEA
    scene.edit(DOG)
    scene.later.moved = later + 0.3
    await scene.writer.flush()
    assert await scene.text() == DOG
    assert await scene.causes() == ["t1", BY_HAND]


async def test_a_document_that_a_person_deletes_is_forgotten(scene: MirrorScene) -> None:
    """As before; but only once it stays away, since some editors remove a file before they write it."""
    await scene.change(TEA)
    await scene.passes()
    scene.path().unlink()
    scene.later.moved += 3
    await scene.writer.notice(SCOPE)
    assert await scene.text() == TEA
    scene.later.moved += 3
    await scene.writer.flush()
    assert await scene.text() == ""
    assert await scene.causes() == ["t1", BY_HAND]
    await scene.passes()
    assert not scene.path().exists()
    await scene.change(DOG)
    await scene.passes()
    assert scene.path().read_text() == DOG


CODINGS = (
    "- ça va\n".encode("utf-16"),
    "- ça va\n".encode("cp1252"),
    "\ufeff- ça va\n".encode(),
    "- ça va\r\n".encode(),
)


@pytest.mark.parametrize("data", CODINGS, ids=("utf-16", "cp1252", "bom", "crlf"))
async def test_what_other_editors_save_is_converted(scene: MirrorScene, data: bytes) -> None:
    """UTF-16 with a mark, Windows-1252, a mark of UTF-8 and other line ends; the file stays until it is written."""
    await scene.change(TEA)
    await scene.passes()
    scene.edit(data)
    await scene.notice()
    assert await scene.text() == "- ça va\n"
    await scene.passes()
    assert scene.path().read_bytes() == data
    assert await scene.causes() == ["t1", BY_HAND]
    await scene.change("- ça va\n" + DOG)
    await scene.passes()
    assert scene.path().read_bytes() == ("- ça va\n" + DOG).encode()


@pytest.mark.parametrize("data", [b"\x89PNG\x00\x81\x8d", b"- a\x00b\n", b"- \x81\n", b"x" * (LONGEST_EDIT + 1)])
async def test_what_is_no_text_is_set_aside(
    scene: MirrorScene, capsys: pytest.CaptureFixture[str], data: bytes
) -> None:
    """Bytes of no text, or too many: the file lies beside the document, which is written again; the log says so."""
    await scene.change(TEA)
    await scene.passes()
    scene.edit(data)
    await scene.notice()
    await scene.passes()
    assert await scene.text() == TEA == scene.path().read_text()
    [aside] = scene.path().parent.glob("MEMORY.md.unreadable-*")
    assert aside.read_bytes() == data
    assert capsys.readouterr().out.count("document_files.unreadable") == 1


async def test_the_longest_edit_is_taken_over(scene: MirrorScene) -> None:
    """At the limit, and not above it."""
    scene.edit("x" * (LONGEST_EDIT - 1) + "\n")
    await scene.notice()
    assert len(await scene.text()) == LONGEST_EDIT


class EditingDisk(Disk):
    """A disk on which a person saves right before files are exchanged."""

    save: Callable[[], None] | None = None

    def exchange(self, beside: Path, path: Path) -> None:
        """Save, and exchange."""
        save, self.save = self.save, None
        if save is not None:
            save()
        super().exchange(beside, path)


SAVES = (save_in_place, save_by_rename)


@pytest.fixture(params=(True, False), ids=("exchange", "renames"))
def can_exchange(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """A file system that can exchange two names, and one that cannot."""
    if not request.param:
        monkeypatch.setattr(disk_module, "_exchange", lambda *_: False)
    return bool(request.param)


@pytest.mark.parametrize("save", SAVES)
async def test_a_save_between_a_look_and_the_write_is_not_lost(
    scene: MirrorScene, save: Callable[[Path, str], None], can_exchange: bool
) -> None:
    """What comes out of the exchange is looked at, and taken over when it is not what was there."""
    await scene.change(TEA)
    await scene.passes()
    disk = EditingDisk()
    scene.restart(disk)
    disk.save = lambda: save(scene.path(), TEA + DOG)
    await scene.change("- plays chess\n" + TEA)
    await scene.passes()
    assert await scene.text() == "- plays chess\n" + TEA + DOG == scene.path().read_text()
    assert not await scene.documents.stale_paths()


async def test_an_editor_that_opened_the_file_before_the_exchange_writes_after_it(scene: MirrorScene) -> None:
    """Its bytes reach a file that has no name any more; they are not lost."""
    await scene.change(TEA)
    await scene.passes()
    with scene.path().open("a") as file:
        await scene.change("- plays chess\n" + TEA)
        await scene.writer.flush()
        assert scene.path().read_text() == "- plays chess\n" + TEA
        file.write(DOG)
    await scene.passes()
    assert await scene.text() == "- plays chess\n" + TEA + DOG == scene.path().read_text()


# -- kills ---------------------------------------------------------------------------------------------


async def redact(scene: MirrorScene, word: str) -> None:
    """Take a word from every version, as an erasure does."""
    states = await scene.documents.states(SCOPE)
    new = [
        DocumentState(change=each.change, texts={name: text.replace(word, "…") for name, text in each.texts.items()})
        for each in states
    ]
    assert await scene.documents.replace({SCOPE: new}, was={SCOPE: states[-1].change.number})


async def first_write(scene: MirrorScene) -> None:
    """Have a document that is in no file yet."""
    await scene.change(TEA)


async def next_write(scene: MirrorScene) -> None:
    """Have a file to exchange."""
    await first_write(scene)
    await scene.passes()
    await scene.change(TEA + "- plays chess\n")


async def edit_beside_write(scene: MirrorScene) -> None:
    """Have an edit and a change."""
    await next_write(scene)
    scene.edit(DOG + TEA)


async def erase(scene: MirrorScene) -> None:
    """Have all versions replaced by others."""
    await edit_beside_write(scene)
    await scene.passes()
    await redact(scene, "tea")


async def call_at_once(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Be an `asyncio.to_thread` without a thread."""
    return function(*arguments, **options)


@pytest.mark.parametrize("prepare", [first_write, next_write, edit_beside_write, erase])
@pytest.mark.parametrize("is_edited", [False, True], ids=("", "edited after the kill"))
async def test_killed_anywhere_nothing_is_lost_or_taken_for_an_edit(
    tmp_path: Path,
    prepare: Callable[[MirrorScene], Awaitable[None]],
    is_edited: bool,
    can_exchange: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At each write, rename, exchange and removal: the next process has the same document, file and causes."""
    monkeypatch.setattr(asyncio, "to_thread", call_at_once)  # the waits for threads were most of the time
    points, expected = 0, None
    for at in range(200):
        scene = MirrorScene(tmp_path / str(at))
        await prepare(scene)
        scene.later.moved += 3
        disk = DyingDisk(at=at, error=ProcessCrash())
        scene.restart(disk)
        with suppress(ProcessCrash):
            await scene.passes()
        is_killed = disk.count > at
        scene.restart()
        if is_edited:
            scene.later.moved += 3
            if not can_exchange:
                await scene.writer.flush()  # a person may have found no file, and made one
            old = scene.path().read_text() if scene.path().exists() else ""
            scene.edit(old + "- sings\n")
            await scene.notice()
        await scene.passes(4)
        found = (scene.path().read_text(), await scene.text(), await scene.causes())
        assert not await scene.documents.stale_paths()
        assert found[0] == found[1]
        assert commits(scene)[-1][2] == {"MEMORY.md": found[1]}
        assert not list((scene.path().parent / ".mirror").glob("*.aside*"))
        lines = sorted(found[1].splitlines())
        expected = expected or (lines, found[2])
        assert (lines, found[2]) == expected, at
        points += 1
        if not is_killed:
            break
    assert points > 8


# -- erasure -------------------------------------------------------------------------------------------


async def settled(scene: MirrorScene) -> None:
    """Settle, while time passes."""
    await scene.passing(scene.writer.settle(SCOPE))


async def test_what_is_erased_is_in_no_file_and_no_commit(scene: MirrorScene) -> None:
    """In the files, beside them, in set-aside ones and in git: no byte; each change is a commit as before."""
    await scene.change("- likes tea and secrets\n")
    await scene.passes()
    scene.edit(b"secret \x81")
    await scene.notice()
    await scene.change("- likes tea and secrets\n" + DOG)
    await scene.passes()
    assert b"secret" in scene.found()
    await redact(scene, "secret")
    await settled(scene)
    assert b"secret" not in scene.found()
    assert not await scene.documents.stale_paths()
    assert [texts["MEMORY.md"] for *_, texts in commits(scene)] == [
        "- likes tea and …s\n",
        "- likes tea and …s\n" + DOG,
    ]
    assert scene.path().read_text() == "- likes tea and …s\n" + DOG


async def test_settle_takes_over_a_pending_edit(scene: MirrorScene) -> None:
    """Before an erasure begins, so that it finds the words."""
    await scene.change(TEA)
    await scene.passes()
    scene.edit(TEA + DOG)
    await settled(scene)
    assert await scene.text() == TEA + DOG


async def test_settle_says_that_a_file_cannot_be_written(tmp_path: Path) -> None:
    """An erasure is not done until its files are written."""
    scene = MirrorScene(tmp_path)
    await scene.change(TEA)
    scene.restart(FaultyDisk(at=0))
    with pytest.raises(OSError, match="No space left"):
        await settled(scene)
    scene.records.is_down = True
    with pytest.raises(StoreUnavailable):
        await settled(scene)
    scene.records.is_down = False
    await settled(scene)
    assert scene.path().read_text() == TEA


async def test_removed_files_leave_nothing(scene: MirrorScene) -> None:
    """Documents, what is beside them, commits."""
    await scene.change(TEA)
    await scene.change("friendly\n", "SOUL.md")
    await scene.passes()
    scene.edit(b"\x81")
    await scene.notice()
    await scene.writer.remove(SCOPE)
    assert [path for path in (scene.home / SCOPE).rglob("*") if path.is_file()] == []


# -- outages -------------------------------------------------------------------------------------------


class FullDisk(Disk):
    """A disk without room for one scope."""

    is_full = True

    def replace(self, path: Path, data: bytes) -> None:
        """Write, if there is room."""
        if self.is_full and "%3a42" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        super().replace(path, data)


async def test_a_full_disk_delays_the_files_and_no_turn(
    tmp_path: Path, clock: VirtualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is logged once and its end too, without a text; another scope is written meanwhile; edits are taken over."""
    scene = MirrorScene(tmp_path)
    await scene.change(TEA)
    await scene.passes()
    disk = FullDisk()
    scene.restart(disk)
    await scene.change(TEA + DOG)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(scene.writer.run())
        for _ in range(20):
            await scene.notice()
            await asyncio.sleep(1)
        await scene.change("- Bob\n", scope=BOBS_SCOPE)
        await asyncio.sleep(0.5)
        assert scene.path(scope=BOBS_SCOPE).read_text() == "- Bob\n"
        assert scene.path().read_text() == TEA
        disk.is_full = False
        for _ in range(20):
            scene.later.moved += 3
            await asyncio.sleep(3)
        assert scene.path().read_text() == TEA + DOG
        running.cancel()
    said = capsys.readouterr().out
    assert said.count("memory_files.cannot_write") == 1
    assert said.count("memory_files.writes_again") == 1
    assert "likes tea" not in said
    assert str(tmp_path) not in said


async def test_calm_it_is_behind_by_less_than_a_second(scene: MirrorScene, clock: VirtualClock) -> None:
    """After a change, and after another right behind it."""
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(scene.writer.run())
        for n in range(3):
            await asyncio.sleep(30)
            await scene.change(TEA * (n + 1))
            await asyncio.sleep(0.5)
            scene.later.moved += 0.5
            assert scene.path().read_text() == TEA * (n + 1)
            await scene.change(DOG * (n + 1))
            await asyncio.sleep(1)
            scene.later.moved += 1
            assert scene.path().read_text() == DOG * (n + 1)
        running.cancel()
    assert not scene.records.is_down


async def test_a_stop_leaves_nothing_to_write(scene: MirrorScene) -> None:
    """Also of a change right behind another; an edit that may be half saved is left to the next start."""
    await scene.change(TEA)
    await scene.writer.flush()
    await scene.change(TEA + DOG)
    scene.edit("- half", "USER.md")
    await scene.writer.close()
    assert scene.path().read_text() == TEA + DOG
    assert not list((scene.path().parent / ".mirror").glob("*.aside"))
    assert await scene.text("USER.md") == ""
    scene.restart()
    await scene.passes()
    await scene.notice()
    assert await scene.text("USER.md") == "- half"
    await scene.passes()
    assert [why for why, *_ in commits(scene)] == ["t1", "t1", BY_HAND]


async def test_a_stop_waits_a_few_seconds_and_the_next_start_writes_the_rest(
    scene: MirrorScene, clock: VirtualClock
) -> None:
    """As in the middle of a large take-over: what is stale stays known."""
    await scene.change(TEA)
    async with scene.writer.hold(SCOPE):
        await scene.writer.close()
    assert 1 < clock.seconds < 5
    assert not scene.path().exists()
    scene.restart()
    await scene.passes()
    assert scene.path().read_text() == TEA
    assert [why for why, *_ in commits(scene)] == ["t1"]


async def test_run_finds_edits_that_were_made_while_no_gateway_ran(scene: MirrorScene, clock: VirtualClock) -> None:
    """In scopes that nobody talks to; nothing of the others is read."""
    await scene.change(TEA)
    await scene.change(TEA, scope=BOBS_SCOPE)
    await scene.passes()
    scene.edit(TEA + DOG)
    scene.later.moved += 10
    disk = CountingDisk()
    scene.restart(disk)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(scene.writer.run())
        await asyncio.sleep(1)
        running.cancel()
    assert await scene.text() == TEA + DOG


async def test_run_finds_edits_where_nobody_talks(scene: MirrorScene, clock: VirtualClock) -> None:
    """A scope that this process has seen is looked at every few seconds."""
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(scene.writer.run())
        await scene.change(TEA)
        await asyncio.sleep(1)
        scene.later.moved += 10
        await asyncio.sleep(1)
        await scene.notice()
        scene.edit(TEA + DOG)
        scene.later.moved += 10
        await asyncio.sleep(10)
        assert await scene.text() == TEA + DOG
        running.cancel()


async def test_a_store_that_is_down_is_waited_for(scene: MirrorScene, clock: VirtualClock) -> None:
    """Neither a turn nor the loop fails, and nothing is lost."""
    await scene.change(TEA)
    await scene.passes()
    await scene.change(DOG)
    async with asyncio.TaskGroup() as tasks:
        scene.records.is_down = True
        running = tasks.create_task(scene.writer.run())
        await asyncio.sleep(10)
        scene.edit(TEA + "- sings\n")
        await scene.notice()
        scene.records.is_down = False
        for _ in range(4):
            scene.later.moved += 3
            await asyncio.sleep(1)
        running.cancel()
    assert await scene.text() == DOG + "- sings\n" == scene.path().read_text()


async def test_without_a_mirror_no_file_is_written_or_left(scene: MirrorScene) -> None:
    """Where gateways share a store: files of an earlier time go, and what they have alone is taken over before."""
    await scene.change(TEA)
    await scene.passes()
    scene.edit(TEA + DOG)
    scene.edit("friendly\n", "SOUL.md")
    scene.later.moved += 10
    scene.writer = scene.open_writer(is_mirroring=False)
    await scene.writer.begin(is_outdated=False)
    assert await scene.text() == TEA + DOG
    assert await scene.text("SOUL.md") == "friendly\n"
    await scene.change(DOG)
    await scene.writer.settle(SCOPE)
    await scene.writer.notice(SCOPE)
    assert [path for path in (scene.home / SCOPE).rglob("*") if path.is_file()] == []
    scene.restart()
    await scene.passes()
    assert scene.path().read_text() == DOG


async def test_a_home_that_another_has_overtaken_gets_the_stores_files(scene: MirrorScene) -> None:
    """What was erased meanwhile is not left there, nor taken for an edit."""
    await scene.change(TEA)
    await scene.change("- a secret\n", scope=BOBS_SCOPE)
    await scene.passes()
    scene.edit(TEA + "- secret\n")
    await redact(scene, "tea")
    await scene.documents.replace({BOBS_SCOPE: []}, was={BOBS_SCOPE: 1})
    for each in await scene.documents.stale_paths():  # the other home has written its files
        await scene.documents.drop_stale_path(each)
    scene.restart()
    await scene.writer.begin(is_outdated=True)
    assert not scene.path(scope=BOBS_SCOPE).exists()
    await scene.passes()
    assert scene.path().read_text() == await scene.text() == "- likes …\n"
    assert b"secret" not in scene.found()
    assert b"tea" not in scene.found()


# -- repositories --------------------------------------------------------------------------------------


async def test_an_erasure_beside_a_flush_sets_no_repository_aside(
    scene: MirrorScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All changes are replaced between the look at the debts and the commit: the next flush begins anew."""
    await scene.change(TEA)
    await scene.writer.flush()
    await scene.change(TEA + DOG)
    find, replaced = scene.documents.find, list[str]()

    async def erase_first(scope: str, beginning: str) -> DocumentChange | None:
        if not replaced:
            states = await scene.documents.states(SCOPE)
            replaced.append(beginning)
            number = states[-1].change.number
            assert await scene.documents.replace({SCOPE: [replace(states[-1], texts={})]}, was={SCOPE: number})
        return await find(scope, beginning)

    monkeypatch.setattr(scene.documents, "find", erase_first)
    await scene.writer.flush()
    assert replaced
    assert not list(scene.path().parent.glob(".git.*"))
    await scene.passes()
    assert not await scene.documents.stale_paths(SCOPE)


async def test_a_damaged_repository_is_set_aside_and_made_again(scene: MirrorScene) -> None:
    """Every change is a commit again, under the name that it had."""
    await scene.change(TEA)
    await scene.passes()
    await scene.change(TEA + DOG)
    await scene.passes()
    before = commits(scene)
    repository = scene.home / SCOPE / "memory" / ".git"
    with Repo(str(repository)) as repo:
        head = repo.head().decode()
    path = repository / "objects" / head[:2] / head[2:]
    path.chmod(0o600)
    path.write_bytes(b"damaged")
    await scene.change(DOG)
    await scene.passes()
    assert commits(scene)[:2] == before
    assert len(commits(scene)) == 3
    assert [each.name[:13] for each in scene.repositories()] == [".git", ".git.corrupt-"]


@pytest.mark.parametrize("cause", ["older store", "others' commits"])
async def test_a_repository_of_unknown_commits_is_kept(tmp_path: Path, cause: str) -> None:
    """What its commits have may be nowhere else: it gets another name."""
    scene = MirrorScene(tmp_path)
    if cause == "older store":
        await scene.change("- lost\n")
        await scene.passes()
    else:
        with open_repo(tmp_path / SCOPE / "memory" / ".git", make=True) as repo:
            append_commits(repo, [RepositoryCommit(texts={"MEMORY.md": b"- lost\n"}, message="x\n", at=START)])
    scene.records = FakeRecords()
    scene.restart()
    await scene.change(TEA)
    await scene.passes()
    assert scene.path().read_text() == await scene.text() == TEA
    [_, aside] = scene.repositories()
    assert b"- lost\n" in list(objects(aside))


# -- editors beside the model --------------------------------------------------------------------------


async def test_no_line_is_lost_between_editors_and_the_model(scene: MirrorScene) -> None:
    """Saves in place, by rename and in two steps, beside changes of the store: each line of both is there at last."""
    await saves_beside_changes(scene.home, scene.records, saves=60, changes=60, every=0.01)
