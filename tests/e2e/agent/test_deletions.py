"""A deleted message, through the whole gateway: it leaves the files at once, and what came of it waits for a yes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from agent.memory.editing.staged_changes import StagedChange
from agent.memory.erasure import message_deletions
from agent.memory.erasure.message_deletions import DELETION_JOBS
from agent.memory.erasure.scope_files import owed_scopes
from agent.memory.jobs.job_runner import Handler, RetryJobLater
from agent.memory.prompt.due_jobs import SUMMARISE, prompt_of
from agent.memory.storage.session_file_writer import SessionFileWriter
from agent.memory.update.conversation_updates import UPDATE_JOBS
from gateway.events import InboundKind, PlatformAccount
from gateway.ports.journal import Job
from tests.e2e.agent.test_consolidation import SCOPE, SummaryModel, at_work, entries, quiet, talk
from tests.fakes.canaries import layers
from tests.fakes.documents import stored_text
from tests.fakes.histories import stored_entries
from tests.fakes.inprocess_gateway import OPEN, InProcessGateway, gateway


def telling(n: int, memory: str) -> dict[str, str]:
    """Summarise as a good model does that was told of a zeppelin."""
    brought = "- Owns a red zeppelin\n- Lives in Bonn\n- Likes green tea" if n == 1 else f"- fact {n}"
    return {
        "history_entry": "[2026-11-22 10:00] They met. Ann owns a red zeppelin that leaks. They talked of tea.",
        "memory_update": f"{memory}\n{brought}".strip(),
    }


async def delete(parlour: InProcessGateway, number: str, chat: str = "ann") -> None:
    """Take a message back, as its platform says it."""
    await parlour.channel.say(chat, "", number=number, kind=InboundKind.DELETION)


async def until(true: Callable[[], bool]) -> None:
    """Return when it is so."""
    while True:
        if true():
            return
        await asyncio.sleep(0.01)


def transcripts(home: Path, scope: str = SCOPE) -> str:
    """Return all that transcripts of a scope say; what is being written beside one is none yet, and may be gone."""
    return "\n".join(path.read_text() for path in (home / scope / "sessions").glob("[!.]*"))


async def wait_staged_changes(parlour: InProcessGateway, number: int, scope: str = SCOPE) -> Sequence[StagedChange]:
    """Return what waits once it is that many things."""
    while True:
        waiting = await parlour.app.commands.staging.pending_changes(scope)
        if len(waiting) == number:
            return waiting
        await asyncio.sleep(0.01)


async def waits(parlour: InProcessGateway, number: int) -> str:
    """Return what `/memory pending` says once that many things wait."""
    await wait_staged_changes(parlour, number)
    return await parlour.channel.ask("ann", "/memory pending")


async def test_it_leaves_the_transcript_although_nobody_writes_again() -> None:
    """A deletion needs no next turn to count, and the prompt of the next one is without it."""
    model = SummaryModel()
    async with at_work(model) as parlour:
        await parlour.channel.ask("ann", "my zeppelin leaks, which is bad news for us", number="7")
        await talk(parlour, 1)
        await parlour.idle()
        assert "zeppelin leaks" in transcripts(parlour.home)
        await delete(parlour, "7")
        await until(lambda: "my zeppelin" not in transcripts(parlour.home))
        await quiet(parlour)
        assert (await parlour.app.store.journal.depth())["queued"] == 0
        await talk(parlour, 1)
        assert "my zeppelin" not in str(model.prompts[-1])
        assert transcripts(parlour.home).count('"kind":"forgotten"') == 1


async def test_files_that_still_have_it_are_taken_over_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until its file is written the scope owes that, so that an import of the files refuses; then it owes nothing."""

    async def fail(_: SessionFileWriter) -> bool:
        return False

    async with at_work(SummaryModel()) as parlour:
        await parlour.channel.ask("ann", "my zeppelin leaks, which is bad news for us", number="7")
        await parlour.idle()
        with monkeypatch.context() as patch:
            patch.setattr(SessionFileWriter, "flush", fail)
            patch.setattr(message_deletions, "_BUSY_DELAY", timedelta(milliseconds=50))
            await delete(parlour, "7")
            await until(lambda: list(owed_scopes(parlour.home)) == [SCOPE])
        await until(lambda: not owed_scopes(parlour.home))
        assert "my zeppelin" not in transcripts(parlour.home)


