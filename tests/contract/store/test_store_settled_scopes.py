"""What one of several gateways commits, writes and changes is known to the others when they need it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest

from agent.memory.documents.scope_documents import ScopeDocuments
from agent.memory.erasure.retention import RETENTION, RetentionJob
from agent.memory.erasure.scope_files import ErasureStorage
from agent.memory.history.history_file_writer import HistoryFileWriter
from agent.memory.jobs.job_runner import RetryJobLater
from agent.memory.jobs.memory_jobs import MemoryJobs
from agent.memory.prompt.conversation import Conversation
from agent.memory.prompt.conversation_cache import ConversationCache
from agent.memory.prompt.prompt_snapshot import digest_of
from agent.memory.scopes import scope_folder
from agent.memory.storage import session_file_writer
from agent.memory.storage import transcript_lines as build
from agent.memory.storage.scope_file_sync import ScopeFileSync
from agent.memory.storage.session_file_writer import SessionFileWriter
from agent.memory.stored_sessions import StoredSessions
from gateway.errors import StoreUnavailable
from gateway.events import SessionKey
from gateway.ports import REMEMBER, FileKind, Job, ScopeMove, TurnLease
from gateway.store.sql_store import SqlStore
from tests.fakes.shared_workers import Workers, paused
from tests.fakes.turns import ANN, accept, answered, claim, plain_record, said

SCOPE = "people/telegram%3a42"
OTHER_CHAT = SessionKey("telegram", "43")  # of the same person


class WrittenHome:
    """The files of one of several gateways: none mirrors conversations, each writes the texts of its snapshots."""

    def __init__(self, home: Path, store: SqlStore) -> None:
        assert store.scope_files is not None
        home.mkdir(exist_ok=True)
        self.path = home
        self.store = store
        self.files = ScopeFileSync(home, store.scope_files)
        self.mirror = SessionFileWriter(
            home,
            store.records,
            store.transcripts,
            is_mirroring=False,
            has_unwritten=store.erasing.has_unwritten,
            fetch=self.files.fetch,
        )
        store.scope_files.save_first(self.files.save)
        self.conversations = ConversationCache(store.transcripts)
        self.files.watch(lambda: (SCOPE,), lambda _: None)

    async def claim(self, key: SessionKey = ANN) -> tuple[TurnLease, Conversation]:
        """Accept a message, and return the turn and its conversation as the turn has it."""
        await accept(self.store, said(id=f"m{next(_NUMBERS)}", key=key))
        async for each in self.store.journal.ready_sessions():
            if each == key:
                break
        lease = await claim(self.store, key)
        return lease, await self.conversations.open(lease.session, SCOPE)

    async def texts(self) -> str:
        """Return the lines of the scope."""
        found = await self.store.transcripts.scan(SCOPE)
        return b"".join(turn.body for turn in found).decode()

    async def snapshot_texts(self) -> set[str]:
        """Return the texts of the prompts of the scope."""
        found = await self.store.files.files(SCOPE, FileKind.TEXT)
        return {(await self.store.files.load(SCOPE, each) or b"").decode() for each in found}


_NUMBERS = count()


async def answer_in(store: SqlStore, key: SessionKey, text: str) -> None:
    """Accept a message, and answer it with *text* once its chat is ours; its snapshot has the text too."""
    await accept(store, said(id=f"m{next(_NUMBERS)}", key=key))
    async for each in store.journal.ready_sessions():
        if each == key:
            break
    lease = await claim(store, key)
    commit = answered(lease, text)
    record = replace(commit.record, scope=SCOPE, blobs={digest_of(text): text})
    await store.journal.commit(lease, replace(commit, record=record))


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


async def test_an_erasure_has_the_texts_that_another_gateway_had_not_written(team: Workers, tmp_path: Path) -> None:
    """Two chats of one person at two gateways: what the other's prompt quoted is there when words are looked for."""
    homes = await two_homes(team, tmp_path)
    assert await homes[0].store.erasing.has_unwritten(SCOPE)
    assert not await homes[1].store.erasing.has_unwritten(SCOPE)
    erasing = asyncio.create_task(homes[0].mirror.settle(SCOPE))
    await asyncio.sleep(0)
    await homes[1].mirror.flush()
    await erasing
    assert await homes[0].snapshot_texts() == {"I like coffee", "I like green tea"}
    assert await homes[0].mirror.redact(SCOPE, lambda raw: raw.replace(b"green tea", b"_________"))
    assert "green tea" not in await homes[1].texts()
    assert "coffee" in await homes[1].texts()
    assert not await homes[0].store.transcripts.stale_files(SCOPE)


