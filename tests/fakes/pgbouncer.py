"""A real PgBouncer in front of a test's server."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from tests.fakes.gateway import free_port
from tests.fakes.postgres_server import PostgresServer

PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def open_pooler(server: PostgresServer, mode: str) -> Iterator[str]:
    """Run PgBouncer in pool mode *mode*; yield the address of *server* through it."""
    assert PROGRAM is not None
    parameters, port = conninfo_to_dict(server.url), free_port()
    folder = Path(tempfile.mkdtemp(prefix="parlour-pgb-"))
    (folder / "users").write_text('"parlour" ""\n')
    (folder / "ini").write_text(
        f"[databases]\n* = host={parameters['host']} user=parlour\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nunix_socket_dir =\nauth_type = trust\nauth_file = {folder}/users\n"
        f"pool_mode = {mode}\nlogfile = {folder}/log\n"
    )
    command = ["setpriv", "--pdeathsig", "SIGKILL"]
    if os.geteuid() == 0:  # which PgBouncer refuses
        owner = pwd.getpwnam("nobody")
        os.chown(folder, owner.pw_uid, owner.pw_gid)
        for file in folder.iterdir():
            os.chown(file, owner.pw_uid, owner.pw_gid)
        command += [f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups"]
    process = subprocess.Popen([*command, PROGRAM, "--quiet", str(folder / "ini")], cwd="/")  # noqa: S603
    try:
        until = time.monotonic() + 10
        while not _is_open(port):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < until
            time.sleep(0.02)
        yield f"postgresql://parlour@127.0.0.1:{port}/{parameters['dbname']}"
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)
