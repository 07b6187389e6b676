"""The index of one scope: whatever is written in whatever order, it is as if it had been written at once."""

from __future__ import annotations

import random
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from agent.memory.search.index_file import IndexUnusable, set_meta
from agent.memory.search.query import parse_query
from agent.memory.search.scope_index import ScopeIndex
from agent.memory.search.search_unit import SearchUnit, UnitSource
from agent.memory.search.tokenizer import PLAIN, index_terms
from agent.memory.search.vector_matrix import VectorMatrix

TALK = UnitSource(name="sessions/talk.jsonl")
NOTES = UnitSource(name="memory/notes.md")
DOCS = UnitSource(name="handbook.md", project="handbook")
WORDS = "harbour violin glacier mustard lantern orchard saddle copper thistle marble walnut anchor".split()  # noqa: SIM905 - reads better


def units(texts: list[str], *, group: str = "") -> list[SearchUnit]:
    """Return a message for each of *texts*."""
    at = datetime(2024, 5, 1, tzinfo=UTC)
    return [
        SearchUnit(text=text, line=n, at=at, who="Ann", role="user", group=group) for n, text in enumerate(texts, 1)
    ]


def text_matches(index: ScopeIndex, text: str, *, project: str = "_memory") -> dict[str, tuple[float, float, float]]:
    """Return what the text parts say of each unit, by its text."""
    gathered = index.query(parse_query(text), projects=[project])
    texts = index.passages([each.id for each in gathered.candidates])
    return {
        f"{texts[each.id].source.name} {texts[each.id].line} {texts[each.id].text}": (
            each.unit,
            each.context,
            each.block_score,
        )
        for each in gathered.candidates
    }


def test_many_edits_leave_what_one_writing_would(tmp_path: Path) -> None:
    """Appends, edits in the middle and cuts leave exactly the scores of an index that was written once."""
    chance = random.Random(11)  # noqa: S311 - the same edits each time
    index, talk = ScopeIndex(tmp_path / "a.db", is_new=True), [""] * 0
    for step in range(40):
        new = " ".join(chance.sample(WORDS, 3))
        if step % 4 == 0 and talk:
            talk[chance.randrange(len(talk))] = new
            index.put(TALK, units(talk))
        elif step % 11 == 10:
            del talk[chance.randrange(len(talk)) :]
            index.put(TALK, units(talk))
        else:
            added = [new, f"{new} again"] if step % 3 == 0 else [new]
            fresh = units([*talk, *added])[len(talk) :]
            talk += added
            index.append(TALK, fresh)
    once = ScopeIndex(tmp_path / "b.db", is_new=True)
    once.put(TALK, units(talk))
    for word in WORDS:
        # Ids differ, and with them what "rare" is taken from: scores are compared by their order and their zeros.
        mine, theirs = text_matches(index, word), text_matches(once, word)
        assert mine.keys() == theirs.keys()
        for part in range(3):
            best = max((scores[part] for scores in theirs.values()), default=0) or 1
            mine_best = max((scores[part] for scores in mine.values()), default=0) or 1
            for key, scores in theirs.items():
                assert mine[key][part] / mine_best == pytest.approx(scores[part] / best, abs=1e-4)
    index.close()
    once.close()


