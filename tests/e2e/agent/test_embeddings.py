"""Search by meaning through the whole gateway, over real HTTP: found without a shared word, and never in the way."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent.memory.search import embedding
from agent.memory.search.embedding import build_embedder
from gateway.errors import ModelFailed
from gateway.health import home_checks
from gateway.health.doctor import collect_findings
from gateway.i18n import translate
from gateway.ports.setup import Finding
from tests.fakes.embeddings import EmbeddingFault
from tests.fakes.inprocess_gateway import InProcessGateway, gateway
from tests.fakes.openai_server import FakeOpenAI, ScriptedAnswer, ScriptedToolCall, open_server

pytestmark = pytest.mark.xdist_group("litellm")

SCOPE = "people/pocket%3aann"
KEY = "sk-canary-of-the-answering-model"
SAID = "my physician lives beside the bakery"
QUESTION = "who is the doctor"
BY_WORDS = "Only words were matched this time"


STATUS = "Search matches words only"


def model(body: Mapping[str, Any], n: int) -> ScriptedAnswer:
    """Search memory for what follows "look up", and repeat what was found."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return ScriptedAnswer(text=f"found: {last['content']}")
    _, is_asked, wanted = str(last["content"]).partition("look up ")
    call = ScriptedToolCall(name="memory_search", arguments=json.dumps({"query": wanted}), id=f"c{n}")
    return ScriptedAnswer(calls=(call,)) if is_asked else ScriptedAnswer(text=f"answer {n}")


@asynccontextmanager
async def open_gateway(
    server: FakeOpenAI, home: Path, name: str = "openai/test-embed", **more: str
) -> AsyncIterator[InProcessGateway]:
    """Run a gateway whose model and embeddings are those of *server*."""
    environment = {
        "PARLOUR_LLM__MODEL": "openai/test",
        "PARLOUR_LLM__API_BASE": server.base,
        "PARLOUR_LLM__API_KEY": KEY,
        "PARLOUR_TOOLS__VECTOR_MEMORY__EMBEDDING_MODEL": name,
        **more,
    }
    async with gateway(home=home, environment=environment) as parlour:
        yield parlour


async def index_conversation(parlour: InProcessGateway, *texts: str) -> None:
    """Have a conversation that is over, and what was said in it taken in."""
    for text in texts or (SAID, "and the garden is full of tulips"):
        await parlour.channel.ask("ann", text)
    await parlour.channel.ask("ann", "/new")
    await parlour.idle()
    await taken_in(parlour)


async def taken_in(parlour: InProcessGateway) -> None:
    """Look for something, so that what is new is taken in; return when vectors were asked for."""
    await parlour.channel.ask("ann", "/search tulips")
    await parlour.app.recall._memory.wait_idle(parlour.home / SCOPE / "index.db")


async def status_of(parlour: InProcessGateway) -> Mapping[str, Any]:
    """Return what `parlour status` prints."""
    [line] = [line async for line in parlour.app.operations["status"]({})]
    return line


