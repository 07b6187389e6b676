"""Search: one engine for memory and transcripts, another for files and project documents."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from agent.attachments.document_reader import SandboxedReader
from agent.files.file_workspace import ReceivedFiles
from agent.llm.chat_model import ChatReply, ChatRequest, TokenUsage
from agent.llm.model_client import UsageRecorder
from agent.memory.search.embedding import GuardedEmbedder, build_embedder, build_installed_embedder
from agent.memory.search.file_recall import FileRecall
from agent.memory.search.recall_engine import RecallEngine
from agent.memory.search.result_selection import RESULT_TOKENS, SeedProfile
from agent.memory.search.scope_recall import RecallOptions, ScopeRecall
from agent.memory.search.search_unit import SearchUnit, chunk_markdown, chunks
from gateway.settings.settings_model import LlmSettings, VectorMemorySettings

if TYPE_CHECKING:
    from gateway.app.runtime import Runtime

_ERASURES_EVERY = 60.0  # seconds between looks for what other gateways have erased
_DOCUMENT_CHARS = 1_000_000  # of one PDF, DOCX or HTML file that search reads


def build_recall(app: Runtime) -> ScopeRecall:
    """Build the search of memory, transcripts, files and project documents; it reads PDFs in the running event loop."""
    settings = app.settings
    vectors = settings.tools.vector_memory
    seed = _seed(vectors) if vectors.profile == "seed" else None
    embedder = _embedder(vectors, settings.llm, app.usage_recorder, settings.proxy_address)

    def cut(text: str, at: datetime | None) -> Sequence[SearchUnit]:
        if seed is None:
            return chunk_markdown(text, at)
        return chunks(text.splitlines(), tokens=seed.chunk_tokens, overlap=seed.chunk_overlap, at=at)

    documents = RecallEngine(embedder=embedder, seed=seed)
    files = FileRecall(
        app.home.path,
        documents,
        files=app.store.files,
        received=ReceivedFiles(app.store.transcripts),
        zone=app.locales.zone,
    )
    return ScopeRecall(
        app.home.path,
        memory=RecallEngine(embedder=embedder, seed=seed),
        documents=documents,
        read_document=_reader(asyncio.get_running_loop()),
        zone=app.locales.zone,
        history=app.store.history,
        turns=app.store.transcripts if seed is None else None,
        rows=app.store.documents,
        meaning=embedder,
        files=files,
        options=RecallOptions(
            interval=vectors.sync_interval_seconds,
            erasures=_ERASURES_EVERY if settings.store.shared else None,
            cut=cut,
            # [002] limits the number of results alone: ten whole chunks, and those beside the first ones.
            budget=RESULT_TOKENS if seed is None else 20 * seed.chunk_tokens,
        ),
    )


def search_limitation(app: Runtime) -> str:
    """Return the key of the sentence about a search by words alone; "" if it is by meaning too."""
    recall, vectors = app.recall, app.settings.tools.vector_memory
    if recall.last_error():
        return "commands.status_by_words"
    lacks_model = vectors.enabled and vectors.profile == "parlour" and not recall.has_model
    return "commands.status_no_meaning" if lacks_model else ""


def _embedder(
    vectors: VectorMemorySettings, llm: LlmSettings, recorder: UsageRecorder, proxy: str = ""
) -> GuardedEmbedder | None:
    if not vectors.enabled:
        return None
    if not vectors.embedding_model:
        return build_installed_embedder() if vectors.profile == "parlour" else None
    base, key = vectors.embedding_api_base, vectors.embedding_api_key
    if base is None:
        # As for transcription: the chat model's address and key are sent to its own provider alone.
        shared = llm.entry(vectors.embedding_model)
        base, key = shared.api_base, key or shared.api_key

    def note(model: str, tokens: int, cost: float | None) -> None:
        reply = ChatReply(text="", tool_calls=(), model=model, tokens=TokenUsage(input=tokens), cost=cost)
        recorder.note_call(ChatRequest(messages=(), turn="", purpose="embedding"), model, reply)

    return build_embedder(
        vectors.embedding_model,
        api_base=str(base or ""),
        api_key=key.get_secret_value() if key else "",
        on_usage=note,
        proxy=proxy,
    )


def _seed(vectors: VectorMemorySettings) -> SeedProfile:
    return SeedProfile(
        vector_weight=vectors.vector_weight,
        text_weight=vectors.text_weight,
        chunk_tokens=vectors.chunk_tokens,
        chunk_overlap=vectors.chunk_overlap,
        memory_half_life=_days(vectors.memory_half_life_days),
        docs_half_life=_days(vectors.docs_half_life_days),
    )


def _days(days: float) -> timedelta | None:
    return timedelta(days=days) if days else None


def _reader(loop: asyncio.AbstractEventLoop) -> Callable[[Path], str]:
    reader = SandboxedReader()

    def read(path: Path) -> str:
        form = {".htm": "html"}.get(path.suffix.lower(), path.suffix.lower().removeprefix("."))
        reading = reader.document(path.read_bytes(), form, _DOCUMENT_CHARS)
        return asyncio.run_coroutine_threadsafe(reading, loop).result().text

    return read