async def test_it_leaves_the_index() -> None:
    """Found before and not after, and no byte of the index holds it, although nobody searched meanwhile."""
    async with at_work(SummaryModel()) as parlour:
        await parlour.channel.ask("ann", "my zeppelin leaks, which is bad news for us", number="7")
        await talk(parlour, 1)
        assert await parlour.app.recall.search(SCOPE, "zeppelin")
        await delete(parlour, "7")
        await quiet(parlour)
        files = [*(parlour.home / SCOPE).glob("index.db*")]
        assert files
        assert not any(b"zeppelin" in data for path in files for _, data in layers(path))
        assert await parlour.app.recall.search(SCOPE, "zeppelin") == []


async def test_what_a_summary_made_of_it_is_asked_about_and_nothing_else_is() -> None:
    """Its line in MEMORY.md and its sentence of the history: both stand until the yes, and the other lines after it."""
    async with at_work(SummaryModel(telling)) as parlour:
        await parlour.channel.ask("ann", "I own a red zeppelin, and it leaks, which is bad news for us", number="7")
        await talk(parlour, 4)
        await quiet(parlour)
        before = stored_text(parlour.home, SCOPE)
        assert "- Owns a red zeppelin" in before
        await delete(parlour, "7")
        pending = await waits(parlour, 2)
        assert pending.count("would remove") == 2
        assert "Owns a red zeppelin" in pending
        assert "Ann owns a red zeppelin that leaks." in pending
        assert "tea" not in pending
        assert stored_text(parlour.home, SCOPE) == before
        names = re.findall(r"^`(d[a-z2-7]{7})`", pending, re.MULTILINE)
        assert len(set(names)) == 2
        for name in names:
            assert (await parlour.channel.ask("ann", f"/memory approve {name}")).startswith("Approved.")
        assert stored_text(parlour.home, SCOPE) == "- Lives in Bonn\n- Likes green tea\n"
        [entry] = entries(parlour.home)
        assert entry.content == "[2026-11-22 10:00] They met. They talked of tea."
        await parlour.app.memory_files.flush()
        assert "zeppelin" not in (parlour.home / SCOPE / "memory" / "HISTORY.md").read_text()


async def test_a_no_keeps_what_came_of_it() -> None:
    """Rejected: what waited is gone, what is remembered is not, and it is not asked about again."""
    async with at_work(SummaryModel(telling)) as parlour:
        await parlour.channel.ask("ann", "I own a red zeppelin, and it leaks, which is bad news for us", number="7")
        await talk(parlour, 4)
        await quiet(parlour)
        await delete(parlour, "7")
        pending = await waits(parlour, 2)
        for name in re.findall(r"^`(d[a-z2-7]{7})`", pending, re.MULTILINE):
            assert (await parlour.channel.ask("ann", f"/memory reject {name}")).startswith("Rejected.")
        await quiet(parlour)
        assert "- Owns a red zeppelin" in stored_text(parlour.home, SCOPE)
        assert "No changes are waiting" in await parlour.channel.ask("ann", "/memory pending")


async def test_what_it_asked_to_have_remembered_is_asked_about() -> None:
    """The line that /remember brought, by the turn of the deleted command, whatever its words."""
    async with at_work(SummaryModel()) as parlour:
        await parlour.channel.ask("ann", "/remember my dog is Bello", number="7")
        await parlour.channel.ask("ann", "/remember I like tea", number="8")
        await quiet(parlour)
        await delete(parlour, "7")
        pending = await waits(parlour, 1)
        assert "would remove: `- my dog is Bello`" in pending
        assert "tea" not in pending
        await until(lambda: "/remember my dog" not in transcripts(parlour.home))


