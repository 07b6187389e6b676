"""/forget --purge through the whole gateway: canaries planted everywhere are found before, and in no byte after."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import re
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from dulwich.repo import Repo

from agent.llm.chat_model import ChatReply, ChatRequest, Sink
from agent.memory.erasure.scope_files import SCRUB, scrub_job
from gateway.events import SessionKey
from gateway.ports.journal import Job
from gateway.ports.memory import FileKind, HistoryEntry
from tests.e2e.agent.test_consolidation import SCOPE, WINDOW, SummaryModel
from tests.fakes.canaries import ASCII, CANARIES, where
from tests.fakes.documents import stored_text
from tests.fakes.histories import open_journal_history
from tests.fakes.inprocess_files import InProcessFilePlugin, PlatformFiles
from tests.fakes.inprocess_gateway import OPEN, InProcessGateway, gateway
from tests.fakes.staged_changes import erase
from tests.fakes.stored_files import plant_file

ROOM = "chats/pocket%3aroom"


@asynccontextmanager
async def at_work(
    home: Path, model: Any = None, sources: PlatformFiles | None = None, **more: Any
) -> AsyncIterator[InProcessGateway]:
    """Run a gateway with a small window on *home*."""
    kind = InProcessFilePlugin(sources) if sources is not None else None
    async with gateway(home=home, model=model or SummaryModel(), environment=WINDOW, kind=kind, **more) as parlour:
        yield parlour


async def wait_until_purged(parlour: InProcessGateway, scope: str = SCOPE) -> None:
    """Return when nothing of the scope is left to be done but what is planned for much later."""
    while True:
        soon = datetime.now(UTC) + timedelta(minutes=1)
        if not [job for job in await parlour.app.store.jobs.pending_in(scope) if job.due_at < soon]:
            break
        await asyncio.sleep(0.005)
    await parlour.idle()


async def use_canaries(home: Path) -> None:
    """Let Ann talk of every canary, have it kept, summarised and archived, and send files that hold it."""

    def summarise(n: int, memory: str) -> dict[str, str]:
        told = " ".join(f"She told of {word}." for word in CANARIES)
        return {"history_entry": f"[2026-11-22 10:00] They met. {told}", "memory_update": f"{memory}\n- fact {n}"}

    sources = PlatformFiles()
    async with at_work(home, SummaryModel(summarise), sources) as parlour:
        ask = parlour.channel.ask
        await ask("ann", "/remember my dog is Bello")
        for word in CANARIES:
            await ask("ann", f"/remember my {word} is red")
            await ask("ann", f"my {word} leaks")
            text = sources.put(f"{word}.txt", f"all about {word}".encode(), media_type="text/plain")
            await ask("ann", "look at this", attachments=[text])
            other = sources.put("other.bin", f"{word}'s own bytes".encode()[::-1], media_type="application/x-odd")
            await ask("ann", f"the key of {word}", attachments=[other])
        await wait_until_purged(parlour)
        await ask("ann", "/new")
        for word in CANARIES:
            await ask("ann", f"again {word}")
        await ask("ann", "and something else that stays")
        await wait_until_purged(parlour)


def plant_canaries(home: Path) -> None:
    """Plant every canary where only trouble, age or a crash would leave it."""
    scope = home / SCOPE
    words = " ".join(CANARIES)
    texts = {
        "sessions/pocket%3aann.jsonl.corrupt": f'{{"torn": "{words}\n',
        "memory/history.jsonl.corrupt": f"{words}\n",
        "memory/.pending/x.json": json.dumps({"session": "x", "answer": words}),
        "memory/.dream.json": json.dumps({"studied": words}),
        "memory/2026-11-20.md.edited-0123abcd": f"- {words}\n",
        "memory/HISTORY.md.legacy": f"[2025-01-01 10:00] {words}\n",
        "memory/.MEMORY.md.0123abcd-4567.tmp": words,
    }  # fmt: skip
    for name, text in texts.items():
        path = scope / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    plant_file(home, SCOPE, FileKind.TEXT, f"- {words}".encode())
    plant_file(home, SCOPE, FileKind.ATTACHMENT, base64.b64encode(words.encode()), is_outside=True)
    plant_file(home, SCOPE, FileKind.ATTACHMENT, gzip.compress(words.encode() * 9), is_outside=True)
    with open_journal_history(home, SCOPE) as history:
        history.keep_raw(
            HistoryEntry(timestamp="2026-11-20 10:00", content="[raw] 1 message", entry="eraw", session="pocket:ann"),
            {"role": "user", "content": words, "timestamp": "2026-11-20T10:00:00Z", "by": {"id": "ann"}},
        )
        history.put_note("2026-11-20-old-note.md", f"# Session Memory\n\n- Ann: {words}\n- Ann: stays\n")
        history.put_note("2026-11-20.md", f"## Flush at 10:00 (session: pocket:ann)\n\n- {words}\n- stays\n")
        files = history.files
    for name, text in files.items():
        (scope / "memory" / name).write_text(text)
    event = {"channel": "pocket", "id": "9", "at": "2026-11-20T10:00:00Z", "reason": f"cannot read {words}"}
    event |= {"raw": json.dumps({"from": {"id": "ann"}, "text": words})}
    others = {**event, "raw": json.dumps({"from": {"id": "bob"}, "text": "bob's event"}), "reason": "odd"}
    for folder in ("quarantine", "uploads/pocket"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    (home / "quarantine" / "pocket-1.json").write_text(json.dumps(event))
    (home / "quarantine" / "pocket-2.json").write_text(json.dumps(others))
    head = json.dumps({"who": "ann", "name": f"{words}.txt", "type": "text/plain"})
    (home / "uploads" / "pocket" / ("u" * 24)).write_text(f"{head}\n{words}")
    with sqlite3.connect(scope / "index.db") as index:
        index.execute("CREATE TABLE unit (text TEXT)")
        index.execute("INSERT INTO unit VALUES (?)", (words,))
    with Repo(str(scope / "memory" / ".git")) as repo:
        repo.object_store.pack_loose_objects()
    journal = sqlite3.connect(home / "journal.db")
    journal.execute("PRAGMA secure_delete = ON")  # as every connection of the gateway has it
    journal.execute("INSERT INTO dead VALUES ('inbox:1', 'tx', 'pocket:ann', ?, 1)", (f"broken by {words}",))
    staged = {"entry": "e1", "at": "2026-11-22T10:00:00Z", "operations": [{"op": "add", "text": words}]}
    journal.execute("INSERT INTO proposal VALUES (?, 'e1', 1, ?, ?)", (SCOPE, 10**16, json.dumps(staged)))
    journal.execute("CREATE TABLE gone (text TEXT)")
    journal.execute("INSERT INTO gone VALUES (?)", (f"{words} " * 300,))
    journal.commit()
    journal.execute("DROP TABLE gone")
    journal.commit()
    journal.close()


@pytest.fixture(scope="module")
def full_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home that has lived, with canaries in every place."""
    home = tmp_path_factory.mktemp("purge") / "home"
    asyncio.run(use_canaries(home))
    plant_canaries(home)
    return home


