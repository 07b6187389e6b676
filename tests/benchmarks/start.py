"""Point 6: from the command to a ready page, and the memory of an idle gateway. Whole processes."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.harness import median, row
from tests.benchmarks.long_conversations import ConversationSizes, live

RUNS = 5
IDLE_SECONDS = 3
LOADED_SECONDS = 15  # with a model, whose library is loaded after the start


WITHOUT_TOOLS = {
    "PARLOUR_TOOLS__REMINDERS": "false",
    "PARLOUR_TOOLS__FILES": "false",
    "PARLOUR_TOOLS__WEB__FETCH": "false",
    "PARLOUR_TOOLS__CODE__COMPUTE": "false",
}


CHATS_OF_MANY, TURNS_OF_MANY = 1_000, 100
_TURNS = "WITH RECURSIVE turns (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM turns WHERE n < ?2)"
_ROWS_OF_TURNS = (
    "INSERT INTO inbox (key, state, turn, sender, sent_at, message_id, length, alone, role, accepted_at, ended_at,"
    " payload) SELECT 'pocket:c' || (n % 1000), 'answered', 't' || n, 'u', ?1, n, 100, 0, 'member', ?1, ?1,"
    " printf('%.400c', 'x') FROM turns",
    "INSERT INTO dedupe (name, revision, seq) SELECT 'pocket:c' || (n % 1000) || ':' || n, '', n FROM turns",
    "INSERT INTO outbox (id, key, ended_at, payload) SELECT 't' || n || '.1', 'pocket:c', ?1, printf('%.300c', 'x')"
    " FROM turns",
    "INSERT INTO usage (turn, person, chat, purpose, model, tokens_in, tokens_out, tokens_cached, cost, at) SELECT"
    " 't' || n, 'pocket:u', 'pocket:c', 'answer', 'instant', 10, 10, 0, 0.0, ?1 FROM turns",
)


@dataclass(frozen=True, slots=True)
class GatewayStart:
    """Wall and CPU seconds until the gateway was ready, and its idle memory."""

    seconds: float
    cpu: float
    megabytes: float


def start() -> None:
    """Start the gateway as a process several times; it is ready when /readyz says so."""
    ready: list[float] = []
    memory: list[float] = []
    for _ in range(RUNS):
        seconds, megabytes = measure_start({})
        ready.append(seconds)
        memory.append(megabytes)
    row("start to ready, offline model", median_s=median(ready), worst_s=max(ready))
    row("idle memory, offline model", median_mb=median(memory), worst_mb=max(memory))


def compare_tools() -> None:
    """Start it with and without its tools in turn: what they take of CPU until it is ready, and of idle memory."""
    starts: dict[str, list[GatewayStart]] = {"on": [], "off": []}
    with tempfile.TemporaryDirectory(prefix="parlour-bench-") as folder:
        for run in range(2 * RUNS + 2):
            name = ("on", "off")[run % 2]
            starts[name].append(_one(Path(folder) / f"{run}", WITHOUT_TOOLS if name == "off" else {}))
    cpu = {name: min(each.cpu for each in found[1:]) for name, found in starts.items()}
    memory = {name: min(each.megabytes for each in found[1:]) for name, found in starts.items()}
    row("start with tools, without", cpu_ms=cpu["on"] * 1e3, without_ms=cpu["off"] * 1e3)
    row("  more with tools (least of each)", cpu_ms=(cpu["on"] - cpu["off"]) * 1e3, mb=memory["on"] - memory["off"])


def start_of_many() -> None:
    """Start on a home of 1,000 chats with 200 messages each, whose files are not in the page cache."""
    with tempfile.TemporaryDirectory(prefix="parlour-bench-") as folder:
        home = Path(folder) / "home"
        asyncio.run(live(home, ConversationSizes(CHATS_OF_MANY, 2 * TURNS_OF_MANY)))
        _fill_journal(home / "journal.db")
        _one(Path(folder), {})  # makes what a home has from its first start on
        starts: list[GatewayStart] = []
        for _ in range(RUNS):
            _drop_pages(home)
            starts.append(_one(Path(folder), {}))
        size = (home / "journal.db").stat().st_size
    row(
        "start to ready, 1,000 chats x 200, cold",
        median_s=median([each.seconds for each in starts]),
        cpu_s=median([each.cpu for each in starts]),
        journal_mb=size / 1e6,
    )


def _fill_journal(journal: Path) -> None:
    """Add the rows that the turns of yesterday have left: about as large, and as many."""
    yesterday = (time.time() - 86_400) * 1_000_000
    with closing(sqlite3.connect(journal)) as database, database:
        for statement in _ROWS_OF_TURNS:
            database.execute(
                f"{_TURNS} {statement}",
                (int(yesterday), CHATS_OF_MANY * TURNS_OF_MANY),
            )


def _drop_pages(folder: Path) -> None:
    """Have the system read the files of *folder* from the disk again."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def measure_start(variables: Mapping[str, str]) -> tuple[float, float]:
    """Start a gateway with *variables*; return the seconds until it is ready and its idle memory in MB."""
    with tempfile.TemporaryDirectory(prefix="parlour-bench-") as folder:
        found = _one(Path(folder), variables)
        return found.seconds, found.megabytes


def _one(folder: Path, variables: Mapping[str, str]) -> GatewayStart:
    port = _free_port()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PARLOUR_")},
        "PARLOUR_HOME": str(folder / "home"),
        "PARLOUR_WEB__PORT": str(port),
        **variables,
    }
    begun = time.perf_counter()
    process = subprocess.Popen(  # noqa: S603 - the command beside this interpreter
        [str(Path(sys.executable).with_name("parlour")), "run"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not _is_ready(port):
            if process.poll() is not None:
                raise SystemExit("the gateway ended before it was ready")
            time.sleep(0.01)
        seconds, cpu = time.perf_counter() - begun, _cpu_seconds(process.pid)
        time.sleep(LOADED_SECONDS if any("LLM" in name for name in variables) else IDLE_SECONDS)
        status = Path(f"/proc/{process.pid}/status").read_text("ascii")
        resident = re.search(r"VmRSS:\s+(\d+) kB", status)
        return GatewayStart(seconds, cpu, int(resident[1]) / 1024 if resident else float("nan"))
    finally:
        process.terminate()
        process.wait(timeout=300)


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of all threads of a process."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((each / "schedstat").read_text("ascii").split()[0]) for each in threads) / 1e9


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
