"""How an operator is told to type a command: as it works where this process runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.ports import entry_points
from gateway.ports.entry_points import operator_command


@pytest.mark.parametrize(
    ("has_makefile", "is_container", "line"),
    [
        (True, False, "make init"),
        (True, True, "make init"),  # a folder with sources in somebody's own container
        (False, True, "docker compose run --rm parlour init"),
        (False, False, "parlour init"),
    ],
)
def test_the_command_that_sets_up_is_one_that_works_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_makefile: bool, is_container: bool, line: str
) -> None:
    """`make init` in a folder with our sources, compose in our image, the plain command elsewhere."""
    if has_makefile:
        (tmp_path / "Makefile").touch()
    monkeypatch.setattr(entry_points, "_MAKEFILE", tmp_path / "Makefile")
    monkeypatch.setattr(entry_points, "in_container", lambda _: is_container)
    assert operator_command("init") == line
