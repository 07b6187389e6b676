"""An archive from elsewhere costs bounded memory, room and time, brings nothing that runs, and is listed first."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import subprocess
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.backup import FORMAT, MANIFEST, write_archive
from gateway.errors import UserError
from gateway.home import SCHEMA
from gateway.restore import RestoreLimits, restore
from tests.fakes.gateway import GatewayProcess, free_port
from tests.faults.process_pool import ForkServer

MEGABYTE = 1024 * 1024


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """Return a tar header."""
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.USTAR_FORMAT)


def bomb(target: Path, start: bytes, piece: bytes, size: int) -> Path:
    """Write *start* and then *size* bytes of *piece* into a .tar.gz."""
    with gzip.open(target, "wb", compresslevel=1) as out:
        out.write(start)
        for _ in range(size // len(piece) + 1):
            out.write(piece)
        out.write(bytes(1024))
    return target


def sparse(target: Path) -> Path:
    """Describe a file of a terabyte in which nothing stands."""
    records = b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n30 GNU.sparse.name=journal.db\n"
    records += b"34 GNU.sparse.realsize=1099511627776\n"
    data = header("x", len(records), tarfile.XHDTYPE) + records + bytes(-len(records) % 512) + header("x", 512)
    return bomb(target, data, bytes(512), 512)


def many_objects(target: Path) -> Path:
    """Write a list that is small enough and would make an object of every three bytes."""
    data = b'{"format":1,"x":[' + b"{}," * 20_000 + b"0]}"
    return bomb(target, header(MANIFEST, len(data)) + data + bytes(-len(data) % 512), bytes(512), 512)


def nested(target: Path) -> Path:
    """Write a list that is nested more deeply than Python calls."""
    data = b"[" * 900 + b"]" * 900
    return bomb(target, header(MANIFEST, len(data)) + data + bytes(-len(data) % 512), bytes(512), 512)


BOMBS: dict[str, Callable[[Path], Path]] = {
    "manifest": lambda target: bomb(target, header(MANIFEST, 64 * MEGABYTE), b"{}," * 100_000, 64 * MEGABYTE),
    "many-objects": many_objects,
    "nested": nested,
    "extended-header": lambda target: bomb(
        target, header("x", 64 * MEGABYTE, tarfile.XHDTYPE), bytes(MEGABYTE), 64 * MEGABYTE
    ),
    "long-name": lambda target: bomb(
        target, header("x", 64 * MEGABYTE, tarfile.GNUTYPE_LONGNAME), bytes(MEGABYTE), 64 * MEGABYTE
    ),
    "sparse": sparse,
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_an_archive_claims_is_not_read_into_memory(tmp_path: Path, name: str) -> None:
    """Lists, headers and sparse files of any claimed size: one line, a few megabytes, and nothing changed."""
    source = BOMBS[name](tmp_path / "bomb.tar.gz")
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match="nothing was changed") as refused:
            restore(source, tmp_path / "home")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "\n" not in str(refused.value)
    assert peak < 8 * MEGABYTE
    assert sorted(path.name for path in (tmp_path / "home").iterdir()) == ["lock"]


def backup_of(files: dict[str, bytes], target: Path) -> Path:
    """Write a backup that holds these files, as `parlour backup` would."""
    home = target.with_suffix(".home")
    for name, data in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_bytes(data)
    write_archive(home, target, schema=SCHEMA)
    return target


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (RestoreLimits(files=2), "contains more than 2 files"),
        (RestoreLimits(spare=1 << 60), "needs more space than the disk has"),
        (RestoreLimits(seconds=-1), "to unpack"),
        (RestoreLimits(manifest=100), "its manifest is too large"),
    ],
    ids=["files", "room", "time", "list"],
)
def test_an_archive_beyond_a_limit_changes_nothing(tmp_path: Path, limits: RestoreLimits, why: str) -> None:
    """Count, bytes and time are limited; the same archive within the limits is restored."""
    source = backup_of({f"people/a/files/{n}": b"x" for n in range(3)}, tmp_path / "b.tar.gz")
    with pytest.raises(UserError, match="nothing was changed") as refused:
        restore(source, tmp_path / "home", limits=limits)
    assert why in str(refused.value)
    assert sorted(path.name for path in (tmp_path / "home").iterdir()) == ["lock"]
    assert restore(source, tmp_path / "home") == 3


@pytest.mark.parametrize(
    "name", [".env", ".restore-x/y", "journal.stamp", "people/a/index.db", "/".join("a" * 33), "x\0y"]
)
def test_a_name_that_no_backup_takes_is_refused(tmp_path: Path, name: str) -> None:
    """What a backup leaves out cannot come in by a restore, whatever the archive's own list says."""
    data = b"x"
    listed = {name: {"size": 1, "sha256": "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"}}
    manifest = json.dumps({"format": FORMAT, "schema": SCHEMA, "files": listed}).encode()
    with tarfile.open(tmp_path / "evil.tar.gz", "w:gz") as archive:
        for each, content in ((name, data), (MANIFEST, manifest)):
            info = tarfile.TarInfo(each)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    if "\0" in name:  # the header ends there: then it is another file than the list names
        with pytest.raises(UserError, match="nothing was changed"):
            restore(tmp_path / "evil.tar.gz", tmp_path / "home")
        return
    with pytest.raises(UserError, match="names that no backup has"):
        restore(tmp_path / "evil.tar.gz", tmp_path / "home")


