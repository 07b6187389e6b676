"""The doctor about tools: the confined reader, `compute`, and reminders that nobody may receive."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent.attachments import process_confinement
from agent.attachments.process_confinement import FILES_ARE_READ
from agent.reminders.reminder import Reminder
from agent.reminders.reminder_jobs import REVOKED
from gateway.admission import policy_of
from gateway.events import SessionKey
from gateway.health.doctor import collect_findings
from gateway.installation import operator_command
from gateway.ports.setup import FindingLevel
from gateway.settings import settings_model
from gateway.store.engine import StoreLimits
from gateway.store.sqlite import open_store
from tests.fakes.inprocess_gateway import InstantModel, gateway
from tests.unit.ops.test_memory_cli import CommandTerminal
from tests.unit.ops.test_memory_cli import terminal as terminal

NOW = datetime.now(UTC).replace(microsecond=0)


async def look(home: Path, **environment: str) -> dict[str, tuple[FindingLevel, str]]:
    """Return what the doctor finds, by id."""
    variables = {"PARLOUR_HOME": str(home), **environment}
    found = [each async for each in collect_findings(variables, is_offline=True, asks_model=False)]
    return {each.id: (each.level, each.text) for each in found}


def reminder_of(who: str, name: str, paused: str = "") -> Reminder:
    """Return a reminder of a person in their direct chat."""
    return Reminder(
        id=name,
        key=SessionKey("pocket", who),
        by=who,
        person=f"pocket%3a{who}",
        kind="say",
        text="a secret",
        at=(NOW + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M"),
        zone="UTC",
        set_at=NOW,
        source="t.1",
        paused=paused,
    )


async def test_the_reader_is_confined_or_the_line_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All answers of the kernel."""
    if process_confinement.can_confine():
        tier = process_confinement.probe_confinement()
        level, text = (await look(tmp_path))["reader.confined"]
        assert (level, f"({tier})" in text) == (FindingLevel.OK, True)
    monkeypatch.setattr(process_confinement, "_ALLOWED", {})
    level, text = (await look(tmp_path))["reader.confined"]
    assert (level, "use Linux on x86-64 or ARM64" in text) == (FindingLevel.WARN, True)
    monkeypatch.setattr(process_confinement, "probe_confinement", lambda: f"seccomp; {FILES_ARE_READ}")
    level, text = (await look(tmp_path))["reader.confined"]
    assert (level, "use Linux 5.13 or newer with Landlock" in text) == (FindingLevel.WARN, True)


async def test_compute_is_installed_missing_or_not_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing package is a warning that names it; a tool that is turned off is no finding."""
    assert (await look(tmp_path))["compute"] == (FindingLevel.OK, "is installed")
    monkeypatch.setattr(settings_model, "_INTERPRETER", "no_such_interpreter")
    level, text = (await look(tmp_path))["compute"]
    assert level is FindingLevel.WARN
    assert text.startswith("the tool is off: its package pydantic-monty is not installed: run `make install`")
    assert text.endswith(", or set PARLOUR_TOOLS__CODE__COMPUTE=false")
    assert "compute" not in await look(tmp_path, PARLOUR_TOOLS__CODE__COMPUTE="false")


async def test_reminders_of_people_without_access_are_named_before_they_are_due(terminal: CommandTerminal) -> None:
    """A blocked person and one whom no entry admits, each with a count; those who may write are not named."""
    there, policy = asyncio.to_thread, policy_of("pocket", ("ann", "bob"), (), "mention")
    async with gateway(home=terminal.home, model=InstantModel(), policy=policy) as parlour:
        rows = [("ann", "raaaaaaaa"), ("bob", "rbbbbbbbb"), ("bob", "rcccccccc"), ("eve", "rdddddddd")]
        for who, name in rows:
            await parlour.app.store.jobs.put(reminder_of(who, name).to_job(f"people/pocket%3a{who}"))
        await there(terminal.well, "people", "block", "pocket:bob")
        found = [
            each
            async for each in collect_findings({"PARLOUR_HOME": str(terminal.home)}, is_offline=True, asks_model=False)
        ]
        lines = [each.text for each in found if each.id == "reminders.access"]
        assert [line.partition(",")[0] for line in lines] == ["2 reminders of pocket:bob", "1 reminder of pocket:eve"]
        assert operator_command("people allow pocket:bob") in lines[0]  # as the gateway names it, for the console too
        assert {each.level for each in found if each.id == "reminders.access"} == {FindingLevel.WARN}
        assert "reminders        2 reminders of pocket:bob, who has no access" in await there(terminal.well, "status")
        assert "secret" not in str(found)


async def test_paused_reminders_are_named_without_a_gateway(tmp_path: Path) -> None:
    """What the journal knows: their person had lost access when they were due."""
    store = await open_store(tmp_path, "", StoreLimits())
    for name, paused in (("raaaaaaaa", REVOKED), ("rbbbbbbbb", REVOKED), ("rcccccccc", "failed"), ("rdddddddd", "")):
        await store.jobs.put(reminder_of("bob", name, paused).to_job("people/pocket%3abob"))
    await store.close()
    level, text = (await look(tmp_path))["reminders.access"]
    assert (level, text.partition(",")[0]) == (FindingLevel.WARN, "2 reminders of pocket:bob")
