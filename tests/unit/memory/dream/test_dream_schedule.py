"""When a scope dreams next."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent.memory.update.dreamer import DreamSchedule
from gateway.errors import SettingsError
from gateway.settings import load_settings

EVENING = datetime(2026, 3, 28, 21, 30, tzinfo=UTC)  # before the night in which Berlin's clocks go forward


def test_every_so_many_hours() -> None:
    """Two by default, and fractions of one."""
    assert DreamSchedule().next(EVENING, "Europe/Berlin") == EVENING + timedelta(hours=2)
    assert DreamSchedule(interval=timedelta(hours=0.5)).next(EVENING, "UTC") == EVENING + timedelta(minutes=30)


@pytest.mark.parametrize(
    ("cron", "zone", "expected"),
    [
        ("0 3 * * *", "UTC", datetime(2026, 3, 29, 3, 0, tzinfo=UTC)),
        ("0 3 * * *", "Europe/Berlin", datetime(2026, 3, 29, 1, 0, tzinfo=UTC)),
        ("0 3 * * *", "America/New_York", datetime(2026, 3, 29, 7, 0, tzinfo=UTC)),
        ("30 2 * * *", "Europe/Berlin", datetime(2026, 3, 29, 1, 0, tzinfo=UTC)),  # an hour that does not exist
        ("*/15 * * * *", "Asia/Kathmandu", datetime(2026, 3, 28, 21, 45, tzinfo=UTC)),
    ],
)
def test_a_cron_line_goes_by_the_scopes_own_clock(cron: str, zone: str, expected: datetime) -> None:
    """The line of older configurations wins, and a change of clocks costs no night."""
    assert DreamSchedule(cron=cron).next(EVENING, zone) == expected


@pytest.mark.parametrize("cron", ["tomorrow", "0 3 * *", "99 3 * * *", "0 0 31 2 *"])
def test_a_cron_line_that_never_comes_is_refused_at_the_start(tmp_path: Path, cron: str) -> None:
    """The operator hears it before the gateway runs, with the name of the setting."""
    environment = {"PARLOUR_HOME": str(tmp_path), "PARLOUR_AGENTS__DEFAULTS__DREAM__CRON": cron}
    with pytest.raises(SettingsError, match=r"(?i)dream(__|\.)cron"):
        load_settings(environment)