def hostile_home(script: Path) -> dict[str, bytes]:
    """Return files of a home whose git repositories run *script*, each in its own way."""
    config = (
        f"[core]\n\tbare = false\n\tworktree = ..\n\tfsmonitor = {script}\n[include]\n\tpath = /etc/evil\n".encode()
    )
    repository = {"HEAD": b"ref: refs/heads/main\n", "objects/aa/bb": b"", "refs/heads/other": b""}
    memory = "people/telegram%3a42/memory/.git"
    return {
        **{f"{memory}/{name}": data for name, data in repository.items()},
        f"{memory}/config": config,
        f"{memory}/hooks/post-commit": b"#!/bin/sh\n",
        f"{memory}/config.worktree": config,
        f"{memory}/objects/info/alternates": b"/elsewhere/objects\n",
        f"{memory}/info/attributes": b"* filter=evil\n",
        **{f"people/telegram%3a42/files/bare.git/{name}": data for name, data in repository.items()},
        "people/telegram%3a42/files/bare.git/config": config,
        "docs/project/.git": b"gitdir: /elsewhere\n",
        "docs/project/README.md": b"# Words\n",
        "people/telegram%3a42/memory/MEMORY.md": b"- tea\n",
        "parlour.yaml": b"llm:\n  model: openai/x\n  api_base: http://evil.test/v1\n",
        "autostart.sh": b"#!/bin/sh\n",
    }


def test_nothing_in_a_restored_repository_runs(tmp_path: Path) -> None:
    """Configuration is rewritten; hooks, includes, alternates, attributes and links elsewhere are gone; data stays."""
    ran, script = tmp_path / "ran", tmp_path / "script"
    script.write_text(f"#!/bin/sh\ntouch {ran}\n")
    script.chmod(0o700)
    source = backup_of(hostile_home(script), tmp_path / "b.tar.gz")
    home = tmp_path / "home"
    restore(source, home)
    memory = home / "people" / "telegram%3a42" / "memory"
    assert sorted(str(path.relative_to(memory)) for path in memory.rglob("*") if path.is_file()) == [
        ".git/HEAD",
        ".git/config",
        ".git/objects/aa/bb",
        ".git/refs/heads/other",
        "MEMORY.md",
    ]
    assert not [path for path in home.rglob("config") if b"fsmonitor" in path.read_bytes()]
    assert not (home / "docs" / "project" / ".git").exists()
    assert (home / "docs" / "project" / "README.md").exists()
    if git := shutil.which("git"):
        before = tmp_path / "b.tar.home" / "people" / "telegram%3a42" / "memory"
        for place, has_run in ((before, True), (memory, False)):
            ran.unlink(missing_ok=True)
            subprocess.run([git, "status"], cwd=place, capture_output=True, check=False)  # noqa: S603 - git itself
            assert ran.exists() is has_run


async def test_what_a_backup_brings_is_listed_and_asked_for(tmp_path: Path, zygote: ForkServer) -> None:
    """Settings, unknown files and what was taken out are named before the question; "no" changes nothing."""
    source = backup_of(hostile_home(tmp_path / "script"), tmp_path / "b.tar.gz")
    home = tmp_path / "home"
    operator = GatewayProcess(home, free_port(), zygote)

    async def run(*words: str, answer: str = "") -> tuple[int, str]:
        return await operator.run_to_its_end("restore", str(source), *words, typed=answer)

    for answer in ("n\n", ""):
        code, said = await run(answer=answer)
        assert code != 0, said
        assert sorted(path.name for path in home.iterdir()) == ["lock"]
    code, said = await run(answer="y\n")
    assert code == 0, said
    for line in (
        "parlour.yaml: these settings will apply",
        "  llm.api_base = http://evil.test/v1",
        "  autostart.sh: unknown to Parlour: check it",
        "  people/telegram%3a42/memory/.git/config",
        "  people/telegram%3a42/memory/.git/hooks",
        "  docs/project/.git",
    ):
        assert line in said.splitlines(), said
    code, said = await run("--force", "--yes")
    assert code == 0, said
    assert "parlour.yaml: the existing file is kept; the settings file of the backup is not restored" in said
    assert "parlour.yaml: unknown to Parlour" not in said
