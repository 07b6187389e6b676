"""Recall over scopes: kept in step, mended by itself, and never dependent on a model that is down."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent.memory.search.embedding import Matrix
from agent.memory.search.index_file import connect, set_meta
from agent.memory.search.recall_engine import IndexedScope, RecallEngine
from agent.memory.search.result_selection import BUILDING, SeedProfile
from agent.memory.search.search_unit import SearchUnit, UnitSource
from tests.fakes.recall import LetterEmbedder, ListSources

START = datetime(2024, 3, 1, 12, tzinfo=UTC)
TALK = UnitSource(name="talk")


def build_messages(*texts: str, first: int = 1) -> list[SearchUnit]:
    """Return messages, a day apart, each a sitting of its own."""
    return [
        SearchUnit(text=text, line=n, at=START + timedelta(days=n), who="Ann", role="user", group=str(n))
        for n, text in enumerate(texts, first)
    ]


@asynccontextmanager
async def running(**arguments: object) -> AsyncIterator[RecallEngine]:
    """Run an engine."""
    engine = RecallEngine(**arguments)  # type: ignore[arg-type]
    try:
        yield engine
    finally:
        await engine.close()


async def settle(engine: RecallEngine, scope: IndexedScope) -> None:
    """Bring the index of *scope* in step, and wait for what is done in the background."""
    await engine.sync(scope)
    await engine.wait_idle(scope.path)


async def texts(engine: RecallEngine, *scopes: IndexedScope, ask: str, **arguments: object) -> list[str]:
    """Search and return what was found."""
    answer = await engine.search(scopes, ask, **arguments)  # type: ignore[arg-type]
    return [each.passage.text for each in answer.results]


async def test_a_new_message_is_read_alone(tmp_path: Path) -> None:
    """After a write of our own the source is asked for what came since, and for nothing else."""
    sources = ListSources(
        talk=build_messages("the violin is in the attic", "the boat is at the pier"), other=build_messages("nothing")
    )
    scope = IndexedScope(tmp_path / "index.db", sources)
    async with running() as engine:
        assert await engine.sync(scope) == 3
        sources.reads.clear()
        sources.files[TALK] += build_messages("the violin was sold", first=3)
        assert await engine.sync(scope) == 1
        assert sources.reads == [("talk", "0:2")]
        assert set(await texts(engine, scope, ask="violin")) == {"the violin is in the attic", "the violin was sold"}
        assert await engine.sync(scope) == 0


async def test_what_goes_is_found_no_more(tmp_path: Path) -> None:
    """A source that vanished and a text that was forgotten inside a source leave the index at the next sync."""
    sources = ListSources(
        talk=build_messages("the violin is in the attic", "the boat"),
        gone=build_messages("the violin of the other file"),
    )
    scope = IndexedScope(tmp_path / "index.db", sources)
    async with running() as engine:
        await engine.sync(scope)
        del sources.files[UnitSource(name="gone")]
        sources.files[TALK][0] = build_messages("[forgotten]")[0]  # in place: the mark says nothing of it
        await engine.sync(scope, is_forced=True)
        assert await texts(engine, scope, ask="violin") == []
        assert await texts(engine, scope, ask="boat") == ["the boat"]


@pytest.mark.parametrize("damage", ["deleted", "garbage", "older", "another profile"])
async def test_an_index_mends_itself(tmp_path: Path, damage: str) -> None:
    """A file that is gone, damaged or old is built anew by the search that finds it so, which says so meanwhile."""
    sources = ListSources(talk=build_messages(*(f"the violin number {n}" for n in range(450))))
    scope = IndexedScope(tmp_path / "index.db", sources)
    async with running(seed=SeedProfile() if damage == "another profile" else None) as engine:
        await engine.sync(scope)
    if damage == "deleted":
        scope.path.unlink()
    elif damage == "garbage":
        scope.path.write_bytes(b"no database" * 1000)
    elif damage == "older":
        database = connect(scope.path)
        set_meta(database, "version", "0")
        database.close()
    async with running() as engine:
        answer = await engine.search([scope], "violin number 7")
        assert (answer.results, answer.note) == ((), BUILDING)
        await engine.wait_idle(scope.path)
        answer = await engine.search([scope], "violin number 7")
        assert answer.note == ""
        assert answer.results[0].passage.text == "the violin number 7"
    assert os.listdir(tmp_path) == ["index.db"]  # noqa: PTH208 - after the engine is closed, nothing waits


async def test_damage_inside_is_mended_too(tmp_path: Path) -> None:
    """Pages that turn to garbage under a running engine cost one answer, not the index."""
    sources = ListSources(talk=build_messages(*(f"the violin number {n} of the orchestra" for n in range(400))))
    scope = IndexedScope(tmp_path / "index.db", sources)
    async with running() as engine:
        await engine.sync(scope)
    raw = bytearray(scope.path.read_bytes())
    raw[8192:] = b"\xff" * (len(raw) - 8192)
    scope.path.write_bytes(raw)
    async with running() as engine:
        assert (await engine.search([scope], "violin number 7")).note == BUILDING
        await engine.wait_idle(scope.path)
        assert (await texts(engine, scope, ask="violin number 7"))[0] == "the violin number 7 of the orchestra"


async def test_a_build_that_was_killed_begins_anew(tmp_path: Path) -> None:
    """What an interrupted build left beside the index is no obstacle, and a half-read source is read whole."""
    sources = ListSources(talk=build_messages(*(f"the violin number {n}" for n in range(900))))
    scope = IndexedScope(tmp_path / "index.db", sources)
    (tmp_path / "index.db.new").write_bytes(b"half a file")
    async with running() as engine:
        await engine.sync(scope)
    database = connect(scope.path)  # as if killed after the first slices: units, and no mark
    database.execute("UPDATE source SET mark = ''")
    database.close()
    async with running() as engine:
        await engine.sync(scope)
        answer = await engine.search([scope], "violin", limit=2_000, budget=1_000_000)
        assert len({each.passage.line for each in answer.results}) == len(answer.results) == 300


async def test_meaning_is_asked_when_words_fail(tmp_path: Path) -> None:
    """With a model a passage is found that shares no word with the question; vectors come in the background."""
    sources = ListSources(talk=build_messages("zzz qqq", "aeiou aeiou", "mmm nnn"))
    scope = IndexedScope(tmp_path / "index.db", sources)
    model = LetterEmbedder()
    async with running(embedder=model) as engine:
        await settle(engine, scope)
        assert (await texts(engine, scope, ask="iaueo"))[0] == "aeiou aeiou"
        asked = len(model.asked)
        await settle(engine, scope)
        assert len(model.asked) == asked


async def test_a_model_that_is_down_costs_meaning_alone(tmp_path: Path) -> None:
    """While the provider fails words answer, the answer says so, and what waits is embedded when it is back."""
    sources = ListSources(talk=build_messages("the violin", "aeiou"))
    scope = IndexedScope(tmp_path / "index.db", sources)
    model = LetterEmbedder()
    model.is_down = True
    async with running(embedder=model) as engine:
        await settle(engine, scope)
        answer = await engine.search([scope], "violin")
        assert [each.passage.text for each in answer.results] == ["the violin"]
        assert "nobody answers" in answer.note
        model.is_down = False
        await settle(engine, scope)
        answer = await engine.search([scope], "iouae")
        assert answer.results[0].passage.text == "aeiou"
        assert answer.note == ""


async def test_another_model_embeds_anew_while_words_go_on(tmp_path: Path) -> None:
    """Vectors of another model are never compared; they are made anew, and an old version's are taken over."""
    sources = ListSources(talk=build_messages("the violin", "the boat"))
    scope = IndexedScope(tmp_path / "index.db", sources)
    async with running(embedder=LetterEmbedder("first")) as engine:
        await settle(engine, scope)
    second = LetterEmbedder("second")
    async with running(embedder=second) as engine:
        assert await texts(engine, scope, ask="violin") == ["the violin"]
        assert second.asked == ["violin"]
        await settle(engine, scope)
        assert set(second.asked[1:]) == {"Ann: the violin", "Ann: the boat"}
    database = connect(scope.path)
    set_meta(database, "version", "0")
    database.close()
    third = LetterEmbedder("second")
    async with running(embedder=third) as engine:
        await settle(engine, scope)
        assert third.asked == []