PLACES = (
    "journal.db", "quarantine/pocket-1.json", "uploads/pocket/", f"{SCOPE}/sessions/pocket%3aann.jsonl",
    f"{SCOPE}/sessions/pocket%3aann.jsonl.corrupt", f"{SCOPE}/memory/MEMORY.md", f"{SCOPE}/memory/history.jsonl",
    f"{SCOPE}/memory/HISTORY.md", f"{SCOPE}/memory/HISTORY.md.legacy", f"{SCOPE}/memory/raw.jsonl",
    f"{SCOPE}/memory/.pending/", f"{SCOPE}/memory/.dream.json",
    f"{SCOPE}/memory/2026-11-20.md",
    f"{SCOPE}/memory/2026-11-20-old-note.md", f"{SCOPE}/memory/.git/objects/pack/", f"{SCOPE}/memory/.MEMORY.md.",
    f"{SCOPE}/bytes/", f"{SCOPE}/index.db",
)  # fmt: skip


async def test_no_byte_of_the_home_holds_what_was_purged(full_home: Path, tmp_path: Path) -> None:
    """ASCII, Cyrillic, emoji: every place has them before and none after, the command itself included."""
    home = shutil.copytree(full_home, tmp_path / "home")
    for word in CANARIES:
        found = where(home, word)
        missing = [place for place in PLACES if not any(name.startswith(place) for name in found)]
        assert not missing
        archives = [name for name in found if name.startswith(f"{SCOPE}/sessions/") and ".t" in name]
        assert archives
    model = SummaryModel()
    async with at_work(home, model) as parlour:
        for word in CANARIES:
            await parlour.channel.ask("ann", f"/search {word}")  # the index is built and open, and the answer quotes it
        assert any("index.db" in name for name in where(parlour.kill(tmp_path / "searched"), ASCII))
        for word in CANARIES:
            answer = await erase(parlour.channel.ask, "ann", f"/forget {word} --purge")
            assert answer.startswith("Done.")
            assert word not in answer
            await wait_until_purged(parlour)
            assert not where(parlour.kill(tmp_path / f"killed-{CANARIES.index(word)}"), word)
        await parlour.channel.ask("ann", "and now?")
        assert not any(word in str(model.prompts[-1]) for word in CANARIES)
        shown = [
            line.text
            for line in await parlour.app.memory.sessions.displayed_messages(SessionKey("pocket", "ann"), limit=100)
        ]
        assert "/forget … --purge" in shown
    for word in CANARIES:
        assert not where(home, word)
    assert "bob's event" in (home / "quarantine" / "pocket-2.json").read_text()
    assert json.loads((home / "quarantine" / "pocket-1.json").read_text())["raw"] == "[forgotten]"  # still passed over
    memory = home / SCOPE / "memory"
    assert "- stays" in (memory / "2026-11-20.md").read_text()
    assert "They met." in (memory / "history.jsonl").read_text()
    assert "- my dog is Bello\n" in (memory / "MEMORY.md").read_text()
    assert "- my dog is Bello\n" in stored_text(home, SCOPE)
    assert "something else that stays" in (home / SCOPE / "sessions" / "pocket%3aann.jsonl").read_text()


