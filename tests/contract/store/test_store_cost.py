"""What a turn costs does not depend on what is stored."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from agent.base import transcript_lines as build
from gateway.ports.access import CapChange, CapQuery, CountedEntry, TokenCount
from gateway.ports.journal import TurnStep
from gateway.store import account_links, claims, journal, outbox, session_queue, suspects
from gateway.store.engine import StoreLimits
from gateway.store.sql_store import SqlStore
from gateway.store.sqlite import FILE, open_file, schema
from gateway.store.sqlite.connection import SqliteConnection
from gateway.store.usage import SqlSharedCaps
from tests.fakes.memory import ANN as TALKER
from tests.fakes.memory import SCOPE, TRANSCRIPT, exchange, talk, turn_name
from tests.fakes.store import open_inline_store
from tests.fakes.turns import (
    ANN,
    BOB,
    START,
    accept,
    answered,
    begin_turn,
    claim,
    next_delivery,
    parts_of,
    receipt,
    said,
    spent,
)


async def test_no_statement_of_a_turn_scans_a_table(tmp_path: Path) -> None:
    """Every statement between accept and projection finds its rows by an index."""
    store, statements = await open_counted(tmp_path)
    lease = await begin_turn(store)
    await store.journal.step(lease, TurnStep(n=0, kind="opening", lines=()))
    await store.journal.steer(lease)
    await accept(store, said(revision="2"))
    store.journal.spend(spent(lease.turn))
    await store.journal.commit(lease, answered(lease, "one"))
    delivery = await next_delivery(store)
    parts = parts_of(delivery.message, 2)
    await store.outbox.freeze(delivery.message, parts)
    await store.outbox.mark_sent(receipt(parts[0]), then=parts[1])
    await store.outbox.mark_sent(receipt(parts[1]))
    await store.transcripts.window("", ANN, lease.session.transcript)
    await store.transcripts.newest("", ANN, 20)
    await store.transcripts.messages("", ANN, lease.session.transcript, 0, 1)
    await store.transcripts.end("", ANN, lease.session.transcript)
    await store.transcripts.transcripts("", ANN)
    await store.transcripts.find("", ANN, lease.turn)
    await store.transcripts.rewrite("", lambda raw: raw)
    store.records.mark_written([stored.seq for stored in await store.records.unwritten(0, 10)])
    await accept(store, said(id="2"))
    await store.journal.release(await claim(store))
    lease = await claim(store)
    commit = answered(lease, "three")
    await store.journal.commit(lease, replace(commit, parts=tuple(parts_of(commit.outbound[0], 2))))
    await store.close()  # gives the attempt of the first part back
    assert len(set(statements)) > 30
    assert _scans(tmp_path / FILE, statements) == []


@pytest.mark.parametrize("read", ["window", "empty window", "messages", "find", "newest", "since", "scan"])
async def test_reading_the_end_of_a_chat_does_not_read_its_beginning(tmp_path: Path, read: str) -> None:
    """What the next prompt and the next summary need takes the same steps after 20 turns and after 600."""
    steps: list[int] = []
    for n, count in enumerate((20, 600)):
        store = await open_inline_store(tmp_path / f"{n}.db")
        for record in (*talk(count), exchange(count, 2 * count, before=[build.pointer(2 * count - 4)])):
            await store.records.append(record)
        if read == "empty window":  # everything is summarised
            last = exchange(count + 1, 2 * count + 2)
            await store.records.append(replace(last, lines=(build.pointer(2 * count + 2),), to_index=2 * count + 2))
        store.records.mark_written([each.seq for each in await store.records.unwritten(0, 1_000)])
        start, turn = 2 * count - 4, turn_name(count)
        calls: Mapping[str, Callable[[], Awaitable[object]]] = {
            "window": partial(store.transcripts.window, SCOPE, TALKER, TRANSCRIPT),
            "empty window": partial(store.transcripts.window, SCOPE, TALKER, TRANSCRIPT),
            "messages": partial(store.transcripts.messages, SCOPE, TALKER, TRANSCRIPT, start, start + 2),
            "find": partial(store.transcripts.find, SCOPE, TALKER, turn),
            "newest": partial(store.transcripts.newest, SCOPE, TALKER, 3),
            "since": partial(store.transcripts.since, SCOPE, TALKER, TRANSCRIPT, count - 3),
            "scan": partial(store.transcripts.scan, SCOPE, after=(str(TALKER), count - 3)),
        }
        taken = 0

        def count_step() -> None:
            nonlocal taken
            taken += 1

        connection = store._engine.writer.connection  # type: ignore[attr-defined]
        connection.set_progress_handler(count_step, 1)
        assert await calls[read]()
        connection.set_progress_handler(None, 1)
        steps.append(taken)
        await store.close()
    assert 0 < steps[1] <= steps[0] * 1.2


def test_a_transcript_that_a_link_ends_is_found_by_an_index(tmp_path: Path) -> None:
    """Also where nothing is left of it: the newest turns of everybody else are not read to find that out."""
    path = tmp_path / FILE
    schema.create_private(path)
    with closing(schema.connect(path)) as connection:
        schema.prepare(connection, path)
        plan = connection.execute(f"EXPLAIN QUERY PLAN {account_links._END_TRANSCRIPT}", ("", "", "", "")).fetchall()
    assert [detail for *_, detail in plan if "record" in detail and "USING" not in detail] == []


async def test_a_turn_takes_seventeen_statements(tmp_path: Path) -> None:
    """From the message to the receipt of its answer. On PostgreSQL, each of them is a round trip."""
    store, statements = await open_counted(tmp_path)
    for n in ("the first of a chat makes its rows", "counted"):
        statements.clear()
        lease = await begin_turn(store, said(id=n))
        store.journal.spend(spent(lease.turn))
        await store.journal.commit(lease, answered(lease, "one"))
        delivery = await next_delivery(store)
        (part,) = parts_of(delivery.message, 1)
        await store.outbox.freeze(delivery.message, [part])
        await store.outbox.mark_sent(receipt(part))
    taken = [each for each in statements if not each.startswith(("BEGIN", "COMMIT"))]
    await store.close()
    assert len(taken) == 17


async def test_counts_of_caps_that_nothing_waits_for_are_one_statement(tmp_path: Path) -> None:
    """A turn posts three of them, which are stored together with those of other turns, the latest of each name."""
    store, statements = await open_counted(tmp_path)
    caps = SqlSharedCaps(store._engine.writer, "a gateway")
    for number in range(30):
        entry = CountedEntry("person/ann", f"turn {number}", START)
        caps.post(CapChange(day=START, tokens=(TokenCount("house", number, 0),), entries=(entry,)))
    query = CapQuery(names=("house", "person/ann"), day=START, since=START - timedelta(days=1))
    found = await SqlSharedCaps(store._engine.writer, "another").judge(query, lambda counts: (None, counts))
    await store.close()
    assert [each.spent for each in found.elsewhere.values()] == [29]
    assert len(found.entries) == 30
    assert [each.split()[2] for each in statements if each.startswith("INSERT INTO cap_")] == ["cap_count", "cap_entry"]


async def open_counted(folder: Path) -> tuple[SqlStore, list[str]]:
    """Open a store in *folder*; return it with the list that all of its statements are added to."""
    statements: list[str] = []

    class CountingConnection(SqliteConnection):
        def execute(self, statement: str, *parameters: object) -> sqlite3.Cursor:
            statements.append(statement)
            return super().execute(statement, *parameters)  # type: ignore[arg-type]

        def executemany(self, statement: str, *parameters: object) -> sqlite3.Cursor:
            statements.append(statement)
            return super().executemany(statement, *parameters)  # type: ignore[arg-type]

    store = await open_file(
        folder / FILE, StoreLimits(), connect=lambda path: schema.connect(path, factory=CountingConnection)
    )
    statements.clear()
    return store, statements


def _scans(path: Path, statements: Iterable[str]) -> list[str]:
    database = sqlite3.connect(path)
    scans = []
    for statement in sorted(set(statements)):
        # The backlog is counted as a whole, but only once in as many messages as still fit.
        if not statement.startswith(("SELECT", "INSERT", "UPDATE", "DELETE")) or statement in _WHOLE:
            continue
        number = len(set(re.findall(r"\?\d", statement))) or statement.count("?")
        plan = database.execute(f"EXPLAIN QUERY PLAN {statement}", [None] * number).fetchall()
        found = [step[3] for step in plan if step[3].startswith("SCAN") and step[3] not in _PARAMETERS]
        scans += [f"{scan}: {statement}" for scan in found]
    database.close()
    return scans


_PARAMETERS = ("SCAN CONSTANT ROW", "SCAN k", "SCAN json_each VIRTUAL TABLE INDEX 1:")  # what is asked for
_WHOLE = (
    "SELECT count(*) FROM inbox WHERE state = 'waiting' AND ended_at IS NULL",
    # At close.
    suspects._FORGET_CRASHES,
    suspects._FREE_CONTROLS,
    session_queue.RECOVER_ROWS,
    session_queue.RECOVER_LANES,
    suspects.FREE_JOBS,
    outbox.RECOVER_PARTS,
    claims.FORGET_CLAIMS,
)


async def test_what_may_wait_shares_the_next_transaction(tmp_path: Path) -> None:
    """Usage and a channel's notes are stored with the next write, in their order, or within their time."""
    store = await open_file(tmp_path / FILE, StoreLimits())
    state = store.state("telegram")
    lease = await begin_turn(store)

    async def commits() -> int:
        return int((await store.journal.depth())["commits"])

    before = await commits()
    store.journal.spend(spent(lease.turn))
    notes = [asyncio.create_task(state.save(name, "1", within=60.0)) for name in "ab"]
    await asyncio.gather(*notes)  # not for a minute: the usage may wait for a moment only
    assert await commits() == before + 1
    state.forget("a")
    state.forget("b")
    await state.save("a", "2")
    assert await commits() == before + 2
    assert dict(await state.all("a")) == {"a": "2"}
    assert await state.load("b") is None
    await state.save("c", "1", within=0.01)
    assert await commits() == before + 3
    state.forget("c")
    await store.close()
    with closing(sqlite3.connect(tmp_path / FILE)) as database:
        assert database.execute("SELECT name FROM note").fetchall() == [("a",)]


async def test_commits_of_many_turns_share_a_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first waits for another transaction while other turns run; the commit of a turn that is alone does not."""
    monkeypatch.setattr(journal, "_MANY_TURNS", 2)
    monkeypatch.setattr(journal, "_COMMIT_WITHIN", 600.0)
    store = await open_file(tmp_path / FILE, StoreLimits())
    await accept(store, said())
    await accept(store, said(key=BOB))
    leases = [await claim(store), await claim(store, BOB)]
    before = store._engine.writer.commits
    commits = []
    for lease in leases:
        commits.append(asyncio.create_task(store.journal.commit(lease, answered(lease, "one"))))
        for _ in range(20):
            await asyncio.sleep(0)
    await store.check()
    await asyncio.gather(*commits)
    assert store._engine.writer.commits == before + 1
    alone = await begin_turn(store, said(id="2"))
    await store.journal.commit(alone, answered(alone, "two"))
    await store.close()
