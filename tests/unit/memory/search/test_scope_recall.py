"""Recall over a home: what is new is found, nobody else's is, and a broken index mends itself."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.base.scopes import scope_folder
from agent.base.transcript_lines import forgotten_line
from agent.memory.search.recall_engine import RecallEngine
from agent.memory.search.scope_recall import INDEX, RecallOptions, ScopeRecall
from agent.memory.search.search_unit import SearchHit, SearchOptions
from gateway.events import SessionKey
from gateway.ports.journal import TurnRecord
from tests.fakes.conditions import eventually
from tests.fakes.memory import SCOPE, FakeRecords, exchange, talk

BOB = "people/telegram%3a43"
BOBS = SessionKey("telegram", "43")


@dataclass(slots=True)
class RecallScene:
    """A home with recall over it."""

    path: Path
    records: FakeRecords
    recall: ScopeRecall

    def say(self, *records: TurnRecord) -> None:
        """Have turns committed; nothing is on the disk yet."""
        for record in records:
            self.records.commit(record)

    async def remember(self, scope: str, text: str, name: str = "MEMORY.md") -> None:
        """Change a document."""
        was = (await self.records.documents.read(scope, name)).rev
        await self.records.documents.write(scope, name, text, was=was, why="t")

    async def texts(self, query: str, scope: str = SCOPE) -> list[str]:
        """Search, and return what was found."""
        return [hit.text for hit in await self.recall.search(scope, query)]


@asynccontextmanager
async def scene(
    path: Path, records: FakeRecords | None = None, *, erasures: float | None = None
) -> AsyncIterator[RecallScene]:
    """Open recall over the home at *path*, which looks for others' *erasures* so often."""
    records = records or FakeRecords()
    recall = ScopeRecall(
        path,
        memory=RecallEngine(),
        documents=RecallEngine(),
        read_document=lambda file: f"read from {file.name}",
        zone=lambda scope: "UTC",
        history=records.history,
        turns=records.transcripts,
        rows=records.documents,
        options=RecallOptions(calm=0.0, erasures=erasures),
    )
    try:
        yield RecallScene(path, records, recall)
    finally:
        await recall.close()


async def test_what_was_said_a_moment_ago_is_found(tmp_path: Path) -> None:
    """Committed and in no file; who and when are told, and where to read on."""
    async with scene(tmp_path) as home:
        home.say(exchange(0, 0, said="My dentist is called Doctor Molar", answered="Noted."))
        [hit, *_] = await home.recall.search(SCOPE, "what is the dentist called?")
        assert hit.text.splitlines()[0] == "My dentist is called Doctor Molar"
        assert (hit.role, hit.line) == ("user", 1)
        assert hit.at is not None
        home.say(exchange(1, 2, said="The dentist moved to Elm Street"))
        assert "The dentist moved to Elm Street" in "".join(await home.texts("dentist street"))
        around = await home.recall.read(SCOPE, hit.source, hit.line)
        assert [each.text for each in around] == [
            "My dentist is called Doctor Molar", "Noted.", "The dentist moved to Elm Street", "answer 1",
        ]  # fmt: skip


async def test_what_is_remembered_is_found_as_it_is_now(tmp_path: Path) -> None:
    """MEMORY.md of the scope and of shared, which have no file yet; a change counts at the next search."""
    async with scene(tmp_path) as home:
        await home.remember(SCOPE, "# Likes\n- Ann drinks green tea\n")
        await home.remember("shared", "- the office opens at seven\n")
        [hit] = await home.recall.search(SCOPE, "tea")
        assert (hit.source, hit.line, hit.text) == ("memory/MEMORY.md", 2, "- Ann drinks green tea")
        [hit] = await home.recall.search(SCOPE, "when does the office open")
        assert hit.source == "shared/memory/MEMORY.md"
        assert [each.text for each in await home.recall.read(SCOPE, hit.source, 1)] == ["- the office opens at seven"]
        await home.remember(SCOPE, "# Likes\n- Ann drinks black coffee\n")
        assert await home.texts("green tea") == []
        assert await home.texts("coffee") == ["- Ann drinks black coffee"]


async def test_what_was_taken_back_is_not_found_nor_left_in_the_file(tmp_path: Path) -> None:
    """A deleted message is gone from recall; after `forgotten` its words are in no page of the index either."""
    async with scene(tmp_path) as home:
        home.say(*talk(3), exchange(3, 6, said="the safe opens with zeppelin"))
        assert await home.texts("zeppelin")
        home.say(exchange(4, 8, before=[forgotten_line("m3")]))
        assert "zeppelin" not in "".join(await home.texts("zeppelin safe"))
        await home.recall.purge_stale(SCOPE)
        folder = scope_folder(tmp_path, SCOPE)
        assert all(b"zeppelin" not in path.read_bytes() for path in folder.glob(f"{INDEX}*"))


