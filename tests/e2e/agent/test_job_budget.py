"""The purse of background work through the whole gateway: spent, it waits; people go on being answered and told."""

from __future__ import annotations

import re
import urllib.request
from asyncio import to_thread
from datetime import UTC, datetime
from pathlib import Path

from tests.e2e.agent.test_consolidation import WINDOW, SummaryModel, entries, jobs, talk
from tests.fakes.inprocess_gateway import gateway

# A zone in which it is neither before nor after midnight while this runs.
ZONE = "UTC" if 3 < datetime.now(UTC).hour < 21 else "Asia/Tokyo"
# The scripted model takes two tokens a summary: a day is good for one.
ENOUGH_FOR_ONE = {**WINDOW, "PARLOUR_CAPS__BACKGROUND_TOKENS_PER_DAY": "2", "PARLOUR_TIMEZONE": ZONE}


async def test_what_the_day_cannot_pay_waits_over_a_restart(tmp_path: Path) -> None:
    """One summary is made; the next waits, unfailed, in this run and in the next, and answers come all the while."""
    home = tmp_path / "home"
    async with gateway(model=SummaryModel(), environment=ENOUGH_FOR_ONE, home=home) as parlour:
        await talk(parlour, 5)
        await jobs(parlour, lambda found: not any(job.kind in ("update", "apply") for job in found))
        assert len(entries(home)) == 1
        await talk(parlour, 3)
        status = await parlour.channel.ask("ann", "/status")
        assert "Background jobs have used all 2 tokens for today" in status
        assert re.search(r"- update: 0 running, 1 waiting \(oldest: 0h 0m\), 0 failed", status)
    model = SummaryModel()
    async with gateway(model=model, environment=ENOUGH_FOR_ONE, home=home) as parlour:
        await talk(parlour, 1)
        await parlour.idle()
        [told] = [line async for line in parlour.app.operations["status"]({})]
        [waits] = [job for job in told["jobs"] if job["kind"] == "update"]
        assert (waits["waiting"], waits["failures"], waits["last_run"]) == (1, 0, None)
        assert told["background_budget"] == {"limit": 2, "spent": 2, "is_spent": True}
        with await to_thread(urllib.request.urlopen, f"{parlour.app.web.url}metrics") as response:
            metrics = response.read().decode()
        assert 'parlour_jobs_waiting{kind="update"} 1.0' in metrics
        assert "parlour_background_tokens_limit 2.0" in metrics
        assert model.asked == []
        assert len(entries(home)) == 1
    async with gateway(model=SummaryModel(), environment={**WINDOW, "PARLOUR_TIMEZONE": ZONE}, home=home) as parlour:
        await jobs(parlour, lambda found: not any(job.kind in ("update", "apply") for job in found))
        assert len(entries(home)) == 2


async def test_a_dream_that_has_to_wait_for_tomorrow_says_so() -> None:
    """Whoever asks for one while the day's tokens are spent hears when it will be; the wish is kept."""
    async with gateway(model=SummaryModel(), environment=ENOUGH_FOR_ONE) as parlour:
        await talk(parlour, 5)
        await jobs(parlour, lambda found: not any(job.kind in ("update", "apply") for job in found))
        assert "tomorrow" in await parlour.channel.ask("ann", "/dream")
        found = await parlour.app.store.jobs.pending_in("people/pocket%3aann")
        assert [job.kind for job in found if "asked" in job.payload] == ["dream"]
