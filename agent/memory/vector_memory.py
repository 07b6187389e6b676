"""`VectorMemoryManager` of [002]: search of a workspace's memory and documents, for programs without a gateway."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from agent.base.disk import read_text
from agent.memory.history.folder_store import FolderHistory, is_mirrored
from agent.memory.search.recall_engine import RecallEngine
from agent.memory.search.result_selection import SeedProfile
from agent.memory.search.scope_recall import RecallOptions, ScopeRecall
from agent.memory.search.search_unit import MEMORY, SearchOptions, SearchUnit, chunks

if TYPE_CHECKING:
    from agent.memory.search.embedding import Embedder  # numpy: only where there are vectors

_OPTIONS = ("chunk_tokens", "chunk_overlap", "vector_weight", "text_weight")


class VectorMemoryManager:
    """Hybrid search over `memory/` (the project `_memory`) and `docs/<project>/` of a workspace, ranked as [002] does.

    *config* is any object with the fields of `tools.vector_memory`; a missing field has its default. Without an
    *embedder*, words alone are compared. Call `close` at the end.
    """

    def __init__(
        self, workspace: Path, config: object = None, *, embedder: Embedder | None = None, zone: str = "UTC"
    ) -> None:
        self.workspace = Path(workspace)
        self.memory_dir = self.workspace / "memory"
        self.docs_dir = self.workspace / "docs"
        # A gateway's own indexes are left to it.
        self._indexes = TemporaryDirectory(prefix="parlour-index-") if is_mirrored(self.workspace) else None
        options = {name: getattr(config, name) for name in _OPTIONS if hasattr(config, name)}
        seed = SeedProfile(**options)
        self._recall = ScopeRecall(
            self.workspace,
            memory=RecallEngine(embedder=embedder, seed=seed),
            documents=RecallEngine(embedder=embedder, seed=seed),
            read_document=lambda path: read_text(path.read_bytes()),
            zone=lambda _: zone,
            history=FolderHistory(self.workspace),
            options=RecallOptions(
                interval=0,  # no background job looks for changed documents, so each search does
                cut=partial(_cut, seed),
                budget=20 * seed.chunk_tokens,
                indexes=Path(self._indexes.name) if self._indexes is not None else None,
            ),
        )

    async def search(self, query: str, project: str, max_results: int = 10) -> list[dict[str, Any]]:
        """Return the best chunks of *project*: `path`, `start_line`, `end_line`, `score` and `snippet`, best first."""
        hits = await self._recall.search("", query, SearchOptions(project=project, limit=max_results))
        return [
            {
                "path": hit.source,
                "start_line": hit.line,
                "end_line": hit.end or hit.line,
                "score": hit.score,
                "snippet": hit.text,
            }
            for hit in hits
        ]

    async def search_memory(self, query: str, max_results: int = 10) -> list[dict[str, Any]]:
        """Search memory files (project `_memory`)."""
        return await self.search(query, MEMORY, max_results)

    async def close(self) -> None:
        """Close the indexes."""
        await self._recall.close()
        if self._indexes is not None:
            self._indexes.cleanup()


def _cut(seed: SeedProfile, text: str, at: datetime | None) -> Sequence[SearchUnit]:
    return chunks(text.splitlines(), tokens=seed.chunk_tokens, overlap=seed.chunk_overlap, at=at)