def test_contexts_and_blocks_score_as_if_they_were_indexed(tmp_path: Path) -> None:
    """One table of units gives the BM25 that FTS5 gives for tables of contexts and blocks, each with a term more."""
    chance = random.Random(13)  # noqa: S311 - the same texts each time
    talk: list[SearchUnit] = []
    for group in range(7):
        long = [" ".join(chance.choices(WORDS, k=chance.choice((3, 8, 90)))) for _ in range(9 * group + 1)]
        talk += units(long, group=str(group))
    index = ScopeIndex(tmp_path / "a.db", is_new=True)
    for start in range(0, len(talk), 5):
        index.append(TALK, talk[start : start + 5])
    terms = [index_terms(unit.text, PLAIN) for unit in talk]
    clipped = [each if len(each) <= 300 else each[:300].rpartition(" ")[0] for each in terms]
    texts: list[list[str]] = [terms, [], []]
    blocks: list[int] = []
    for n, unit in enumerate(talk):
        near = [m for m in range(max(0, n - 2), n + 3) if m < len(talk) and talk[m].group == unit.group]
        texts[1].append(" ".join(terms[m] if m == n else clipped[m] for m in near))
        first = next(m for m in range(len(talk)) if talk[m].group == unit.group)
        blocks.append(first + (n - first) // 20 * 20)
    texts[2] = [" ".join(terms[m] for m in range(len(talk)) if blocks[m] == block) for block in dict.fromkeys(blocks)]
    database = sqlite3.connect(":memory:")
    ids = [row[0] for row in index._reader.execute("SELECT id FROM unit ORDER BY id")]
    for word in ("violin", "violin thistle"):
        matches = index.query(parse_query(word), top=1_000)
        found = {each.id: (each.unit, each.context, each.block_score) for each in matches.candidates}
        expression = f"terms : ({' OR '.join(word.split())})"
        scales = []
        for part, rows in enumerate(texts):
            database.execute("DROP TABLE IF EXISTS reference")
            database.execute("CREATE VIRTUAL TABLE reference USING fts5 (terms, one)")
            database.executemany("INSERT INTO reference VALUES (?, 'p')", [(row,) for row in rows])
            scores = dict(
                database.execute(
                    "SELECT rowid - 1, -bm25(reference, 1, 0) FROM reference WHERE reference MATCH ?", (expression,)
                )
            )
            order = list(dict.fromkeys(blocks))
            for n, id_ in enumerate(ids):
                score = scores.get(order.index(blocks[n]) if part == 2 else n, 0.0)
                mine = found.get(id_, (0.0, 0.0, 0.0))[part]
                assert (score > 0) == (mine > 0) or part == 2
                if score and mine:
                    scales.append(mine / score)
        assert scales
        assert min(scales) == pytest.approx(max(scales), rel=1e-5)
    database.close()
    index.close()


def test_only_what_differs_is_written(tmp_path: Path) -> None:
    """Putting the same units again writes nothing; a changed one is one deleted and one written."""
    index = ScopeIndex(tmp_path / "a.db", is_new=True)
    texts = [f"{WORDS[n % 12]} number {n}" for n in range(60)]
    assert len(index.put(TALK, units(texts))) == 60
    assert len(index.put(TALK, units(texts))) == 0
    texts[30] = "something else entirely"
    assert len(index.put(TALK, units(texts))) == 2
    index.close()


def test_a_unit_is_found_by_its_neighbours_but_not_across_a_silence(tmp_path: Path) -> None:
    """The answer beside the question is found by the question's words; what was said another day is not."""
    index = ScopeIndex(tmp_path / "a.db", is_new=True)
    index.put(
        TALK, [*units(["Who tunes the violin?", "Mister Baker does."], group="1"), *units(["See you"], group="2")]
    )
    hits = text_matches(index, "violin")
    assert {key.split(" ", 2)[2] for key in hits} == {"Who tunes the violin?", "Mister Baker does."}
    index.close()


def test_a_project_sees_its_own_rows_alone(tmp_path: Path) -> None:
    """A search in one project returns no row of another, whatever the words are."""
    index = ScopeIndex(tmp_path / "a.db", is_new=True)
    index.put(TALK, units(["the violin in the harbour"]))
    index.put(DOCS, units(["the violin of the handbook"]))
    assert list(text_matches(index, "violin")) == [f"{TALK.name} 1 the violin in the harbour"]
    assert list(text_matches(index, "violin", project="handbook")) == [f"{DOCS.name} 1 the violin of the handbook"]
    assert text_matches(index, 'violin" OR project : p2', project="nothing") == {}
    index.close()


@pytest.mark.parametrize(
    "text", ['"', "a AND b OR", "NEAR(x y)", "terms : violin", "p1", "' ; DROP TABLE unit", "*", "\0", ""]
)
def test_no_question_is_a_query_language(tmp_path: Path, text: str) -> None:
    """Whatever is asked are words: nothing of it reaches SQLite as syntax."""
    index = ScopeIndex(tmp_path / "a.db", is_new=True)
    index.put(TALK, units(["violin"]))
    index.query(parse_query(text))
    assert list(text_matches(index, "violin")) == [f"{TALK.name} 1 violin"]
    index.close()


def test_nothing_stays_of_what_was_removed(tmp_path: Path) -> None:
    """After removal and `scrub` the file holds neither the words nor the vector of what went."""
    path = tmp_path / "a.db"
    index = ScopeIndex(path, is_new=True)
    changes = index.put(TALK, units(["the zanzibarian password", "something else"]))
    index.use_model("m")
    index.embed("m", {each: np.full(4, 0.5, dtype=np.float32) for each in changes.came})
    index.put(TALK, units(["[forgotten]", "something else"]))
    index.scrub()
    index.close()
    raw = path.read_bytes()
    assert b"zanzibar" not in raw
    assert b"something else" in raw
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT count(*) FROM vector").fetchone() == (1,)
    database.close()


def test_vectors_follow_every_edit(tmp_path: Path) -> None:
    """The matrix in memory says the same as one read anew, after appends, edits and late vectors."""
    chance = np.random.default_rng(5)
    index = ScopeIndex(tmp_path / "a.db", is_new=True)
    index.use_model("m")
    question = chance.standard_normal(8).astype(np.float32)
    late: list[int] = []
    for step in range(30):
        texts = [f"line {n} of {step if n == step // 2 else n}" for n in range(step + 1)]
        changes = index.put(TALK, units(texts))
        now = [each for each in changes.came if each % 3] + late
        late = [each for each in changes.came if not each % 3]
        index.embed("m", {each: chance.standard_normal(8).astype(np.float32) for each in now})
        index.query(parse_query("line"), question)
    kept = index._matrix
    assert kept is not None
    fresh = VectorMatrix(index._reader, 8)
    one, other = kept.score(question, [1], 100), fresh.score(question, [1], 100)
    ids = [row[0] for row in index._reader.execute("SELECT id FROM unit WHERE vector IS NOT NULL")]
    assert len(ids) > 15
    for each in ids:
        assert one.of(each) == pytest.approx(other.of(each), abs=1e-5)
    index.close()


def test_equal_texts_share_a_vector_and_keep_it(tmp_path: Path) -> None:
    """Text that comes again, or moves, is not embedded again."""
    index = ScopeIndex(tmp_path / "a.db", is_new=True)
    index.use_model("m")
    first = index.put(NOTES, units(["one", "two", "three"]))
    index.embed("m", {each: np.ones(4, dtype=np.float32) for each in first.came})
    index.put(NOTES, units(["new", "one", "two", "three"]))
    assert [text for _, text in index.units_without_vector()] == ["Ann: new"]
    assert index.use_model("other")
    assert len(index.units_without_vector()) == 4
    index.close()


def test_a_vector_of_an_edited_text_is_not_stored(tmp_path: Path) -> None:
    """A text that is edited while the model reads it keeps its id, and does not get the vector of the old text."""
    index = ScopeIndex(tmp_path / "a.db", is_new=True)
    index.use_model("m")
    index.put(NOTES, units(["one", "two"]))
    waiting = dict(index.units_without_vector())
    index.put(NOTES, units(["one", "edited"]))
    index.embed("m", {each: np.ones(4, dtype=np.float32) for each in waiting}, waiting)
    assert [text for _, text in index.units_without_vector()] == ["Ann: edited"]
    index.close()


@pytest.mark.parametrize("damage", ["older", "garbage", "torn", "empty", "another profile"])
def test_what_is_no_index_is_said_to_be_none(tmp_path: Path, damage: str) -> None:
    """An older, damaged or foreign file raises IndexUnusable, at opening or at the first question."""
    path = tmp_path / "a.db"
    index = ScopeIndex(path, is_new=True)
    index.put(TALK, units([f"{word} and the violin" for word in WORDS] * 40))
    if damage == "older":
        set_meta(index._writer, "version", "0.1")
    index.close()
    raw = path.read_bytes()
    if damage == "garbage":
        path.write_bytes(b"this is no database at all" * 400)
    elif damage == "torn":
        path.write_bytes(raw[: len(raw) // 3])
    elif damage == "empty":
        path.write_bytes(b"")
    with pytest.raises(IndexUnusable):  # noqa: PT012 - either of them may notice
        again = ScopeIndex(path, is_flat=damage == "another profile")
        try:
            again.query(parse_query("violin"))
            again.passages(list(range(1, 400)))
        finally:
            again.close()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE block SET sizes = zeroblob(90)",
        "UPDATE block SET sizes = substr(sizes, 1, length(sizes) - 5)",
        "DELETE FROM block",
        "UPDATE unit SET text = x'789c00'",
    ],
)
def test_values_that_no_writer_wrote_are_damage(tmp_path: Path, damage: str) -> None:
    """A file that SQLite can read, but whose tables contradict each other, is rebuilt like any damaged one."""
    index = ScopeIndex(tmp_path / "a.db", is_new=True)
    index.put(TALK, units([f"{word} and the violin" for word in WORDS] * 4))
    index._writer.execute(damage)
    with pytest.raises(IndexUnusable):  # noqa: PT012 - either of them may notice
        matches = index.query(parse_query("violin"))
        index.passages([each.id for each in matches.candidates])
    index.close()


def test_the_file_is_the_owners_alone(tmp_path: Path) -> None:
    """The index and what SQLite puts beside it can be read by nobody else."""
    index = ScopeIndex(tmp_path / "scope" / "a.db", is_new=True)
    index.put(TALK, units(["violin"]))
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "scope").iterdir()}
    assert set(modes.values()) == {0o600}
    assert (tmp_path / "scope").stat().st_mode & 0o777 == 0o700
    index.close()


