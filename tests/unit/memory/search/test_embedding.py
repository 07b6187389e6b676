"""Models that turn texts into vectors: asked in batches, within a deadline, and left alone while they fail."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from agent.memory.search.embedding import (
    GuardedEmbedder,
    Matrix,
    build_embedder,
    build_installed_embedder,
    find_installed_model,
)
from agent.memory.search.embedding_models import LocalEmbedder, _rows
from agent.memory.search.recall_engine import IndexedScope, RecallEngine
from agent.memory.search.search_unit import SearchUnit
from gateway.errors import InvalidModelReply, ModelFailed, ModelTimeout, SettingsError
from tests.fakes.recall import LetterEmbedder, ListSources


class SteppedClock:
    """Time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class CountingEmbedder(LetterEmbedder):
    """Keeps how many texts came at once."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []

    async def embed(self, texts: Sequence[str], *, is_question: bool = False) -> Matrix:
        """Count, then embed."""
        self.batches.append(len(texts))
        return await super().embed(texts, is_question=is_question)


class SilentEmbedder(LetterEmbedder):
    """Never answers."""

    async def embed(self, texts: Sequence[str], *, is_question: bool = False) -> Matrix:
        """Wait for ever."""
        await asyncio.Event().wait()
        raise AssertionError


async def test_passages_go_in_batches_and_questions_are_remembered() -> None:
    """No request holds more than a batch; the same question again costs nothing."""
    inner = CountingEmbedder()
    guarded = GuardedEmbedder(inner, batch=4)
    rows = await guarded.embed([f"text {n}" for n in range(10)])
    assert inner.batches == [4, 4, 2]
    assert rows.shape == (10, 26)
    for _ in range(3):
        await guarded.embed(["why"], is_question=True)
    assert inner.batches == [4, 4, 2, 1]


async def test_a_failing_model_is_left_alone_for_a_while() -> None:
    """After a failure nobody is asked until the pause is over; each failure doubles it, an answer ends it."""
    inner, clock = LetterEmbedder(), SteppedClock()
    guarded = GuardedEmbedder(inner, clock=clock)
    inner.is_down = True
    with pytest.raises(ModelFailed):
        await guarded.embed(["a"])
    first = guarded.pause
    inner.is_down = False
    with pytest.raises(ModelFailed, match="nobody answers"):
        await guarded.embed(["a"])
    assert inner.asked == []
    clock.now += first
    inner.is_down = True
    with pytest.raises(ModelFailed):
        await guarded.embed(["a"])
    assert guarded.pause == 2 * first
    clock.now += guarded.pause
    inner.is_down = False
    await guarded.embed(["a"])
    assert (guarded.trouble, guarded.pause) == ("", 0.0)


async def test_a_silent_model_does_not_hold_a_question() -> None:
    """A model that says nothing is given up after the question's deadline."""
    guarded = GuardedEmbedder(SilentEmbedder(), question_deadline=0.0)
    with pytest.raises(ModelTimeout):
        await guarded.embed(["a"], is_question=True)
    assert guarded.trouble


async def test_a_query_does_not_wait_for_a_model_that_is_loaded() -> None:
    """The first query goes by words while a large model is read, which is no failure; the next one has its vector."""
    is_read = asyncio.Event()

    class LargeEmbedder(LetterEmbedder):
        async def embed(self, texts: Sequence[str], *, is_question: bool = False) -> Matrix:
            await is_read.wait()
            return await super().embed(texts, is_question=is_question)

    guarded = GuardedEmbedder(LargeEmbedder(), question_deadline=0.0, loading=0.0)
    with pytest.raises(ModelFailed, match="is being loaded"):
        await guarded.embed(["why"], is_question=True)
    assert (guarded.trouble, guarded.pause) == ("", 0.0)
    is_read.set()
    await guarded.embed(["a passage"])
    assert (await guarded.embed(["why"], is_question=True)).shape == (1, 26)
    await guarded.close_idle(0)
    is_read.clear()
    with pytest.raises(ModelFailed, match="is being loaded"):
        await guarded.embed(["how"], is_question=True)
    await guarded.close()


async def test_passages_are_embedded_at_a_low_priority() -> None:
    """On Linux, answers go first on a busy processor: the thread of the passages yields to them, a query's does not."""
    if sys.platform != "linux" or (embedder := build_installed_embedder()) is None:
        pytest.skip("needs Linux and the extra `local`")
    local = embedder._inner
    niceness: list[int] = []
    embed_now: Callable[[Sequence[str]], Matrix] = local.embed_now  # type: ignore[attr-defined]

    def note(texts: Sequence[str]) -> Matrix:
        niceness.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return embed_now(texts)

    local.embed_now = note  # type: ignore[attr-defined]
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    await embedder.embed(["a passage"])
    await embedder.embed(["why"], is_question=True)
    assert niceness == [max(usual, 10), usual]
    await embedder.close()


async def test_whoever_loses_patience_first_is_not_the_last_to_know() -> None:
    """A question given up by who asked it goes on to its deadline, so that the next one waits for nobody."""
    guarded = GuardedEmbedder(SilentEmbedder(), question_deadline=0.05)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await guarded.embed(["why"], is_question=True)
    with pytest.raises(ModelTimeout):
        await guarded.embed(["why"], is_question=True)  # the same call
    assert guarded.pause
    with pytest.raises(ModelFailed):
        await guarded.embed(["how"], is_question=True)
    await guarded.close()


