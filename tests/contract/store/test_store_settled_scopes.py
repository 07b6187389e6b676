"""What one of several gateways commits, writes and changes is known to the others when they need it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pytest

from agent.base import transcript_lines as build
from agent.base.scopes import scope_folder
from agent.memory.jobs.chat_edits import MemoryJobs
from agent.memory.jobs.job_runner import ScopeLock
from agent.memory.prompt.conversation import Conversation, ConversationCache
from agent.memory.prompt.prompt_snapshot import digest_of
from agent.memory.search.scope_recall import ScopeRecall
from agent.memory.storage.scope_documents import ScopeDocuments
from agent.memory.storage.session_file_writer import SessionFileWriter
from agent.memory.storage.stored_sessions import StoredSessions
from gateway.errors import LeaseLost
from gateway.events import SessionKey
from gateway.ports.access import ScopeMove
from gateway.ports.journal import REMEMBER, Job, TurnLease, TurnStep
from gateway.store.sql_store import SqlStore
from tests.fakes.shared_workers import Workers, paused
from tests.fakes.turns import ANN, accept, answered, claim, plain_record, said

SCOPE = "people/telegram%3a42"
OTHER_CHAT = SessionKey("telegram", "43")  # of the same person


class WrittenHome:
    """The home of one of several gateways: none mirrors conversations."""

    def __init__(self, home: Path, store: SqlStore) -> None:
        home.mkdir(exist_ok=True)
        self.path = home
        self.store = store
        self.mirror = SessionFileWriter(
            home,
            store.records,
            store.transcripts,
            is_mirroring=False,
        )
        self.conversations = ConversationCache(store.transcripts)

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
    """Return two gateways' homes with a chat of one person each."""
    first = WrittenHome(folder / "0", await team.open())
    await answer_in(first.store, ANN, "I like coffee")
    await first.mirror.flush()
    second = WrittenHome(folder / "1", await team.open())
    await paused(first.store)
    await answer_in(second.store, OTHER_CHAT, "I like green tea")
    return first, second


async def test_no_gateway_of_several_has_files_of_conversations(team: Workers, tmp_path: Path) -> None:
    """Neither its own chats' nor others', nor those of a time when it was alone: they would keep what is erased."""
    sessions = scope_folder(tmp_path / "0", SCOPE) / "sessions"
    sessions.mkdir(parents=True)
    (sessions / "telegram%3a42.jsonl").write_text("I like coffee")
    first, second = await two_homes(team, tmp_path)
    await first.mirror.begin(is_shared=True)
    await second.mirror.flush()
    assert not list(tmp_path.rglob("*.jsonl"))  # noqa: ASYNC240 - a test may look at a disk
    assert not await first.store.records.unwritten(0, 10)


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
    await homes[1].store.transcripts.rewrite(SCOPE, lambda raw: raw.replace(b"green tea", b"_________"))
    lease, same = await homes[0].claim()
    assert same is ours
    await homes[0].store.journal.release(lease)
    await homes[1].store.transcripts.rewrite(SCOPE, lambda raw: raw.replace(b"coffee", b"______"))
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


class NoIndex(ScopeRecall):
    """A home without a search index."""

    def __init__(self) -> None:
        """Open nothing."""

    async def purge_stale(self, scope: str) -> None:
        """Do nothing: nothing was indexed."""

    async def close_index(self, scope: str) -> None:
        """Do nothing."""

    def note(self, scope: str) -> None:
        """Do nothing."""


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


async def test_a_turn_of_another_gateway_is_stored_in_the_memory_that_its_own_was_linked_to(
    team: Workers, tmp_path: Path
) -> None:
    """Its commit is refused, and it runs again there with what it has stored: the session does not go back."""
    homes = await two_homes(team, tmp_path)
    first, second = (home.store for home in homes)
    lease, _ = await homes[1].claim(OTHER_CHAT)
    await second.journal.step(lease, TurnStep(n=0, kind="opening", lines=()))
    assert await first.erasing.is_in_use_elsewhere(SCOPE)
    assert not await second.erasing.is_in_use_elsewhere(SCOPE)
    link = ScopeMove(id="link:1", kind="link", source=SCOPE, target="people/pocket%3aann", at=datetime.now(UTC))
    assert await first.links.link(link)
    commit = answered(lease, "later")
    late = replace(commit, record=replace(commit.record, scope=SCOPE))
    with pytest.raises(LeaseLost, match="was linked"):
        await second.journal.commit(lease, late)
    again = await claim(second, OTHER_CHAT)
    assert (again.turn, len(again.steps), again.session.scope) == (lease.turn, 1, link.target)
    await second.journal.commit(again, replace(late, record=replace(late.record, scope=link.target)))
    assert {row.scope for row in await second.records.sessions()} == {link.target}
    assert not await first.erasing.is_in_use_elsewhere(link.target)


async def test_a_link_waits_for_a_job_of_another_gateway(team: Workers, tmp_path: Path) -> None:
    """It would store into the scope that has ended."""
    homes = await two_homes(team, tmp_path)
    first, second = (home.store for home in homes)
    due = datetime.now(UTC)
    link = ScopeMove(id="link:1", kind="link", source=SCOPE, target="people/pocket%3aann", at=due)
    await second.jobs.put(Job(id="dream:1", kind="dream", scope=SCOPE, payload={}, due_at=due))
    [job] = await second.jobs.due(due, 1, kinds=["dream"])
    assert not await first.links.link(link)
    assert await first.links.moves() == []
    await second.jobs.finish(job)
    assert await first.links.link(link)
    assert [move.id for move in await first.links.moves()] == ["link:1"]


async def test_nobody_runs_in_scopes_that_another_gateway_moves(team: Workers, tmp_path: Path) -> None:
    """Its accounts are divided at once, its documents later: until then no turn and no job elsewhere reads them."""
    homes = await two_homes(team, tmp_path)
    first, second = (home.store for home in homes)
    due, lock = datetime.now(UTC), ScopeLock(lambda: second.links.moving)
    move = ScopeMove(id="link:1", kind="link", source=SCOPE, target="people/pocket%3aann", at=due)
    assert await first.links.link(move)
    await second.journal.depth()  # any look at the store
    assert second.links.moving == {move.source, move.target}
    for scope in (move.source, move.target):
        assert lock.is_locked(scope)

    async def enter() -> None:
        async with lock.hold_shared(lambda: move.target):
            assert second.links.moving == frozenset()

    entering = asyncio.create_task(enter())
    await asyncio.sleep(0)
    await first.links.mark_moved(move)
    assert first.links.moving == frozenset()
    await entering
    assert not lock.is_locked(move.target)
