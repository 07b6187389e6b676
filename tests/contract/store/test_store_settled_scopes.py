"""Lines that one gateway has committed and not yet written are waited for by an erasure at another."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest

from agent.memory.documents.file_documents import FileDocumentStore
from agent.memory.documents.version_keeper import VersionKeeper
from agent.memory.documents.version_store import VersionStore
from agent.memory.erasure.retention import RETENTION, RetentionJob
from agent.memory.erasure.scope_files import ErasureStorage
from agent.memory.jobs.job_runner import RetryJobLater
from agent.memory.jobs.memory_jobs import MemoryJobs
from agent.memory.prompt.conversation import Conversation
from agent.memory.prompt.conversation_cache import ConversationCache
from agent.memory.prompt.due_jobs import REMEMBER
from agent.memory.scopes import scope_folder
from agent.memory.storage import session_file_writer
from agent.memory.storage import transcript_lines as build
from agent.memory.storage.disk import Disk
from agent.memory.storage.scope_file_sync import ScopeFileSync
from agent.memory.storage.session_file_writer import SessionFileWriter
from agent.memory.stored_sessions import StoredSessions
from gateway.errors import StoreUnavailable
from gateway.events import SessionKey
from gateway.ports import Job
from gateway.ports.scope_files import StoredFile
from gateway.store.sql_store import SqlStore
from tests.fakes.shared_workers import Workers, paused
from tests.fakes.turns import ANN, accept, answered, claim, plain_record, said

SCOPE = "people/telegram%3a42"
OTHER_CHAT = SessionKey("telegram", "43")  # of the same person


class WrittenHome:
    """The transcripts of one gateway's home."""

    def __init__(self, home: Path, store: SqlStore) -> None:
        assert store.scope_files is not None
        home.mkdir(exist_ok=True)
        self.path = home
        self.store = store
        self.files = ScopeFileSync(home, store.scope_files)
        self.mirror = SessionFileWriter(home, store.records, store.transcripts)
        self.sessions = scope_folder(home, SCOPE) / "sessions"
        store.scope_files.save_first(self.files.save)
        self.conversations = ConversationCache(home, store.transcripts)
        self.files.watch(lambda: (SCOPE,), self.mirror.let_go, self.conversations.forget_changed)
        self.mirror.share(store.erasing.has_unwritten, self.files.fetch, self.conversations.adopt)

    async def open(self, key: SessionKey) -> Conversation:
        """Return the conversation of a chat as a turn would have it."""
        return await self.conversations.open(await self.store.journal.session(key), SCOPE)

    def text(self) -> str:
        """Return every transcript of the scope."""
        return "".join(path.read_text() for path in self.sessions.glob("*.jsonl"))


async def answer_in(store: SqlStore, key: SessionKey, text: str) -> None:
    """Accept a message, and answer it with *text* once its chat is ours."""
    await accept(store, said(key=key))
    async for each in store.journal.ready_sessions():
        if each == key:
            break
    lease = await claim(store, key)
    commit = answered(lease, text)
    await store.journal.commit(lease, replace(commit, record=replace(commit.record, scope=SCOPE)))


async def two_homes(team: Workers, folder: Path) -> Sequence[WrittenHome]:
    """Return two gateways' homes with a chat of one person each; the second has not written its lines."""
    first = WrittenHome(folder / "0", await team.open())
    await first.files.start()
    await answer_in(first.store, ANN, "I like coffee")
    await first.mirror.flush()
    second = WrittenHome(folder / "1", await team.open())
    await second.files.start()
    await paused(first.store)
    await answer_in(second.store, OTHER_CHAT, "I like green tea")
    return first, second


async def test_an_erasure_finds_lines_that_another_gateway_has_not_written(team: Workers, tmp_path: Path) -> None:
    """Two chats of one person at two gateways: the words of the other's chat are there when they are looked for."""
    homes = await two_homes(team, tmp_path)
    assert await homes[0].store.erasing.has_unwritten(SCOPE)
    assert not await homes[1].store.erasing.has_unwritten(SCOPE)
    erasing = asyncio.create_task(homes[0].mirror.settle(SCOPE))
    await asyncio.sleep(0)
    await homes[1].mirror.flush()
    await erasing
    assert "green tea" in homes[0].text()
    assert await homes[0].mirror.redact(SCOPE, lambda raw: raw.replace(b"green tea", b"_________"))
    await homes[0].files.save((SCOPE,))
    await homes[1].files.fetch(SCOPE)
    assert "green tea" not in homes[1].text()
    assert "coffee" in homes[1].text()