async def test_a_model_that_gives_other_vectors_under_its_old_name_embeds_anew(tmp_path: Path) -> None:
    """Vectors of two lengths never stand beside each other: the first of the new ones take the old ones away."""
    sources = ListSources(talk=build_messages("the violin", "the boat"))
    scope = IndexedScope(tmp_path / "index.db", sources)
    async with running(embedder=LetterEmbedder()) as engine:
        await settle(engine, scope)
    sources.change("talk", build_messages("the violin", "the boat", "a lamp"))
    changed = LetterEmbedder(size=13)
    async with running(embedder=changed) as engine:
        await settle(engine, scope)
        assert set(changed.asked) == {"Ann: the violin", "Ann: the boat", "Ann: a lamp"}
        assert (await engine.search([scope], "lamp")).note == ""


async def test_two_scopes_compare(tmp_path: Path) -> None:
    """A weak hit of a small scope does not stand above a good one of a large scope, and places tell them apart."""
    mine = IndexedScope(
        tmp_path / "a.db",
        ListSources(talk=build_messages(*(f"tuning the violin at {n}" for n in range(80)), "violin strings")),
    )
    shared = IndexedScope(
        tmp_path / "b.db", ListSources(notes=build_messages("house rules and the violin room", "parking"))
    )
    async with running() as engine:
        await engine.sync(mine)
        await engine.sync(shared)
        answer = await engine.search([mine, shared], "violin strings")
        assert (answer.results[0].place, answer.results[0].passage.text) == (0, "violin strings")
        assert (await engine.search([mine, shared], "parking rules")).results[0].place == 1


