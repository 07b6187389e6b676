"""One process owns a home; it is private from its first byte, and its shape is known or refused."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.errors import HomeInUse, SchemaTooNew, UserError
from gateway.home import SCHEMA, Home, holder, is_held, short_socket_path
from gateway.preflight import JOURNALS, open_home
from gateway.restore import restore
from gateway.store.tables import VERSION

NEXT = SCHEMA + 1


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """A careless umask at first; open_home sets its own, and afterwards it is as it was."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    """Return a path's permissions."""
    return stat.S_IMODE(path.stat().st_mode)


def test_the_names_of_a_new_home_are_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut after the first start takes neither the home's own name nor those of the folders made for it."""
    synced: list[int] = []
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    with open_home(tmp_path / "deep" / "home"):
        pass
    parents = {path.stat().st_ino for path in (tmp_path, tmp_path / "deep")}
    assert parents <= set(synced)
    synced.clear()
    with open_home(tmp_path / "deep" / "home"):
        pass
    assert not parents & set(synced)


def test_what_a_killed_restore_left_is_cleaned_at_the_next_start(tmp_path: Path) -> None:
    """Unpacked and never swapped in, it would lie there for ever, with everything that a backup holds."""
    with open_home(tmp_path) as home:
        staging = home.path / ".restore-abc"
        (staging / "people").mkdir(parents=True)
        (staging / "people" / "note.md").write_text("private")
    with open_home(tmp_path):
        assert not staging.exists()


def test_everything_is_private_from_the_first_write(tmp_path: Path) -> None:
    """Attack 87: folders 0700, files 0600, under any umask, and what the process writes later too."""
    with open_home(tmp_path / "deep" / "home") as home:
        (home.path / "later").write_text("x")
        (home.path / "folder").mkdir()
        assert mode(home.path) == 0o700
        assert {mode(path) for path in (home.lock, home.schema, home.path / "later")} == {0o600}
        assert mode(home.path / "folder") == 0o700


@pytest.mark.parametrize(
    ("names", "expected"), [((), 0o700), (("parlour.yaml",), 0o700), (("schema",), 0o700), (("photos",), 0o755)]
)
def test_a_home_that_others_can_read_is_closed(tmp_path: Path, names: tuple[str, ...], expected: int) -> None:
    """A folder that was there before, empty or a home already, becomes private; a folder of other things does not."""
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    for name in names:
        (home / name).write_text(f"{SCHEMA}\n" if name == "schema" else "")
    with open_home(home):
        assert mode(home) == expected


def test_a_folder_that_many_share_keeps_its_rights(tmp_path: Path) -> None:
    """Whoever names a folder such as /tmp takes it away from nobody."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    with open_home(shared):
        assert mode(shared) == 0o1777


def test_a_second_owner_is_refused_with_the_first_ones_id(tmp_path: Path) -> None:
    """The lock is the kernel's: it says who holds the home, and falls when that process does."""
    holding = (
        "import sys; from pathlib import Path; from gateway.preflight import open_home\n"
        "with open_home(Path(sys.argv[1])):\n  print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", holding, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as first:  # noqa: S603 - our own interpreter
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        assert is_held(Home(tmp_path))
        with (
            pytest.raises(HomeInUse, match=f"in use by process {first.pid}; stop that process first"),
            open_home(tmp_path),
        ):
            pass
        first.kill()
    assert not is_held(Home(tmp_path))
    with open_home(tmp_path) as home:
        assert holder(home) == os.getpid()


@pytest.mark.parametrize("place", ["/dev/null", "/dev/null/home", "/proc/home"])
def test_a_home_that_cannot_be_is_one_line(place: str) -> None:
    """A file in the way, or a folder nobody may write: what to do is said, not a traceback."""
    with pytest.raises(UserError, match="set PARLOUR_HOME") as wrong, open_home(Path(place)):
        pass
    assert "\n" not in str(wrong.value)


def test_newer_data_is_refused_with_the_command_that_goes_back(tmp_path: Path) -> None:
    """One snapshot comes first, for all numbers in between; the older program names it, and it restores."""
    with open_home(tmp_path) as home:
        (home.path / "note.md").write_text("old")

    with open_home(tmp_path, schema=NEXT + 1) as home:
        (home.path / "note.md").write_text("new")
        assert home.schema.read_text() == f"{NEXT + 1}\n"
    with pytest.raises(SchemaTooNew) as refused, open_home(tmp_path):
        pass
    (snapshot,) = Home(tmp_path).backups.iterdir()
    assert f"`parlour restore {snapshot} --force`" in str(refused.value)
    assert mode(snapshot) == 0o600
    restore(snapshot, tmp_path, force=True)
    with open_home(tmp_path) as home:
        assert (home.path / "note.md").read_text() == "old"


def test_a_journal_that_changes_is_a_home_that_changes() -> None:
    """Whoever adds a migration of the journal adds a home schema, so that a snapshot is there to go back to."""
    assert JOURNALS[SCHEMA] == VERSION


def test_a_snapshot_that_was_cut_short_is_made_again(tmp_path: Path) -> None:
    """What the kill has left of the first one goes: it may be as large as the home."""
    with open_home(tmp_path) as home:
        home.backups.mkdir()
        (home.backups / f".before-schema-{NEXT}-20261129T070000Z.tar.gz.k3y").write_bytes(b"half")
    with open_home(tmp_path, schema=NEXT) as home:
        (snapshot,) = home.backups.iterdir()
    assert snapshot.name.startswith(f"before-schema-{NEXT}-")


def test_a_start_that_was_killed_behind_its_snapshot_is_repeated_at_once(tmp_path: Path) -> None:
    """The home still says the earlier schema, and a snapshot of the same second is there already."""
    with open_home(tmp_path) as home:
        before = home.schema.read_text()
    for _ in range(10):
        home.schema.write_text(before)
        with open_home(tmp_path, schema=NEXT):
            pass
    assert len([*home.backups.iterdir()]) == 10


def test_a_schema_that_is_no_number_is_refused(tmp_path: Path) -> None:
    """What cannot be read is not taken for new."""
    (tmp_path / "schema").write_text("")
    with pytest.raises(UserError, match="contains no schema number"), open_home(tmp_path):
        pass


def test_long_socket_paths_go_through_a_short_link(tmp_path: Path) -> None:
    """AF_UNIX ends at 107 bytes; a home may be deeper. The link is private and does not stay."""
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    with short_socket_path(deep / "control.sock") as address:
        link = Path(address).parent
        assert len(address) < 100
        assert link.resolve() == deep
        assert mode(link.parent) == 0o700
    assert not link.parent.exists()
    short = Path("/x/control.sock")
    with short_socket_path(short) as address:
        assert address == str(short)


def test_snapshots_hold_no_secret(tmp_path: Path) -> None:
    """What a migration puts aside leaves secrets where they are."""
    with open_home(tmp_path) as home:
        home.secrets.mkdir()
        (home.secrets / "LLM__API_KEY").write_text("canary")
    with open_home(tmp_path, schema=NEXT) as home:
        (snapshot,) = home.backups.iterdir()
        with tarfile.open(snapshot) as archive:
            assert not [name for name in archive.getnames() if "secrets" in name]
