"""Moving a scope's files: all of them are there, and apart again each account has its own.

Killed on the way: tests/faults/test_memory_killed.py.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.base import transcript_lines as build
from agent.base.disk import Disk
from agent.memory.account_links.document_merge import EntryOwnership, divide_documents, find_owners, move_documents
from agent.memory.account_links.scope_transfer import (
    blank_answer,
    merge_scope_files,
    split_scope_files,
    split_stored_files,
)
from gateway.events import PlatformAccount
from gateway.ports.access import ScopeMove
from gateway.ports.memory import DocumentChange, DocumentState, FileKind
from gateway.store.sqlite import schema
from gateway.store.sqlite.connection import SqliteConnection
from tests.fakes.documents import FakeDocuments, run
from tests.fakes.memory import FakeRecords

ANN, BOB = "pocket%3aann", "pocket%3abob"
AT = datetime(2026, 11, 22, 10, 0, tzinfo=UTC)
LINK = ScopeMove(id="link:1", kind="link", source=f"people/{BOB}", target=f"people/{ANN}", at=AT, single=(ANN, BOB))
UNLINK = ScopeMove(
    id="unlink:1",
    kind="unlink",
    source=f"people/{ANN}",
    target=f"people/{BOB}",
    at=AT + timedelta(hours=2),
    account=PlatformAccount.from_name(BOB),
    since=AT,
    keys=("pocket:bob",),
    ended=(("pocket:ann", "annannannannanna"), ("pocket:bob", "bobbobbobbobbobb")),
)


class TransferKilled(BaseException):
    """The process is gone."""


class CountdownDisk(Disk):
    """Dies before its *last*th change, and with it everything: changes of documents count, too."""

    def __init__(self, last: int = 2**62) -> None:
        self.left = last

    def _live(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise TransferKilled

    def step(self) -> None:
        """Change documents, or die before or behind it."""
        self._live()

    def replace(self, path: Path, data: bytes) -> None:
        """Replace, or die before it."""
        self._live()
        super().replace(path, data)

    def rename(self, old: Path, new: Path) -> None:
        """Rename, or die before it."""
        self._live()
        super().rename(old, new)

    def remove(self, path: Path) -> None:
        """Remove, or die before it."""
        self._live()
        super().remove(path)

    def sync_folder(self, path: Path) -> None:
        """Sync, or die before it: what was renamed by then is renamed."""
        self._live()
        super().sync_folder(path)


@contextmanager
def documents_of(home: Path, disk: CountdownDisk | None = None) -> Iterator[FakeDocuments]:
    """Open the documents of *home*, which are in a journal there."""
    home.mkdir(exist_ok=True)
    path = home / "journal.db"
    opened = sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=SqliteConnection)
    with closing(opened) as found:
        schema.prepare(found, path)
        yield FakeDocuments(connection=found, step=(disk or CountdownDisk()).step, now=lambda: AT)


def scope(home: Path, name: str, *facts: str) -> None:
    """Write what a person's scope is made of."""
    folder, disk = home / "people" / name, Disk()
    account = name.removeprefix("pocket%3a")
    key, transcript = f"pocket:{account}", (account * 6)[:16]
    lines: list[Any] = [build.head_line(transcript, key, AT - timedelta(days=2 if account == "ann" else 1))]
    for n, fact in enumerate(facts):
        at = AT + timedelta(hours=n - 1)  # the first before the link, the others after it
        lines.append(build.message(2 * n, f"t{n}", "user", f"{account} says {fact}", at, by={"id": account}))
        lines.append(build.message(2 * n + 1, f"t{n}", "assistant", f"I know of {fact}", at))
        lines.append(
            build.end_line(f"t{n}", from_index=2 * n, to_index=2 * n + 2, inbox=["1"], outcome="answered", at=at)
        )
    disk.replace(folder / "sessions" / f"pocket%3a{account}.jsonl", b"".join(build.encode(line) for line in lines))
    disk.replace(folder / "memory" / f"MEMORY.conflict-{account}.md", f"- {account} knows {facts[0]}\n".encode())
    disk.replace(folder / "memory" / "HISTORY.md.edited-01234567", f"{account} says so\n".encode())
    disk.replace(folder / "memory" / "HISTORY.md", f"{account} says what the mirror has\n".encode())
    text, states = "", list[DocumentState]()
    for n, fact in enumerate(facts):
        text += f"- {account} knows {fact}\n"
        at, why = AT - timedelta(hours=3 - n), f"remember:t{n}.0.0"
        change = DocumentChange(id=f"{account}{n}", number=0, at=at, why=why, by=name)
        states.append(DocumentState(change=change, texts={"MEMORY.md": text}))
    change = DocumentChange(id=f"{account}9", number=0, at=AT - timedelta(minutes=30), why="edited by hand")
    states.append(DocumentState(change=change, texts={"MEMORY.md": text, "USER.md": f"- {account} is {account}\n"}))
    with documents_of(home) as documents:
        assert run(documents.replace({f"people/{name}": states}, was={f"people/{name}": 0}))


