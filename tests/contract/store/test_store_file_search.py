"""Search in the files of scopes over the rows of each engine: what is there now is found, and nothing else."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent.attachments.document_reader import ExtractedText, SandboxedReader
from agent.base.scopes import scope_folder
from agent.files.file_workspace import FileWorkspace, ReceivedFiles
from agent.files.turn_files import split_pages
from agent.memory.search import file_recall as module
from agent.memory.search.embedding import Embedder
from agent.memory.search.file_recall import FILE_INDEX, FileRecall, SearchedFile
from agent.memory.search.recall_engine import RecallEngine
from agent.memory.search.scope_index import ScopeIndex
from agent.memory.search.scope_recall import RecallOptions, ScopeRecall
from gateway.errors import FileUnavailable, StoreUnavailable
from gateway.ports.journal import Line
from gateway.store.attachment_store import AttachmentStore
from gateway.store.files import SqlFiles
from gateway.store.sql_store import SqlStore
from tests.fakes.conditions import eventually
from tests.fakes.recall import LetterEmbedder
from tests.fakes.sample_archives import epub, text_cell, xlsx
from tests.fakes.sample_files import pdf
from tests.fakes.turns import WallClock

ANN, BOB = "people/pocket%3aann", "people/pocket%3abob"


class WatchedReader(SandboxedReader):
    """Reads as it does, notes what it was given, and stops at the file with `stop_at` until `gate` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[bytes] = []
        self.stop_at = b"(no file has this)"
        self.gate = asyncio.Event()
        self.stopped = asyncio.Event()

    async def read_text(self, data: bytes, kind: str, chars: int) -> ExtractedText:
        """Read a file."""
        if self.stop_at in data:
            self.stopped.set()
            await self.gate.wait()
        self.read.append(data)
        return await super().read_text(data, kind, chars)


@dataclass(slots=True)
class FilesScene:
    """The files of two people and the search in them."""

    home: Path
    store: SqlStore
    clock: WallClock = field(default_factory=WallClock)
    reader: WatchedReader = field(default_factory=WatchedReader)
    recall: FileRecall = field(init=False)
    engine: RecallEngine = field(init=False)

    def open(self, timeout: float = 60.0, embedder: Embedder | None = None) -> None:
        """Open the search, as a process that starts does."""
        self.engine = RecallEngine(embedder=embedder)
        received = ReceivedFiles(self.store.transcripts)
        self.recall = FileRecall(
            self.home,
            self.engine,
            files=self.store.files,
            received=received,
            zone=lambda _: "Europe/Berlin",
            timeout=timeout,
        )
        self.recall._reader = self.reader

    async def close(self) -> None:
        """Close it."""
        await self.recall.close()
        await self.engine.close()

    def workspace(self, scope: str = ANN) -> FileWorkspace:
        """Return a workspace."""
        return FileWorkspace(self.store.files, scope, 200_000_000, self.clock.now)

    async def put(self, name: str, data: bytes | str, scope: str = ANN, *, is_untrusted: bool = False) -> None:
        """Write a file, over another one."""
        data = data.encode() if isinstance(data, str) else data
        await self.workspace(scope).replace(name, data, key=f"{self.clock.now()}", is_untrusted=is_untrusted)
        self.clock.advance(seconds=1)

    async def places(self, query: str, scope: str = ANN) -> list[str]:
        """Return the files and places that are found, best first."""
        found = (await self.recall.search(scope, query)).hits
        return [f"{hit.name}{f' {hit.place.kind} {hit.place.name}' if hit.place else ''}" for hit in found]

    def has_bytes(self, word: str, scope: str = ANN) -> bool:
        """Return True if a file of the index has *word*."""
        paths = scope_folder(self.home, scope).glob(f"{FILE_INDEX}*")
        return any(word.encode() in path.read_bytes() for path in paths)


@pytest.fixture
async def scene(store: SqlStore, tmp_path: Path) -> AsyncIterator[FilesScene]:
    """Return the scene on each engine."""
    found = FilesScene(tmp_path / "home", store)
    found.open()
    yield found
    await found.close()


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("The lease ends with three months' notice.", "when do the leases end?"),
        ("Die Kündigungsfristen betragen drei Monate.", "Welche Kündigungsfrist?"),
        ("Los contratos terminan con tres meses de aviso.", "¿cuándo termina el contrato?"),
        ("租约的解除通知期为三个月。", "解除通知期多长"),
    ],
    ids=["en", "de", "es", "zh"],
)
async def test_each_language_is_found(scene: FilesScene, text: str, query: str) -> None:
    """Among other files, by other forms of its words."""
    await scene.put("tea.md", "# Tea\n\nGreen, black and white tea.\n")
    await scene.put("paper.md", f"# One\n\n{text}\n")
    [hit, *_] = (await scene.recall.search(ANN, query)).hits
    assert (hit.name, hit.text, hit.place, hit.page) == ("paper.md", text, None, 1)
    assert not hit.is_untrusted


