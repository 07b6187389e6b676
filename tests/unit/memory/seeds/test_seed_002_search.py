"""Seed 002, phases 3 and 4: what is discovered, how it is searched, what the tool says; profile `seed`, to the letter.

Everything goes through the whole gateway, with the settings that the document prints.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from agent.memory.search.search_unit import MEMORY, SearchHits, SearchOptions
from agent.tools.toolbox import Toolbox
from tests.fakes.held_model import HeldScriptModel, calls, results
from tests.fakes.inprocess_gateway import InProcessGateway, gateway
from tests.fakes.openai_server import open_server

SCOPE = "people/pocket%3aann"
SEED = {"PARLOUR_TOOLS__VECTOR_MEMORY__PROFILE": "seed"}
NO_DECAY = {"PARLOUR_TOOLS__VECTOR_MEMORY__MEMORY_HALF_LIFE_DAYS": "0"}
DOCS_DECAY = {"PARLOUR_TOOLS__VECTOR_MEMORY__DOCS_HALF_LIFE_DAYS": "30"}
OLD = "2025-01-05"
NEW = f"{datetime.now(UTC):%Y-%m-%d}"


def home_with(path: Path, files: Mapping[str, str]) -> Path:
    """Return a home with these files."""
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path


def mine(files: Mapping[str, str]) -> dict[str, str]:
    """Return files as those of Ann's scope."""
    return {f"{SCOPE}/{name}": text for name, text in files.items()}


async def search(parlour: InProcessGateway, query: str, project: str = MEMORY) -> SearchHits:
    """Search as Ann."""
    return await parlour.app.recall.search(SCOPE, query, SearchOptions(project=project))


async def tool_says(home: Path, *queries: str, environment: Mapping[str, str] = SEED) -> Sequence[str]:
    """Return what `memory_search` answers."""
    model = HeldScriptModel(calls(*(("memory_search", json.dumps({"query": query})) for query in queries)))
    async with gateway(model=model, home=home, environment=environment) as parlour:
        await parlour.channel.ask("ann", "look")
    return results(model.asked[-1])


async def test_phase_3_what_is_discovered(tmp_path: Path) -> None:
    """[002] Phase 3, 1: MEMORY.md, dated files in memory/, docs/<project>/ below any folder; nothing hidden."""
    files = mine({
        "memory/MEMORY.md": "- the boiler is blue",
        f"memory/{OLD}-the-boiler.md": "# Session Memory\n\nthe boiler was mended",
        f"memory/{NEW}.md": "## Flush at 14:30\n\n- the boiler leaks",
        f"memory/.{OLD}.md": "the boiler is hidden",
    })  # fmt: skip
    files |= {"docs/house/deep/boiler.md": "the boiler's manual", "docs/house/.draft.md": "the boiler is hidden"}
    async with gateway(home=home_with(tmp_path / "home", files), environment=SEED) as parlour:
        assert {hit.source for hit in await search(parlour, "boiler")} == {
            "memory/MEMORY.md", f"memory/{OLD}-the-boiler.md", f"memory/{NEW}.md",
        }  # fmt: skip
        assert [hit.source for hit in await search(parlour, "boiler", "house")] == ["docs/house/deep/boiler.md"]


async def test_phase_3_memory_is_a_project_of_its_own(tmp_path: Path) -> None:
    """[002] Phase 3, 1: `_memory` is reserved: memory is in no project of documents, no folder takes its name."""
    files = mine({"memory/MEMORY.md": "- the boiler is blue"})
    files |= {"docs/house/a.md": "the boiler's manual", "docs/_memory/b.md": "the boiler of a false memory"}
    async with gateway(home=home_with(tmp_path / "home", files), environment=SEED) as parlour:
        assert await parlour.app.recall.projects(SCOPE) == ["house"]
        assert [hit.source for hit in await search(parlour, "boiler", "_memory")] == ["memory/MEMORY.md"]
        assert [hit.source for hit in await search(parlour, "boiler", "house")] == ["docs/house/a.md"]


