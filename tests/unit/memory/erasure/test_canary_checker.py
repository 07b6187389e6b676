"""The checker of purges finds what it is to find: a checker that sees nothing would call every purge complete."""

from __future__ import annotations

import base64
import gzip
import io
import json
import sqlite3
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from dulwich.repo import Repo

from agent.memory.editing.document_commits import DocumentCommits
from gateway.ports.memory import DocumentChange, DocumentState
from tests.fakes.canaries import CANARIES, where

Plant = Callable[[Path, str], object]


def in_zip(home: Path, word: str) -> None:
    """A file in an archive, deflated."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", f"<p>{word}</p>" * 9)
    (home / "a.docx").write_bytes(buffer.getvalue())


def in_git(home: Path, word: str) -> None:
    """A version that a later one took back: a loose object."""
    for n, text in enumerate((f"- {word}\n", "- dog\n"), 1):
        change = DocumentChange(id=f"{n:08x}", number=n, at=datetime(2026, 1, n, tzinfo=UTC), why="t")
        DocumentCommits(home).add("shared", [DocumentState(change=change, texts={"MEMORY.md": text})])


def in_pack(home: Path, word: str) -> None:
    """The same, packed, as git's own housekeeping leaves it."""
    in_git(home, word)
    with Repo(str(home / "shared" / "memory" / ".git")) as repo:
        repo.object_store.pack_loose_objects()


def in_database(home: Path, word: str, *, wal: bool, deleted: bool) -> None:
    """A row, in the file or in its log alone, there or deleted without being overwritten."""
    database = sqlite3.connect(home / "x.db", isolation_level=None)
    database.execute(f"PRAGMA journal_mode = {'WAL' if wal else 'DELETE'}")
    database.execute("PRAGMA secure_delete = OFF")
    database.execute("PRAGMA wal_autocheckpoint = 0")
    database.execute("CREATE TABLE t (body TEXT)")
    database.execute("INSERT INTO t VALUES (?)", (word,))
    if deleted:
        database.execute("DELETE FROM t")
    copy = {each.name: each.read_bytes() for each in home.iterdir()}
    database.close()
    for name, data in copy.items():  # as a kill leaves them
        (home / name).write_bytes(data)


PLANTED: dict[str, Plant] = {
    "raw": lambda home, word: (home / "a").write_text(f"x{word}y"),
    "utf-16": lambda home, word: (home / "a").write_bytes(word.encode("utf-16")),
    "json": lambda home, word: (home / "a").write_text(json.dumps({"text": word})),
    "json in json": lambda home, word: (home / "a").write_text(json.dumps({"raw": json.dumps(word)})),
    "base64": lambda home, word: (home / "a").write_bytes(base64.b64encode(f"x{word}".encode())),
    "gzip": lambda home, word: (home / "a.gz").write_bytes(gzip.compress(word.encode() * 20)),
    "zip": in_zip,
    "git object": in_git,
    "git pack": in_pack,
    "row": lambda home, word: in_database(home, word, wal=False, deleted=False),
    "free page": lambda home, word: in_database(home, word, wal=False, deleted=True),
    "log": lambda home, word: in_database(home, word, wal=True, deleted=False),
    "log of a deleted row": lambda home, word: in_database(home, word, wal=True, deleted=True),
}


@pytest.mark.parametrize("kind", PLANTED)
@pytest.mark.parametrize("word", CANARIES)
def test_what_is_planted_is_found(tmp_path: Path, kind: str, word: str) -> None:
    """In every wrapping that a home can hold, in ASCII, Cyrillic and emoji; and nothing else is."""
    PLANTED[kind](tmp_path, word)
    assert where(tmp_path, word), kind
    assert not where(tmp_path, "somethingelse")
