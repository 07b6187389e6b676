"""Checks of a database server that several gateways may share."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from gateway.doctor.findings import DoctorFinding, FindingLevel

_CLOCK_LIMIT = timedelta(seconds=2)
_CROWDED = 0.8  # of the server's connections


def check_server(
    sessions: int, session_limit: int, clock_ahead: timedelta, versions: tuple[str, ...]
) -> Iterator[DoctorFinding]:
    """Yield a warning for each fact of the server that will trouble its gateways.

    *clock_ahead* is how far this machine's clock is before the server's; *versions* are those of its gateways.
    """
    if sessions > session_limit * _CROWDED:
        yield _warning(
            "connections",
            f"{sessions} of the server's {session_limit} connections are in use, and a gateway needs two: raise"
            " max_connections, or close other programs' sessions",
        )
    if abs(clock_ahead) > _CLOCK_LIMIT:
        seconds = round(abs(clock_ahead).total_seconds())
        side = "ahead of" if clock_ahead > timedelta() else "behind"
        yield _warning(
            "clock",
            f"this machine's clock is {seconds} s {side} the database server's: set both by NTP, or reminders and caps"
            " are early or late",
        )
    if len(versions) > 1:
        yield _warning(
            "versions",
            f"gateways of the versions {', '.join(versions)} share the database: finish the upgrade; one that runs an"
            " older version does not start again",
        )


def _warning(about: str, text: str) -> DoctorFinding:
    return DoctorFinding(FindingLevel.WARN, "store", text, about)
