"""memory.retention_days through the whole gateway: what was said leaves when it is older, what was made of it stays."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent.base.disk import Disk
from agent.base.transcript_lines import FORGOTTEN
from agent.memory.erasure.retention import RetentionJob
from agent.memory.erasure.scope_files import owed_scopes
from agent.memory.storage.session_file_writer import SessionFileWriter
from agent.memory.storage.transcript_files import read_transcript
from gateway.events import SessionKey
from gateway.ports.channel import DisplayedMessage
from gateway.ports.journal import Job
from gateway.ports.memory import FileKind, HistoryEntry, NoteChange
from tests.e2e.agent.test_consolidation import SCOPE, WINDOW, SummaryModel
from tests.e2e.agent.test_purge import wait_until_purged
from tests.fakes.canaries import where
from tests.fakes.inprocess_files import InProcessFilePlugin, PlatformFiles
from tests.fakes.inprocess_gateway import InProcessGateway, gateway
from tests.fakes.stored_files import stored_files

DAYS = 30
OLD, NEW = "oldquokka", "newquokka"
TODAY = Job(id="retention:x", kind="retention", scope="", payload={}, due_at=datetime(2026, 11, 22, tzinfo=UTC))


def transcript_file(home: Path) -> Path:
    """Return the path of Ann's transcript."""
    return home / SCOPE / "sessions" / "pocket%3aann.jsonl"


def at(parlour: InProcessGateway, moment: datetime) -> RetentionJob:
    """Return the day's work as it is done when *moment* is just as old as what lapses."""
    now = moment + timedelta(days=DAYS)
    mine = parlour.app.commands.erasure.retention
    storage = dataclasses.replace(mine.storage, now=lambda: now)
    return dataclasses.replace(mine, days=DAYS, storage=storage)


def messages(home: Path) -> Sequence[object]:
    """Return what Ann's transcript says, oldest first."""
    blocks = read_transcript(Disk(), transcript_file(home)).blocks
    return [line["content"] for block in blocks for line in block.lines if line.get("role")]


async def test_older_lines_leave_and_the_conversation_goes_on(tmp_path: Path) -> None:
    """Blanked in place up to the day, once, at the cost of what lapses; memory stays, and the next turn is answered."""
    sources, model = PlatformFiles(), SummaryModel()
    home = tmp_path / "home"
    async with gateway(home=home, model=model, environment=WINDOW, kind=InProcessFilePlugin(sources)) as parlour:
        ask = parlour.channel.ask
        await ask("ann", f"/remember the {OLD} is red")
        paper = sources.put("a.txt", OLD.encode(), media_type="text/plain")
        await ask("ann", f"my {OLD}", attachments=[paper])
        await wait_until_purged(parlour)
        middle = datetime.now(UTC)
        await ask("ann", f"my {NEW}")
        await wait_until_purged(parlour)
        assert await at(parlour, middle).expire(TODAY) is None
        said = messages(home)
        assert said[:3] == [FORGOTTEN, FORGOTTEN, f"my {NEW}"]
        assert NEW in str(said[3])
        assert not stored_files(home, FileKind.ATTACHMENT)
        written = transcript_file(home).stat().st_ino
        await at(parlour, middle).expire(TODAY)
        assert transcript_file(home).stat().st_ino == written
        await ask("ann", "and now?")
        prompt = str(model.prompts[-1])
        assert NEW in prompt
        assert f"my {OLD}" not in prompt
        assert f"the {OLD} is red" in prompt  # a fact, until somebody forgets it
        await parlour.idle()
        planned = [job.id for job in await parlour.app.store.jobs.pending_in("") if job.kind == "retention"]
        assert len(planned) == 1
    transcript = (home / SCOPE / "sessions" / "pocket%3aann.jsonl").read_text()
    assert OLD not in transcript
    assert '"Ann"' in transcript  # of the newer lines