def joining(home: Path, disk: CountdownDisk) -> None:
    """Do what the linker does with the memory and the files of a link."""
    with documents_of(home, disk) as documents:
        run(move_documents(documents, LINK.id, LINK.source, LINK.target, source_account=BOB, target_account=ANN))
    merge_scope_files(home, disk, LINK, accounts=(BOB, ANN))


def separating(home: Path, disk: CountdownDisk) -> None:
    """Do what the linker does with the memory and the files of an unlink."""
    with documents_of(home, disk) as documents:
        owners = run(find_owners(documents, UNLINK.source, lambda _: "", ANN))
        split_scope_files(home, disk, UNLINK, owners)
        run(divide_documents(documents, UNLINK.id, UNLINK.source, UNLINK.target, BOB, lambda _: "", ANN))


@pytest.fixture
def apart(tmp_path: Path) -> Path:
    """Return a home with two people."""
    scope(tmp_path / "home", ANN, "zeppelin", "Bello")
    scope(tmp_path / "home", BOB, "Nora", "Tom")
    return tmp_path / "home"


@pytest.fixture
def one(apart: Path) -> Path:
    """Return a home in which the two are one."""
    joining(apart, CountdownDisk())
    return apart


def test_joined_everything_is_in_one_scope_with_where_it_came_from(one: Path) -> None:
    """Lines and versions of both; nothing of the younger's folder is left.

    The mirror writes the younger's transcripts, whose turns the store has given to the older one.
    """
    folder = one / "people" / ANN
    assert not (one / "people" / BOB).exists()
    assert {path.name for path in (folder / "sessions").iterdir()} == {f"{ANN}.jsonl"}
    assert {path.name for path in (folder / "memory").glob("[!.]*")} == {
        "HISTORY.md",
        "HISTORY.md.edited-01234567",
        "HISTORY.md.edited-01234567.2",
        "MEMORY.conflict-ann.md",
        "MEMORY.conflict-bob.md",
    }
    with documents_of(one) as documents:
        memory = documents.text(f"people/{ANN}")
        source = run(documents.source(f"people/{ANN}", "MEMORY.md", "- bob knows Nora"))
        assert run(documents.scopes()) == [f"people/{ANN}"]
        assert run(documents.epoch(f"people/{ANN}")) == LINK.id
        assert [run(documents.find(f"people/{ANN}", id_)) is not None for id_ in ("ann0", "bob0", "bob9")] == [True] * 3
    assert all(fact in memory for fact in ("zeppelin", "Bello", "Nora", "Tom"))
    assert source is not None
    assert (source.by, source.why) == (BOB, "remember:t0.0.0")


def test_apart_again_each_has_its_own(one: Path) -> None:
    """By where it came from."""
    separating(one, CountdownDisk())
    for name, theirs, others in ((ANN, "ann", "bob"), (BOB, "bob", "ann")):
        folder = one / "people" / name
        kept = "\n".join(path.read_text() for path in folder.rglob("*") if path.is_file())
        with documents_of(one) as documents:
            versions = str(run(documents.states(f"people/{name}")))
        kept += versions
        copies = sorted(path.name for path in (folder / "memory").glob("[!.]*.*-*"))
        edited = "HISTORY.md.edited-01234567" + (".2" if theirs == "bob" else "")
        assert copies == [edited, f"MEMORY.conflict-{theirs}.md"]
        for trace in (f"{theirs} knows", f"{theirs} is"):
            assert trace in kept
        for trace in (f"{others} knows", f"{others} says"):
            assert trace not in kept
        assert f"{theirs} knows" in versions
        assert f"{others} knows" not in versions


