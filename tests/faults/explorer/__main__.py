"""Explore what gateways do: steps drawn from a seed, faults among them, beside a model of what must be true.

python -m tests.faults.explorer --seed 1 --minutes 3 --gateways 3
python -m tests.faults.explorer --seed 1 --minutes 3 --engine sqlite --gateways 1

`--without link kill` leaves out those steps of a seed, so that a cause can be narrowed down. The trace has each step in
a line. The exit code is 1 if anything is wrong; then the homes are kept.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.fakes.postgres_server import open_server
from tests.faults.explorer.explorer_run import ExplorerPlan, ExplorerReport, ExplorerRun
from tests.faults.process_pool import open_zygote


def explore(plan: ExplorerPlan, engine: str, folder: Path) -> ExplorerReport:
    """Play *plan* in *folder* and return the report."""
    trace = folder / "trace.txt"
    with ExitStack() as stack:
        zygote = stack.enter_context(open_zygote())
        server = open_server() if engine == "postgresql" else None
        if server is not None:
            stack.callback(server.close)
        lines = stack.enter_context(trace.open("w", buffering=1))
        report = asyncio.run(ExplorerRun(plan, folder, zygote, server, lines).play())
    report.trace = trace
    return report


def main() -> int:
    """Run once and print the report."""
    parser = argparse.ArgumentParser(description="explore what gateways do, and check that nothing is wrong")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--gateways", type=int, default=3)
    parser.add_argument("--engine", choices=("postgresql", "sqlite"), default="postgresql")
    parser.add_argument(
        "--without", nargs="*", default=(), metavar="ACTION", help="steps to leave out, to find a cause"
    )
    chosen = parser.parse_args()
    if chosen.engine == "sqlite" and chosen.gateways != 1:
        parser.error("only one gateway uses a file: --gateways 1")
    plan = ExplorerPlan(
        seed=chosen.seed, minutes=chosen.minutes, gateways=chosen.gateways, without=frozenset(chosen.without)
    )
    folder = Path(tempfile.mkdtemp(prefix=f"explorer-{chosen.seed}-"))
    print(plan, flush=True)
    report = explore(plan, chosen.engine, folder)
    print(*report.lines(), sep="\n")
    return int(bool(report.wrong))


if __name__ == "__main__":
    sys.exit(main())
