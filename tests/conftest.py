"""What every test may ask for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping

import pytest
import structlog
from hypothesis import settings

from tests.fakes.clock import Clock, VirtualLoop

# `make test` plays the same examples on every run; `make fuzz` plays new ones. Speed is measured in tests/benchmarks.
settings.register_profile("test", deadline=None, derandomize=True, database=None)
settings.register_profile("fuzz", deadline=None, print_blob=True)
settings.load_profile("test")


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run what asks for the `clock` on virtual time, and everything else on a plain loop."""
    if "clock" in getattr(item, "fixturenames", ()):
        return {"virtual": VirtualLoop}
    return {"real": asyncio.new_event_loop}


@pytest.fixture(autouse=True)
def _restored_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo the logging configuration of a command that ran in this process, so that the next test reads its own logs.

    A module's logger that was used once would keep that configuration for ever: here none may cache it.
    """
    configure = structlog.configure
    monkeypatch.setattr(
        structlog, "configure", lambda **options: configure(**options | {"cache_logger_on_first_use": False})
    )
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    if structlog.is_configured():
        structlog.reset_defaults()
        root.handlers[:], root.level = handlers, level


@pytest.fixture
async def clock() -> Clock:
    """The virtual clock of the loop that this test runs on (tests/fakes/clock.py)."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return Clock(loop)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the figures that tests have recorded with `record_property("figure", text)`."""
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, ()):
            for name, text in report.user_properties:
                if name == "figure":
                    terminalreporter.write_line(str(text))