async def test_phase_3_ten_results_at_most(tmp_path: Path) -> None:
    """[002] Phase 3, 3: `search_memory(query, max_results=10)`."""
    days = [datetime(2026, 1, day, tzinfo=UTC) for day in range(1, 13)]
    files = mine({f"memory/{day:%Y-%m-%d}.md": f"the boiler, look {n}" for n, day in enumerate(days)})
    async with gateway(home=home_with(tmp_path / "home", files), environment=SEED) as parlour:
        assert len(await search(parlour, "boiler")) == 10


def test_phase_4_the_tool_is_as_printed() -> None:
    """[002] Phase 4: `memory_search` requires `query` alone and stands beside `vector_search`."""
    tools = {each["function"]["name"]: each["function"] for each in Toolbox.load().schemas}
    parameters = tools["memory_search"]["parameters"]
    assert parameters["required"] == ["query"]
    assert list(parameters["properties"]) == ["query", "since", "until", "page"]  # beyond the seed: times and pages
    assert parameters["properties"]["query"]["type"] == "string"
    assert "vector_search" in tools
    described = tools["memory_search"]["description"]
    assert "Use it to recall past conversations, decisions, facts and preferences." in described


async def test_phase_4_the_format_to_the_letter(tmp_path: Path) -> None:
    """[002] Phase 4: a first line with the count, a line with place and score, the snippet, a blank line."""
    text = "# Likes\n\n- the boiler is blue\n"
    home = home_with(tmp_path / "home", mine({"memory/MEMORY.md": text}))
    [said] = await tool_says(home, "boiler")
    assert re.sub(r"score: \d", "score: 0", said) == (
        "Found 1 memory result(s) for 'boiler':\n\n"
        "[1] memory/MEMORY.md (lines 1-3, score: 0.30)\n# Likes\n\n- the boiler is blue\n"
    )


async def test_phase_4_nothing_and_no_query(tmp_path: Path) -> None:
    """[002] Phase 4: both sentences; the query is stripped."""
    nothing, none = await tool_says(tmp_path / "home", "  zeppelin  ", "  ")
    assert nothing == "No memories found for 'zeppelin'."
    assert none == "error: query is required."


async def test_configuration_chunks_of_512_tokens_that_share_64(tmp_path: Path) -> None:
    """[002] Config Reference: 2,048 characters at most, the last 256 repeated, in whole lines; both can be set."""
    lines = [f"line {n:03} of the boiler's log, which is long enough to be of some use" for n in range(90)]
    home = home_with(tmp_path / "home", mine({f"memory/{NEW}.md": "\n".join(lines)}))
    spans = await spans_of(home, SEED)
    assert [spans[0][0], spans[-1][1]] == [1, 90]
    for (first, end, size), (following, _, _) in pairwise(spans):
        assert 1_900 < size <= 2_048
        assert 4 * 64 >= sum(len(lines[n - 1]) + 1 for n in range(following, end + 1)) > 100
        assert following > first
    few = {**SEED, "PARLOUR_TOOLS__VECTOR_MEMORY__CHUNK_TOKENS": "1024"}
    assert (
        len(await spans_of(home_with(tmp_path / "other", mine({f"memory/{NEW}.md": "\n".join(lines)})), few))
        == 2
        < len(spans)
    )


async def spans_of(home: Path, environment: Mapping[str, str]) -> list[tuple[int, int, int]]:
    """Return first line, last line and size of each chunk."""
    async with gateway(home=home, environment=environment) as parlour:
        return sorted((hit.line, hit.end, len(hit.text)) for hit in await search(parlour, "boiler"))