async def test_similarities_of_two_scopes_compare(tmp_path: Path) -> None:
    """The mean of the larger scope is subtracted in both, so that equal vectors are equally similar."""
    talk = [*(f"a common remark {n}" for n in range(40)), "tea at noon"]
    mine = IndexedScope(tmp_path / "a.db", ListSources(talk=build_messages(*talk)))
    shared = IndexedScope(tmp_path / "b.db", ListSources(talk=build_messages("eat at noon")))
    async with running(embedder=LetterEmbedder()) as engine:
        for scope in (mine, shared):
            await settle(engine, scope)
        found = (await engine.search([mine, shared], "ate at noon")).results
        alone = (await engine.search([shared], "ate at noon")).results
    similar = {each.passage.text: each.similarity for each in found}
    assert similar["tea at noon"] == pytest.approx(similar["eat at noon"], abs=0.01)
    assert alone[0].similarity != pytest.approx(similar["eat at noon"], abs=0.01)


async def test_results_keep_to_their_budget(tmp_path: Path) -> None:
    """Results cost at most the budget together, the first always comes, and only so many show their neighbours."""
    long = "violin " + "word " * 100
    talk = [
        SearchUnit(text=text, line=n, who="Ann", role="user")
        for n, text in enumerate(["before", long, "after", "violin"], 1)
    ]
    scope = IndexedScope(tmp_path / "index.db", ListSources(talk=talk))
    async with running() as engine:
        await engine.sync(scope)
        answer = await engine.search([scope], "violin", budget=20)
        assert [each.passage.text for each in answer.results if "violin" in each.passage.text] == ["violin"]
        answer = await engine.search([scope], "violin", budget=10_000, around=1, limit=2)
        first, second = answer.results
        assert first.before
        assert not second.before
        assert not second.after


