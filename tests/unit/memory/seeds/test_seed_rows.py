"""docs/adr/seeds.md lists what the seeds say and which test shows it: those tests are there, and none is left out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
TESTS = HERE.parents[2]
PAGE = TESTS.parent / "docs" / "adr" / "seeds.md"
_NAMED = re.compile(r"`([\w/]+\.py)::(\w+|\*)`")
_SEEDS = ("000", "001", "002", "003", "004")


def rows() -> Iterator[list[str]]:
    """Yield the cells of every row of the tables."""
    for line in PAGE.read_text("utf-8").splitlines():
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
    named = [found for cells in rows() for found in _NAMED.findall(cells[3])]
    assert len(named) > 90
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not place(file).is_file() or (test != "*" and test not in names_in(place(file)))
    ]
    assert missing == []


def test_every_row_is_here_or_different_for_a_reason() -> None:
    """Nothing is missing, and nothing is passed over in silence: each row has a test, each difference its reason."""
    for cells in rows():
        assert len(cells) == 4, cells
        assert _NAMED.search(cells[3]), cells
        assert cells[2] == "here" or re.fullmatch(r"different: \S.{4,}", cells[2]), cells


def test_every_test_of_a_seed_stands_in_the_list() -> None:
    """What is tested here for a document's sake belongs to a row of it."""
    listed = {(file.removeprefix("seeds/"), test) for cells in rows() for file, test in _NAMED.findall(cells[3])}
    there = {
        (path.name, test)
        for path in HERE.glob("test_seed_*.py")
        if path.name != Path(__file__).name
        for test in names_in(path)
    }
    assert there - listed == set()


def test_every_seed_has_its_table() -> None:
    """Five documents, five headings."""
    headings = re.findall(r"^## (\d{3}), ", PAGE.read_text("utf-8"), re.MULTILINE)
    assert tuple(headings) == _SEEDS
