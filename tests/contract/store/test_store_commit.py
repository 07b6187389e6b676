"""The commit: one transaction, once; its record until it is projected."""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import replace
from datetime import timedelta

import pytest

from agent.memory.prompt.prompt_snapshot import digest_of
from gateway.errors import LeaseLost
from gateway.events import OutboundKind, OutboundMessage, SessionKey
from gateway.ports.channel import CACHED_NOTES
from gateway.ports.journal import Job, JobAdvance, JobLimit, TurnCommit, TurnStep
from gateway.ports.memory import FileKind
from gateway.store.sql_store import SqlStore
from gateway.text.json_lines import decode_lines
from tests.contract.store.conftest import StoreBackend
from tests.fakes.turns import (
    ANN,
    BOB,
    START,
    accept,
    answer,
    answered,
    begin_turn,
    claim,
    outbound,
    plain_record,
    said,
    spent,
)

KINDS = ("remember",)
JOB = Job(id="j1", kind="remember", scope="people/ann", payload={"fact": "tea"}, due_at=START)


async def test_a_commit_is_all_there_after_a_kill(backend: StoreBackend) -> None:
    """Record, rows, outbound, jobs, usage, session and the texts of its snapshot stand together."""
    store = await backend.open()
    lease = await begin_turn(store)
    await store.journal.step(lease, TurnStep(n=0, kind="opening", lines=()))
    store.journal.spend(spent(lease.turn))
    commit = answered(lease, "one", "two", jobs=(JOB,), blobs={digest_of("text"): "text"})
    assert await store.journal.commit(lease, commit) == commit.record
    store = await backend.reopen()
    [unwritten] = await store.records.unwritten(0, 10)
    assert decode_lines(unwritten.body)[: len(commit.record.lines)] == list(commit.record.lines)
    assert await store.journal.commit(lease, answered(lease, "late")) == replace(commit.record, blobs={})
    assert await store.files.load_small("", FileKind.TEXT, [digest_of("text")]) == {digest_of("text"): b"text"}
    assert [each.message for each in await store.outbox.undelivered(ANN)] == list(outbound(lease, "one", "two"))
    assert await store.jobs.pending_in("people/ann") == (JOB,)
    assert (await store.journal.session(ANN)).next_index == 2
    story = await store.journal.trace(lease.turn)
    assert story is not None
    assert (story.steps, len(story.usage), story.inbox[0]["state"]) == ((), 1, "answered")
    assert await store.journal.claim(ANN) is None


async def test_committing_again_returns_what_is_stored(store: SqlStore) -> None:
    """A commit whose reply was lost is recognised, even when it now says something else."""
    lease = await begin_turn(store)
    first = await store.journal.commit(lease, answered(lease, "one"))
    running = await begin_turn(store, said(id="2"))
    assert await store.journal.commit(lease, answered(lease, "other", "more")) == first
    assert [each.message.text for each in await store.outbox.undelivered(ANN)] == ["one"]
    await store.journal.commit(running, answered(running))  # the lane was not freed by the repetition


async def test_a_commit_happens_even_if_its_caller_is_cancelled(store: SqlStore) -> None:
    """/stop after the commit has begun is "already answered"; the lane goes on."""
    await accept(store, said(id="1"))
    await accept(store, said(id="2"))
    lanes = store.journal.ready_sessions()
    await anext(lanes)
    lease = await claim(store)
    task = asyncio.create_task(store.journal.commit(lease, answered(lease, "one")))
    await asyncio.sleep(0)  # it has begun
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.wait_for(anext(lanes), 60) == ANN
    assert [each.message.text for each in await store.outbox.undelivered(ANN)] == ["one"]


async def test_a_commit_for_a_session_that_moved_on_does_not_count(store: SqlStore) -> None:
    """/new between claim and commit: nothing is stored, the rows go back, and cannot do so for ever."""
    await accept(store, said())
    attempts = []
    for n in range(4):
        lease = await claim(store)
        attempts.append((lease.rows[0].is_lone, lease.rows[0].attempts))
        await accept(store, said("/new", id=f"new{n}"), is_control=True)
        row = await anext(store.journal.control_rows())
        new = plain_record(f"tnew{n}", lease.session, inbox=(row.seq,), new_transcript=f"fresh{n}")
        await store.journal.settle(row, TurnCommit(record=new))
        with pytest.raises(LeaseLost):
            await store.journal.commit(lease, answered(lease, "old"))
    assert attempts == [(False, 0), (False, 0), (True, 0), (True, 1)]
    assert await store.outbox.undelivered(ANN) == ()
    lease = await claim(store)
    assert lease.session.transcript == "fresh3"
    await store.journal.commit(lease, answered(lease, "new"))


