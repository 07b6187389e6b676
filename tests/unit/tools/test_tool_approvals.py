"""Denials that the model has not read: looked for where there are any, and never missed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from agent.tools.tool_questions import ToolApprovals, ToolQuestion
from gateway.events import SessionKey
from gateway.store.sql_store import SqlStore
from tests.fakes.meter import FakeMeter
from tests.fakes.store import open_inline_store

NOW = datetime.now(UTC)
HERE, THERE = SessionKey("pocket", "c"), SessionKey("pocket", "d")
SCOPE = "person:pocket:ann"
QUESTION = ToolQuestion(
    id="qaaaaaaaaaa",
    key=str(HERE),
    turn="t1",
    sender="ann",
    sender_name="Ann",
    team="",
    chat_kind="direct",
    is_private=False,
    guild="",
    is_untyped=False,
    tool="send_letter",
    arguments="{}",
    schema="x",
    why="tools.why_acts",
    at=NOW.isoformat(),
)


def approvals_over(store: SqlStore) -> ToolApprovals:
    """Return the approvals of a gateway over *store*."""
    return ToolApprovals(store.jobs, store.journal, FakeMeter())


def commits(store: SqlStore) -> int:
    """Return how often the store was asked."""
    return int(store._engine.writer.commits)


async def unread(approvals: ToolApprovals, key: SessionKey) -> list[str]:
    """Return the ids of the denials that a turn of *key* finds."""
    return [job.id for job in await approvals.denials(SCOPE, key)]


async def test_a_turn_without_denials_does_not_ask_the_store() -> None:
    """The first turn of the process reads them all; a denial of one chat costs no other chat a query."""
    store = await open_inline_store()
    approvals = approvals_over(store)
    assert await unread(approvals, THERE) == []
    before = commits(store)
    for _ in range(10):
        assert await unread(approvals, HERE) == []
    job = await approvals.deny(QUESTION, "Ann", SCOPE, NOW)
    assert commits(store) == before
    await store.jobs.put(job)
    before = commits(store)
    assert await unread(approvals, THERE) == []
    assert commits(store) == before
    assert await unread(approvals, HERE) == [job.id]
    await store.close()


async def test_a_turn_that_looks_before_the_denial_is_stored_does_not_hide_it() -> None:
    """The decision is made, a turn finds nothing, the decision is committed: the next turn finds it."""
    store = await open_inline_store()
    approvals = approvals_over(store)
    job = await approvals.deny(QUESTION, "Ann", SCOPE, NOW)
    assert await unread(approvals, HERE) == []
    await store.jobs.put(job)
    assert await unread(approvals, HERE) == [job.id]
    await store.close()


async def test_a_restart_finds_stored_denials_and_those_decided_meanwhile(tmp_path: Path) -> None:
    """Also if a decision comes while the first turn still reads the stored ones."""
    path = tmp_path / "journal.db"
    store = await open_inline_store(path)
    stored = await approvals_over(store).deny(QUESTION, "Ann", SCOPE, NOW)
    await store.jobs.put(stored)
    await store.close()
    store = await open_inline_store(path)
    approvals = approvals_over(store)
    other = replace(QUESTION, key=str(THERE))
    found, decided = await asyncio.gather(unread(approvals, HERE), approvals.deny(other, "Ann", SCOPE, NOW))
    assert found == [stored.id]
    await store.jobs.put(decided)
    assert await unread(approvals, THERE) == [decided.id]
    await store.close()
