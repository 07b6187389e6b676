"""How an operator is told to type a command: as it works where this process runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.ports import entry_points
from gateway.ports.entry_points import operator_command


@pytest.mark.parametrize(
    ("has_makefile", "is_container", "init", "run", "doctor"),
    [
        (True, False, "make init", "make run", ".venv/bin/parlour doctor"),
        # A folder with sources in somebody's own container.
        (True, True, "make init", "make run", ".venv/bin/parlour doctor"),
        (
            False,
            True,
            "docker compose run --rm parlour init",
            "docker compose up --detach",
            "docker compose exec parlour parlour doctor",
        ),
        (False, False, "parlour init", "parlour run", "parlour doctor"),
    ],
)
def test_a_command_is_named_as_it_works_here(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    has_makefile: bool,
    is_container: bool,
    init: str,
    run: str,
    doctor: str,
) -> None:
    """Make and the venv's command in a folder with our sources, compose in our image, the plain command elsewhere."""
    if has_makefile:
        (tmp_path / "Makefile").touch()
        (tmp_path / ".venv/bin").mkdir(parents=True)
        (tmp_path / ".venv/bin/parlour").touch()
    monkeypatch.setattr(entry_points, "_MAKEFILE", tmp_path / "Makefile")
    monkeypatch.setattr(entry_points, "in_container", lambda _: is_container)
    assert [operator_command(words, {}) for words in ("init", "run", "doctor")] == [init, run, doctor]
