"""What is stored in a scope while words are erased from it leaves them out, at every gateway."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from gateway.ports.journal import Job, TurnCommit
from gateway.ports.memory import (
    FileKind,
    HistoryEntry,
    HistoryUpdate,
    MemoryProposal,
    NoteChange,
    ScopeFile,
    ScopeFileChange,
    TextChange,
)
from gateway.store.database import SharedDatabase
from gateway.store.sql_store import SqlStore
from tests.fakes.shared_workers import Workers, until
from tests.fakes.turns import ANN, START, accept, answer, answered, begin_turn, claim, plain_record, said, settle

WORD, SCOPE = "zeppelin", "people/telegram%3aann"
ERASURE = Job(id="forget:t1", kind="forget", scope=SCOPE, payload={"words": WORD}, due_at=START)


def pass_words(store: SqlStore, words: Without) -> None:
    """Have commits of *store* pass *words*, as a store is opened with them."""
    engine = store.erasing._engine
    engine.limits = replace(engine.limits, erased_words=words)


class Without:
    """Takes the word out of everything; counts how often it was asked."""

    def __init__(self) -> None:
        self.calls = 0

    def clear_commit(self, erasures: Sequence[Job], commit: TurnCommit) -> TurnCommit:
        """Clear lines and messages, and drop jobs."""
        self.calls += 1
        assert erasures
        lines = tuple(
            {**each, "content": str(each.get("content", "")).replace(WORD, "")} for each in commit.record.lines
        )
        outbound = tuple(replace(each, text=each.text.replace(WORD, "")) for each in commit.outbound)
        jobs = tuple(each for each in commit.jobs if WORD not in str(each.payload))
        return replace(commit, record=replace(commit.record, lines=lines), outbound=outbound, jobs=jobs)

    def clear_job(self, erasures: Sequence[Job], job: Job) -> Job | None:
        """Drop a job with the word."""
        return None if erasures and WORD in str(job.payload) else job

    def clear_texts(
        self, erasures: Sequence[Job], texts: Mapping[str, str], before: Mapping[str, str], by: str
    ) -> Mapping[str, str]:
        """Clear the texts."""
        return {name: text.replace(WORD, "") for name, text in texts.items()} if erasures else texts

    def clear_entry(self, erasures: Sequence[Job], entry: HistoryEntry) -> HistoryEntry:
        """Clear the summary."""
        return replace(entry, content=entry.content.replace(WORD, "")) if erasures else entry

    def clear_messages(self, erasures: Sequence[Job], messages: Sequence[Any]) -> Sequence[Any]:
        """Drop messages with the word."""
        return [each for each in messages if not erasures or WORD not in str(each)]

    def clear_file(self, erasures: Sequence[Job], kind: FileKind, name: str, data: bytes) -> bytes | None:
        """Clear a file; drop one with the word in its name, and a result with the word."""
        if WORD in name or (kind is FileKind.RESULT and WORD.encode() in data):
            return None
        return data.replace(WORD.encode(), b"")

    def clear_proposal(self, erasures: Sequence[Job], proposal: MemoryProposal) -> MemoryProposal | None:
        """Drop a proposal with the word."""
        return None if erasures and WORD in str(proposal.body) else proposal


async def bodies(store: SqlStore) -> str:
    """Return all lines of Ann's chat in the scope."""
    return str([each.body for each in await store.transcripts.newest(SCOPE, ANN, 20)])


async def test_whatever_is_stored_while_words_are_erased_leaves_them_out(store: SqlStore) -> None:
    """A turn, a command beside it, an appended line, a job, a document, a summary, raw messages and a proposal."""
    pass_words(store, Without())
    lease = await begin_turn(store)
    await store.erasing.begin(ERASURE)
    await store.erasing.begin(ERASURE)  # the turn that erases was run again
    job = Job(id="remember:1", kind="remember", scope=SCOPE, payload={"fact": WORD}, due_at=START)
    await store.journal.commit(lease, answered(lease, f"a {WORD}", scope=SCOPE, jobs=(job,)))
    session = await store.journal.session(ANN)
    await store.records.append(plain_record("t3", session, scope=SCOPE, lines=({"kind": "x", "content": WORD},)))
    await store.jobs.put(job)
    kept = Job(id="remember:2", kind="remember", scope=SCOPE, payload={"fact": "a boat"}, due_at=START)
    await store.jobs.put(kept)
    assert await store.jobs.advance(kept, replace(job, id="remember:3"))
    document = await store.documents.write(SCOPE, "MEMORY.md", f"- a {WORD}\n", was="", why="test")
    assert document is not None
    assert (await store.documents.read(SCOPE, "MEMORY.md")) == document
    changed = await store.documents.change(SCOPE, {"USER.md": TextChange("", f"my {WORD}\n")}, why="test")
    assert changed is not None
    entry = HistoryEntry(timestamp="2026-11-20 10:00", content=f"A {WORD} leaks.", entry="e1")
    (summary,) = await store.history.append(SCOPE, entry)
    beside = HistoryUpdate(entry=replace(entry, entry="e3"))
    assert await store.documents.write(SCOPE, "SOUL.md", f"a {WORD}\n", was="", why="test", beside=beside)
    stored = await store.history.find(SCOPE, "e3")
    assert stored is not None
    assert WORD not in stored.content
    raw = await store.history.keep_raw(SCOPE, replace(entry, content="raw", entry="e2"), [{"content": WORD}])
    body = {"why": WORD}
    await store.proposals.put(SCOPE, [MemoryProposal(name="p1", at=START, expires_at=START, body=body)])
    assert [each.id for each in await store.jobs.pending_in(SCOPE)] == [ERASURE.id]
    assert WORD not in await bodies(store)
    assert WORD not in str(await store.outbox.next(ANN))
    assert WORD not in str(await store.documents.texts(SCOPE))
    assert WORD not in summary.content
    assert await store.history.raw_messages(SCOPE, raw.entry) == []
    assert await store.proposals.pending(SCOPE, START) == []