class PausingModel(SummaryModel):
    """Answers with what it was asked, when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Event()
        self.at_it = asyncio.Event()

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Wait where the message says so."""
        if request.purpose == "answer" and "slowly" in str(request.messages[-1]["content"]):
            self.at_it.set()
            await self.answers.wait()
        return await super().complete(request, sink=sink)


async def test_a_turn_that_knew_the_words_does_not_bring_them_back(tmp_path: Path) -> None:
    """In another chat of the same scope an answer is thought of meanwhile: what it leaves is cleared once it ended.

    A question about the same words that was asked in this time is still there to be answered.
    """
    home = tmp_path / "home"
    model = PausingModel()
    async with at_work(home, model, policy=OPEN) as parlour:
        say, ask = parlour.channel.say, parlour.channel.ask
        _, answered = await say("room/thread", f"slowly, tell me of my {ASCII}", group=True, is_admin=True)
        await model.at_it.wait()
        await erase(ask, "room", f"/forget {ASCII} --purge", group=True, is_admin=True)
        await parlour.app.session_files.flush()
        assert await parlour.app.store.jobs.pending_in(ROOM)
        question = await ask("room", f"/forget {ASCII} --purge", group=True, is_admin=True)
        model.answers.set()
        await answered
        await wait_until_purged(parlour, ROOM)
        (approve,) = re.findall(r"/memory approve f[a-z2-7]{16}", question)
        assert "The words are now being erased" in await ask("room", approve, group=True, is_admin=True)
        await wait_until_purged(parlour, ROOM)
        await ask("room/thread", "and now?", group=True, is_admin=True)
        assert ASCII not in str(model.prompts[-1])
    assert not where(home, ASCII)


async def test_in_a_group_a_member_purges_their_own(tmp_path: Path) -> None:
    """What Ann said and had kept is in no byte; what Bob did stays, in versions too; an admin then clears it all."""
    home = tmp_path / "home"
    async with at_work(home, policy=OPEN) as parlour:
        ask = parlour.channel.ask

        async def in_room(who: str, text: str, **facts: Any) -> str:
            return await ask("room", text, group=True, sender=who, **facts)

        for who in ("ann", "bob"):
            await in_room(who, f"/remember {who}s {ASCII} is here")
            await in_room(who, f"{who}s {ASCII}, says {who}")
        answer = await erase(in_room, "ann", f"/forget {ASCII} --purge")
        assert "Your messages and facts" in answer
        await wait_until_purged(parlour, ROOM)
        killed = parlour.kill(tmp_path / "killed")
        assert not where(killed, f"anns {ASCII}")
        found = where(killed, f"bobs {ASCII}")
        assert any(".git" in name for name in found)
        assert any("sessions" in name for name in found)
        assert stored_text(home, ROOM) == f"- bobs {ASCII} is here\n"
        assert "The words are now being erased" in await erase(
            in_room, "eve", f"/forget {ASCII} --purge", is_admin=True
        )
        await wait_until_purged(parlour, ROOM)
    assert not where(home, ASCII)


async def test_one_scrub_is_for_every_purge_that_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It clears the whole store; a purge that ends while it works has one of its own, also in the same scope."""
    async with gateway(home=tmp_path / "home") as parlour:
        jobs, erasing = parlour.app.store.jobs, parlour.app.store.erasing
        later = datetime.now(UTC) + timedelta(hours=1)
        causes = [Job(id=f"purge:t{n}", kind="purge", scope=SCOPE, payload={}, due_at=later) for n in range(4)]
        scrubs = [scrub_job(cause, cause.scope, later) for cause in causes]
        for each in scrubs[:3]:
            await jobs.put(each)
        scrub = erasing.scrub

        async def scrub_beside_a_purge() -> bool:
            await jobs.put(scrubs[3])
            return await scrub()

        monkeypatch.setattr(erasing, "scrub", scrub_beside_a_purge)
        assert await parlour.app.commands.erasure.purge_jobs.scrub(scrubs[0]) is None
        assert [each.id for each in await jobs.pending_of(SCRUB)] == [scrubs[0].id, scrubs[3].id]