async def test_pages_follow_each_other(tmp_path: Path) -> None:
    """Pages have every match once, long ones too, and say whether there are more; no neighbour is a hit as well."""
    talk = [
        SearchUnit(text=f"violin {n} {'word ' * (n % 3 * 40)}", line=n, who="Ann", role="user") for n in range(1, 31)
    ]
    scope = IndexedScope(tmp_path / "index.db", ListSources(talk=talk))
    async with running() as engine:
        await engine.sync(scope)
        lines: list[int] = []
        page, has_more = 0, True
        while has_more:
            page += 1
            answer = await engine.search([scope], "violin", limit=8, budget=400, around=2, page=page)
            hits = {each.passage.id for each in answer.results}
            beside = [other.id for each in answer.results for other in (*each.before, *each.after)]
            assert hits.isdisjoint(beside)
            assert sum(each.tokens for each in answer.results) <= 400
            lines += [each.passage.line for each in answer.results]
            has_more = answer.has_more
        assert sorted(lines) == list(range(1, 31))
        assert page >= 4


async def test_memory_and_files_stay_bounded(tmp_path: Path) -> None:
    """With more scopes than may be open, and more vectors than may be held, every one of them still answers."""
    model = LetterEmbedder()
    scopes = [
        IndexedScope(tmp_path / f"{n}.db", ListSources(talk=build_messages(f"violin {n}", "aeiou"))) for n in range(6)
    ]
    async with running(embedder=model, open_files=2, matrix_bytes=1) as engine:
        for scope in scopes:
            await settle(engine, scope)
        for _ in range(2):
            for n, scope in enumerate(scopes):
                assert (await texts(engine, scope, ask="violin"))[0] == f"violin {n}"
        assert len(engine._files) <= 2
        assert sum(bool(each.index.matrix_bytes) for each in engine._files._open.values()) <= 1


async def test_many_vectors_are_read_in_behind_the_first_question(tmp_path: Path) -> None:
    """After a start a large scope answers by words and says so; vectors come behind, with what was written since."""
    sources = ListSources(talk=build_messages("the violin", "aeiou aeiou", "mmm"))
    scope = IndexedScope(tmp_path / "index.db", sources)
    async with running(embedder=LetterEmbedder()) as engine:
        await settle(engine, scope)
    async with running(embedder=LetterEmbedder(), read_at_once=2) as engine:
        answer = await engine.search([scope], "violin")
        assert [each.passage.text for each in answer.results] == ["the violin"]
        assert "being read in" in answer.note
        sources.files[TALK] += build_messages("uuu ooo", first=4)
        await settle(engine, scope)
        answer = await engine.search([scope], "ooouuu")
        assert answer.results[0].passage.text == "uuu ooo"
        assert answer.note == ""


class GatedEmbedder(LetterEmbedder):
    """Embeds passages while its gate is open, and questions always."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.gate = asyncio.Event(), asyncio.Event()

    async def embed(self, texts: Sequence[str], *, is_question: bool = False) -> Matrix:
        """Wait for the gate, except for a question."""
        if not is_question:
            self.begun.set()
            await self.gate.wait()
        return await super().embed(texts, is_question=is_question)


async def test_a_home_without_vectors_is_searched_by_words_meanwhile(tmp_path: Path) -> None:
    """While hundreds of messages wait for the model, words answer and say so; then meaning is compared too."""
    embedder = GatedEmbedder()
    scope = IndexedScope(
        tmp_path / "index.db", ListSources(talk=build_messages(*(f"the violin number {n}" for n in range(600))))
    )
    async with running(embedder=embedder) as engine:
        await engine.sync(scope)
        await embedder.begun.wait()
        answer = await engine.search([scope], "violin number 7")
        assert answer.results[0].passage.text == "the violin number 7"
        assert "by words alone" in answer.note
        embedder.gate.set()
        await engine.wait_idle(scope.path)
        answer = await engine.search([scope], "violin number 7")
        assert (answer.note, answer.results[0].similarity != 0) == ("", True)
