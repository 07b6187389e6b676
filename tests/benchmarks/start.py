"""Point 6: from the command to a ready page, and the memory of an idle gateway. Whole processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.harness import median, row

RUNS = 5
IDLE_SECONDS = 3
LOADED_SECONDS = 15  # with a model, whose library is loaded after the start


WITHOUT_TOOLS = {
    "PARLOUR_TOOLS__REMINDERS": "false",
    "PARLOUR_TOOLS__FILES": "false",
    "PARLOUR_TOOLS__WEB__FETCH": "false",
    "PARLOUR_TOOLS__CODE__COMPUTE": "false",
}


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
        process.wait(timeout=30)


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
