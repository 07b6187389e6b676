"""Checks of a database server that several gateways may share, and of the object store beside it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from datetime import timedelta

from gateway.doctor.findings import DoctorFinding, FindingLevel
from gateway.errors import StoreUnavailable
from gateway.ports.objects import ObjectStore

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
            f"{sessions} of the server's {session_limit} connections are in use, and a gateway needs up to three: raise"
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


async def check_objects(objects: ObjectStore, url: str) -> DoctorFinding:
    """Write, read and remove a small object; return the finding."""
    name, written = f"probe-{secrets.token_hex(8)}", secrets.token_bytes(64)
    try:
        await objects.put(name, written)
        found = b"".join([data async for data in objects.read(name)])
        await objects.delete(name)
    except StoreUnavailable as error:
        return DoctorFinding(FindingLevel.FAIL, "store", str(error), "objects")
    if found != written:
        text = f"{url} returns other bytes than were written: large attachments would be refused when they are read"
        return DoctorFinding(FindingLevel.FAIL, "store", text, "objects")
    text = f"large attachments are in {url}, which can be written, read and deleted from"
    return DoctorFinding(FindingLevel.OK, "store", text, "objects")


def _warning(about: str, text: str) -> DoctorFinding:
    return DoctorFinding(FindingLevel.WARN, "store", text, about)
