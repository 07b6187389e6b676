"""Our copy of an export goes: not before it is delivered, and after a week in any case."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from agent.base import transcript_lines as build
from agent.memory.jobs.job_runner import RetryJobLater
from agent.memory.privacy import ExportJobs
from gateway.events import Attachment, OutboundMessage, SessionKey
from gateway.ports.journal import Job, PendingDelivery
from gateway.ports.memory import FileKind
from tests.fakes.memory import ANN, SCOPE, START, FakeJobs, FakeRecords


@dataclass
class HeldOutbox:
    """An outbox whose channel is down."""

    waiting: list[PendingDelivery] = field(default_factory=list)

    async def undelivered(self, key: SessionKey) -> tuple[PendingDelivery, ...]:
        """Return what waits."""
        return tuple(self.waiting)


async def test_it_waits_for_a_channel_that_is_down_and_not_for_ever(tmp_path: Path) -> None:
    """Undelivered after a day: kept, uncounted. Delivered, or a week old: gone, and gone twice is gone once."""
    records = FakeRecords()
    digest = (await records.files.put(SCOPE, FileKind.ATTACHMENT, b"zip", at=START)).name
    message = OutboundMessage(
        id="t.1",
        key=ANN,
        text="",
        attachments=(Attachment(kind="document", name="e.zip", size=3, blob=f"{SCOPE}/{digest}"),),
    )
    outbox = HeldOutbox([PendingDelivery(message=message, parts=(), preview=None)])
    now = START
    # None of these is asked.
    parts: dict[str, Any] = dict.fromkeys(
        ("usage", "session", "transcripts", "documents", "history", "staging", "limit", "logins", "browsers", "runs")
    )
    parts["links"] = None

    def clock() -> datetime:
        return now

    exports = ExportJobs(
        home=tmp_path,
        jobs=FakeJobs(),
        records=records,
        files=records.files,
        outbox=outbox,  # type: ignore[arg-type]  # as much of one as is asked
        zone=lambda _: "UTC",
        now=clock,
        kinds={},
        **parts,
    )
    payload = {"key": str(ANN), "digests": [digest], "since": build.format_time(START)}
    job = Job(id="unexport:1", kind="unexport", scope=SCOPE, payload=payload, due_at=START)
    now = START + timedelta(days=1)
    later = await exports.run(job)
    assert isinstance(later, RetryJobLater)
    assert not later.counts
    assert await records.files.files(SCOPE)
    now = START + timedelta(days=8)
    assert await exports.run(job) is None
    assert not await records.files.files(SCOPE)
    assert await exports.run(job) is None
    await records.files.put(SCOPE, FileKind.ATTACHMENT, b"zip", at=START)
    now, outbox.waiting = START + timedelta(days=1), []
    assert await exports.run(job) is None
    assert not await records.files.files(SCOPE)