async def test_a_first_turn_is_stored_though_a_command_beside_it_was_settled_before(store: SqlStore) -> None:
    """The command gives the new session its scope. The turn has the same one, and does not run again."""
    lease = await begin_turn(store, said(id="1"))
    await accept(store, said("/status", id="2"), is_control=True)
    row = await anext(store.journal.control_rows())
    record = plain_record("tstatus", lease.session, inbox=(row.seq,), scope="people/ann")
    await store.journal.settle(row, TurnCommit(record=record))
    assert (await store.journal.session(ANN)).scope == "people/ann"
    stored = await store.journal.commit(lease, answered(lease, "one", scope="people/ann"))
    assert stored.turn == lease.turn
    assert [each.message.text for each in await store.outbox.undelivered(ANN)] == ["one"]


async def test_a_control_row_is_settled_beside_a_running_turn(store: SqlStore) -> None:
    """/status neither waits for the lane nor moves its index; settling twice is settling once."""
    lease = await begin_turn(store, said(id="1"))
    await accept(store, said("/status", id="2"), is_control=True)
    row = await anext(store.journal.control_rows())
    session = await store.journal.session(ANN)
    assert session == lease.session
    record = plain_record("tstatus", session, inbox=(row.seq,))
    assert await store.journal.settle(row, TurnCommit(record=record)) == record
    again = await store.journal.settle(row, TurnCommit(record=record))
    assert (again.turn, again.lines[:-1], again.lines[-1]["kind"]) == ("tstatus", record.lines, "end")
    await store.journal.commit(lease, answered(lease))
    assert [stored.turn for stored in await store.records.unwritten(0, 10)] == ["tstatus", lease.turn]
    story = await store.journal.trace("tstatus")
    assert story is not None
    assert story.inbox[0]["state"] == "answered"


async def test_a_new_transcript_starts_at_index_zero(store: SqlStore) -> None:
    """/new's commit replaces the transcript, once."""
    lease = await answer(store, said(), "answer")
    record = plain_record("tnew", await store.journal.session(ANN), new_transcript="fresh")
    await store.records.append(record)
    await store.records.append(record)
    session = await store.journal.session(ANN)
    assert (session.transcript, session.next_index) == ("fresh", 0)
    late = plain_record("tlate", lease.session, new_transcript="other")
    await store.records.append(late)
    assert (await store.journal.session(ANN)).transcript == "fresh"


async def test_appended_lines_that_take_indices_are_fenced(store: SqlStore) -> None:
    """A record outside the lane cannot take indices that the lane has given away."""
    await answer(store, said(), "answer")
    session = await store.journal.session(ANN)
    with pytest.raises(LeaseLost):
        await store.records.append(plain_record("tx", session, from_index=0, to_index=1))
    await store.records.append(plain_record("ty", session))
    assert (await store.journal.session(ANN)).next_index == session.next_index


async def test_what_is_said_beside_appended_lines_is_said_once(store: SqlStore) -> None:
    """A report of work that no turn did: however often it is appended, it is one message in its chat."""
    record = plain_record("treport", await store.journal.session(ANN))
    report = OutboundMessage(id="treport.1", key=ANN, text="Done.", kind=OutboundKind.NOTICE)
    for _ in range(2):
        await store.records.append(record, outbound=[report])
    assert [each.message for each in await store.outbox.undelivered(ANN)] == [report]


async def test_turns_that_are_in_their_files_are_not_returned_again(backend: StoreBackend) -> None:
    """They come in commit order, after a number; what is written comes no more, and stays in the store."""
    store = await backend.open()
    turns = [(await answer(store, said(id=str(n), key=key), "x")).turn for n, key in enumerate((ANN, BOB, ANN))]
    records = await store.records.unwritten(0, 10)
    assert [stored.turn for stored in records] == turns
    assert [stored.turn for stored in await store.records.unwritten(records[0].seq, 1)] == [turns[1]]
    store.records.mark_written([stored.seq for stored in records[:2]])
    assert [stored.turn for stored in await store.records.unwritten(0, 10)] == [turns[2]]
    store = await backend.reopen()
    assert [stored.turn for stored in await store.records.unwritten(0, 10)] == [turns[2]]
    assert [each.turn for each in await store.transcripts.scan("")] == [turns[0], turns[2], turns[1]]