async def test_a_message_from_before_new_leaves_archive_note_and_raw_archive(tmp_path: Path) -> None:
    """The model answered in prose: the raw archive and the note quote the message. These copies go at once."""
    model = SummaryModel()
    home = tmp_path / "home"
    async with at_work(model, home) as parlour:
        for n, text in enumerate(("my zeppelin leaks, which is bad news for us", "it is red", "and it is old"), 7):
            await parlour.channel.ask("ann", text, number=str(n))
        model.bad_answers = 9
        handlers = parlour.app.background._handlers
        parlour.app.background._handlers = {**handlers, UPDATE_JOBS: _at_once(handlers[UPDATE_JOBS])}
        await parlour.channel.ask("ann", "/new")
        await quiet(parlour)
        raw = home / SCOPE / "memory" / "raw.jsonl"
        [note] = [path for path in (home / SCOPE / "memory").glob("2*.md") if "zeppelin" in path.read_text()]
        assert "zeppelin" in raw.read_text()
        await delete(parlour, "7")
        await until(lambda: "user: [forgotten]" in note.read_text())
        await quiet(parlour)
        for text in (raw.read_text(), transcripts(home), note.read_text()):
            assert "my zeppelin leaks" not in text
            assert "it is red" in text


def _at_once(handler: Handler) -> Handler:
    """Return a summary's handler that has waited after its first two bad answers."""

    async def run(job: Job) -> RetryJobLater | None:
        later = await handler(job)
        if prompt_of(job) != SUMMARISE:
            return later
        return await handler(replace(job, attempts=2, payload={**job.payload, "bad_answers": 2}))

    return run


async def test_a_summary_under_way_is_waited_for() -> None:
    """Deleted while the model reads it: what its answer brings is asked about all the same."""
    model = SummaryModel(telling)
    model.go_on.clear()
    async with at_work(model) as parlour:
        await parlour.channel.ask("ann", "I own a red zeppelin, and it leaks, which is bad news for us", number="7")
        await talk(parlour, 4)
        await model.thinking.wait()
        handlers = parlour.app.background._handlers
        parlour.app.background._handlers = {**handlers, DELETION_JOBS: _soon(handlers[DELETION_JOBS])}
        await delete(parlour, "7")
        await until(lambda: "and it leaks" not in transcripts(parlour.home))
        assert await parlour.app.commands.staging.pending_changes(SCOPE) == []
        model.go_on.set()
        pending = await waits(parlour, 2)
        assert "Owns a red zeppelin" in pending


def _soon(handler: Handler) -> Handler:
    """Return a handler that is not waited for long."""

    async def run(job: Job) -> RetryJobLater | None:
        later = await handler(job)
        return later and RetryJobLater(timedelta(milliseconds=10), later.reason, counts=later.counts)

    return run


async def test_killed_in_between_it_is_done_once(tmp_path: Path) -> None:
    """Killed before the jobs ran: after the start the message is gone, and what came of it is asked about once."""
    async with at_work(SummaryModel(telling), tmp_path / "home") as parlour:
        await parlour.channel.ask("ann", "I own a red zeppelin, and it leaks, which is bad news for us", number="7")
        await talk(parlour, 4)
        await quiet(parlour)
        parlour.app.background._quick = ()
        await delete(parlour, "7")
        dead = parlour.kill(tmp_path / "copy")
    async with at_work(SummaryModel(telling), dead) as parlour:
        await until(lambda: "and it leaks" not in transcripts(dead))
        pending = await waits(parlour, 2)
        assert pending.count("would remove") == 2
        assert transcripts(dead).count('"kind":"forgotten"') == 1


async def test_in_a_group_only_its_own_scope_is_touched() -> None:
    """The same words in another scope's memory are nobody's business here."""
    policy = OPEN
    async with gateway(model=SummaryModel(), policy=policy) as parlour:
        await parlour.channel.ask("ann", "/remember my dog is Bello", number="6")
        await parlour.channel.ask("room", "/remember my dog is Bello", group=True, number="7")
        await quiet(parlour)
        await parlour.channel.say("room", "", group=True, number="7", kind=InboundKind.DELETION)
        [waiting] = await wait_staged_changes(parlour, 1, "chats/pocket%3aroom")
        assert (waiting.session, waiting.account) == ("pocket:room", PlatformAccount(kind="pocket", id="ann"))
        assert await wait_staged_changes(parlour, 0) == []
        assert stored_entries(parlour.home, SCOPE) == ()
