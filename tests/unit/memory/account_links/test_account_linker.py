"""A link moves the conversations of every chat, whoever answers it, and whoever completes it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from agent.base.disk import Disk
from agent.base.scopes import transcript_path
from agent.memory.account_links.account_linker import AccountLinker
from agent.memory.editing.memory_file_writer import MemoryFileWriter
from agent.memory.jobs.job_runner import ScopeLock
from agent.memory.storage.session_file_writer import SessionFileWriter
from gateway.events import PlatformAccount, SessionKey
from gateway.ports.access import ScopeMove
from gateway.ports.journal import Job
from gateway.store.account_links import LinkSnapshot, SqlAccountLinks
from gateway.store.jobs import SqlJobs
from tests.fakes.memory import SCOPE, START, FakeRecords, talk

BOB, BOBS_SCOPE = SessionKey("telegram", "43"), "people/telegram%3a43"


ACCOUNTS = {"accounts": [SCOPE.removeprefix("people/"), BOBS_SCOPE.removeprefix("people/")]}


async def nothing(_: str) -> None:
    """No index is open."""


def linker_of(
    home: Path, records: FakeRecords, mirror: SessionFileWriter, jobs: SqlJobs | None = None
) -> AccountLinker:
    """Return a linker of a home."""
    return AccountLinker(
        links=SqlAccountLinks(records.engine, LinkSnapshot(), {}),
        jobs=jobs,
        records=records,
        transcripts=records.transcripts,
        session_files=mirror,
        scope_lock=ScopeLock(),
        writing=asyncio.Lock(),
        history=records.history,
        files=records.files,
        home=home,
        documents=records.documents,
        memory_files=MemoryFileWriter(home, records.documents, records.history),
        reopen=lambda _: None,
        close_files=nothing,
        now=lambda: START,
        disk=Disk(),
    )


async def test_chats_that_no_gateway_has_claimed_are_in_the_persons_folder_too(tmp_path: Path) -> None:
    """Several gateways share the chats, and an idle one belongs to none: the link writes its file all the same."""
    records = FakeRecords(*talk(2), *talk(2, first=10, key=BOB, scope=BOBS_SCOPE, transcript="b" * 16))
    mirror = SessionFileWriter(tmp_path, records, records.transcripts)
    await mirror.flush()
    before = transcript_path(tmp_path, BOBS_SCOPE, str(BOB)).read_bytes()
    records.engine.claims.is_shared = True
    linker = linker_of(tmp_path, records, mirror)
    await linker.links.link(ScopeMove(id="link:1", kind="link", source=BOBS_SCOPE, target=SCOPE, at=START))
    await linker.resume()
    assert transcript_path(tmp_path, SCOPE, str(BOB)).read_bytes() == before
    assert not transcript_path(tmp_path, BOBS_SCOPE, str(BOB)).exists()
    assert await linker.links.moves() == []


@pytest.mark.parametrize("kind", ["link", "unlink"])
async def test_a_job_that_another_gateway_has_begun_is_completed(tmp_path: Path, kind: str) -> None:
    """A gateway is killed after the rows of a move: the one that takes its job over moves the files."""
    records = FakeRecords(*talk(2), *talk(2, first=10, key=BOB, scope=BOBS_SCOPE, transcript="b" * 16))
    mirror = SessionFileWriter(tmp_path, records, records.transcripts)
    await mirror.flush()
    await records.documents.write(BOBS_SCOPE, "MEMORY.md", "- Bob likes tea\n", was="", why="t")
    linker = linker_of(tmp_path, records, mirror)
    bob = PlatformAccount.from_name(BOBS_SCOPE.removeprefix("people/"))
    move = ScopeMove(id="link:1", kind="link", source=BOBS_SCOPE, target=SCOPE, at=START)
    await linker.links.link(move)
    if kind == "unlink":
        await linker.resume()
        move = ScopeMove(id="unlink:1", kind="unlink", source=SCOPE, target=BOBS_SCOPE, at=START, account=bob)
        await linker.links.unlink(move)
    payload = ACCOUNTS if kind == "link" else {"account": bob.name}
    job = Job(id=move.id, kind=kind, scope=SCOPE, payload=payload, due_at=START)
    assert await (linker.link(job) if kind == "link" else linker.unlink(job)) is None
    assert await linker.links.moves() == []
    assert len(list((tmp_path / SCOPE / "sessions").glob("*.jsonl"))) == (2 if kind == "link" else 1)
    assert len(list((tmp_path / BOBS_SCOPE / "sessions").glob("*.jsonl"))) == (0 if kind == "link" else 1)
    owner = SCOPE if kind == "link" else BOBS_SCOPE
    for scope in (SCOPE, BOBS_SCOPE):
        text = "- Bob likes tea\n" if scope == owner else ""
        assert (await records.documents.read(scope, "MEMORY.md")).text == text
        path = tmp_path / scope / "memory/MEMORY.md"
        assert (path.read_text() if path.exists() else "") == text


@pytest.mark.parametrize("suffix", ["", ".1"], ids=["move", "companion"])
async def test_a_start_beside_other_gateways_leaves_a_move_to_its_job(tmp_path: Path, suffix: str) -> None:
    """The gateway that runs the job may be moving the files now; the start ended when both did."""
    records = FakeRecords(*talk(2), *talk(2, first=10, key=BOB, scope=BOBS_SCOPE, transcript="b" * 16))
    mirror = SessionFileWriter(tmp_path, records, records.transcripts)
    await mirror.flush()
    jobs = SqlJobs(records.engine)
    linker = linker_of(tmp_path, records, mirror, jobs)
    job = Job(id="link:1", kind="link", scope=SCOPE, payload=ACCOUNTS, due_at=START)
    await jobs.put(job)
    move = ScopeMove(id=f"link:1{suffix}", kind="link", source=BOBS_SCOPE, target=SCOPE, at=START)
    await linker.links.link(move)
    await linker.resume()
    assert [each.id for each in await linker.links.moves()] == [move.id]
    assert await linker.link(job) is None
    assert await linker.links.moves() == []


async def complete(linker: AccountLinker) -> None:
    """Start a gateway, and do the jobs that wait."""
    await linker.resume()
    if linker.jobs is not None:
        for job in (*await linker.jobs.pending_of("link"), *await linker.jobs.pending_of("unlink")):
            assert await (linker.link(job) if job.kind == "link" else linker.unlink(job)) is None
            await linker.jobs.finish(job)


async def test_a_start_beside_other_gateways_gives_a_move_without_a_job_a_new_one(tmp_path: Path) -> None:
    """Nothing else would complete it, and at a start, without its locks, two gateways could move the same files."""
    records = FakeRecords(*talk(2), *talk(2, first=10, key=BOB, scope=BOBS_SCOPE, transcript="b" * 16))
    mirror = SessionFileWriter(tmp_path, records, records.transcripts)
    jobs = SqlJobs(records.engine)
    linker = linker_of(tmp_path, records, mirror, jobs)
    await linker.links.link(ScopeMove(id="link:1", kind="link", source=BOBS_SCOPE, target=SCOPE, at=START))
    (tmp_path / SCOPE / "memory").mkdir(parents=True)
    (tmp_path / SCOPE / "memory" / ".mirror").write_text("no folder: files cannot be moved, and the start goes on")
    for _ in range(2):
        await linker.resume()
    assert [each.id for each in await jobs.pending_of("link")] == ["link:1"]
    assert len(await linker.links.moves()) == 1
    (tmp_path / SCOPE / "memory" / ".mirror").unlink()
    await complete(linker)
    assert await linker.links.moves() == []
    assert len(list((tmp_path / SCOPE / "sessions").glob("*.jsonl"))) == 2


@pytest.mark.parametrize("is_shared", [True, False], ids=["several gateways", "one gateway"])
async def test_an_answer_by_a_clock_that_is_behind_loses_its_words_with_an_unlink(
    tmp_path: Path, is_shared: bool
) -> None:
    """It may quote the other account's memory, though its time is before the link that another gateway noted."""
    records = FakeRecords(*talk(2, answered="he likes tea"), *talk(2, first=10, key=BOB, scope=BOBS_SCOPE))
    mirror = SessionFileWriter(tmp_path, records, records.transcripts)
    linker = linker_of(tmp_path, records, mirror, SqlJobs(records.engine) if is_shared else None)
    at, bob = START + timedelta(minutes=5), PlatformAccount.from_name(BOBS_SCOPE.removeprefix("people/"))
    await linker.links.link(ScopeMove(id="link:1", kind="link", source=BOBS_SCOPE, target=SCOPE, at=at))
    await complete(linker)
    move = ScopeMove(id="unlink:1", kind="unlink", source=SCOPE, target=BOBS_SCOPE, at=at, account=bob)
    await linker.links.unlink(move)
    await complete(linker)
    bodies = b"".join(each.body for each in await records.transcripts.scan(SCOPE))
    assert (b"question 0" in bodies, b"tea" in bodies) == (True, not is_shared)
