"""docs/attacks.md is complete and true: every attack has one row, every test that a row names is there."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/attacks.md").read_text("utf-8")
OUTCOMES = ("stopped", "not applicable", "succeeded")


@dataclass(frozen=True, slots=True)
class AttackRow:
    """A row of the page's table."""

    numbers: tuple[int, ...]
    outcome: str
    missing: str  # what Parlour lacks, of an attack that is not applicable
    tests: tuple[str, ...]  # path::function


def attack_rows() -> list[AttackRow]:
    """Return the rows of the table in their order."""
    rows = []
    for line in PAGE.splitlines():
        if re.match(r"\| [0-9]", line):
            number, _, outcome, tests = (cell.strip() for cell in line.strip("|").split(" | "))
            first, _, last = number.partition("-")
            name, _, missing = outcome.partition(": ")
            rows.append(
                AttackRow(
                    numbers=tuple(range(int(first), int(last or first) + 1)),
                    outcome=name,
                    missing=missing,
                    tests=tuple(re.findall(r"`([^`]+)`", tests)),
                )
            )
    return rows


ROWS = attack_rows()


@cache
def functions_in(path: str) -> frozenset[str]:
    """Return the names of the functions of a module of the project; none if there is no such file."""
    file = ROOT / path
    if not file.is_file():
        return frozenset()
    nodes = ast.parse(file.read_text("utf-8")).body
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_attack_has_one_row() -> None:
    """The numbers of the threat model, 1 to 90, and those of attacks that were found later, in their order."""
    numbers = [number for row in ROWS for number in row.numbers]
    assert numbers == list(range(1, max(90, len(numbers)) + 1))


def test_every_row_has_an_outcome_and_tests_that_exist() -> None:
    """A test that is renamed or removed is noticed here, as is a row without a test or without its reason."""
    for row in ROWS:
        assert row.outcome in OUTCOMES, row
        assert bool(row.missing) == (row.outcome == "not applicable"), row
        assert row.tests, row
        for test in row.tests:
            path, _, function = test.partition("::")
            assert function in functions_in(path), test


def test_the_counts_are_those_of_the_rows() -> None:
    """The first figures of the page; no attack succeeds."""
    counted = Counter(row.outcome for row in ROWS for _ in row.numbers)
    assert counted["succeeded"] == 0
    figures = ", ".join(f"{outcome} {counted[outcome]}" for outcome in OUTCOMES)
    assert f"Of {counted.total()} attacks: {figures}." in PAGE