async def test_no_gateway_of_several_has_files_of_conversations(team: Workers, tmp_path: Path) -> None:
    """Neither its own chats' nor others', nor those of a time when it was alone: they would keep what is erased."""
    sessions = scope_folder(tmp_path / "0", SCOPE) / "sessions"
    sessions.mkdir(parents=True)
    (sessions / "telegram%3a42.jsonl").write_text("I like coffee")
    first, second = await two_homes(team, tmp_path)
    await first.mirror.begin(is_shared=True)
    await second.mirror.flush()
    await first.files.save((SCOPE,))
    await second.files.fetch(SCOPE)
    assert not list(tmp_path.rglob("*.jsonl"))  # noqa: ASYNC240 - a test may look at a disk
    assert not await first.store.records.unwritten(0, 10)


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
    """Texts of its own chats are written by the erasure itself."""
    store = await team.open()
    home = WrittenHome(tmp_path, store)
    await home.files.start()
    await answer_in(store, ANN, "I like green tea")
    await home.mirror.settle(SCOPE)
    assert await home.snapshot_texts() == {"I like green tea"}


async def test_a_history_has_what_another_gateway_has_committed(team: Workers, tmp_path: Path) -> None:
    """A window that comes to a gateway shows the turns of the gateway it was at, which are in no file yet."""
    homes = await two_homes(team, tmp_path)
    store = homes[0].store
    sessions = StoredSessions(store.records, store.transcripts, store.journal, store.outbox)
    page = await sessions.displayed_page(OTHER_CHAT, turns=10)
    assert page is not None
    assert [line.text for line in page.lines if line.role == "assistant"] == ["I like green tea"]


async def test_what_another_gateway_changes_is_in_the_next_prompt(team: Workers, tmp_path: Path) -> None:
    """An erasure of words of the chat, by the claim's own query; one in another chat of the person closes nothing."""
    homes = await two_homes(team, tmp_path)
    lease, ours = await homes[0].claim()
    assert "coffee" in str(ours.messages)
    await homes[0].store.journal.release(lease)
    await homes[1].mirror.redact(SCOPE, lambda raw: raw.replace(b"green tea", b"_________"))
    lease, same = await homes[0].claim()
    assert same is ours
    await homes[0].store.journal.release(lease)
    await homes[1].mirror.redact(SCOPE, lambda raw: raw.replace(b"coffee", b"______"))
    _, read = await homes[0].claim()
    assert "coffee" not in str(read.messages)
    assert "______" in str(read.messages)


async def test_a_record_that_another_gateway_makes_is_in_the_open_conversation(team: Workers, tmp_path: Path) -> None:
    """A summary made elsewhere, before a turn or during it: the next prompt knows, and nothing is read again."""
    homes = await two_homes(team, tmp_path)
    lease, conversation = await homes[0].claim()
    for end in (1, 2):
        pointer = plain_record(f"p{end}", lease.session, lines=(build.pointer(end, f"e{end}"),), scope=SCOPE)
        await homes[1].store.records.append(pointer)
        commit = answered(lease, "more")
        record = replace(commit.record, scope=SCOPE)
        conversation.adopt(await homes[0].store.journal.commit(lease, replace(commit, record=record)))
        lease, again = await homes[0].claim()
        assert again is conversation
        assert conversation.consolidated == end
        assert conversation.next_index == lease.session.next_index


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
        home=homes[0].path, documents=ScopeDocuments(store.documents), transcripts=homes[0].mirror,
        history=store.history, files=store.files,
        settle_history=HistoryFileWriter(homes[0].path, store.history, store.documents).settle, records=store.records,
        jobs=store.jobs, store=store.erasing, unscoped_data=unused, index=NoIndex(), staging=unused,
        writing=asyncio.Lock(), settle_documents=unused,
        reopen=lambda _: None, now=lambda: now,
    )  # fmt: skip
    retention = RetentionJob(storage=storage, days=30, unlist=unlist)
    job = Job(id=f"{RETENTION}:today", kind=RETENTION, scope="", payload={}, due_at=now)
    assert isinstance(await retention.expire(job), RetryJobLater)
    assert "coffee" in await homes[0].texts()
    await homes[1].mirror.flush()
    assert await retention.expire(job) is None
    assert not re.search("coffee|green tea", await homes[0].texts())


async def test_a_claim_knows_the_facts_that_another_gateway_was_told(team: Workers, tmp_path: Path) -> None:
    """Of the scope and of what all share, until they are applied; jobs of other kinds and scopes are not counted."""
    homes = await two_homes(team, tmp_path)
    lease, _ = await homes[0].claim()
    assert not lease.session.has_facts
    for n, (scope, kind, is_meant) in enumerate(
        [
            (SCOPE, "remind", False),
            ("people/other", REMEMBER, False),
            (SCOPE, REMEMBER, True),
            ("shared", REMEMBER, True),
        ]
    ):
        await homes[0].store.journal.release(lease)
        job = Job(id=f"{kind}:{n}", kind=kind, scope=scope, payload={"fact": "tea"}, due_at=datetime.now(UTC))
        await homes[1].store.jobs.put(job)
        lease, _ = await homes[0].claim()
        assert lease.session.has_facts is is_meant
        await homes[1].store.jobs.finish(job)


