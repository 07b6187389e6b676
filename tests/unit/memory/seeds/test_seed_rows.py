"""README.md here lists what the seeds say and which test shows it: those tests are there, and none is left out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
TESTS = HERE.parents[2]
_NAMED = re.compile(r"`([\w/]+\.py)::(\w+|\*)`")
_SEEDS = ("000", "001", "002", "003", "004")


def rows() -> Iterator[list[str]]:
    """Yield the cells of every row of the tables."""
    for line in (HERE / "README.md").read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells and cells[0] not in ("section", "---"):
            yield cells


def names_in(path: Path) -> set[str]:
    """Return the names of the tests in a file."""
    found = ast.walk(ast.parse(path.read_text()))
    functions = (each.name for each in found if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
    return {name for name in functions if name.startswith("test_")}


def place(name: str) -> Path:
    """Return the file that the list means."""
    return HERE / name.removeprefix("seeds/") if name.startswith("seeds/") else TESTS / name


def test_every_test_that_is_named_is_there() -> None:
    """A row whose test is renamed or taken away is noticed here."""
    named = [found for cells in rows() for found in _NAMED.findall(cells[2])]
    assert len(named) > 90
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not place(file).is_file() or (test != "*" and test not in names_in(place(file)))
    ]
    assert missing == []


def test_a_row_without_a_test_says_what_it_waits_for() -> None:
    """Nothing is passed over in silence."""
    for cells in rows():
        assert len(cells) == 4, cells
        assert _NAMED.search(cells[2]) or cells[3], cells


def test_every_test_of_a_seed_stands_in_the_list() -> None:
    """What is tested here for a document's sake belongs to a row of it."""
    listed = {(file.removeprefix("seeds/"), test) for cells in rows() for file, test in _NAMED.findall(cells[2])}
    there = {
        (path.name, test)
        for path in HERE.glob("test_seed_*.py")
        if path.name != Path(__file__).name
        for test in names_in(path)
    }
    assert there - listed == set()


def test_every_seed_has_its_table() -> None:
    """Five documents, five headings."""
    headings = re.findall(r"^## (\d{3}), ", (HERE / "README.md").read_text(), re.MULTILINE)
    assert tuple(headings) == _SEEDS