async def test_the_mirror_is_woken_at_start_and_by_each_commit(store: SqlStore) -> None:
    """What was left at the last stop is looked at without a new commit."""
    await asyncio.wait_for(store.records.wait_unwritten(), 60)
    waiting = asyncio.create_task(store.records.wait_unwritten())
    await asyncio.sleep(0)
    assert not waiting.done()
    await answer(store, said(), "x")
    await asyncio.wait_for(waiting, 60)


async def test_sessions_are_listed_most_recent_first(backend: StoreBackend) -> None:
    """A commit makes its session the most recently used."""
    store = await backend.open()
    await answer(store, said(id="1"), "x")
    backend.wall.advance(seconds=1)
    await answer(store, said(id="2", key=BOB), "x")
    backend.wall.advance(seconds=1)
    assert [session.key for session in await store.records.sessions()] == [BOB, ANN]
    await answer(store, said(id="3"), "x")
    assert [session.key for session in await store.records.sessions()] == [ANN, BOB]
    newest = (await store.records.sessions())[0]
    assert newest.used_at == backend.wall.now()
    assert dataclasses.replace(newest, used_at=None) == await store.journal.session(ANN)


async def test_a_story_needs_a_reference_that_fits_one_turn(store: SqlStore) -> None:
    """A prefix is enough; an empty, unknown or shared one finds nothing."""
    lease = await answer(store, said(), "x")
    await answer(store, said(id="2"), "x")
    story = await store.journal.trace(lease.turn[:8])
    assert story is not None
    assert (story.turn, story.key) == (lease.turn, ANN)
    assert story.record is not None
    assert story.record["outcome"] == "answered"
    for reference in ("", "t", "zzz", lease.turn + "x"):
        assert await store.journal.trace(reference) is None


async def test_jobs_are_leased_until_finished_or_put_off(backend: StoreBackend) -> None:
    """Due ones, oldest first, once per process; a restart offers them again; order in a scope is kept."""
    store = await backend.open()
    later = Job(id="j2", kind="remember", scope="people/ann", payload={}, due_at=START - timedelta(seconds=9))
    future = Job(id="j3", kind="remember", scope="", payload={}, due_at=START + timedelta(hours=1))
    for job in (JOB, later, future, JOB):
        await store.jobs.put(job)
    assert [job.id for job in await store.jobs.due(START, 10, kinds=KINDS)] == ["j2", "j1"]
    assert await store.jobs.due(START, 10, kinds=KINDS) == ()
    assert [job.id for job in await store.jobs.pending_in("people/ann")] == ["j1", "j2"]
    await store.jobs.finish(JOB)
    await store.jobs.finish(JOB)
    await store.jobs.put_off(later, timedelta(minutes=1), "busy", payload={"bad_answers": 1})
    assert await store.jobs.due(START, 10, kinds=KINDS) == ()
    (again,) = await store.jobs.due(START + timedelta(minutes=1), 10, kinds=KINDS)
    assert (again.id, again.attempts, again.payload) == ("j2", 1, {"bad_answers": 1})
    await store.jobs.put_off(again, timedelta(minutes=1), "busy", counts=False)
    (again,) = await store.jobs.due(START + timedelta(minutes=2), 10, kinds=KINDS)
    assert (again.attempts, again.payload) == (1, {"bad_answers": 1})
    store = await backend.reopen()
    assert await store.jobs.due(START + timedelta(hours=2), 10, kinds=("summarise",)) == ()
    assert [job.id for job in await store.jobs.due(START + timedelta(hours=2), 1, kinds=KINDS)] == ["j2"]


async def test_a_job_advances_only_while_it_is_queued(backend: StoreBackend) -> None:
    """The next one takes its place in one transaction; one that was cancelled while it ran never returns."""
    store = await backend.open()
    slots = [Job(id=f"remind:r1:{n}", kind="remind", scope="chats/c", payload={"n": n}, due_at=START) for n in (1, 2)]
    other = Job(id="remind:r10:1", kind="remind", scope="chats/d", payload={}, due_at=START - timedelta(hours=1))
    for job in (slots[0], other):
        await store.jobs.put(job)
    assert await store.jobs.due(START, 1, kinds=("remind",)) == (other,)
    assert await store.jobs.due(START, 1, kinds=("remind",)) == (slots[0],)
    assert await store.jobs.advance(slots[0], slots[1])
    assert not await store.jobs.advance(slots[0], slots[1])
    assert await store.jobs.pending_of("remind") == (other, slots[1])
    assert await store.jobs.due(START, 5, kinds=("remind",)) == (slots[1],)
    lease = await begin_turn(store)
    again = Job(id="remind:r1:9", kind="remind", scope="chats/c", payload={}, due_at=START)
    await store.journal.commit(
        lease, replace(answered(lease), ends=("remind:r1:",), advances=(JobAdvance(slots[1], again),))
    )
    assert not await store.jobs.advance(slots[1], again)
    store = await backend.reopen()
    assert [job.id for job in await store.jobs.pending_of("remind")] == [other.id]
    assert await store.jobs.advance(other, None)
    assert await store.jobs.pending_of("remind") == ()


