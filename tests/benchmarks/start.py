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
from pathlib import Path

from tests.benchmarks.harness import median, row

RUNS = 5
IDLE_SECONDS = 3
LOADED_SECONDS = 15  # with a model, whose library is loaded after the start


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


def measure_start(variables: Mapping[str, str]) -> tuple[float, float]:
    """Start a gateway with *variables*; return the seconds until it is ready and its idle memory in MB."""
    with tempfile.TemporaryDirectory(prefix="parlour-bench-") as folder:
        return _one(Path(folder), variables)


def _one(folder: Path, variables: Mapping[str, str]) -> tuple[float, float]:
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
        seconds = time.perf_counter() - begun
        time.sleep(IDLE_SECONDS if not variables else LOADED_SECONDS)
        status = Path(f"/proc/{process.pid}/status").read_text("ascii")
        resident = re.search(r"VmRSS:\s+(\d+) kB", status)
        return seconds, int(resident[1]) / 1024 if resident else float("nan")
    finally:
        process.terminate()
        process.wait(timeout=30)


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