async def test_a_question_without_a_shared_word_finds_what_was_meant(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """By the tool and by /search; address and key are the answering model's; usage adds up; no log has the key."""
    caplog.set_level("DEBUG")
    async with open_server(model) as server, open_gateway(server, tmp_path / "home") as parlour:
        await index_conversation(parlour)
        assert SAID in await parlour.channel.ask("ann", f"look up {QUESTION}")
        answer = await parlour.channel.ask("ann", f"/search {QUESTION}")
        assert SAID in answer
        assert BY_WORDS not in answer
        await taken_in(parlour)
        rows = await parlour.app.store.usage.totals(since=datetime.now(UTC) - timedelta(hours=1))
        [row] = [row for row in rows if row["purpose"] == "embedding"]
        assert (row["model"], row["calls"]) == ("openai/test-embed", len(server.embeddings.asked))
        assert row["tokens_in"] == server.embeddings.billed > 0
        assert server.embeddings.keys == {KEY}
        texts = server.embeddings.texts()
        assert len(texts) == len(set(texts))  # nothing was asked for twice
        assert "search" not in await status_of(parlour)
    out, err = capfd.readouterr()
    assert KEY not in out + err + caplog.text


async def test_a_model_that_fails_costs_meaning_alone(tmp_path: Path) -> None:
    """Words still find; person, model and operator are told in a line; nothing the provider said gets anywhere."""
    async with open_server(model) as server, open_gateway(server, tmp_path / "home") as parlour:
        server.embeddings.trouble = EmbeddingFault.ERROR
        await index_conversation(parlour)
        found = await parlour.channel.ask("ann", "look up the physician")
        assert SAID in found
        assert "(Found by words alone" in found
        assert BY_WORDS in await parlour.channel.ask("ann", "/search physician")
        assert BY_WORDS in await parlour.channel.ask("ann", "/search zeppelin")
        assert STATUS in await parlour.channel.ask("ann", "/status")
        search = (await status_of(parlour))["search"]
        assert search.startswith("keywords only: openai/test-embed")
        assert "SECRET" not in search + found
        [warned] = [each async for each in doctor(parlour.home) if each.id == "search"]
        assert warned.text.startswith("uses keywords only: openai/test-embed")
        assert "SECRET" not in search + found + warned.text


async def test_whatever_a_provider_does_is_a_failure_of_ours_that_quotes_nothing() -> None:
    """Refused, broken, too few vectors, no vectors: ModelFailed, with nothing of what the provider said."""
    async with open_server() as server:
        for server.embeddings.trouble in (
            EmbeddingFault.ERROR,
            EmbeddingFault.UNAUTHORISED,
            EmbeddingFault.WRONG_COUNT,
            EmbeddingFault.GARBLED,
        ):
            embedder = build_embedder("openai/test-embed", api_base=server.base, api_key=KEY)
            assert embedder is not None
            with pytest.raises(ModelFailed) as failed:
                await embedder.embed(["one", "two"])
            assert "SECRET" not in str(failed.value)
            assert KEY not in embedder.trouble + str(failed.value)
            assert embedder.pause


@pytest.mark.parametrize("lacks", ["folder", "extra"])
async def test_a_local_model_that_is_not_there_says_how_to_mend_it(
    tmp_path: Path, lacks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder without a model, or the extra not installed: a line of the doctor and of status; words find all."""
    name = f"local:{tmp_path / 'nothing'}"
    if lacks == "extra":
        monkeypatch.setitem(sys.modules, "tokenizers", None)
    mend = "make install" if lacks == "extra" else "model.onnx and tokenizer.json"
    async with open_server(model) as server, open_gateway(server, tmp_path / "home", name) as parlour:
        await index_conversation(parlour)
        assert SAID in await parlour.channel.ask("ann", "/search physician")
        assert mend in (await status_of(parlour))["search"]
        lines = [each.text async for each in doctor(parlour.home, name)]
        assert all(mend in line for line in lines)
        assert lines


@pytest.mark.parametrize("is_installed", [False, True])
async def test_without_a_model_everybody_is_told_what_mends_it(
    tmp_path: Path, is_installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/status, the page and the doctor say that search is by words alone, and how to add a model; with one, nobody."""
    monkeypatch.setattr(embedding, "find_installed_model", lambda: tmp_path if is_installed else None)
    monkeypatch.setattr(home_checks, "find_spec", lambda _: is_installed or None)
    async with gateway(home=tmp_path / "home") as parlour:
        status = await parlour.channel.ask("ann", "/status")
        assert ("the extra “local”" in status) is not is_installed
        async with httpx.AsyncClient(base_url=parlour.app.web.url, follow_redirects=True) as page:
            await page.get("")
            note = (await page.get("memory")).json()["note"]
            assert note == ("" if is_installed else translate("commands.status_no_meaning"))
        [line] = [each.text async for each in doctor(parlour.home, of="embeddings")]
        assert ("by words alone; for meaning too, run `make install`" in line) is not is_installed


def doctor(home: Path, name: str = "", *, of: str = "search") -> AsyncIterator[Finding]:
    """Yield what `parlour doctor` has on search."""
    environment = {"PARLOUR_HOME": str(home), "PARLOUR_TOOLS__VECTOR_MEMORY__EMBEDDING_MODEL": name}
    found = collect_findings(environment, is_offline=True, asks_model=False)
    return (each async for each in found if each.name == of)