async def test_what_is_over_goes_whole_and_begins_anew(tmp_path: Path) -> None:
    """Archives, raw archive, notes, set-aside bytes and a conversation nobody goes on with: gone; facts stay."""
    home = tmp_path / "home"
    model = SummaryModel()
    async with gateway(home=home, model=model, environment=WINDOW) as parlour:
        ask = parlour.channel.ask
        await ask("ann", f"/remember the {OLD} is red")
        await ask("ann", f"my {OLD}")
        await ask("ann", "/new")
        await ask("ann", f"again {OLD}")
        await wait_until_purged(parlour)
        scope = home / SCOPE
        (scope / "sessions" / "x.jsonl.corrupt").write_text(OLD)
        history = parlour.app.store.history
        assert await history.write(SCOPE, notes={"2026-01-01-a-note.md": NoteChange(was=None, body=OLD.encode())})
        said = {"role": "user", "content": OLD, "timestamp": "2026-01-01T00:00:00Z"}
        await history.keep_raw(SCOPE, HistoryEntry(timestamp="2026-01-01 00:00", content="[raw]", entry="e1"), [said])
        await parlour.app.memory_files.flush()
        assert OLD in (scope / "memory" / "raw.jsonl").read_text()
        await at(parlour, datetime.now(UTC) + timedelta(seconds=5)).expire(TODAY)
        assert not list((scope / "sessions").glob("*.jsonl*"))
        assert not list((scope / "memory").glob("2026-01-01*"))
        assert not (scope / "memory" / "raw.jsonl").exists()
        assert not await history.raw_messages(SCOPE, "e1")
        assert OLD in await parlour.document(SCOPE)
        before = {
            line.text
            for line in await parlour.app.memory.sessions.displayed_messages(SessionKey("pocket", "ann"), limit=9)
        }
        assert before == set()
        assert (await ask("ann", "hello again")).startswith("re ")
        assert f"my {OLD}" not in str(model.prompts[-1])
        await parlour.idle()
    assert not any("sessions" in name for name in where(home, OLD))


async def test_a_new_conversation_keeps_its_lines_and_an_archived_one_loses_the_old(tmp_path: Path) -> None:
    """Each turn lapses by its own time, whatever file it is in by then."""
    home = tmp_path / "home"
    async with gateway(home=home, model=SummaryModel(), environment=WINDOW) as parlour:
        ask = parlour.channel.ask
        await ask("ann", f"my {OLD}, at great length: {'long ' * 200}")
        first = datetime.now(UTC)
        await ask("ann", "my second")
        await parlour.idle()
        await at(parlour, first).expire(TODAY)
        second = datetime.now(UTC)
        await ask("ann", "my third")
        await ask("ann", "/new")
        await ask("ann", f"my {NEW}")
        await parlour.idle()
        await at(parlour, second).expire(TODAY)
        assert messages(home)[0] == f"my {NEW}"
        said = [line.text for line in await shown(parlour)]
        assert "my third" in said
        assert f"my {NEW}" in said
        assert not any(OLD in text or "my second" in text for text in said)
    assert not any("sessions" in name for name in where(home, OLD))


async def shown(parlour: InProcessGateway) -> Sequence[DisplayedMessage]:
    """Return all that the page would show of Ann's conversation."""
    page = await parlour.app.memory.sessions.displayed_page(SessionKey("pocket", "ann"), turns=100)
    assert page is not None
    return page.lines


async def test_files_that_still_have_it_are_taken_over_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until its files are written a scope owes that, so that an import of the files refuses."""

    async def fail(*_: object) -> None:
        raise OSError("full")

    async with gateway(home=tmp_path / "home", environment=WINDOW) as parlour:
        await parlour.channel.ask("ann", f"my {OLD}")
        await parlour.idle()
        middle = datetime.now(UTC)
        with monkeypatch.context() as patch:
            patch.setattr(SessionFileWriter, "write_scope", fail)
            with pytest.raises(OSError, match="full"):
                await at(parlour, middle).expire(TODAY)
        assert list(owed_scopes(parlour.home)) == [SCOPE]
        await at(parlour, middle).expire(TODAY)
        assert not owed_scopes(parlour.home)


async def test_without_the_setting_nothing_lapses(tmp_path: Path) -> None:
    """0 is off: nothing is planned, and a job that an earlier setting left does nothing."""
    async with gateway(home=tmp_path / "home", model=SummaryModel()) as parlour:
        await parlour.channel.ask("ann", f"my {OLD}")
        await parlour.idle()
        assert not [job for job in await parlour.app.store.jobs.pending_in("") if job.kind == "retention"]
        await dataclasses.replace(at(parlour, datetime.now(UTC) + timedelta(days=400)), days=0).expire(TODAY)
        assert OLD in str(messages(parlour.home))


async def test_with_the_setting_it_is_planned_at_the_start(tmp_path: Path) -> None:
    """Once a day: today's work is done at the start, tomorrow's is queued."""
    environment = {"PARLOUR_MEMORY__RETENTION_DAYS": "30"}
    async with gateway(home=tmp_path / "home", model=SummaryModel(), environment=environment) as parlour:
        while True:
            planned = [job for job in await parlour.app.store.jobs.pending_in("") if job.kind == "retention"]
            if planned and planned[0].due_at > datetime.now(UTC) + timedelta(hours=1):
                break
            await parlour.idle()
        assert len(planned) == 1