def test_small_writes_are_merged_when_it_is_calm(tmp_path: Path) -> None:
    """Forty messages leave forty segments, whose merging no message waits for; `tidy` does it, to an end."""

    def segments() -> int:
        database = sqlite3.connect(tmp_path / "a.db")
        (count,) = database.execute("SELECT count(DISTINCT segid) FROM unit_text_idx").fetchone()
        database.close()
        return int(count)

    index, talk = ScopeIndex(tmp_path / "a.db", is_new=True), [f"{WORDS[n % 12]} number{n}" for n in range(40)]
    for n in range(40):
        index.append(TALK, units(talk)[n : n + 1])
    assert segments() == 40
    before = text_matches(index, "harbour violin")
    while index.optimize():
        pass
    assert segments() < 10
    assert text_matches(index, "harbour violin") == before
    assert not index.optimize()
    index.close()


def test_a_long_chat_with_a_bot_has_a_small_index(tmp_path: Path) -> None:
    """A message of 2,400 bytes costs at most 5,000 bytes of index with its vectors: terms are stored once."""
    chance = np.random.default_rng(5)
    vocabulary = [f"{WORDS[n % 12]}{n // 12}" for n in range(6_000)]
    answer: list[SearchUnit] = []
    for n in range(600):
        text = " ".join(vocabulary[int(rank) % 6_000] for rank in chance.zipf(1.3, size=100))
        answer.append(SearchUnit(text=text[:800], line=n // 3 + 1, role="assistant", group=str(n // 60)))
    index = ScopeIndex(tmp_path / "a.db", is_new=True)
    index.use_model("noise")
    came = index.put(TALK, answer).came
    index.embed("noise", {id_: chance.standard_normal(384).astype(np.float32) for id_ in came})
    index.scrub()
    index.close()
    assert (tmp_path / "a.db").stat().st_size / 200 < 5_000
