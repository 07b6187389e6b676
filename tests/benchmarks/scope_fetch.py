"""How long a gateway takes to bring its copy of a scope up to date before a turn, where others write it too."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from agent.memory.storage.disk import Disk
from agent.memory.storage.scope_file_sync import ScopeFileSync
from gateway.ports.store import StoreLimits
from gateway.store.postgres import open_database
from tests.benchmarks.harness import percentile, row
from tests.fakes.postgres_server import open_server

SCOPES = 300
FILES, FILE_BYTES = 20, 3_750  # of each


async def measure() -> None:
    """Print the times of a copy that is current, that lacks one turn, and that does not exist."""
    server = open_server()
    with tempfile.TemporaryDirectory() as folder:
        homes = [Path(folder, name) for name in ("first", "second")]
        stores = [await open_database(server.url, StoreLimits(), shares=True) for _ in homes]
        syncs = []
        for home, store in zip(homes, stores, strict=True):
            home.mkdir()
            assert store.scope_files is not None
            syncs.append(ScopeFileSync(home, store.scope_files, with_documents=True))
            await syncs[-1].start()
        first, second = syncs
        scopes = [f"people/person-{number}" for number in range(SCOPES)]
        for scope in scopes:
            for number in range(FILES):
                path = homes[0] / scope / f"files/{number}.txt"
                path.parent.mkdir(parents=True, exist_ok=True)
                Disk().replace(path, b"x" * FILE_BYTES)
            Disk().replace(homes[0] / scope / "sessions/a.jsonl", b"{}\n")
            await first.save([scope])
        _print("no copy", await _times(second, scopes))
        _print("a copy that is current", await _times(second, scopes))
        for scope in scopes:
            transcript = Disk().open_append(homes[0] / scope / "sessions/a.jsonl")
            Disk().write(transcript, b'{"a turn": "of some lines"}\n' * 3)
            Disk().close(transcript)
            await first.save([scope])
        _print("a copy that lacks a turn", await _times(second, scopes))
        for sync, store in zip(syncs, stores, strict=True):
            await sync.close()
            await store.close()
    server.close()


async def _times(sync: ScopeFileSync, scopes: Sequence[str]) -> list[float]:
    times = []
    for scope in scopes:
        begun = time.perf_counter()
        await sync.fetch(scope)
        times.append((time.perf_counter() - begun) * 1e3)
    return times


def _print(name: str, times: Sequence[float]) -> None:
    row(f"fetching a scope: {name}", p50_ms=percentile(times, 0.5), p99_ms=percentile(times, 0.99))
