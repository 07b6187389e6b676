"""A workspace file is the old one or the new one after a kill at any call, and the same call again completes it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.faults.workspace_kills import CHANGES, KILLED

NAMES = {"create": "a/new.txt", "unmark": "theirs.txt", "restore": "old.txt"}
KEEPS_OLD = {"replace", "mark", "unmark", "delete"}


def test_a_kill_at_any_call_loses_nothing() -> None:
    """No torn file, nothing else changed, what was replaced restorable exactly once, and no append twice."""
    command = [sys.executable, "-m", "tests.faults.workspace_kills"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])  # noqa: S603
    runs: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in done.stdout.splitlines():
        runs[json.loads(line)["change"]].append(json.loads(line))
    assert set(runs) == set(CHANGES)
    for change, kills in runs.items():
        name = NAMES.get(change, "a/kept.txt")
        finished = kills[-1]
        assert finished["code"] == 0
        assert [each["code"] for each in kills[:-1]] == [KILLED] * (len(kills) - 1)
        assert len(kills) > 4, change
        for each in kills:
            where = (change, each["n"])
            old, new = each["before"]["files"].get(name), finished["killed"]["files"].get(name)
            assert each["killed"]["files"].get(name) in (old, new), where
            others = {other: value for other, value in each["before"]["files"].items() if other != name}
            assert {other: value for other, value in each["killed"]["files"].items() if other != name} == others, where
            assert each["again"]["files"] == finished["killed"]["files"], where
            # The bytes that were there are a file or in the trash at every moment, and once at the end.
            assert each["again"]["deleted"] == finished["killed"]["deleted"], where
            assert each["left"] == [], where
        gained = len(finished["killed"]["deleted"]) - len(finished["before"]["deleted"])
        assert gained == (1 if change in KEEPS_OLD else -1 if change == "restore" else 0), change