async def test_an_old_note_ranks_below_a_new_one_and_memory_does_not_age(tmp_path: Path) -> None:
    """[002] Current State, 6: of equal texts the newer comes first, MEMORY.md before both; without decay they tie."""
    text = "the boiler was mended, number {}"
    files = mine({
        f"memory/{OLD}-boiler.md": text.format(1),
        f"memory/{NEW}-boiler.md": text.format(2),
        "memory/MEMORY.md": text.format(3),
    })  # fmt: skip
    for path in home_with(tmp_path / "home", files).rglob("MEMORY.md"):
        os.utime(path, (0, 0))  # it is no younger than any note
    async with gateway(home=tmp_path / "home", environment=SEED) as parlour:
        scores = {hit.source: hit.score for hit in await search(parlour, "boiler")}
        assert scores[f"memory/{OLD}-boiler.md"] < 0.01 < scores[f"memory/{NEW}-boiler.md"]
        assert scores[f"memory/{NEW}-boiler.md"] <= scores["memory/MEMORY.md"] == 0.3
        assert list(scores)[-1] == f"memory/{OLD}-boiler.md"
    async with gateway(home=tmp_path / "home", environment={**SEED, **NO_DECAY}) as parlour:
        assert {hit.score for hit in await search(parlour, "boiler")} == {0.3}


async def test_decay_of_memory_and_of_docs_are_set_apart(tmp_path: Path) -> None:
    """[002] Current State, 6: docs do not age unless it is set, by the date in their name or their last change."""
    long_ago = (datetime.now(UTC) - timedelta(days=90)).timestamp()
    text = "the boiler was mended, number {}"
    names = ("docs/house/new.md", "docs/house/old.md", f"docs/house/{OLD}.md")
    home = home_with(tmp_path / "home", {name: text.format(n) for n, name in enumerate(names)})
    os.utime(home / names[1], (long_ago, long_ago))
    async with gateway(home=home, environment=SEED) as parlour:
        assert {hit.score for hit in await search(parlour, "boiler", "house")} == {0.3}
    async with gateway(home=home, environment={**SEED, **NO_DECAY, **DOCS_DECAY}) as parlour:
        hits = await search(parlour, "boiler", "house")
        assert tuple(hit.source for hit in hits) == names
        assert [round(hit.score, 3) for hit in hits[:2]] == [0.3, 0.037]  # three half-lives


async def test_without_vector_memory_words_still_find(tmp_path: Path) -> None:
    """[002] Dependencies: `enabled: false` takes the vectors alone."""
    home = home_with(tmp_path / "home", mine({"memory/MEMORY.md": "- the boiler is blue"}))
    off = {"PARLOUR_TOOLS__VECTOR_MEMORY__ENABLED": "false"}
    [said] = await tool_says(home, "boiler", environment=off)
    assert "- the boiler is blue" in said


@pytest.mark.xdist_group("litellm")
async def test_configuration_vectors_weigh_more_than_text(tmp_path: Path) -> None:
    """[002] Config Reference: 0.7 of likeness and 0.3 of words, each by its best, for memory and for docs alike."""
    texts = {"words": "the doctor doctor", "meaning": "a physician", "other": "tulips"}
    files = mine({f"memory/{NEW}-{name}.md": text for name, text in texts.items()})
    files |= {f"docs/house/{name}.md": text for name, text in texts.items()}
    async with open_server() as server:
        environment = {
            **SEED,
            **NO_DECAY,
            "PARLOUR_TOOLS__VECTOR_MEMORY__EMBEDDING_MODEL": "openai/test-embed",
            "PARLOUR_TOOLS__VECTOR_MEMORY__EMBEDDING_API_BASE": server.base,
            "PARLOUR_TOOLS__VECTOR_MEMORY__EMBEDDING_API_KEY": "sk-own",
        }
        async with gateway(home=home_with(tmp_path / "home", files), environment=environment) as parlour:
            recall = parlour.app.recall
            for project, engine, index in (
                (MEMORY, recall._memory, f"{SCOPE}/index.db"),
                ("house", recall._documents, "docs/.index.db"),
            ):
                await search(parlour, "tulips", project)
                await engine.wait_idle(parlour.home / index)
                hits = await search(parlour, "the doctor", project)
                scores = {re.split(r"[/.-]", hit.source)[-2]: hit.score for hit in hits}
                assert scores["words"] == pytest.approx(1.0, abs=0.01)
                assert scores["meaning"] == pytest.approx(0.7, abs=0.01)
                assert scores.get("other", 0) < 0.3
        assert server.embeddings.keys == {"sk-own"}