async def test_files_and_notes_that_are_stored_while_words_are_erased_leave_them_out(store: SqlStore) -> None:
    """A turn that read the words and ends within the first pass brings them back by no file, result or note."""
    pass_words(store, Without())
    await store.erasing.begin(ERASURE)
    word = WORD.encode()

    def new(name: str, data: bytes) -> ScopeFileChange:
        return ScopeFileChange(now=ScopeFile(kind=FileKind.WORKSPACE, name=name, at=START), data=data)

    large = b"x" * 300_000
    assert await store.files.change(SCOPE, new("a", b"a " + word), new(f"{WORD}.txt", b"b"), new("c", large + word))
    a, c = await store.files.files(SCOPE)
    assert [await store.files.load(SCOPE, each) for each in (a, c)] == [b"a ", large]
    gone = ScopeFileChange(was=a, now=replace(a, name=f"{WORD}.md"), data=b"c")
    assert await store.files.change(SCOPE, gone)
    assert await store.files.files(SCOPE) == [c]
    result = await store.files.put(SCOPE, FileKind.RESULT, large + word, at=START)
    assert await store.files.load(SCOPE, result) is None
    assert await store.files.files(SCOPE) == [c]
    assert await store.files.put(SCOPE, FileKind.RESULT, large, at=START) in await store.files.files(SCOPE)
    assert await store.history.write(SCOPE, notes={"n.md": NoteChange(was=None, body=b"- my " + word)})
    assert await store.history.note(SCOPE, "n.md") == b"- my "


async def test_other_scopes_and_later_commits_keep_the_words(store: SqlStore) -> None:
    """Nothing passes the words elsewhere, nor after the job has ended."""
    words = Without()
    pass_words(store, words)
    await store.erasing.begin(replace(ERASURE, scope="people/bob"))
    await store.erasing.begin(ERASURE)
    await store.jobs.finish(ERASURE)
    lease = await begin_turn(store)
    await store.journal.commit(lease, answered(lease, f"a {WORD}", scope=SCOPE))
    assert WORD in await bodies(store)
    assert not words.calls


async def test_a_control_command_leaves_the_words_out(store: SqlStore) -> None:
    """It has no lease, and is stored beside the turns of its chat."""
    pass_words(store, Without())
    await answer(store, said(), "hello")
    await store.erasing.begin(replace(ERASURE, scope=""))
    await accept(store, said(id="2", text="/status"), is_control=True)
    row = await anext(store.journal.control_rows())
    assert WORD not in str((await settle(store, row, f"a {WORD}")).lines)


async def test_a_commit_whose_lease_is_lost_is_refused_while_words_are_erased(store: SqlStore) -> None:
    """Who stores it again after a lost reply gets the record that is stored."""
    pass_words(store, Without())
    lease = await begin_turn(store)
    await store.erasing.begin(ERASURE)
    stored = await store.journal.commit(lease, answered(lease, f"a {WORD}", scope=SCOPE))
    again = await store.journal.commit(lease, answered(lease, f"a {WORD}", scope=SCOPE))
    assert again.lines == stored.lines


async def test_a_turn_of_another_gateway_leaves_the_words_out(team: Workers) -> None:
    """It was claimed before the erasure, and its gateway has heard of none."""
    first = await team.open()
    await accept(first, said())
    await until(lambda: ANN in team.holders())
    second = await team.open()
    for store in (first, second):
        pass_words(store, Without())
    lease = await claim(first)
    await second.erasing.begin(ERASURE)
    await first.journal.commit(lease, answered(lease, f"a {WORD}", scope=SCOPE))
    assert WORD not in await bodies(second)
    assert "a " in await bodies(second)


@pytest.mark.parametrize("is_stored", [True, False], ids=["stored", "sees-none"])
async def test_an_erasure_begins_behind_transactions_that_cannot_see_it(team: Workers, is_stored: bool) -> None:
    """The first pass finds what a transaction stores that began before; one that begins later sees the erasure."""
    first, second = await team.open(), await team.open()
    pass_words(second, Without())
    is_open, may_end = threading.Event(), threading.Event()

    def store_slowly(database: SharedDatabase) -> int:
        database.execute("SELECT 1").fetchone()
        is_open.set()
        may_end.wait(30)
        (count,) = database.execute("SELECT count(*) FROM job").fetchone()
        if is_stored:
            database.execute("INSERT INTO meta (name, value) VALUES ('test', 'stored')").close()
        return int(count)

    storing = asyncio.ensure_future(first._engine.writer.submit(store_slowly))
    await asyncio.to_thread(is_open.wait, 30)
    beginning = asyncio.create_task(second.erasing.begin(ERASURE))
    await until(lambda: bool(team.server.query("SELECT 1 FROM job")))
    await asyncio.sleep(0.05)
    assert not beginning.done()
    may_end.set()
    await beginning
    assert await storing == 0
    found = team.server.query("SELECT value FROM meta WHERE name = 'test'")
    assert bool(found) is is_stored
