"""The shim from Python: built once per session, loaded by LD_PRELOAD, steered through ctypes."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
_POINT_LENGTH = 64


class ShimMode(IntEnum):
    """What happens at the chosen call; the numbers are shim.c's."""

    COUNT = 0
    KILL_BEFORE = 1
    KILL_AFTER = 2
    NO_SPACE_ONCE = 3
    NO_SPACE = 4  # from that call on, until disarmed
    IO_ERROR = 5  # once; a connection is refused or reset instead
    SHORT_WRITE = 6
    STOP = 7  # before every call, until somebody lets the process go on

    @property
    def kills(self) -> bool:
        """Say whether the process ends there."""
        return self in {ShimMode.KILL_BEFORE, ShimMode.KILL_AFTER}


class NoCompiler(Exception):
    """There is no gcc on this machine."""


def build(folder: Path) -> Path:
    """Compile the shim into *folder* and return the library; raises NoCompiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise NoCompiler("the fault tests need gcc (Debian: apt install gcc libc6-dev)")
    library = folder / "shim.so"
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-o",
        str(library),
        str(SOURCE),
        "-ldl",
    ]
    subprocess.run(command, check=True, timeout=60)  # noqa: S603 - our own source, no words of anybody else
    return library


class FaultShim:
    """The library as it is loaded in this process."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._library.shim_counted.restype = ctypes.c_long
        self._library.shim_struck.restype = ctypes.c_long

    def watch(self, folder: Path, report: Path) -> None:
        """Count what concerns *folder*; write the point that was struck to *report*."""
        self._library.shim_watch(os.fsencode(folder), os.fsencode(report))

    def count_states(self) -> None:
        """Count from now on only those calls before which a kill leaves another state than before the last counted."""
        self._library.shim_count_states()

    def arm(self, mode: ShimMode, at: int, of: str = "") -> None:
        """Count from one and let call number *at* fail, of those whose ``kind name`` begins with *of*."""
        self._library.shim_arm(ctypes.c_int(mode), ctypes.c_long(at), of.encode())

    def disarm(self) -> None:
        """Let everything pass again; there is space, too."""
        self._library.shim_disarm()

    @property
    def counted(self) -> int:
        """How many calls were counted since `arm`."""
        return int(self._library.shim_counted())

    @property
    def struck(self) -> int:
        """How many calls failed since `arm`."""
        return int(self._library.shim_struck())

    def points(self) -> Iterator[str]:
        """Yield every counted call as ``kind name``."""
        line = ctypes.create_string_buffer(_POINT_LENGTH)
        for n in range(1, self.counted + 1):
            self._library.shim_point(ctypes.c_long(n), line)
            yield line.value.decode("utf-8", "replace")
