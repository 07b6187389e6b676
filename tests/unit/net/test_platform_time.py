"""A clock that is days ahead is known by what other servers say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from gateway.net import ask_time, clock_ahead, clock_line
from tests.fakes.time_server import open_time_server

NOW = datetime(2026, 11, 24, 12, 0, tzinfo=UTC)
NOBODY = "http://127.0.0.1:9/"


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait longer than a busy machine may need to answer itself."""
    monkeypatch.setattr("gateway.net._WITHIN", 60.0)


@pytest.mark.parametrize(
    ("behind", "ahead"),
    [(timedelta(days=3), timedelta(days=3)), (timedelta(hours=23), timedelta(0)), (timedelta(days=-3), timedelta(0))],
    ids=["ahead", "a-little", "behind"],
)
async def test_a_clock_is_ahead_when_a_server_lives_in_another_day(behind: timedelta, ahead: timedelta) -> None:
    """The first server that answers decides; one that cannot be reached is passed over, and no path is sent."""
    async with open_time_server(NOW - behind) as server:
        assert await clock_ahead([NOBODY, f"{server.base}/botTOKEN/x?y=1"], NOW) == ahead
        assert server.paths == ["/"]


async def test_whoever_does_not_say_decides_nothing() -> None:
    """No server, no address, no readable date: the clock counts as right."""
    assert await clock_ahead([], NOW) == timedelta(0)
    assert await clock_ahead([NOBODY], NOW) == timedelta(0)
    assert await ask_time("no address at all") is None
    async with open_time_server("yesterday") as server:
        assert await ask_time(server.base) is None


def test_the_line_says_how_far_and_what_to_do() -> None:
    """One line for the log and the doctor."""
    assert "72 hours ahead" in clock_line(timedelta(days=3))
    assert "set-ntp true" in clock_line(timedelta(days=3))