async def test_a_commit_replaces_the_jobs_of_a_prefix(store: SqlStore) -> None:
    """What it ends is gone before what it queues comes, so one commit moves a job, id and all."""
    job = Job(id="remind:r1:a", kind="remind", scope="chats/c", payload={"n": 1}, due_at=START)
    beside = replace(job, id="remind:r1-:%_")
    for each in (job, replace(job, id="remind:r1:b"), beside):
        await store.jobs.put(each)
    lease = await begin_turn(store)
    moved = replace(job, payload={"n": 2})
    after = replace(job, id="remind:r1:c")
    advances = (JobAdvance(beside, after), JobAdvance(replace(job, id="remind:r1:b"), replace(job, id="never")))
    await store.journal.commit(lease, replace(answered(lease, jobs=(moved,)), ends=("remind:r1:",), advances=advances))
    assert await store.jobs.pending_of("remind") == (moved, after)


async def test_the_next_due_job_is_known(store: SqlStore) -> None:
    """Of the kinds asked about, not leased, and later than asked: the others are running or cannot begin."""
    for n, kind in enumerate(("think", "write", "think")):
        await store.jobs.put(
            Job(id=f"j{n}", kind=kind, scope="", payload={}, due_at=START + timedelta(microseconds=n + 1))
        )
    assert await store.jobs.next_due(START, kinds=("think", "write")) == START + timedelta(microseconds=1)
    assert await store.jobs.next_due(START + timedelta(microseconds=1), kinds=("think",)) == START + timedelta(
        microseconds=3
    )
    await store.jobs.due(START + timedelta(hours=1), 5, kinds=("think",))
    assert await store.jobs.next_due(START, kinds=("think",)) is None
    assert await store.jobs.next_due(START, kinds=()) is None


async def test_a_queued_job_wakes_its_worker(store: SqlStore) -> None:
    """Whether it came by put or by a commit; and the wait has an end."""
    await store.jobs.wait_changed(timedelta(seconds=10))  # at start there may be some
    await store.jobs.wait_changed(timedelta(milliseconds=1))
    waiting = asyncio.create_task(store.jobs.wait_changed(timedelta(seconds=60)))
    lease = await begin_turn(store)
    await store.journal.commit(lease, answered(lease, jobs=(JOB,)))
    await asyncio.wait_for(waiting, 60)


async def test_usage_adds_up_by_purpose_and_model(store: SqlStore) -> None:
    """An unknown cost makes the sum unknown; time, person and chat narrow it down."""
    store.journal.spend(spent("t1", cost=0.5))
    store.journal.spend(spent("t2", cost=0.25))
    store.journal.spend(spent("t2", purpose="flush", cost=None))
    store.journal.spend(spent("t3", person="people/bob", at=START + timedelta(hours=1), cost=1.0))
    sums = await store.usage.totals(since=START, person="people/ann")
    assert [(row["purpose"], row["model"], row["calls"], row["tokens_in"], row["cost"]) for row in sums] == [
        ("answer", "m", 2, 20, 0.75),
        ("flush", "m", 1, 10, None),
    ]
    (late,) = await store.usage.totals(since=START + timedelta(minutes=1))
    assert late["calls"] == 1
    assert await store.usage.totals(since=START, chat="telegram:99") == ()


async def test_a_channels_note_is_replaced_by_who_knows_what_it_was(store: SqlStore) -> None:
    """Of two who change it at the same time one is told, and begins anew; a cached one is served as it was stored."""
    state = store.state("mcp/")
    name = f"{CACHED_NOTES}server"
    first, second = await asyncio.gather(state.replace(name, None, "a"), state.replace(name, None, "b"))
    assert (first, second) == (True, False)
    first, second = await asyncio.gather(state.replace(name, "a", "c"), state.replace(name, "a", "d"))
    assert (first, second) == (True, False)
    assert (await state.load(name), state.cached()[name]) == ("c", "c")
    assert not await state.replace(name, "a", None)
    assert await state.replace(name, "c", None)
    assert (await state.load(name), dict(state.cached())) == (None, {})


