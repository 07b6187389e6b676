"""A real PostgreSQL server for tests: on a socket in a temporary folder, killed with the process that made it.

PARLOUR_TEST_DATABASE_URL names another one, where each worker of the tests makes a database for itself.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus

_SECONDS = 30.0
_ALONE, _CHILDREN_TOO = (11, 12), (11, 12, 13, 14)  # fields of /proc/<pid>/stat behind the name
EMPTY = (
    "SELECT string_agg(statement, ';') FROM (SELECT format('DELETE FROM %I', tablename) AS statement FROM pg_tables "
    "WHERE schemaname = 'public' AND tablename != 'schema_version' AND tablename NOT LIKE 'scope_piece_%' UNION ALL "
    "SELECT format('ALTER SEQUENCE %I RESTART', sequencename) FROM pg_sequences WHERE last_value IS NOT NULL) AS each"
)
_DROP = "DROP DATABASE IF EXISTS {} (FORCE)"
_CUT = (
    "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity "
    "WHERE application_name = 'parlour' AND datname = current_database()"
)


def _programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


def _ticks(pid: int, *fields: int) -> int:
    values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(values[field]) for field in fields)


class NoPostgres(Exception):
    """There is no server to test with."""


class PostgresServer:
    """One database: of a server that is ours to kill, or of one that is named."""

    def __init__(self, url: str = "", name: str = "") -> None:
        """Make a server, which `start` starts; with *url* use one that runs, and in it the database *name*."""
        self._named = url
        self._name = name or f"parlour_test_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
        self.url = url and make_conninfo(url, dbname=self._name)
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._session: psycopg.Connection[Any] | None = None
        if url:
            return
        programs = _programs()
        if programs is None:
            raise NoPostgres("PostgreSQL is missing: apt install postgresql, or set PARLOUR_TEST_DATABASE_URL")
        self._programs = programs
        self._folder = Path(tempfile.mkdtemp(prefix="parlour-pg-"))  # a short path: a socket's name has 107 bytes
        self.url = make_conninfo(host=str(self._folder), user="parlour", dbname="postgres")
        self._user = ["setpriv", "--pdeathsig", "SIGQUIT"]
        if os.geteuid() == 0:  # which PostgreSQL refuses
            owner = pwd.getpwnam("nobody")
            os.chown(self._folder, owner.pw_uid, owner.pw_gid)
            self._user += [f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups"]
        # Text is ordered as people order it, unless a column says otherwise, as on most servers.
        words = "--no-sync --auth=trust --username=parlour --encoding=UTF8 --locale-provider=icu --icu-locale=en-US"
        self._run("initdb", *words.split(), "--locale=C.UTF-8", "--pgdata", str(self._folder / "data"))

    def _run(self, program: str, *words: str) -> None:
        command = [*self._user, str(self._programs / program), *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/")  # noqa: S603 - our own command

    def _run_tool(self, program: str, *words: str) -> None:
        folder = _programs()
        command = [str(folder / program) if folder is not None else program, *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - our own command

    @property
    def is_ours(self) -> bool:
        """Return True for a server that a test may kill, and whose files it may read."""
        return self._folder is not None

    def files_with(self, word: bytes) -> list[Path]:
        """Return the files of tables and indices that hold *word*."""
        return [file for file, data in self.table_files() if word in data]

    def table_files(self) -> Iterator[tuple[Path, bytes]]:
        """Yield the files of tables and indices of all databases, with their bytes."""
        assert self._folder is not None
        for file in (self._folder / "data/base").glob("*/*"):
            if file.is_file():
                yield file, file.read_bytes()

    @property
    def address(self) -> str:
        """Return the address as `store.url` has it."""
        return self._address_of(str(conninfo_to_dict(self.url)["dbname"]))

    def _address_of(self, name: str) -> str:
        parts = {key: value for key, value in conninfo_to_dict(self.url).items() if key != "dbname"}
        return f"postgresql:///{name}?{urlencode(parts)}"

    def cpu_seconds(self) -> float:
        """Return the processor time of all the server's processes that run or have ended."""
        assert self._process is not None
        ticks = _ticks(self._process.pid, *_CHILDREN_TOO) + sum(_ticks(child, *_ALONE) for child in self._children())
        return ticks / os.sysconf("SC_CLK_TCK")

    def _children(self) -> list[int]:
        assert self._process is not None
        found = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        return [int(pid) for pid in found.split()]

    def start(self) -> None:
        """Start the server, also after a kill, and wait until it answers."""
        if self._folder is None:
            self._name_database(_DROP, "CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8'")
            return
        settings = (
            "listen_addresses=",
            "shared_buffers=16MB",
            "max_connections=60",
            "fsync=on",
            "deadlock_timeout=100ms",
        )
        command = [*self._user, str(self._programs / "postgres"), "-D", str(self._folder / "data")]
        command += ["-k", str(self._folder), *(word for each in settings for word in ("-c", each))]
        until = time.monotonic() + _SECONDS
        while True:
            with (self._folder / "log").open("ab") as log:
                self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/")  # noqa: S603
            while self._process.poll() is None:
                try:
                    psycopg.connect(self.url).close()
                except psycopg.OperationalError:
                    time.sleep(0.02)
                else:
                    return
            # After a kill the last of its processes may still hold the data for a moment.
            if time.monotonic() > until:
                raise RuntimeError((self._folder / "log").read_text())
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill the whole server as a power cut does, without a word to anybody."""
        assert self._process is not None
        if self._session is not None:
            self._session.close()
        self._process.send_signal(signal.SIGSTOP)  # it starts no process while its processes are listed
        for pid in (self._process.pid, *self._children()):
            os.kill(pid, signal.SIGKILL)
        self._process.wait()

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Stop every process of the server while the block is open: sessions stay, and nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        stopped = [self._process.pid, *self._children()]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in reversed(stopped):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
        """End the server and remove its data."""
        if self._session is not None:
            self._session.close()
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
        if self._folder is not None:
            shutil.rmtree(self._folder)
        else:
            self._name_database(_DROP)

    def _name_database(self, *statements: str) -> None:
        with closing(psycopg.connect(self._named, autocommit=True)) as session:
            for statement in statements:
                session.execute(statement.format(self._name).encode())

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows of a statement, in a session that the tests keep open."""
        # A test that was interrupted in a query leaves a session that takes no other: it costs no other test.
        if self._session is not None and self._session.info.transaction_status is not TransactionStatus.IDLE:
            self._session.close()
        if self._session is None or self._session.closed:
            self._session = psycopg.connect(self.url, autocommit=True)
        cursor = self._session.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []

    def empty(self) -> None:
        """Remove every row, and number from 1 again."""
        ((statements,),) = self.query(EMPTY)
        if statements:
            self.query(statements)

    def dump(self, file: Path, form: str = "custom") -> None:
        """Write a dump of the database, as an operator does; the form "plain" is text."""
        self._run_tool("pg_dump", f"--format={form}", f"--file={file}", f"--dbname={self.url}")

    def restore_dump(self, file: Path) -> str:
        """Make a database of a dump, which a later call replaces; return its address."""
        name = f"{self._name}_restored"
        for statement in (_DROP, "CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8'"):
            self.query(statement.format(name))
        self._run_tool("pg_restore", f"--dbname={make_conninfo(self.url, dbname=name)}", str(file))
        return self._address_of(name)

    def cut(self) -> None:
        """End the sessions of every gateway, and return when they have ended."""
        self.query(_CUT)


def open_server() -> PostgresServer:
    """Return the server to test with, which runs. Raises NoPostgres."""
    server = PostgresServer(os.environ.get("PARLOUR_TEST_DATABASE_URL", ""))
    server.start()
    return server
