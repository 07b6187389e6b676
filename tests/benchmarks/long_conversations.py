"""Long conversations made quickly: the rows that turns would have left, in a home that no gateway owns yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from agent.base import transcript_lines as build
from agent.base.scopes import quote
from agent.memory.storage.scope_documents import ScopeDocuments
from gateway.events import SessionKey
from gateway.ports.journal import TurnRecord
from gateway.ports.memory import StoredTurn
from gateway.store.engine import StoreLimits
from gateway.store.sql_store import SqlStore
from gateway.store.sqlite import FILE, open_file
from gateway.text.json_lines import encode_lines
from tests.fakes.memory import exchange

WINDOW = 50  # messages that a cold session replays, whatever its age


@dataclass(frozen=True, slots=True)
class BenchmarkChat:
    """One chat of one person, with a memory of its own."""

    n: int

    @property
    def name(self) -> str:
        """The chat's id on its platform; all are of one length."""
        return f"c{self.n:05d}"

    @property
    def sender(self) -> str:
        """Whose chat it is."""
        return f"u{self.n:05d}"

    @property
    def key(self) -> SessionKey:
        """Its session."""
        return SessionKey("pocket", self.name)

    @property
    def scope(self) -> str:
        """Its person's."""
        return f"people/{quote(f'pocket:{self.sender}')}"

    @property
    def memory(self) -> str:
        """What is remembered of its person: two kilobytes, nobody else's."""
        return "".join(f"- fact {n} of {self.sender}: something that was said long ago\n" for n in range(35))

    def turns(self, template: Sequence[StoredTurn]) -> Iterator[StoredTurn]:
        """Yield the turns of *template* as those of this chat: no two turns of a home have one id."""
        for n, each in enumerate(template):
            turn = f"t{self.n:05d}{n:011d}"
            yield replace(each, key=self.key, turn=turn, body=each.body.replace(each.turn.encode(), turn.encode()))


@dataclass(frozen=True, slots=True)
class ConversationSizes:
    """How many chats there are, and how many messages each has."""

    chats: int
    messages: int

    def all(self) -> Iterator[BenchmarkChat]:
        """Yield the chats."""
        return map(BenchmarkChat, range(self.chats))


@asynccontextmanager
async def open_past(home: Path) -> AsyncIterator[SqlStore]:
    """Open the store of a new home, for what happened before a benchmark."""
    await asyncio.to_thread(home.mkdir, 0o700, parents=True)
    store = await open_file(home / FILE, StoreLimits())
    try:
        yield store
        await store.transcripts.mark_adopted()
    finally:
        await store.close()


async def live(home: Path, past: ConversationSizes) -> None:
    """Store *past* in a fresh home. Long conversations have consolidated twice."""
    template = list(map(stored_turn, _records(past.messages)))
    async with open_past(home) as store:
        documents = ScopeDocuments(store.documents)
        for chat in past.all():
            await store.transcripts.adopt(chat.scope, chat.key, list(chat.turns(template)), in_files=True)
            await documents.write(chat.scope, "MEMORY.md", chat.memory, was="", why="benchmark")


def _records(messages: int) -> Iterator[TurnRecord]:
    pointers = {messages - WINDOW: messages - 2 * WINDOW, messages - 2: messages - WINDOW}
    for at in range(0, messages, 2):
        start = pointers.get(at) if messages > 2 * WINDOW else None
        yield exchange(
            at // 2,
            at,
            said=f"what was it that we said about number {at} the other day?",
            answered=f"about number {at} we said that it is even, and that there are many more of them",
            before=[] if start is None else [build.pointer(start, f"e{at:016d}")],
        )


def stored_turn(record: TurnRecord) -> StoredTurn:
    """Return a record as the store has it."""
    return StoredTurn(
        seq=0,
        turn=record.turn,
        key=record.key,
        transcript=record.transcript,
        from_index=record.from_index,
        to_index=record.to_index,
        at=record.at,
        outcome=str(record.outcome),
        body=encode_lines(record.lines),
        inbox=record.inbox,
    )