async def test_choices_and_notes_survive(backend: StoreBackend) -> None:
    """Preferences are served from memory; an empty value removes; channels keep their notes apart."""
    store = await backend.open()
    await store.people.prefer("people/ann", "zone", "Europe/Berlin")
    await store.people.prefer("people/ann", "language", "de")
    await store.people.prefer("people/ann", "language", "")
    await store.state("slack").save("mark", "17\ud800")
    await store.state("slack").save("gone", "x")
    await store.state("slack").save("gone", None)
    assert store.people.preferences("people/ann") == {"zone": "Europe/Berlin"}
    store = await backend.reopen()
    assert store.people.preferences("people/ann") == {"zone": "Europe/Berlin"}
    assert store.people.preferences("people/bob") == {}
    assert await store.state("slack").load("mark") == "17\ud800"
    assert await store.state("slack").load("gone") is None
    assert await store.state("web").load("mark") is None
    for name in ("reaction", "reaction/1", "reaction/ä", "reactions", "reaction0"):
        await store.state("slack").save(name, "\ud800")
    await store.state("web").save("reaction/2", "x")
    assert await store.state("slack").all("reaction/") == {"reaction/1": "\ud800", "reaction/ä": "\ud800"}
    await store.state("web").save(f"{CACHED_NOTES}login", "ann\ud800")
    assert store.state("slack").cached() == {}
    store = await backend.reopen()
    assert store.state("web").cached() == {f"{CACHED_NOTES}login": "ann\ud800"}
    assert await store.state("web").take("reaction/2") == "x"
    assert await store.state("web").take("reaction/2") is None


async def test_the_next_run_takes_over_the_messages_of_a_killed_one(backend: StoreBackend) -> None:
    """Those of its channel from its first row on, ended or not; nobody else gets them, and a clean stop leaves none."""
    store = await backend.open()
    rows = [(await accept(store, said(id=str(n)))).seq for n in range(4)]
    other = (await accept(store, said(id="9", key=SessionKey("web", "ann")))).seq
    lease = await claim(store)
    await store.journal.commit(lease, answered(lease, "one"))
    state = store.state(ANN.channel)
    ended = {row.seq for row in lease.rows}
    assert state.just_ended({*rows, other}) == ended
    assert await state.find_ended(ANN, rows) == ended
    assert await state.find_ended(ANN, [10_000]) == {10_000}
    await state.save_first_row(rows[1])
    await store.state("web").save_first_row(None)
    assert await state.take_over_rows(10) == ()
    store = await backend.reopen()
    state = store.state(ANN.channel)
    assert state.just_ended(rows) == frozenset()
    await state.save_first_row(rows[3])
    assert await store.state("web").take_over_rows(10) == ()
    found = await state.take_over_rows(10)
    assert [(each.row, each.key, each.message_id) for each in found] == [(rows[n], ANN, str(n)) for n in (3, 2, 1)]
    assert await state.take_over_rows(10) == ()
    store = await backend.reopen()
    assert len(await store.state(ANN.channel).take_over_rows(10)) == 3  # its own first row had become that of the first
    assert len(await store.state(ANN.channel).take_over_rows(10)) == 0
    store = await backend.reopen()
    assert len(await store.state(ANN.channel).take_over_rows(2)) == 2
    await store.state(ANN.channel).save_first_row(None)
    store = await backend.reopen()
    assert await store.state(ANN.channel).take_over_rows(10) == ()


async def test_a_job_is_queued_below_its_limit_alone(store: SqlStore) -> None:
    """Of one kind and some people; of commits at one moment, too; others, and texts that look alike, do not count."""

    def task(name: str, person: str, kind: str = "task", **more: str) -> Job:
        limit = JobLimit((person, f"{person}%3a2"), 2) if person == "ann" else None
        payload = {"person": person, **more}
        return Job(id=name, kind=kind, scope="people/ann", payload=payload, due_at=START, limit=limit)

    await store.jobs.put(replace(task("task:bob", "bob"), payload={"person": "bob", "text": '"person":"ann"'}))
    await store.jobs.put(task("other:ann", "ann", kind="task-end"))
    leases = []
    for chat in ("1", "2", "3"):
        await accept(store, said(key=SessionKey("telegram", chat)))
        leases.append(await claim(store, SessionKey("telegram", chat)))
    commits = (
        store.journal.commit(lease, answered(lease, "one", jobs=(task(f"task:{n}", "ann"),)))
        for n, lease in enumerate(leases)
    )
    await asyncio.gather(*commits)
    found = [each for each in await store.jobs.pending_of("task") if each.payload["person"] == "ann"]
    assert len(found) == 2
