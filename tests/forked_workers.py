"""Workers of pytest-xdist that share one import of everything: one process collects the tests, then forks each worker.

Importing the tests takes ten seconds of CPU, and twice that where no module was rewritten yet: once now, not in each
worker. A worker still collects, which takes a second when its modules are there.

    python tests/forked_workers.py serve SOCKET [pytest's arguments]     that process, until its standard input ends
    python tests/forked_workers.py work SOCKET     a worker: gives its standard streams to the fork, and ends with it
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_SCRIPT = Path(__file__)
_STREAMS = 3


def command_of_a_worker(path: str) -> str:
    """Return the command for `XSpec.python` that starts a worker; *path* is the socket of the process that forks."""
    return shlex.join([sys.executable, "-I", "-S", str(_SCRIPT), "work", path])


def serve(path: str, arguments: Sequence[str]) -> None:
    """Collect the tests of *arguments*, then fork a worker for each connection."""
    import gc

    import pytest

    sys.path.insert(0, str(_SCRIPT.parents[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends after the workers, which are interrupted
    written = os.dup(1)
    # What cannot be collected is reported by the workers, which try again; what can is a list of half a thousand lines.
    os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 1)
    pytest.main([*arguments, "--collect-only", "-qq", "-n0", "-p", "no:cacheprovider"])
    gc.collect()
    gc.freeze()  # the workers share these pages
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        os.write(written, b"ready\n")
        while 0 not in select.select([0, listening.fileno()], [], [])[0]:
            connection, _ = listening.accept()
            _, streams, _, _ = socket.recv_fds(connection, 1, _STREAMS)
            pid = os.fork()
            if not pid:
                _work(streams, (written, listening.detach(), connection.detach()))
            for stream in streams:
                os.close(stream)
            connection.sendall(b"%d\n" % pid)  # its number stays its own, since nobody waits for it
            connection.close()


def _work(streams: Sequence[int], foreign: Sequence[int]) -> None:
    """Be what execnet starts: a process that runs what comes on standard input. Does not return."""
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        for descriptor in (*streams, *foreign):
            os.close(descriptor)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.stdin = os.fdopen(0, closefd=False)
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(eval(sys.stdin.readline()), main.__dict__)  # noqa: S102, S307 - execnet's protocol
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def hand_over(path: str) -> None:
    """Have a worker forked that has our standard streams, and wait for its end."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        socket.send_fds(connection, [b"."], range(_STREAMS))
        worker = os.pidfd_open(int(connection.recv(16)))
    select.select([worker], [], [])


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], sys.argv[3:])
    else:
        hand_over(sys.argv[2])
