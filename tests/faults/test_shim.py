"""The instrument itself: what it counts, and what each of its faults looks like to the process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.faults.shim import ShimMode

PROGRAM = """
    import errno, json, os, socket, sys
    from pathlib import Path
    from tests.faults.shim import FaultShim, ShimMode

    root, mode, at = Path(sys.argv[1]), ShimMode(int(sys.argv[2])), int(sys.argv[3])
    inside, outside = root / "inside", root / "outside"
    listening = socket.create_server(("127.0.0.1", 0))
    shim = FaultShim()
    shim.watch(inside, root / "report")
    shim.arm(mode, at)
    seen = []

    def note(what, call):
        try:
            seen.append([what, call()])
        except OSError as error:
            seen.append([what, errno.errorcode[error.errno]])

    flags = os.O_CREAT | os.O_WRONLY
    quiet = os.open(outside / "file", flags)
    os.write(quiet, b"uncounted")
    os.fsync(quiet)
    one = os.open(inside / "file", flags)  # 1
    note("write", lambda: os.write(one, b"12345678"))  # 2
    note("fsync", lambda: os.fsync(one))  # 3
    note("rename", lambda: os.rename(inside / "file", inside / "other"))  # 4
    note("unlink", lambda: os.unlink(inside / "other"))  # 5
    client = socket.socket()
    note("connect", lambda: client.connect(listening.getsockname()))  # 6
    note("send", lambda: client.send(b"hello"))  # 7
    left, right = socket.socketpair()
    left.send(b"uncounted")
    shim.disarm()
    print(json.dumps({"seen": seen, "counted": shim.counted, "points": list(shim.points())}))
"""
CALLS = ["create", "write", "fsync", "rename", "unlink", "connect", "send"]


def run(folder: Path, library: Path, mode: ShimMode, at: int) -> tuple[int, Any]:
    """Run the program under the shim; return its exit and what it saw."""
    for name in ("inside", "outside"):
        (folder / name).mkdir()
    done = subprocess.run(  # noqa: S603 - the program above
        [sys.executable, "-c", dedent(PROGRAM), str(folder), str(int(mode)), str(at)],
        env={**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        timeout=30,
        check=False,
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else None


def test_it_counts_what_changes_the_folder_and_what_is_sent_and_nothing_else(tmp_path: Path, library: Path) -> None:
    """Every create, write, fsync, rename and unlink inside, every connect and send; nothing outside, no socket pair."""
    status, seen = run(tmp_path, library, ShimMode.COUNT, 0)
    assert status == 0
    assert [point.split()[0] for point in seen["points"]] == CALLS
    assert [result for _, result in seen["seen"]] == [8, None, None, None, None, 5]


@pytest.mark.parametrize("at", range(1, 8), ids=CALLS)
def test_it_kills_before_or_after_any_of_them(tmp_path: Path, library: Path, at: int) -> None:
    """The process dies by SIGKILL at exactly the chosen call, and the report names it."""
    for mode in (ShimMode.KILL_BEFORE, ShimMode.KILL_AFTER):
        folder = tmp_path / mode.name
        folder.mkdir()
        status, _ = run(folder, library, mode, at)
        assert status == -9
        assert (folder / "report").read_text().split()[:2] == [str(at), CALLS[at - 1]]
        if at == 2:
            assert (folder / "inside" / "file").read_bytes() == (b"" if mode is ShimMode.KILL_BEFORE else b"12345678")


STATES = """
    import os, sys
    from pathlib import Path
    from tests.faults.shim import FaultShim, ShimMode

    root = Path(sys.argv[1])
    shim = FaultShim()
    shim.watch(root / "inside", root / "report")
    shim.count_states()
    shim.arm(ShimMode.COUNT, 0)
    flags = os.O_CREAT | os.O_WRONLY
    log = os.open(root / "inside" / "journal.db-wal", flags)  # first of all: 1
    for _ in range(3):
        os.write(log, b"page")  # behind a new file: 2, then no more: the commit is not whole
    os.fsync(log)  # the commit is whole: 3
    os.write(log, b"page")  # as before
    one = os.open(root / "inside" / "file", flags)  # as before
    os.write(one, b"1")  # behind a new file: 4
    os.write(one, b"2")  # 5
    os.fsync(one)  # 6
    os.rename(root / "inside" / "file", root / "inside" / "other")  # as before the fsync
    os.fsync(one)  # 7
    os.fsync(one)  # as before
    shim.disarm()
    print(*shim.points(), sep=chr(10))
"""


def test_counting_states_it_leaves_out_what_a_kill_cannot_tell_apart(tmp_path: Path, library: Path) -> None:
    """A call counts if a kill before it leaves something else than a kill before the last that counted."""
    (tmp_path / "inside").mkdir()
    done = subprocess.run(  # noqa: S603 - the program above
        [sys.executable, "-c", dedent(STATES), str(tmp_path)],
        env={**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    points = [f"{kind} journal.db-wal" for kind in ("create", "write", "fsync")]
    assert done.stdout.splitlines() == [*points, "write file", "write file", "fsync file", "fsync other"]


FAULTS = [
    (ShimMode.NO_SPACE_ONCE, 2, "ENOSPC"),
    (ShimMode.NO_SPACE, 2, "ENOSPC"),
    (ShimMode.IO_ERROR, 2, "EIO"),
    (ShimMode.IO_ERROR, 3, "EIO"),
    (ShimMode.IO_ERROR, 4, "EIO"),
    (ShimMode.IO_ERROR, 6, "ECONNREFUSED"),
    (ShimMode.IO_ERROR, 7, "ECONNRESET"),
    (ShimMode.SHORT_WRITE, 2, 4),
]


@pytest.mark.parametrize(("mode", "at", "result"), FAULTS)
def test_a_fault_strikes_one_call_and_the_program_goes_on(
    tmp_path: Path, library: Path, mode: ShimMode, at: int, result: object
) -> None:
    """The chosen call fails as the kernel would let it; the next one succeeds again."""
    status, seen = run(tmp_path, library, mode, at)
    assert status == 0
    results = dict(seen["seen"])
    assert results.pop(CALLS[at - 1]) == result
    assert not [each for name, each in results.items() if isinstance(each, str) and name != "unlink" and at != 6]
