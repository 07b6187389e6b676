"""A disk that is full is one line, on an empty home and for a backup."""

from __future__ import annotations

import os
from pathlib import Path

from gateway.preflight import open_home
from tests.fakes.forked_command import fork_command
from tests.faults.process_pool import ForkServer


async def parlour(zygote: ForkServer, tmp_path: Path, *command: str) -> tuple[int, str]:
    """Run a command while the disk of *tmp_path* is full; return its exit code and what it says."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PARLOUR_")}
    kept |= {"PARLOUR_HOME": str(tmp_path / "home"), "PARLOUR_WEB__PORT": "0"}
    process = await fork_command(zygote, ("-m", "tests.faults.full_disk", str(tmp_path), *command), kept)
    assert process.stdout is not None
    said = await process.stdout.read()
    return await process.wait(), said.decode()


async def test_a_full_disk_is_one_line_on_an_empty_home(zygote: ForkServer, tmp_path: Path) -> None:
    """No traceback: what is full, and what to do. Commands that read refuse an empty home (test_home_and_store.py)."""
    (tmp_path / "home").mkdir(mode=0o700)
    code, said = await parlour(zygote, tmp_path, "run")
    assert code != 0
    assert "Traceback" not in said
    last = said.strip().splitlines()[-1]
    assert last.startswith("parlour: ")
    assert "full" in last
    assert "No space left" in last


async def test_a_backup_on_a_full_disk_is_one_line(zygote: ForkServer, tmp_path: Path) -> None:
    """Of a home that is in use, too; nothing of the archive is left, and the home is as it was."""
    with open_home(tmp_path / "home") as home:
        (home.path / "note.md").write_text("text")
    code, said = await parlour(zygote, tmp_path, "backup", str(tmp_path / "x.tar.gz"))
    assert code != 0
    assert "Traceback" not in said
    assert "full" in said.strip().splitlines()[-1]
    assert not (tmp_path / "x.tar.gz").exists()
    assert (tmp_path / "home" / "note.md").read_text() == "text"
