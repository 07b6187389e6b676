"""What `make faults` prints while it plays for hours."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.clock import VirtualClock
from tests.faults.progress import INTERVAL, show_progress


async def test_progress_is_printed_at_each_interval(clock: VirtualClock, capsys: pytest.CaptureFixture[str]) -> None:
    """At least every half a minute: points played, wrong so far, time left, and the point to resume at."""
    assert INTERVAL <= 30
    async with show_progress("relay, kill_before", range(1, 101)) as progress:
        await asyncio.sleep(INTERVAL + 1)
        for number in range(1, 51):
            progress.record(number, "")
        progress.record(52, "killed at 52: the answer is missing")
        await asyncio.sleep(INTERVAL)
        for number in (51, *range(53, 101)):
            progress.record(number, "")
    assert capsys.readouterr().out.splitlines() == [
        "relay, kill_before: 0 of 100 points, 0 wrong; resume with --from 1",
        "killed at 52: the answer is missing",
        "relay, kill_before: 51 of 100 points, 1 wrong, about 1 min left; resume with --from 51",
    ]


async def test_an_interrupted_run_says_where_to_resume(clock: VirtualClock, capsys: pytest.CaptureFixture[str]) -> None:
    """Points are played several at once: the first that was not played is named, although later ones were."""

    async def play_two() -> None:
        async with show_progress("relay, io_error", range(7, 12)) as progress:
            progress.record(7, "")
            progress.record(9, "")
            raise KeyError

    with pytest.raises(KeyError):
        await play_two()
    (line,) = capsys.readouterr().out.splitlines()
    assert line == "relay, io_error: 2 of 5 points, 0 wrong, about 0 min left; resume with --from 8"
