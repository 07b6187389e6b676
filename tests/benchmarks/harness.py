"""What benchmarks share: reading the process's own figures, and printing rows."""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path


def process_io(pid: int | str = "self") -> dict[str, int]:
    """Return the I/O counters of a process (Linux)."""
    pairs = (line.split(": ") for line in Path(f"/proc/{pid}/io").read_text("ascii").splitlines())
    return {name: int(value) for name, value in pairs}


@dataclass(slots=True)
class ProcessMeter:
    """Wall, CPU and bytes of this process between two moments."""

    wall: float = field(default_factory=time.perf_counter)
    cpu: float = field(default_factory=time.process_time)
    io: dict[str, int] = field(default_factory=process_io)

    def read(self) -> dict[str, float]:
        """Return what has gone by since: seconds, CPU seconds, bytes read and written by system calls."""
        now = process_io()
        return {
            "wall": time.perf_counter() - self.wall,
            "cpu": time.process_time() - self.cpu,
            "read": now["rchar"] - self.io["rchar"],
            "written": now["wchar"] - self.io["wchar"],
        }


def memory_mb() -> float:
    """Return the peak resident memory in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def percentile(values: Sequence[float], share: float) -> float:
    """Return the *share* quantile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def row(name: str, **figures: object) -> None:
    """Print one line of a table."""
    cells = "  ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in figures.items()
    )
    print(f"{name:<44} {cells}", flush=True)


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0))