async def test_pages_sheets_and_chapters_are_places(scene: FilesScene) -> None:
    """A PDF's page, a workbook's sheet, found by its columns too, a book's chapter; each is untrusted."""
    await scene.put("report.pdf", pdf("The harbour opens", "Ferries leave at nine", "The anchor is heavy"))
    rows = (
        f'<row r="1">{text_cell("A1", "product")}{text_cell("B1", "price")}</row>'
        f'<row r="2">{text_cell("A2", "lantern")}<c r="B2"><v>3</v></c></row>'
    )
    await scene.put("prices.xlsx", xlsx({"Old": "", "New year": rows}))
    await scene.put("book.epub", epub({"a.html": "<p>It was dark.</p>", "b.html": "<p>A kestrel flew by.</p>"}))
    assert (await scene.places("when do ferries leave"))[0] == "report.pdf page 2"
    assert (await scene.places("price of the lantern"))[0] == "prices.xlsx sheet New year"
    assert (await scene.places("kestrel"))[0] == "book.epub chapter 2"
    assert all(hit.is_untrusted for hit in (await scene.recall.search(ANN, "harbour lantern kestrel")).hits)


async def test_the_page_is_that_of_file_read(scene: FilesScene) -> None:
    """A passage far behind the beginning names the page that it is read on."""
    lines = [f"line {n} is about nothing" for n in range(3_000)]
    lines[2_900] = "the zeppelin lands"
    await scene.put("long.txt", "\n".join(lines))
    [hit, *_] = (await scene.recall.search(ANN, "zeppelin")).hits
    pages = split_pages("\n".join(lines))
    assert (hit.page, hit.last_page) == (7, 8)
    assert "zeppelin" in pages[7]
    assert pages[6].rstrip().splitlines()[-1] in hit.text


async def test_equal_names_of_two_people(scene: FilesScene) -> None:
    """Each finds their own file; with equal bytes, too, each has an index of their own."""
    await scene.put("notes.md", "Ann keeps a zeppelin")
    await scene.put("notes.md", "Bob keeps a quokka", BOB)
    assert await scene.places("quokka") == []
    assert await scene.places("zeppelin", BOB) == []
    [hit] = (await scene.recall.search(BOB, "quokka")).hits
    assert hit.text == "Bob keeps a quokka"
    assert not scene.has_bytes("quokka")
    assert not scene.has_bytes("zeppelin", BOB)


async def test_another_text_and_another_mark_count_at_once(scene: FilesScene) -> None:
    """A replaced file has its new words alone, a deleted one none, a restored one its own; a mark is of the row."""
    await scene.put("notes.md", "the code is zeppelin")
    assert await scene.places("zeppelin code") == ["notes.md"]
    await scene.put("notes.md", "the code is quokka", is_untrusted=True)
    [hit] = (await scene.recall.search(ANN, "code")).hits
    assert (hit.text, hit.is_untrusted) == ("the code is quokka", True)
    change = await scene.workspace().delete("notes.md", key="d")
    assert change is not None
    assert await scene.places("code") == []
    await scene.workspace().restore(change.trash_id)
    assert await scene.places("code") == ["notes.md"]


