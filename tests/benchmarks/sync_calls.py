"""Point 7: the benchmark of point 6 really syncs. The same turns, watched by strace from outside."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from gateway.logs import configure_logs
from tests.benchmarks.harness import row
from tests.benchmarks.turns import burst, closed_turns
from tests.fakes.inprocess_gateway import InstantModel, gateway

CHATS, EACH = 20, 10
_SYNC = re.compile(r"\b(?:fsync|fdatasync)\(\d+<([^>]*)>")


def honest() -> None:
    """Count the syncs of the journal's log and of the transcripts beside the batches that the writer committed."""
    strace = shutil.which("strace")
    if strace is None:
        row("honest", skipped="strace is not installed")
        return
    with tempfile.TemporaryDirectory(prefix="parlour-bench-") as folder:
        trace = Path(folder) / "trace"
        command = [strace, "-f", "-y", "-qq", "-e", "trace=fsync,fdatasync", "-o", str(trace)]
        command += [sys.executable, "-m", "tests.benchmarks.sync_calls"]
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603 - ourselves
        synced = _SYNC.findall(trace.read_text("utf-8", "replace"))
    commits, closed = (int(figure) for figure in said.split())
    journal = sum(path.endswith("journal.db-wal") for path in synced)
    row(
        "syncs seen by strace",
        turns=CHATS * EACH,
        commits=commits,
        journal_syncs=journal,
        per_commit=journal / commits,
        transcript_syncs=sum(path.endswith(".jsonl") for path in synced),
        transcripts_closed=closed,
    )


async def _watched() -> None:
    """Do the turns; print how many batches were committed and how many turns the files hold."""
    async with gateway(model=InstantModel()) as bench:
        await burst(bench, CHATS, EACH)
        await bench.idle()
        commits = (await bench.app.store.journal.depth())["commits"]
        closed = closed_turns(bench)
    print(commits, closed)


if __name__ == "__main__":
    configure_logs(level="error", form="text", secrets=())
    asyncio.run(_watched())