async def test_a_commit_stores_what_was_written_but_lines_that_are_in_records(team: Workers, tmp_path: Path) -> None:
    """Lines that only the home's transcript has wait for their projection; a commit after another file has both."""
    home = WrittenHome(tmp_path, await team.open())
    await home.files.start()
    await answer_in(home.store, ANN, "one")
    await home.mirror.flush()
    transcript, store, disk = next(home.sessions.glob("*.jsonl")), home.store.scope_files, Disk()
    assert store is not None
    before = (await store.look(SCOPE))[SCOPE].version
    line = disk.open_append(transcript)
    disk.write(line, b"{}\n")
    disk.close(line)
    await answer_in(home.store, OTHER_CHAT, "two")
    assert (await store.look(SCOPE))[SCOPE].version == before
    disk.replace(scope_folder(tmp_path, SCOPE) / "results" / "1.txt", b"result")
    await answer_in(home.store, SessionKey("telegram", "44"), "three")
    _, files = await store.files(SCOPE)
    assert {each.path: each.size for each in files} == {
        f"sessions/{transcript.name}": transcript.stat().st_size,
        "results/1.txt": 6,
    }


async def test_a_gateway_that_cannot_write_its_lines_makes_an_erasure_wait(
    team: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is said to be forgotten that is still there: the turn runs again later."""
    monkeypatch.setattr(session_file_writer, "_LONGEST_SETTLE", 0.1)
    first, second = await team.open(), await team.open()
    home = WrittenHome(tmp_path, first)
    await home.files.start()
    await paused(first)
    await answer_in(second, OTHER_CHAT, "I like green tea")
    with pytest.raises(StoreUnavailable, match="has not written"):
        await home.mirror.settle(SCOPE)


async def test_one_gateway_waits_for_none(tmp_path: Path, team: Workers) -> None:
    """Lines of its own chats are written by the erasure itself."""
    store = await team.open()
    home = WrittenHome(tmp_path, store)
    await home.files.start()
    await answer_in(store, ANN, "I like green tea")
    await home.mirror.settle(SCOPE)
    assert "green tea" in home.text()


async def test_a_history_has_what_another_gateway_has_committed(team: Workers, tmp_path: Path) -> None:
    """A window that comes to a gateway shows the turns of the gateway it was at, which are in no file yet."""
    homes = await two_homes(team, tmp_path)
    store = homes[0].store
    sessions = StoredSessions(store.records, store.transcripts, store.journal, store.outbox)
    page = await sessions.displayed_page(OTHER_CHAT, turns=10)
    assert page is not None
    assert [line.text for line in page.lines if line.role == "assistant"] == ["I like green tea"]


async def test_a_change_elsewhere_closes_the_conversations_that_it_is_about(team: Workers, tmp_path: Path) -> None:
    """Another gateway's turn leaves a chat of the same person open here; an erasure of its words closes that too."""
    homes = await two_homes(team, tmp_path)
    ours, theirs = await homes[0].open(ANN), await homes[0].open(OTHER_CHAT)
    written = homes[0].mirror._files[homes[0].sessions / "telegram%3a42.jsonl"]
    await homes[1].mirror.flush()
    await homes[0].files.fetch(SCOPE)
    assert await homes[0].open(ANN) is ours
    assert homes[0].mirror._files[homes[0].sessions / "telegram%3a42.jsonl"] is written
    assert await homes[0].open(OTHER_CHAT) is not theirs
    await homes[1].files.fetch(SCOPE)
    await homes[1].mirror.redact(SCOPE, lambda raw: raw.replace(b"coffee", b"______"))
    await homes[1].files.save((SCOPE,))
    await homes[0].files.fetch(SCOPE)
    read = await homes[0].open(ANN)
    assert "coffee" in str(ours.messages)
    assert "______" in str(read.messages)


async def test_a_record_that_another_gateway_makes_is_in_the_open_conversation(team: Workers, tmp_path: Path) -> None:
    """A deletion or summary made elsewhere, of a chat that this gateway has open and writes, is in its next prompt."""
    homes = await two_homes(team, tmp_path)
    session = await homes[0].store.journal.session(ANN)
    conversation = await homes[0].open(ANN)
    await accept(homes[0].store, said(id="2"))
    await claim(homes[0].store, ANN)
    record = plain_record("pentry", session, lines=(build.pointer(session.next_index, "e1"),), scope=SCOPE)
    await homes[1].store.records.append(record)
    await homes[0].mirror.flush()
    assert await homes[0].open(ANN) is conversation
    assert conversation.consolidated == session.next_index


class NoIndex:
    """A home without a search index."""

    async def purge_stale(self, scope: str) -> None:
        """Do nothing: nothing was indexed."""

    async def close_index(self, scope: str) -> None:
        """Do nothing."""

    def note(self, scope: str) -> None:
        """Do nothing."""


async def test_the_retention_waits_for_lines_that_another_gateway_has_not_written(
    team: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then it deletes nothing of the scope and comes back; then the old lines of both gateways go."""
    monkeypatch.setattr(session_file_writer, "_LONGEST_SETTLE", 0.1)
    homes = await two_homes(team, tmp_path)
    now = datetime.now(UTC) + timedelta(days=31)

    async def unlist(_: Collection[SessionKey]) -> None:
        """Do nothing: there is no list."""

    store, unused = homes[0].store, cast("Any", None)
    storage = ErasureStorage(
        home=homes[0].path, documents=unused, versions=unused, transcripts=homes[0].mirror, records=store.records,
        jobs=store.jobs, store=store.erasing, unscoped_data=unused, index=NoIndex(), staging=unused,
        writing=asyncio.Lock(),
        reopen=lambda _: None, now=lambda: now,
    )  # fmt: skip
    retention = RetentionJob(storage=storage, days=30, unlist=unlist)
    job = Job(id=f"{RETENTION}:today", kind=RETENTION, scope="", payload={}, due_at=now)
    assert isinstance(await retention.expire(job), RetryJobLater)
    assert "coffee" in homes[0].text()
    await homes[1].mirror.flush()
    assert await retention.expire(job) is None
    assert not re.search("coffee|green tea", homes[0].text())
    await homes[0].files.save((SCOPE,))
    await homes[1].files.fetch(SCOPE)
    assert not re.search("coffee|green tea", homes[1].text())


async def test_documents_are_replaced_under_their_lock_and_before_what_older_versions_refer_to(
    team: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that is being written here is whole before a fetch; one that is read finds its objects until the end.

    Without the lock a version could refer to an object that the fetch had just removed, at every gateway from then on.
    """
    homes = await two_homes(team, tmp_path)
    memories = [scope_folder(home.path, SCOPE) / "memory" for home in homes]
    documents = [FileDocumentStore(home.path, keeper=_keeper(home.path)) for home in homes]
    written = await documents[1].write(SCOPE, "MEMORY.md", "- tea\n", was="", why="test")
    assert written is not None
    await homes[1].files.save((SCOPE,))
    await homes[0].files.fetch(SCOPE)
    old = [path.relative_to(memories[0]) for path in (memories[0] / ".git/objects").glob("??/*")]
    assert old
    VersionStore(homes[1].path).rewrite(SCOPE, lambda text, _: text.replace(b"tea", b"___"))
    await homes[1].files.save((SCOPE,))
    fetched: list[str] = []
    read_small = homes[0].files._store.read_small

    async def look(scope: str, files: Sequence[StoredFile]) -> Mapping[str, bytes]:
        lock = os.open(memories[0] / ".lock", os.O_RDWR)
        try:
            with pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(lock)
        assert all((memories[0] / path).exists() for path in old)
        fetched.extend(each.path for each in files)
        return await read_small(scope, files)

    monkeypatch.setattr(homes[0].files._store, "read_small", look)
    await homes[0].files.fetch(SCOPE)
    is_object = ["/.git/objects/" in path for path in fetched]
    assert is_object == sorted(is_object, reverse=True)
    assert not all(is_object)
    assert not any((memories[0] / path).exists() for path in old)


async def test_a_version_that_is_written_during_a_fetch_is_whole_behind_it(team: Workers, tmp_path: Path) -> None:
    """The branch was read as it was then, and the objects as they were listed: the history was set aside as damaged."""
    homes = await two_homes(team, tmp_path)
    documents = FileDocumentStore(homes[1].path, keeper=_keeper(homes[1].path))
    written = await documents.write(SCOPE, "MEMORY.md", "- tea\n", was="", why="test")
    assert written is not None
    await homes[1].files.save((SCOPE,))
    read_small, is_first = homes[0].files._store.read_small, True

    async def write_before(scope: str, files: Sequence[StoredFile]) -> Mapping[str, bytes]:
        nonlocal is_first
        if is_first:
            is_first = False
            assert await documents.write(SCOPE, "MEMORY.md", "- oat\n", was=written.rev, why="test") is not None
            await homes[1].files.save((SCOPE,))
        return await read_small(scope, files)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(homes[0].files._store, "read_small", write_before)
        await homes[0].files.fetch(SCOPE)
    assert VersionStore(homes[0].path).texts(SCOPE) == {"MEMORY.md": b"- oat\n"}
    assert list((scope_folder(homes[0].path, SCOPE) / "memory").glob(".git.corrupt-*")) == []


@pytest.mark.parametrize("end", ["interrupted", "cancelled", "killed"])
async def test_what_a_fetch_that_did_not_end_has_written_goes_when_it_is_forgotten(
    team: Workers, tmp_path: Path, end: str
) -> None:
    """No list names it: the database has it no more, and the home's own list has it only at the end of a fetch."""
    homes = await two_homes(team, tmp_path)
    documents = FileDocumentStore(homes[1].path, keeper=_keeper(homes[1].path))
    written = await documents.write(SCOPE, "MEMORY.md", "- oat\n", was="", why="test")
    assert written is not None
    await homes[1].files.save((SCOPE,))
    await homes[0].files.fetch(SCOPE)
    written = await documents.write(SCOPE, "MEMORY.md", "- tea\n", was=written.rev, why="test")
    assert written is not None
    await homes[1].files.save((SCOPE,))
    store, stored = homes[0].files._store, count()
    read_small = store.read_small

    async def forget_between(scope: str, files: Sequence[StoredFile]) -> Mapping[str, bytes]:
        if next(stored) == 1:
            assert await documents.write(SCOPE, "MEMORY.md", "", was=written.rev, why="test") is not None
            VersionStore(homes[1].path).rewrite(SCOPE, lambda text, _: text.replace(b"tea", b"___"))
            await homes[1].files.save((SCOPE,))
            if end != "interrupted":
                raise asyncio.CancelledError
        return await read_small(scope, files)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "read_small", forget_between)
        with pytest.raises(asyncio.CancelledError) if end != "interrupted" else nullcontext():
            await homes[0].files.fetch(SCOPE)
    if end == "cancelled":
        await homes[0].files.fetch(SCOPE)
    if end == "killed":
        await ScopeFileSync(homes[0].path, store).start()
    names = [sorted(path.name for path in home.path.glob(f"{SCOPE}/memory/.git/objects/??/*")) for home in homes]
    assert next(stored) > 1
    assert names[0] == names[1]


def _keeper(home: Path) -> VersionKeeper:
    return VersionKeeper(home, Disk(), VersionStore(home), now=lambda: datetime.now(UTC))


async def test_a_fact_that_another_gateway_applies_meanwhile_is_there_for_the_turn(
    team: Workers, tmp_path: Path
) -> None:
    """Its job was pending when the files were fetched, and done when this gateway asks for jobs: it fetches again."""
    homes = await two_homes(team, tmp_path)
    await homes[1].mirror.flush()
    documents = [FileDocumentStore(home.path) for home in homes]
    jobs = [MemoryJobs(home.store.jobs, each, home=home.path) for home, each in zip(homes, documents, strict=True)]
    fact = Job(id="remember:1", kind=REMEMBER, scope=SCOPE, payload={"fact": "likes tea"}, due_at=datetime.now(UTC))
    await homes[1].store.jobs.put(fact)
    jobs[0].share(homes[0].files.fetch)
    assert SCOPE in await homes[0].files.fetch(SCOPE)
    await jobs[1].settle(SCOPE)
    await jobs[0].settle(SCOPE)
    assert "likes tea" in (await documents[0].read(SCOPE, "MEMORY.md")).text


async def test_a_start_goes_on_when_another_gateway_changes_a_scope_meanwhile(
    team: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit by hand from while the gateway was down meets a change made between the start's fetch and its save."""
    homes = await two_homes(team, tmp_path)
    await homes[1].mirror.flush()
    await homes[0].files.fetch(SCOPE)
    await homes[0].files.close()
    files = ScopeFileSync(homes[0].path, homes[0].files._store)
    (scope_folder(homes[0].path, SCOPE) / "USER.md").write_text("- by hand\n")
    save_all = files.save_all

    async def change_first() -> None:
        (scope_folder(homes[1].path, SCOPE) / "SOUL.md").write_text("kind\n")
        homes[1].files.touch(SCOPE)
        await homes[1].files.save((SCOPE,))
        await save_all()

    monkeypatch.setattr(files, "save_all", change_first)
    await files.start()
    await files.fetch(SCOPE)
    assert (scope_folder(homes[0].path, SCOPE) / "SOUL.md").read_text() == "kind\n"