async def test_what_is_gone_is_not_found_in_an_index_that_is_behind(
    scene: FilesScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rights are looked up after the search, too: the index alone would have the words."""
    await scene.put("notes.md", "the code is zeppelin")
    assert await scene.places("zeppelin") == ["notes.md"]
    search = RecallEngine.search

    async def late(self: RecallEngine, *given: object, **options: object) -> object:
        found = await search(self, *given, **options)  # type: ignore[arg-type]
        await scene.workspace().delete("notes.md", key="d")
        return found

    monkeypatch.setattr(RecallEngine, "search", late)
    assert await scene.places("zeppelin") == []


async def test_what_is_deleted_leaves_the_index_without_a_search(scene: FilesScene) -> None:
    """Nothing is read for it; after an erasure no byte of the words is left."""
    await scene.put("notes.md", "the code is zeppelin\n\n" + "tea and more tea\n\n" * 50)
    await scene.put("other.md", "tea")
    assert await scene.places("zeppelin")
    assert scene.has_bytes("zeppelin")
    await scene.put("new.md", "coffee")
    await scene.workspace().delete("notes.md", key="d")
    count = len(scene.reader.read)
    await scene.recall.erase_gone(ANN, "turn", is_forced=True)
    assert not scene.has_bytes("zeppelin")
    assert len(scene.reader.read) == count
    assert await scene.places("tea") == ["other.md"]
    assert await scene.places("coffee") == ["new.md"]


async def test_each_file_is_read_once(scene: FilesScene) -> None:
    """A search reads what is new; a process that starts again reads nothing."""
    for n in range(3):
        await scene.put(f"{n}.md", f"zeppelin {n}")
    await scene.places("zeppelin")
    await scene.put("3.md", "zeppelin 3")
    await scene.places("zeppelin")
    assert len(scene.reader.read) == 4
    await scene.close()
    scene.open()
    assert len(await scene.places("zeppelin")) == 4
    assert len(scene.reader.read) == 4


async def test_a_killed_process_goes_on(scene: FilesScene) -> None:
    """What was read before the kill is not read again; a search says that more may come, and does not wait longer."""
    for n in range(3):
        await scene.put(f"{n}.md", f"zeppelin {n}")
    await scene.close()
    scene.reader.stop_at = b"zeppelin 1"
    scene.open(timeout=0.05)
    found = await scene.recall.search(ANN, "zeppelin")
    assert found.unread
    await scene.reader.stopped.wait()
    was = list(scene.reader.read)
    assert len(was) < 3
    killed = scene.home.with_name("killed")
    await asyncio.to_thread(shutil.copytree, scene.home, killed)  # as the disk is at that moment
    await scene.close()
    scene.home = killed
    scene.reader.stop_at = b"(no file has this)"
    scene.open()
    found = await scene.recall.search(ANN, "zeppelin")
    assert not found.unread
    assert sorted(hit.name for hit in found.hits) == ["0.md", "1.md", "2.md"]
    assert len(scene.reader.read) == 3


async def test_a_search_has_what_is_read(scene: FilesScene) -> None:
    """The last changed files come first; the search says how many are missing, and the reading goes on behind it."""
    for n in range(5):
        await scene.put(f"{n}.md", f"zeppelin {n}")
    await scene.close()
    scene.reader.stop_at = b"zeppelin 2"
    scene.open(timeout=0.05)
    await scene.recall.search(ANN, "zeppelin")
    await scene.reader.stopped.wait()
    found = await scene.recall.search(ANN, "zeppelin")
    assert (sorted(hit.name for hit in found.hits), found.files, found.unread) == (["3.md", "4.md"], 5, 3)
    scene.reader.gate.set()
    await eventually_read(scene)
    found = await scene.recall.search(ANN, "zeppelin")
    assert (len(found.hits), found.unread) == (5, 0)
    assert len(scene.reader.read) == 5


async def test_a_change_of_files_does_not_begin_the_reading_again(scene: FilesScene) -> None:
    """Many are written and deleted while one is read: nothing is read twice, and what is deleted leaves by itself."""
    for n in range(4):
        await scene.put(f"{n}.md", f"zeppelin {n}")
    await scene.close()
    scene.reader.stop_at = b"zeppelin 1"
    scene.open(timeout=0.05)
    await scene.recall.search(ANN, "zeppelin")
    await scene.reader.stopped.wait()
    for n in range(10):
        await scene.put("list.md", f"heron {n}")
        await scene.recall.drop_gone(ANN)
    for gone in ("3.md", "0.md", "1.md"):  # one that was read, one that was not, and the one that is being read
        await scene.workspace().delete(gone, key=gone)
        await scene.recall.drop_gone(ANN)
    scene.reader.gate.set()
    await eventually_read(scene)
    with closing(sqlite3.connect(scope_folder(scene.home, ANN) / FILE_INDEX)) as index:
        assert index.execute("SELECT about FROM unit").fetchall() == [("\n2.md",)]
    assert [each for each in scene.reader.read if b"zeppelin" in each] == [b"zeppelin 3", b"zeppelin 2", b"zeppelin 1"]
    assert await scene.places("zeppelin") == ["2.md"]


async def test_what_is_deleted_leaves_the_index_though_its_sync_fails(
    scene: FilesScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is away for the running sync, and for the first look after it: without a search the text goes."""
    await scene.put("1.md", "heron")
    await scene.put("0.md", "zeppelin")
    await scene.close()
    scene.reader.stop_at = b"heron"
    scene.open(timeout=0.05)
    await scene.recall.search(ANN, "zeppelin")
    await scene.reader.stopped.wait()
    listing, failures = SqlFiles.files, iter(["the sync", "the look"])

    async def away_at_first(self: SqlFiles, *given: object) -> object:
        if next(failures, ""):
            raise StoreUnavailable("the store is away")
        return await listing(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(SqlFiles, "files", away_at_first)
    index = ScopeRecall(
        scene.home,
        memory=RecallEngine(),
        documents=scene.engine,
        read_document=str,
        zone=lambda _: "UTC",
        history=scene.store.history,
        files=scene.recall,
        options=RecallOptions(calm=0.01),
    )
    running = asyncio.create_task(index.run())

    def indexed() -> list[str]:
        with closing(sqlite3.connect(scope_folder(scene.home, ANN) / FILE_INDEX)) as database:
            return [name for (name,) in database.execute("SELECT about FROM unit")]

    assert "\n0.md" in indexed()
    await scene.workspace().delete("0.md", key="d")
    looked, drop_gone = asyncio.Event(), scene.recall.drop_gone

    async def look(scope: str) -> object:
        looked.set()
        return await drop_gone(scope)

    monkeypatch.setattr(scene.recall, "drop_gone", look)
    index.note_files(ANN)
    await looked.wait()  # while the sync runs
    scene.reader.gate.set()
    await eventually(lambda: "\n0.md" not in indexed())
    assert next(failures, "") == ""
    running.cancel()
    await asyncio.wait([running])
    await index.close()


async def test_an_erasure_writes_the_index_anew_once(scene: FilesScene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the next search does it again, nor another look at the same erasure."""
    scrubbed: list[Path] = []
    scrub = ScopeIndex.scrub

    def count(self: ScopeIndex) -> None:
        scrubbed.append(self.path)
        scrub(self)

    await scene.put("notes.md", "the code is zeppelin")
    await scene.put("other.md", "tea")
    await scene.places("zeppelin")
    monkeypatch.setattr(ScopeIndex, "scrub", count)
    await scene.workspace().delete("notes.md", key="d")
    await scene.recall.erase_gone(ANN, "turn", is_forced=True)
    assert await scene.places("tea") == ["other.md"]
    await scene.recall.erase_gone(ANN, "turn")
    assert len(scrubbed) == 1
    await scene.recall.erase_gone(ANN, "a later turn")
    assert len(scrubbed) == 2


async def test_vectors_are_kept_for_an_index_that_is_made_again(scene: FilesScene) -> None:
    """They cost money: of a file that is read later, too; those of no file go at the end."""
    await scene.close()
    embedder = LetterEmbedder()
    scene.open(embedder=embedder)
    for n in range(3):
        await scene.put(f"{n}.md", f"zeppelin {n}")
    await scene.places("zeppelin")
    path = scope_folder(scene.home, ANN) / FILE_INDEX
    await scene.engine.wait_idle(path)
    await scene.workspace().delete("1.md", key="d")
    await scene.close()
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE meta SET value = 'old' WHERE key = 'version'")
        database.commit()
    scene.open(embedder=embedder)
    await scene.places("zeppelin")
    await scene.engine.wait_idle(path)
    assert len([text for text in embedder.asked if text != "zeppelin"]) == 3
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT count(*) FROM vector").fetchone() == (2,)


async def eventually_read(scene: FilesScene) -> None:
    """Wait until nothing is read any more."""
    await asyncio.wait(list(scene.recall._syncs.values()), timeout=30)
    assert not scene.recall._syncs


async def test_an_erasure_does_not_wait_for_a_file_that_is_read(scene: FilesScene) -> None:
    """It ends the reading, whose words reach no index."""
    await scene.put("slow.md", "the code is zeppelin")
    await scene.close()
    scene.reader.stop_at = b"zeppelin"
    scene.open(timeout=0.05)
    assert (await scene.recall.search(ANN, "zeppelin")).unread == 1
    await scene.workspace().delete("slow.md", key="d")
    await scene.recall.erase_gone(ANN, "turn", is_forced=True)
    scene.reader.gate.set()
    assert await scene.places("zeppelin") == []
    assert not scene.has_bytes("zeppelin")


async def test_a_file_that_goes_once_it_is_listed_is_not_read(
    scene: FilesScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An erasure between the two leaves no words, and no index where the scope's folder was."""
    await scene.put("notes.md", "the code is zeppelin")
    listing = scene.recall._list

    async def erased_behind(scope: str, lines: Iterable[Line]) -> list[SearchedFile]:
        found = await listing(scope, lines)
        await scene.workspace().delete("notes.md", key="d")
        await scene.recall.close_index(scope, is_removing=True)
        return found

    monkeypatch.setattr(scene.recall, "_list", erased_behind)
    assert await scene.places("zeppelin") == []
    assert scene.reader.read == []
    assert [*scope_folder(scene.home, ANN).glob(f"{FILE_INDEX}*")] == []


async def test_limits(scene: FilesScene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many files, too large ones, too long ones and too many passages: the rest is found, and it is said."""
    monkeypatch.setattr(module, "MOST_FILES", 3)
    monkeypatch.setattr(module, "FILE_BYTES", 5_000)
    monkeypatch.setattr(module, "FILE_CHARS", 4_000)
    monkeypatch.setattr(module, "FILE_UNITS", 5)
    await scene.put("old.md", "zeppelin of old")
    await scene.put("large.md", "zeppelin " * 1_000)
    await scene.put("long.md", "word " * 850 + "zeppelin")
    await scene.put("many.md", "".join(f"# Head {n}\n\ntext {n}\n\n" for n in range(5)) + "# Last\n\nzeppelin")
    await scene.put("new.md", "a zeppelin")
    found = await scene.recall.search(ANN, "zeppelin")
    assert [hit.name for hit in found.hits] == ["new.md"]
    assert (found.files, found.left_out) == (3, 2)
    assert not (await scene.recall.search(BOB, "zeppelin")).files


async def test_an_unreadable_file_is_found_by_its_name(scene: FilesScene) -> None:
    """With the reason; it is not opened again at each search. Pictures and recordings have no text."""
    await scene.put("contract.pdf", b"%PDF-1.4 broken")
    await scene.put("cat.jpg", b"\xff\xd8\xff")
    for _ in range(2):
        [hit] = (await scene.recall.search(ANN, "the contract")).hits
        assert hit.text.startswith("(contract.pdf cannot be read: ")
    assert len(scene.reader.read) == 1


async def test_a_damaged_index_is_made_again(scene: FilesScene) -> None:
    """Nothing is lost: it is derived from the files."""
    await scene.put("notes.md", "a zeppelin")
    assert await scene.places("zeppelin")
    await scene.close()
    path = scope_folder(scene.home, ANN) / FILE_INDEX
    path.write_bytes(b"no index" * 1_000)
    scene.open()
    assert await scene.places("zeppelin") == ["notes.md"]


async def test_whether_there_are_files_is_asked_once(scene: FilesScene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is read for the first turn of a scope, and again after a change of this process; pictures are none."""
    asked: list[str] = []
    has_texts = SqlFiles.has_texts

    async def count(self: SqlFiles, scope: str) -> bool:
        asked.append(scope)
        return await has_texts(self, scope)

    monkeypatch.setattr(SqlFiles, "has_texts", count)
    assert [await scene.recall.has_files(ANN) for _ in range(3)] == [False] * 3
    assert asked == [ANN]
    attachments = AttachmentStore(scene.store.files, scene.clock.now)
    await attachments.put(ANN, b"a picture", is_medium=True)
    assert [await scene.recall.has_files(ANN) for _ in range(3)] == [False] * 3
    await attachments.put(ANN, b"a document")
    assert [await scene.recall.has_files(ANN) for _ in range(3)] == [True] * 3
    await scene.store.files.remove(ANN)
    assert not await scene.recall.has_files(ANN)
    await scene.put("notes.md", "a zeppelin")
    assert await scene.recall.has_files(ANN)
    assert not await scene.recall.has_files(BOB)
    assert asked == [ANN] * 5 + [BOB]


async def test_a_file_that_cannot_be_read_is_tried_again_later(
    scene: FilesScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine may only have been busy; by searches in the same hour it is not, and it is named meanwhile."""
    await scene.put("plan.html", "<p>the zeppelin lands at dawn</p>")
    read, tries = SandboxedReader.document, []

    async def is_late(self: SandboxedReader, data: bytes, form: str, chars: int) -> ExtractedText:
        tries.append(form)
        raise FileUnavailable("it takes too long to read")

    monkeypatch.setattr(SandboxedReader, "document", is_late)
    assert await scene.places("zeppelin") == []
    assert await scene.places("plan.html") == ["plan.html"]
    assert tries == ["html"]
    monkeypatch.setattr(SandboxedReader, "document", read)
    await scene.close()
    scene.open()
    assert await scene.places("zeppelin") == ["plan.html"]