def test_corrupt_lines_go_with_their_conversation(one: Path) -> None:
    """Those of the one that leaves, once."""
    source, target, disk = one / "people" / ANN, one / "people" / BOB, Disk()
    disk.replace(source / "sessions" / f"{BOB}.jsonl.corrupt", b"{bob\n")
    for _ in range(2):
        split_scope_files(one, disk, UNLINK, EntryOwnership())
        assert (target / "sessions" / f"{BOB}.jsonl.corrupt").read_bytes() == b"{bob\n"
        assert not (source / "sessions" / f"{BOB}.jsonl.corrupt").exists()


def test_files_go_with_the_conversations_that_name_them() -> None:
    """What both name is in both scopes, and what is not named by the one that leaves stays where it is."""
    files = FakeRecords().files

    def digests(scope: str) -> set[str]:
        return {each.name for each in run(files.files(scope, FileKind.ATTACHMENT))}

    mine, theirs, both = (
        run(files.put(UNLINK.source, FileKind.ATTACHMENT, data, at=AT)).name for data in (b"a", b"b", b"c")
    )
    run(files.put(UNLINK.source, FileKind.TEXT, b"the prompt of both", at=AT))
    for _ in range(2):
        run(split_stored_files(files, UNLINK, {theirs, both}, {mine, both}))
        assert digests(UNLINK.source) == {mine, both}
        assert digests(UNLINK.target) == {theirs, both}
        assert run(files.files(UNLINK.source, FileKind.TEXT)) == []


CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"q": "bob"}'}}
ANSWERS: list[tuple[Any, bool]] = [
    (build.message(1, "t1", "assistant", "I know of bob", AT, tool_calls=[CALL]), True),
    (build.message(1, "t1", "tool", "result about bob", AT, tool_call_id="c", name="look"), True),
    (build.message(0, "t1", "user", "hi", AT, recall="bob's memory", by={"id": "ann"}), True),
    (build.message(0, "t1", "user", "bob", AT, by={"id": "ann"}), False),
    (build.command("t1", "/memory", "bob likes tea", AT), True),
    (build.notice("t1", "bob's note", AT), True),
    (build.delta("r", "bob moved", [("MEMORY.md", "bob")]), True),
    (build.end_line("t1", from_index=0, to_index=2, inbox=["1"], outcome="answered", at=AT), False),
    (build.pointer(2, "bob"), False),
]


@pytest.mark.parametrize(("line", "is_answer"), ANSWERS)
def test_answers_of_the_time_in_between_are_in_neither(line: Any, is_answer: bool) -> None:
    """From the link on they may have words of either; before it, and what a person said, they stay."""
    raw = build.encode(line)
    for since in (AT - timedelta(hours=1), AT):
        blank = blank_answer(raw, since)
        assert (blank != raw) == is_answer
        assert is_answer != (b"bob" in blank or blank == raw)
        assert blank_answer(blank, since) == blank
    if "timestamp" in line:
        assert blank_answer(raw, AT + timedelta(hours=1)) == raw
    assert blank_answer(raw, None) == raw


@pytest.mark.parametrize("raw", [b"", b"\n", b"{bad\n", b'["bob"]\n'])
def test_lines_that_are_damaged_stay(raw: bytes) -> None:
    """They are no answers."""
    assert blank_answer(raw, AT) == raw


def test_what_was_remembered_before_the_move_was_resumed_stays(one: Path) -> None:
    """Another gateway has answered the leaving account meanwhile: its new line stands beside those that move."""
    change = DocumentChange(id="new", number=0, at=AT + timedelta(hours=3), why="remember:new.0.0", by=BOB)
    new = DocumentState(change=change, texts={"MEMORY.md": "- Bob has a boat\n"})
    with documents_of(one) as documents:
        was = run(documents.heads([UNLINK.target]))[UNLINK.target].number
        assert run(documents.replace({UNLINK.target: [new]}, was={UNLINK.target: was}))
    separating(one, CountdownDisk())
    with documents_of(one) as documents:
        lines = run(documents.states(UNLINK.target))[-1].texts["MEMORY.md"].splitlines()
    assert sorted(lines) == ["- Bob has a boat", "- bob knows Nora", "- bob knows Tom"]