def has_words(home: Path, word: bytes) -> bool:
    """Return True if a file of the index has *word*."""
    return any(word in path.read_bytes() for path in scope_folder(home, SCOPE).glob(f"{INDEX}*"))


async def test_what_another_gateway_erases_leaves_the_index_here(tmp_path: Path) -> None:
    """No search finds it from then on; a minute later the words are in no page, also where nobody searches."""
    records = FakeRecords()
    async with scene(tmp_path / "a", records) as ours, scene(tmp_path / "b", records, erasures=0.02) as theirs:
        ours.say(*talk(3), exchange(3, 6, said="the safe opens with zeppelin"), exchange(4, 8, said="and my quokka"))
        for home in (ours, theirs):
            assert await home.texts("zeppelin")
        following = asyncio.create_task(theirs.recall.run())
        for n, word in ((3, b"zeppelin"), (4, b"quokka")):
            assert has_words(tmp_path / "b", word)
            ours.say(exchange(n + 2, 2 * n + 4, before=[forgotten_line(f"m{n}")]))
            await records.documents.set_epoch(SCOPE, f"erased {n}")
            await eventually(lambda word=word: not has_words(tmp_path / "b", word))  # type: ignore[misc]
            assert await theirs.texts("question") is not None
        following.cancel()


async def test_an_erasure_from_before_a_start_leaves_the_index_here(tmp_path: Path) -> None:
    """A gateway that was down follows when it starts, and scrubs an index once for each erasure."""
    records = FakeRecords()
    async with scene(tmp_path, records) as home:
        home.say(*talk(3), exchange(3, 6, said="the safe opens with zeppelin"))
        assert await home.texts("zeppelin")
    home.say(exchange(4, 8, before=[forgotten_line("m3")]))
    await records.documents.set_epoch(SCOPE, "erased")
    async with scene(tmp_path, records) as home:
        following = asyncio.create_task(home.recall.run())
        await eventually(lambda: not has_words(tmp_path, b"zeppelin"))
        following.cancel()


async def test_the_index_of_a_scope_that_another_gateway_erased_is_removed(tmp_path: Path) -> None:
    """Nothing of it is left here, not even its folder; a scope that has turns alone keeps its index."""
    records = FakeRecords()
    async with scene(tmp_path, records, erasures=0.02) as home:
        home.say(*talk(3), exchange(9, 0, key=BOBS, transcript="t1", scope=BOB))
        for scope in (SCOPE, BOB):
            assert await home.texts("anything question", scope) is not None
        following = asyncio.create_task(home.recall.run())
        await records.transcripts.remove(SCOPE)
        await eventually(lambda: not scope_folder(tmp_path, SCOPE).exists())
        assert (scope_folder(tmp_path, BOB) / INDEX).is_file()
        following.cancel()


@pytest.mark.parametrize("harm", ["gone", "garbage", "cut", "older"])
async def test_an_index_that_is_lost_is_made_again(tmp_path: Path, harm: str) -> None:
    """Deleted, overwritten, cut short or of another version: the next search finds everything."""
    records = FakeRecords()
    async with scene(tmp_path, records) as home:
        home.say(*talk(30), exchange(30, 60, said="the safe opens with zeppelin"))
        await home.texts("anything")
    index = scope_folder(tmp_path, SCOPE) / INDEX
    if harm == "gone":
        index.unlink()
    elif harm == "garbage":
        index.write_bytes(b"no index " * 1000)
    elif harm == "cut":
        index.write_bytes(index.read_bytes()[:5000])
    else:
        with sqlite3.connect(index) as database:
            database.execute("UPDATE meta SET value = '0' WHERE key = 'version'")
        database.close()
    async with scene(tmp_path, records) as home:
        assert any("zeppelin" in text for text in await home.texts("safe"))


async def test_an_index_that_is_removed_while_it_is_open_is_not_searched_any_more(tmp_path: Path) -> None:
    """Whoever moves or removes a scope need not know that its index is open."""
    async with scene(tmp_path) as home:
        home.say(*talk(3, said="the safe opens with zeppelin"))
        assert await home.texts("zeppelin")
        folder = scope_folder(tmp_path, SCOPE)
        await home.records.transcripts.remove(SCOPE)
        for path in folder.glob(f"{INDEX}*"):
            path.unlink()
        assert await home.texts("zeppelin") == []