async def test_a_claim_knows_the_version_of_what_its_prompt_is_made_from(team: Workers, tmp_path: Path) -> None:
    """It differs after a change or an epoch by another gateway, of the scope, the installation or what all share."""
    homes = await two_homes(team, tmp_path)
    documents, seen = homes[1].store.documents, set()
    for scope in ("", "people/other", SCOPE, "shared", ""):
        lease, _ = await homes[0].claim()
        seen.add(lease.session.memory_version)
        await homes[0].store.journal.release(lease)
        was = (await documents.read(scope, "SOUL.md")).rev
        await documents.write(scope, "SOUL.md", f"after {len(seen)}", was=was, why="test")
    await documents.set_epoch(SCOPE, "t1")
    lease, _ = await homes[0].claim()
    seen.add(lease.session.memory_version)
    assert len(seen) == 5


async def test_facts_that_two_gateways_apply_at_once_are_all_there(team: Workers, tmp_path: Path) -> None:
    """Each fact once, for the next turn of either gateway, though both may apply the jobs of a scope."""
    homes = await two_homes(team, tmp_path)
    documents = [ScopeDocuments(home.store.documents) for home in homes]
    jobs = [
        MemoryJobs(home.store.jobs, each, history=home.store.history)
        for home, each in zip(homes, documents, strict=True)
    ]
    facts = [f"likes tea {n}" for n in range(6)]
    for n, fact in enumerate(facts):
        due = datetime.now(UTC)
        job = Job(id=f"remember:{n}", kind=REMEMBER, scope=SCOPE, payload={"fact": fact}, due_at=due)
        await homes[n % 2].store.jobs.put(job)
    await asyncio.gather(*(each.settle(SCOPE) for each in jobs))
    for each in documents:
        text = (await each.read(SCOPE, "MEMORY.md")).text
        assert sorted(line for line in text.splitlines() if "likes tea" in line) == [f"- {fact}" for fact in facts]
    assert not await homes[0].store.jobs.pending_in(SCOPE)


async def test_a_start_goes_on_when_another_gateway_changes_a_scope_meanwhile(
    team: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit by hand from while the gateway was down meets a change made between the start's fetch and its save."""
    homes = await two_homes(team, tmp_path)
    await homes[1].mirror.flush()
    await homes[0].files.fetch(SCOPE)
    await homes[0].files.close()
    files = ScopeFileSync(homes[0].path, homes[0].files._store)
    put(homes[0].path, "b.txt", "by hand")
    save_all = files.save_all

    async def change_first() -> None:
        put(homes[1].path, "a.txt", "kind\n")
        homes[1].files.touch(SCOPE)
        await homes[1].files.save((SCOPE,))
        await save_all()

    monkeypatch.setattr(files, "save_all", change_first)
    await files.start()
    await files.fetch(SCOPE)
    assert (scope_folder(homes[0].path, SCOPE) / "files" / "a.txt").read_text() == "kind\n"


def put(home: Path, name: str, text: str) -> None:
    """Have a file in the workspace."""
    folder = scope_folder(home, SCOPE) / "files"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


async def test_scopes_are_linked_and_erased_while_no_other_gateway_uses_them(team: Workers, tmp_path: Path) -> None:
    """A turn or a job elsewhere would store into the scope that has ended: both wait for it, and it for the link."""
    homes = await two_homes(team, tmp_path)
    first, second = (home.store for home in homes)
    lease, _ = await homes[1].claim(OTHER_CHAT)
    link = ScopeMove(id="link:1", kind="link", source=SCOPE, target="people/pocket%3aann", at=datetime.now(UTC))
    assert await first.erasing.is_in_use_elsewhere(SCOPE)
    assert not await second.erasing.is_in_use_elsewhere(SCOPE)
    assert not await first.links.link(link)
    assert await first.links.moves() == []
    await second.journal.release(lease)
    due = datetime.now(UTC)
    await second.jobs.put(Job(id="remind:1", kind="remind", scope=SCOPE, payload={}, due_at=due))
    [job] = await second.jobs.due(due, 1, kinds=["remind"])
    assert not await first.links.link(link)
    await second.jobs.finish(job)
    assert not await first.erasing.is_in_use_elsewhere(SCOPE)
    assert await first.links.link(link)
    assert [move.id for move in await first.links.moves()] == ["link:1"]
    assert {row.scope for row in await second.records.sessions()} == {link.target}
