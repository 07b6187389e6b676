"""A link moves the conversations of every chat, whoever answers it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agent.memory.account_links.account_linker import AccountLinker
from agent.memory.account_links.memory_merge import MemoryMerger
from agent.memory.account_links.scope_lock import ScopeLock
from agent.memory.documents.version_store import VersionStore
from agent.memory.scopes import transcript_path
from agent.memory.storage.disk import Disk
from agent.memory.storage.session_file_writer import SessionFileWriter
from gateway.events import SessionKey
from gateway.ports import ScopeMove
from gateway.store.account_links import LinkSnapshot, SqlAccountLinks
from tests.fakes.memory import SCOPE, START, FakeRecords, talk

BOB, BOBS_SCOPE = SessionKey("telegram", "43"), "people/telegram%3a43"


async def test_chats_that_no_gateway_has_claimed_are_in_the_persons_folder_too(tmp_path: Path) -> None:
    """Several gateways share the chats, and an idle one belongs to none: the link writes its file all the same."""
    records = FakeRecords(*talk(2), *talk(2, first=10, key=BOB, scope=BOBS_SCOPE, transcript="b" * 16))
    mirror = SessionFileWriter(tmp_path, records, records.transcripts)
    await mirror.flush()
    before = transcript_path(tmp_path, BOBS_SCOPE, str(BOB)).read_bytes()
    records.engine.claims.is_shared = True

    async def nothing(_: str) -> None:
        """There are no documents."""

    linker = AccountLinker(
        links=SqlAccountLinks(records.engine, LinkSnapshot(), {}),
        records=records,
        transcripts=records.transcripts,
        session_files=mirror,
        scope_lock=ScopeLock(),
        writing=asyncio.Lock(),
        merger=MemoryMerger(home=tmp_path, versions=VersionStore(tmp_path), disk=Disk()),
        notice=nothing,
        reopen=lambda _: None,
        close_files=nothing,
        now=lambda: START,
        disk=Disk(),
    )
    await linker.links.link(ScopeMove(id="link:1", kind="link", source=BOBS_SCOPE, target=SCOPE, at=START))
    await linker.resume()
    assert transcript_path(tmp_path, SCOPE, str(BOB)).read_bytes() == before
    assert not transcript_path(tmp_path, BOBS_SCOPE, str(BOB)).exists()
    assert await linker.links.moves() == []
