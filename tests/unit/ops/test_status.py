"""`parlour status`: what was given up is named by channel and reason, on one line each."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.memory.jobs.job_runner import JobRunner
from agent.memory.jobs.token_budget import TokenBudget
from gateway.access.refusal_log import RefusalLog
from gateway.commands import control_client
from gateway.control import Line
from gateway.events import SessionKey
from gateway.home import Home
from gateway.operations import GatewayOperations
from gateway.ports import Channel, Job, Store, UsageRow
from gateway.quarantine import Quarantine
from tests.fakes.meter import FakeMeter
from tests.fakes.store import open_inline_store
from tests.fakes.turns import ANN, answer, parts_of, said
from tests.fakes.web_services import FakePageServices


class StatusHome:
    """A home whose only life is in its store."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.home = Home(folder)
        self.store = store
        self.sessions = FakePageServices()
        self.refusals = RefusalLog()
        self.intake = self
        self.quarantine = Quarantine(
            self.home.quarantine, unclean_stops=0, meter=FakeMeter(), now=lambda: datetime.now(UTC)
        )
        self.channels: Mapping[str, Channel] = {}

    def readiness(self) -> Mapping[str, bool | None]:
        return {"telegram": True}

    @asynccontextmanager
    async def pause_writes(self) -> AsyncIterator[None]:
        yield

    async def submit(self, key: SessionKey, text: str) -> str:
        raise NotImplementedError

    async def replay(self, name: str, channels: Mapping[str, Channel]) -> bool:
        raise NotImplementedError

    async def work(self) -> Mapping[str, Any]:
        token_budget = TokenBudget(self.store.usage, limit=1_000, zone="UTC", now=lambda: datetime.now(UTC))
        background = JobRunner(self.store.jobs, quick={}, slow={}, token_budget=token_budget)
        return {"jobs": await background.work(), "background_budget": await background.budget()}


async def status(store: Store, folder: Path) -> Line:
    """Return the operation's one line."""
    (line,) = [line async for line in GatewayOperations(StatusHome(folder, store)).status({})]
    return line


async def test_status_names_what_was_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A blocked bot's answer: counted, with its channel and the platform's reason, which cannot move the cursor."""
    store = await open_inline_store()
    line: dict[str, Any] = dict(await status(store, tmp_path))
    assert (line["dead"], line["dead_letters"]) == (0, [])
    await answer(store, said(), "one")
    delivery = await store.outbox.next(ANN)
    assert delivery is not None
    parts = parts_of(delivery.message, 2)
    await store.outbox.freeze(delivery.message, parts)
    await store.outbox.dead_letter(parts[0], "403: bot was \x1b[2Jblocked by the user")
    line = dict(await status(store, tmp_path))
    (group,) = line["dead_letters"]
    assert (group["channel"], group["count"]) == ("telegram", 2)
    monkeypatch.setattr(control_client, "call_operation", lambda _: [line])
    control_client.show_status(as_json=False)
    (told,) = [printed for printed in capsys.readouterr().out.splitlines() if printed.startswith("dead letters")]
    assert told.endswith("403: bot was [2Jblocked by the user")
    assert "telegram: 2 dead-lettered" in told
    await store.close()


async def test_status_says_how_the_work_beside_the_turns_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What waits and since when, what is planned, what the day has cost: by kind, from the journal, running or not."""
    store = await open_inline_store()
    now = datetime.now(UTC)
    for n, (kind, due_at) in enumerate(
        (("note", now - timedelta(minutes=5)), ("note", now), ("dream", now + timedelta(hours=2)))
    ):
        await store.jobs.put(Job(id=f"j{n}", kind=kind, scope="people/a", payload={}, due_at=due_at))
    store.journal.spend(
        UsageRow(
            turn="j9",
            person="",
            chat="",
            purpose="dream",
            model="m",
            tokens_in=1_200,
            tokens_out=30,
            tokens_cached=0,
            cost=None,
            at=now,
        )
    )
    line = await status(store, tmp_path)
    assert [(job["kind"], job["waiting"], job["later"]) for job in line["jobs"]] == [("dream", 0, 1), ("note", 2, 0)]
    monkeypatch.setattr(control_client, "call_operation", lambda _: [line])
    control_client.show_status(as_json=False)
    printed = capsys.readouterr().out
    assert re.search(
        r"^job note +0 running, 2 waiting \(the oldest for 30\d s\), 0 later, 0 done, 0 failed$", printed, re.MULTILINE
    )
    assert re.search(
        r"^background +1230 of 1000 tokens today, spent: pending jobs continue tomorrow$", printed, re.MULTILINE
    )
    await store.close()