async def test_a_search_waits_no_longer_than_whoever_asks(tmp_path: Path) -> None:
    """With a patience shorter than the model's deadline, words answer and the answer says so."""
    scope = IndexedScope(tmp_path / "index.db", ListSources(talk=[SearchUnit(text="the violin", line=1)]))
    engine = RecallEngine(embedder=GuardedEmbedder(SilentEmbedder(), question_deadline=3_600))
    await engine.sync(scope)
    answer = await engine.search([scope], "violin", embed_timeout=0.01)
    assert [each.passage.text for each in answer.results] == ["the violin"]
    assert "by words alone" in answer.note
    await engine.close()


async def test_what_is_configured_is_what_is_opened(tmp_path: Path) -> None:
    """No name is no model; a folder without a model is a mistake that its text explains, and costs meaning alone."""
    assert build_embedder("") is None
    local = build_embedder(f"local:{tmp_path}")
    assert local is not None
    assert local.name == f"local:{tmp_path}"
    with pytest.raises(ModelFailed, match=r"model\.onnx") as raised:
        await local.embed(["a"])
    # Which of the two depends on whether the extra is installed; both tell how to mend it.
    assert isinstance(raised.value.__cause__, SettingsError)
    remote = build_embedder("openai/text-embedding-3-small", api_key="secret-key")
    assert remote is not None
    assert "secret-key" not in repr(remote._inner)


async def test_the_installed_model_needs_no_name() -> None:
    """Words of one meaning are near each other, and an idle model is dropped until it is used again."""
    if find_installed_model() is None:
        assert build_installed_embedder() is None
        pytest.skip("the extra `local` is not installed")
    embedder = build_installed_embedder()
    assert embedder is not None
    assert embedder.name == "minilm-int8"
    doctor, physician, boat = await embedder.embed(["my doctor", "the physician", "a boat at the pier"])
    assert doctor @ physician > 0.5 > doctor @ boat
    local = embedder._inner
    await embedder.close_idle(3_600)
    assert local._model is not None  # type: ignore[attr-defined]
    await embedder.close_idle(0)
    assert local._model is None  # type: ignore[attr-defined]
    assert (await embedder.embed(["my doctor"]))[0] == pytest.approx(doctor, abs=1e-3)


def test_a_changed_model_file_is_not_loaded(tmp_path: Path) -> None:
    """A file with another hash than the pinned one is refused before it is parsed."""
    pytest.importorskip("onnxruntime")
    (tmp_path / "model.onnx").write_bytes(b"no model")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(SettingsError, match="not the file that it was"):
        LocalEmbedder(tmp_path, sha256="0" * 64).embed_now(["a"])


async def test_passages_take_their_share_of_the_time() -> None:
    """After a batch of one second, three are waited for a share of a quarter; a question waits for none."""
    inner, clock = CountingEmbedder(), SteppedClock()
    waits: list[float] = []

    class SlowEmbedder(CountingEmbedder):
        async def embed(self, texts: Sequence[str], *, is_question: bool = False) -> Matrix:
            clock.now += 1
            return await inner.embed(texts, is_question=is_question)

    class WatchedEmbedder(GuardedEmbedder):
        async def _wait(self, seconds: float) -> None:
            waits.append(seconds)

    guarded = WatchedEmbedder(SlowEmbedder(), batch=4, share=0.25, clock=clock)
    await guarded.embed([f"text {n}" for n in range(8)])
    assert waits == [3.0, 3.0]
    await guarded.embed(["why"], is_question=True)
    assert waits == [3.0, 3.0]
    # What others took of the processor meanwhile is no reason to wait.
    shared = WatchedEmbedder(SlowEmbedder(), batch=4, share=0.25, clock=clock, processor_seconds=lambda: clock.now / 8)
    await shared.embed(["text"])
    assert waits == [3.0, 3.0, 0.0]


_LOAD = """
from pathlib import Path
from agent.memory.search.embedding_models import LocalEmbedder
from gateway.errors import SettingsError
try:
    LocalEmbedder(Path("nowhere")).embed_now(["a"])
except SettingsError as error:
    print(error)
"""


def test_a_local_model_reports_to_nobody(tmp_path: Path) -> None:
    """The official build of onnxruntime sends reports under an id in the user's cache folder: here it makes none."""
    pytest.importorskip("onnxruntime")
    # It stays silent by itself where CI is set.
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", _LOAD]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)  # noqa: S603 - ours
    assert "no embedding model in nowhere" in done.stdout
    assert [*tmp_path.rglob("*")] == []


class EmbeddingReply:
    """What a provider answers."""

    def __init__(self, *rows: object) -> None:
        self.data = [{"index": n, "embedding": row} for n, row in enumerate(rows)]


def test_a_providers_answer_is_checked() -> None:
    """Rows come back in the order asked and of length 1; another number of them, or no numbers, is no answer."""
    reply = EmbeddingReply([3, 4], [0, 2])
    reply.data.reverse()
    assert _rows(reply, 2, "m").flatten().tolist() == pytest.approx([0.6, 0.8, 0, 1])
    for wrong in (
        EmbeddingReply([1, 2]),
        EmbeddingReply([1], [1, 2]),
        EmbeddingReply(["a"], ["b"]),
        EmbeddingReply([float("nan")], [1.0]),
        object(),
    ):
        with pytest.raises(InvalidModelReply):
            _rows(wrong, 2, "m")
