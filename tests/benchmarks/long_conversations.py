"""Long conversations made quickly: transcripts in the very bytes that turns would have left, and their session rows."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from agent.memory.documents.file_documents import document_path
from agent.memory.prompt.prompt_snapshot import ABILITIES, ScopeMemory, digest_of
from agent.memory.scopes import quote, scope_folder, transcript_path
from agent.memory.storage import transcript_lines as build
from agent.tools.toolbox import Toolbox
from gateway.events import SessionKey
from gateway.ports.journal import Line, MessageOutcome, TurnRecord
from gateway.settings import load_settings
from gateway.store.engine import StoreLimits
from gateway.store.sqlite import open_store
from tests.fakes.documents import open_documents

WINDOW = 50  # messages that a cold session replays, whatever its age
_BEGAN = datetime(2026, 9, 1, 8, 0, tzinfo=UTC)
_NO_ID, _NO_SCOPE, _NO_REV = "a" * 16, "people/pocket%3au00000", "f" * 16


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
    def transcript(self) -> str:
        """Its transcript's id."""
        return f"{self.n:05d}".translate(str.maketrans("0123456789", "bcdefghijk")).rjust(16, "a")

    @property
    def memory(self) -> str:
        """What is remembered of its person: two kilobytes, nobody else's."""
        return "".join(f"- fact {n} of {self.sender}: something that was said long ago\n" for n in range(35))


@dataclass(frozen=True, slots=True)
class ConversationSizes:
    """How many chats there are, and how many messages each has."""

    chats: int
    messages: int

    def all(self) -> Iterator[BenchmarkChat]:
        """Yield the chats."""
        return map(BenchmarkChat, range(self.chats))


async def live(home: Path, past: ConversationSizes) -> None:
    """Write *past* into a fresh home that no gateway owns yet."""
    abilities, zone = Toolbox.load().abilities, load_settings({"PARLOUR_HOME": str(home)}).timezone
    await asyncio.to_thread(_write_memories, home, past)
    documents, changes = open_documents()
    for chat in past.all():
        await changes.write(chat.scope, "MEMORY.md", chat.memory, was="", why="benchmark")
    memory = ScopeMemory(documents)
    template = b""
    for chat in past.all():
        view = await memory.view(chat.scope)
        texts = {name: text for name, text in {**view.texts, ABILITIES: abilities}.items() if text}
        names = {name: digest_of(text) for name, text in texts.items()}
        if not template:
            template = _template(home, past.messages, names | {"MEMORY": digest_of(_NO_REV)}, zone)
        for name, text in texts.items():
            await asyncio.to_thread(_write, scope_folder(home, chat.scope) / "blobs" / names[name], text.encode())
        mine = template.replace(_NO_ID.encode(), chat.transcript.encode()).replace(b"c-----", chat.name.encode())
        mine = mine.replace(digest_of(_NO_REV).encode(), names["MEMORY"].encode()).replace(
            _NO_REV.encode(), view.rev.encode()
        )
        for begin in (b'"t', b'"tp'):  # no two turns of the home have one id
            mine = mine.replace(begin + b"00000", begin + f"{chat.n:05d}".encode())
        await asyncio.to_thread(_write, transcript_path(home, chat.scope, str(chat.key)), mine)
    await _remember_sessions(home, past)
    await asyncio.to_thread(os.sync)


def _write_memories(home: Path, past: ConversationSizes) -> None:
    home.mkdir(mode=0o700, parents=True)
    for chat in past.all():
        _write(document_path(home, chat.scope, "MEMORY.md"), chat.memory.encode())


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(data)


def _template(home: Path, messages: int, names: dict[str, str], zone: str) -> bytes:
    """Return one transcript. Long ones have consolidated twice."""
    printed = [build.head_line(_NO_ID, "pocket:c-----", _BEGAN)]
    pointers = {messages - WINDOW: messages - 2 * WINDOW, messages - 2: messages - WINDOW}
    if messages <= 2 * WINDOW:
        pointers = {}
    n, replay_from, opening = 1, 0, True
    for at in range(0, messages, 2):
        lines: list[Line] = []
        if opening:
            lines.append(build.snapshot(n, names, zone, at, replay_from=replay_from, rev=_NO_REV))
            n, opening = n + 1, False
        printed += _turn(at, lines)
        if at + 2 in pointers:
            replay_from, opening = pointers[at + 2], True
            pointer = build.pointer(replay_from, f"e{at:016d}")
            printed += _entry(f"tp{at:015d}", [pointer], at + 2, at + 2)
    return b"".join(map(build.encode, printed))


def _turn(at: int, lines: list[Line]) -> list[Line]:
    turn, when = f"t{at:016d}", _BEGAN + timedelta(minutes=at)
    lines.append(
        build.message(
            at,
            turn,
            "user",
            f"what was it that we said about number {at} the other day?",
            when,
            by={"id": "u-----", "name": "Ann"},
            mid=f"{at:09d}",
            head=f"Tue 1 Sep {when:%H:%M} UTC, Ann",
            origin="user",
        )
    )
    answer = f"about number {at} we said that it is even, and that there are many more of them"
    lines.append(build.message(at + 1, turn, "assistant", answer, when))
    return _entry(turn, lines, at, at + 2)


def _entry(turn: str, lines: list[Line], low: int, high: int) -> list[Line]:
    when = _BEGAN + timedelta(minutes=low)
    end = build.end_line(turn, from_index=low, to_index=high, inbox=[str(low)], outcome="answered", at=when)
    return [*lines, end]


async def _remember_sessions(home: Path, past: ConversationSizes) -> None:
    """Tell the journal of the sessions, by records whose bodies have left it."""
    store = await open_store(home, "", StoreLimits())
    try:
        await asyncio.gather(*(store.records.append(_record(chat, past.messages)) for chat in past.all()))
        while stored := await store.records.unwritten(0, 500):
            store.records.mark_written([each.seq for each in stored])
    finally:
        await store.close()


def _record(chat: BenchmarkChat, messages: int) -> TurnRecord:
    return TurnRecord(
        turn=f"tpast{chat.n:012d}",
        key=chat.key,
        transcript=chat.transcript,
        outcome=MessageOutcome.ANSWERED,
        lines=(),
        from_index=0,
        to_index=messages,
        inbox=(),
        at=_BEGAN + timedelta(minutes=messages),  # the turns of before, which are in no record, were removed by age
        scope=chat.scope,
    )
