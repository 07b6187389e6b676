"""10,000 reminders due in one minute: each once, and what they cost the people who write at the same time."""

from __future__ import annotations

import statistics
import time
from datetime import UTC, datetime, timedelta

from agent.reminders.recurrence import slot_of
from agent.reminders.reminder import SAY, Reminder
from gateway.events import SessionKey
from tests.benchmarks.harness import row
from tests.fakes.inprocess_gateway import InProcessGateway, InstantModel, gateway

REMINDERS, CHATS, SECONDS, ANSWERS = 10_000, 1_000, 0.5, 60


async def due_at_once() -> None:
    """Time answers without and with the reminders; the model takes 500 ms."""
    async with gateway(model=InstantModel(SECONDS)) as bench:
        await _answers(bench, 3)
        calm = await _answers(bench, ANSWERS)
        start = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=2)
        for n in range(REMINDERS):
            await bench.app.store.jobs.put(
                _reminder(n, start + timedelta(seconds=n % 60)).to_job(f"people/pocket%3a{n % CHATS}")
            )
        began = time.perf_counter()
        busy = await _answers(bench, ANSWERS)
        expected = REMINDERS + 3 + 2 * ANSWERS
        await bench.channel.until(lambda: bench.channel.sent >= expected)
        sent = [text for chat, texts in bench.channel.texts.items() if chat != "quiet" for text in texts]
        row(
            f"{REMINDERS} reminders due in one minute",
            sent=len(sent),
            distinct=len({text.split()[1] for text in sent}),
            seconds=time.perf_counter() - began,
            calm_ms=statistics.median(calm) * 1e3,
            busy_ms=statistics.median(busy) * 1e3,
            ratio=statistics.median(busy) / statistics.median(calm),
            worst_ratio=max(busy) / max(calm),
        )


def _reminder(n: int, at: datetime) -> Reminder:
    user = str(n % CHATS)
    return Reminder(
        id=f"r{n}",
        key=SessionKey("pocket", user),
        by=user,
        person=f"pocket%3a{user}",
        kind=SAY,
        text=f"{n} is due",
        at=slot_of(at, "UTC"),
        zone="UTC",
        set_at=at,
        source="tbenchmark.1",
    )


async def _answers(bench: InProcessGateway, count: int) -> list[float]:
    """Return how many seconds each of *count* answers took, one after the other."""
    took = []
    for n in range(count):
        began = time.perf_counter()
        _, answer = await bench.channel.say("quiet", f"question {n}")
        took.append(await answer - began)
    return took