async def test_an_index_is_kept_in_step_when_it_is_calm_and_none_is_made_for_nobody(tmp_path: Path) -> None:
    """What was said since the last search is there before the next; a scope that nobody searched costs nothing."""
    async with scene(tmp_path) as home:
        home.say(*talk(3), exchange(0, 0, key=BOBS, transcript="t1", scope=BOB))
        await home.texts("anything")
        before = units(tmp_path)
        home.say(exchange(3, 6))
        for scope in (BOB, SCOPE):  # in this order
            home.recall.note(scope)
        running = asyncio.create_task(home.recall.run())
        await eventually(lambda: units(tmp_path) == before + 2)
        running.cancel()
        assert not (scope_folder(tmp_path, BOB) / INDEX).exists()


def units(home: Path) -> int:
    """Return how many places the index holds."""
    with closing(sqlite3.connect(scope_folder(home, SCOPE) / INDEX)) as database:
        return int(database.execute("SELECT count(*) FROM unit").fetchone()[0])


async def test_documents_are_found_by_project(tmp_path: Path) -> None:
    """Text as it stands, PDF and the like as a library reads them; another project's are not, nor hidden files."""
    async with scene(tmp_path) as home:
        (tmp_path / "docs" / "garden").mkdir(parents=True)
        (tmp_path / "docs" / "house").mkdir()
        (tmp_path / "docs" / "garden" / "roses.md").write_text("# Roses\n\nWater roses in the morning.\n")
        (tmp_path / "docs" / "garden" / "plan.pdf").write_bytes(b"%PDF")
        (tmp_path / "docs" / "house" / "roof.txt").write_text("The roof was mended; no roses there.\n")
        assert await home.recall.projects(SCOPE) == ["garden", "house"]
        hits = await home.recall.search(SCOPE, "when to water roses", SearchOptions(project="garden"))
        assert [(hit.source, hit.line) for hit in hits] == [("docs/garden/roses.md", 3)]
        hits = await home.recall.search(SCOPE, "plan.pdf read", SearchOptions(project="garden"))
        assert [hit.source for hit in hits] == ["docs/garden/plan.pdf"]
        assert await home.recall.search(SCOPE, "roses", SearchOptions(project="../people")) == []
        around = await home.recall.read(SCOPE, "docs/garden/roses.md", 3, project="garden")
        assert [hit.text for hit in around] == ["# Roses", "", "Water roses in the morning."]
        assert await home.recall.read(SCOPE, "docs/house/roof.txt", 1, project="garden") == ()


async def test_no_scope_is_made_by_asking(tmp_path: Path) -> None:
    """Somebody who never said anything finds nothing and leaves nothing."""
    async with scene(tmp_path) as home:
        assert await home.texts("anything at all") == []
    assert not any(tmp_path.iterdir())  # noqa: ASYNC240 - a test may look at a disk


SCOPES = (SCOPE, BOB, "chats/telegram%3a-100", "shared")
PLACES: Sequence[str] = (
    "memory/MEMORY.md", "../telegram%3a43/memory/MEMORY.md", "/etc/passwd", "shared/memory/MEMORY.md",
    "shared/../people/telegram%3a43/memory/MEMORY.md", "sessions/t0", "sessions/../../telegram%3a43/sessions/t1",
    "memory/../../telegram%3a43/memory/MEMORY.md", "USER.md", "index.db", "", "shared/",
)  # fmt: skip


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    asks=st.lists(st.tuples(st.sampled_from(SCOPES), st.sampled_from(["canary", "zx9 OR 1", '"', "canary NEAR/2"]))),
    reads=st.lists(st.tuples(st.sampled_from(SCOPES), st.sampled_from(PLACES), st.integers(-2, 5))),
)
async def test_no_row_of_another_scope_is_ever_returned(
    tmp_path: Path, asks: list[tuple[str, str]], reads: list[tuple[str, str, int]]
) -> None:
    """Whatever is asked and whichever place is named: one's own scope, and what is shared with all."""
    async with scene(tmp_path) as home:
        for n, scope in enumerate(SCOPES):
            await home.remember(scope, f"- a canary of scope number {n}\n")
        home.say(exchange(0, 0, said="a canary of scope number 0"))
        home.say(exchange(1, 0, key=BOBS, transcript="t1", scope=BOB, said="a canary of scope number 1"))
        found: list[tuple[str, Sequence[SearchHit]]] = [
            (scope, await home.recall.search(scope, query)) for scope, query in [*asks, (SCOPE, "canary")]
        ]
        found += [(scope, await home.recall.read(scope, source, line)) for scope, source, line in reads]
        for scope, hits in found:
            mine = {str(SCOPES.index(scope)), str(SCOPES.index("shared"))}
            assert set(re.findall(r"number (\d)", " ".join(hit.text for hit in hits))) <= mine
        assert found[len(asks)][1]
