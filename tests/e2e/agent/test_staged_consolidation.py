"""What a consolidation may not do by itself waits for a yes, and nothing is lost while it waits."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.base.transcript_lines import utc_now
from agent.memory.editing.staged_changes import EXPIRES_AFTER
from tests.e2e.agent.test_consolidation import SummaryModel, at_work, quiet, talk
from tests.fakes.documents import stored_text
from tests.fakes.inprocess_gateway import InProcessGateway, gateway

SCOPE = "people/pocket%3aann"
FACTS = [
    f"keepsake number {n} is a {name}" for n, name in enumerate(("ring", "watch", "shell", "stamp", "coin", "key"))
]


NEW = "- something new"
GOING = FACTS[:5]


def forgetful(n: int, _: str) -> dict[str, Any]:
    """Answer as a model that removes five of six facts."""
    removals = [{"op": "remove", "old": f"- {fact}", "reason": "sold", "source": 1} for fact in GOING]
    return {"history_entry": f"[2026-11-22 10:00] {n}", "operations": [*removals, {"op": "add", "text": NEW}]}


def wiping(n: int, _: str) -> dict[str, Any]:
    """Answer as a model that removes everything, in several ways."""
    removals = [{"op": "remove", "old": f"- {fact}"} for fact in FACTS]
    if n == 1:
        removals = [{"op": "remove", "old": "\n".join(f"- {fact}" for fact in FACTS)}]
    return {"history_entry": f"[2026-11-22 10:00] {n}", "operations": removals}


@asynccontextmanager
async def forgetting() -> AsyncIterator[InProcessGateway]:
    """Run a gateway whose model wants to forget what Ann had remembered, and has said so."""
    async with at_work(SummaryModel(forgetful)) as parlour:
        for fact in FACTS:
            await parlour.channel.ask("ann", f"/remember {fact}")
        await talk(parlour, 6)
        await quiet(parlour)
        yield parlour


async def test_no_question_offers_to_wipe_more_than_five_lines() -> None:
    """What would take six lines is refused as one edit; of six edits those within the limit wait, and one stays."""
    async with at_work(SummaryModel(wiping)) as parlour:
        for fact in FACTS:
            await parlour.channel.ask("ann", f"/remember {fact}")
        await talk(parlour, 20)
        await quiet(parlour)
        text = stored_text(parlour.home, SCOPE)
        assert all(fact in text for fact in FACTS)
        for waiting in await parlour.app.commands.staging.pending_changes(SCOPE):
            assert len(waiting.would_remove) <= 5


async def test_removals_beyond_a_quarter_wait_and_can_be_approved() -> None:
    """Five of six facts removed at once: all stand, the answer's own fact is added, and a yes takes the five out."""
    async with forgetting() as parlour:
        before = stored_text(parlour.home, SCOPE)
        assert all(fact in before for fact in FACTS)
        assert NEW in before
        pending = await parlour.channel.ask("ann", "/memory pending")
        assert pending.count("would remove") == len(GOING)
        found = re.search(r"`(e[a-z2-7]{7})`", pending)
        assert found
        assert "no_such" not in await parlour.channel.ask("ann", "/memory approve zzzz")
        assert stored_text(parlour.home, SCOPE) == before
        assert (await parlour.channel.ask("ann", f"/memory approve {found[1]}")).startswith("Approved.")
        assert stored_text(parlour.home, SCOPE) == f"- {FACTS[5]}\n{NEW}\n"
        assert "No changes are waiting" in await parlour.channel.ask("ann", "/memory pending")
        log = await parlour.channel.ask("ann", "/memory log")
        assert "was approved" in log


async def test_a_no_keeps_everything() -> None:
    """Rejected: what waited is gone, what was remembered is not."""
    async with forgetting() as parlour:
        pending = await parlour.channel.ask("ann", "/memory pending")
        name = re.search(r"`(e[a-z2-7]{7})`", pending)
        assert name
        assert (await parlour.channel.ask("ann", f"/memory reject {name[1]}")).startswith("Rejected.")
        assert all(fact in stored_text(parlour.home, SCOPE) for fact in FACTS)


async def test_what_was_added_stands_although_the_removals_lapsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 4, "To show" 3: nobody answered for fourteen days; every old fact is there, and the answer's new one."""
    async with forgetting() as parlour:
        [waiting] = await parlour.app.commands.staging.pending_changes(SCOPE)
        assert waiting.would_remove == tuple(f"- {fact}" for fact in GOING)
        staging = parlour.app.commands.staging
        monkeypatch.setattr(staging, "_now", lambda: utc_now() + EXPIRES_AFTER + timedelta(hours=1))
        assert await staging.pending_changes(SCOPE) == []
        assert "No changes are waiting" in await parlour.channel.ask("ann", "/memory pending")
        lines = stored_text(parlour.home, SCOPE).splitlines()
        assert {*(f"- {fact}" for fact in FACTS), NEW} == set(lines)


async def test_changes_of_an_earlier_release_wait_on(tmp_path: Path) -> None:
    """The first start takes the files over: they are listed, one is approved, and a second start changes nothing."""
    folder = tmp_path / "home" / SCOPE / "memory" / ".staged"
    folder.mkdir(parents=True)
    for name, text in (("eaaaaaaaaaaaaaaaa", "- likes tea"), ("ebbbbbbbbbbbbbbbb", "- likes coffee")):
        record = {"v": 1, "entry": name, "why": "untrusted", "at": utc_now().isoformat(), "person": "pocket%3aann"}
        record["operations"] = [{"op": "add", "text": text}]
        (folder / f"{name}.json").write_text(json.dumps(record))
    async with gateway(model=SummaryModel(), home=tmp_path / "home") as parlour:
        assert not folder.exists()
        pending = await parlour.channel.ask("ann", "/memory pending")
        assert "likes tea" in pending
        assert "likes coffee" in pending
        assert (await parlour.channel.ask("ann", "/memory approve eaaaaaaa")).startswith("Approved.")
    async with gateway(model=SummaryModel(), home=tmp_path / "home") as parlour:
        assert "likes tea" in await parlour.channel.ask("ann", "/memory")
        assert "likes tea" not in await parlour.channel.ask("ann", "/memory pending")
