"""A move between the file and PostgreSQL that is killed at any step: one store has the messages, never both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from gateway.journal_file import StoreKind
from tests.fakes.postgres_server import PostgresServer
from tests.faults.matrix import IS_FULL
from tests.faults.store_migration_kills import KILLED, NEW, OLD


@pytest.mark.timeout(0 if IS_FULL else 240)
def test_a_move_killed_at_any_step_is_completed_by_the_same_command(postgres: PostgresServer) -> None:
    """Until one step the old store starts, and never the new one; then neither, or the new one. No row comes twice."""
    command = [sys.executable, "-m", "tests.faults.store_migration_kills", postgres.address]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PARLOUR_")}
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2], env=environment
    )
    assert done.returncode == 0, done.stderr
    runs: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            runs[json.loads(line)["kind"]].append(json.loads(line))
    assert set(runs) == set(StoreKind)
    for kind, kills in runs.items():
        old, new = OLD[StoreKind(kind)], NEW[StoreKind(kind)]
        assert [each["code"] for each in kills] == [KILLED] * (len(kills) - 1) + [0]
        order = [each["killed"] for each in kills]
        assert sorted(order, key=[[old], [], [new]].index) == order
        assert order[0] == [old]
        assert order[-1] == [new]
        assert order.count([]) in (1, 2, 3)
        for each in kills:
            where = (kind, each["n"])
            assert each["again"] == [new], where
            assert each["is_same"], where
            assert each["left"] == [], where
