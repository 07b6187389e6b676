"""Every place where a gateway may keep words: the tables, what is left of deleted rows, and the files of homes."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from tests.fakes.isolation_canaries import CANARY, _texts
from tests.fakes.postgres_server import PostgresServer
from tests.faults.explorer.truth import Truth

_HEX = re.compile(r"\\\\x((?:[0-9a-f]{2}){8,})")  # bytes in a dump
_NAME = re.compile(r"(people|chats)/wire(?:%3a|:)([-\w]+)")
_TABLE = re.compile(r"^COPY (\S+) ", re.MULTILINE)
_RELATIONS = "SELECT pg_relation_filenode(oid), oid::regclass::text FROM pg_class WHERE relkind IN ('r', 'i', 't')"
_CANARY_BYTES = re.compile(CANARY.pattern.encode())


def look_at_rows(truth: Truth, server: PostgresServer, folder: Path) -> None:
    """Look at each row of each table, in a dump as text."""
    file = folder / "dump.sql"
    server.dump(file, "plain")
    table = ""
    for line in file.read_text("utf-8", "replace").splitlines():
        if (found := _TABLE.match(line)) is not None:
            table = found[1]
        for text in _row_texts(line):
            truth.look_at_bytes(f"table {table}", _readers(line), text)


def look_at_tables(truth: Truth, server: PostgresServer) -> None:
    """Look at the files of tables and indices, where deleted rows stay until they are overwritten."""
    server.query("CHECKPOINT")
    names = {str(number): name for number, name in server.query(_RELATIONS)}
    for file, data in server.table_files():
        name = names.get(file.name.partition(".")[0], file.name)
        for word in dict.fromkeys(_CANARY_BYTES.findall(data)):
            truth.look_at_bytes(f"deleted rows in {name}", None, word.decode())


def look_at_home(truth: Truth, home: Path, name: str) -> None:
    """Look at every file of a home: as it is, inflated, and the tables of databases."""
    for path in sorted(home.rglob("*")):
        if not path.is_file():
            continue
        where = path.relative_to(home)
        for text in _texts(path):
            truth.look_at_bytes(f"{name}/{where}", _readers(str(where)), text)


def _row_texts(line: str) -> Iterator[str]:
    yield line
    for found in _HEX.findall(line):
        data = bytes.fromhex(found)
        yield data.decode("utf-8", "replace")
        try:
            yield zlib.decompress(data).decode("utf-8", "replace")
        except zlib.error:
            continue


def _readers(where: str) -> frozenset[str] | None:
    """Return whose words may be there by the scope that *where* names; None where it names none, or several."""
    found = {name for _, name in _NAME.findall(where)}
    return frozenset(found) if len(found) == 1 else None
