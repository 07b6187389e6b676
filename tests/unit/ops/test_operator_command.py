"""How an operator is told to type a command: as it works where this process runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway import installation
from gateway.i18n import FOLDER, catalogue_path, read_catalogue
from gateway.installation import operator_command, with_operator_commands


@pytest.mark.parametrize(
    ("has_makefile", "is_container", "init", "run", "doctor", "loss"),
    [
        (True, False, "make init", "make run", ".venv/bin/parlour doctor", ".venv/bin/parlour accept-loss"),
        # A folder with sources in somebody's own container.
        (True, True, "make init", "make run", ".venv/bin/parlour doctor", ".venv/bin/parlour accept-loss"),
        (
            False,
            True,
            "docker compose run --rm parlour init",
            "docker compose up --detach",
            "docker compose exec parlour parlour doctor",
            "docker compose run --rm parlour accept-loss",
        ),
        (False, False, "parlour init", "parlour run", "parlour doctor", "parlour accept-loss"),
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
    loss: str,
) -> None:
    """Make and the venv's command in a folder with our sources, compose in our image, the plain command elsewhere."""
    if has_makefile:
        (tmp_path / "Makefile").touch()
        (tmp_path / ".venv/bin").mkdir(parents=True)
        (tmp_path / ".venv/bin/parlour").touch()
    monkeypatch.setattr(installation, "_MAKEFILE", tmp_path / "Makefile")
    monkeypatch.setattr(installation, "in_container", lambda _: is_container)
    commands = [operator_command(words, {}) for words in ("init", "run", "doctor", "accept-loss")]
    assert commands == [init, run, doctor, loss]
    error = "it is damaged; run `parlour accept-loss`, or ask `parlour doctor` and `ann's parlour`"
    assert with_operator_commands(error) == f"it is damaged; run `{loss}`, or ask `{doctor}` and `ann's parlour`"


@pytest.mark.parametrize("language", [path.stem for path in sorted(FOLDER.iterdir()) if "." in path.name])
def test_messages_to_people_name_the_command_that_works(language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner who is alerted in a chat can paste the command into the machine's terminal, in every language."""
    monkeypatch.setattr(installation, "operator_command", lambda words: f"here {words}")
    assert "`parlour doctor`" in catalogue_path(language).read_text(encoding="utf-8")
    messages = read_catalogue(language).messages.values()
    assert any("`here doctor`" in message for message in messages)
    assert not any("`parlour " in message for message in messages)
