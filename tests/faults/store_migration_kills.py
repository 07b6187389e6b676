"""Kill `parlour store migrate` before steps that change something, in both directions.

Every third step is played, and those right before the new store first starts; all of them with `CROSSINGS=full`.

Prints one JSON object for each kill: which store a gateway would start on afterwards, and what the same command leaves
when it runs again. Run by test_store_migration_killed.py in a process of its own, which has no threads and can be
forked. Argument: the address of an empty database.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import psycopg

from gateway.commands import store as store_commands
from gateway.commands.store import migrate_store
from gateway.events import SessionKey
from gateway.journal_file import StoreKind
from gateway.store.postgres.connection import PostgresConnection
from tests.fakes.moved_stores import Rows, rows_of_database, rows_of_file, startable
from tests.fakes.postgres_server import EMPTY
from tests.fakes.store import open_inline_store
from tests.fakes.turns import accept, answer, said
from tests.faults.matrix import IS_FULL

KILLED = 9
_CALLS = ("fsync", "link", "rename", "replace", "unlink", "mkdir", "rmdir")
OLD = {StoreKind.POSTGRESQL: "file", StoreKind.SQLITE: "database"}
NEW = {StoreKind.POSTGRESQL: "database", StoreKind.SQLITE: "file"}


def die_before(n: int) -> None:
    """End this process without any clean-up before the *n*-th step: of the disk, of the database, of a copy."""
    left = n

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                os._exit(KILLED)
            return real(*arguments, **options)

        return call

    for name in _CALLS:
        setattr(os, name, counted(getattr(os, name)))
    PostgresConnection.end_batch = counted(PostgresConnection.end_batch)  # type: ignore[method-assign]
    store_commands.seal = counted(store_commands.seal)  # type: ignore[attr-defined]
    step = counted(lambda: None)

    def report(table: str, count: int) -> None:
        if table == "inbox":
            step()

    store_commands._report = report


def run(kind: StoreKind, n: int) -> int:
    """Move in a child that dies before its *n*-th step; return its exit code."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        die_before(n)
        migrate_store(kind)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


async def prepare(journal: Path) -> None:
    """Leave two chats in a journal."""
    store = await open_inline_store(journal)
    for number in range(2):
        key = SessionKey("telegram", str(number))
        await answer(store, said(id="1", key=key), "one")
        await accept(store, said(id="2", key=key))
    await store.close()


def empty(url: str) -> None:
    """Remove every row."""
    with psycopg.connect(url, autocommit=True) as session:
        ((statements,),) = session.execute(EMPTY.encode()).fetchall()
        session.execute((statements or "").encode())


def move(kind: StoreKind) -> None:
    """Move, in silence."""
    with redirect_stdout(io.StringIO()):
        migrate_store(kind)


def main(url: str) -> None:
    """Kill every move at its steps."""
    os.environ["PARLOUR_STORE__URL"] = url
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "journal.db"
        asyncio.run(prepare(model))
        kill_all(url, model)


def kill_all(url: str, model: Path) -> None:
    """Kill every move of a copy of *model* at its steps, and write a line for each."""
    before, stride = rows_of_file(model), 1 if IS_FULL else 3
    for kind in StoreKind:
        lines: dict[int, dict[str, Any]] = {}
        for n in range(0, 200, stride):
            lines[n] = kill_move(url, model, kind, n, before)
            if lines[n]["code"] == 0:
                break
        # The step or two at which neither store starts may lie between two that were played.
        first = min(n for n, line in lines.items() if line["killed"] == [NEW[kind]])
        for n in range(first - stride + 1, first):
            line = kill_move(url, model, kind, n, before)
            if line["code"] == KILLED:  # it may have fewer steps than that
                lines[n] = line
        for n in sorted(lines):
            sys.stdout.write(json.dumps(lines[n]) + "\n")


def kill_move(url: str, model: Path, kind: StoreKind, n: int, before: Rows) -> dict[str, Any]:
    """Kill a move of a copy of *model* before its *n*-th step, move again, and return what was found."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PARLOUR_HOME"] = folder
        journal = Path(folder) / "journal.db"
        empty(url)
        shutil.copy(model, journal)
        if kind is StoreKind.SQLITE:
            move(StoreKind.POSTGRESQL)
        code = run(kind, n)
        killed = sorted(startable(journal, url))
        move(kind)
        again = sorted(startable(journal, url))
        after = rows_of_file(journal) if kind is StoreKind.SQLITE else rows_of_database(url)
        left = sorted(path.name for path in Path(folder).iterdir() if path.name.startswith((".restore", ".journal")))
    line = {"kind": kind.value, "n": n, "code": code, "killed": killed, "again": again}
    return {**line, "is_same": after == before, "left": left}


if __name__ == "__main__":
    main(sys.argv[1])
