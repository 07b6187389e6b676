"""Checks of a database that several gateways may share, and of the object store beside it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from datetime import timedelta

from gateway.errors import ParlourError, StoreUnavailable
from gateway.health.checks import CheckContext, HealthCheck
from gateway.ports.entry_points import HOW_TO_INSTALL
from gateway.ports.findings import Finding, fail, ok, warn
from gateway.ports.objects import ObjectStore

_CLOCK_LIMIT = timedelta(seconds=2)
_CROWDED = 0.8  # of the server's connections


def check_database(context: CheckContext) -> Iterator[Finding]:
    """Ask the database of `store.url` whether it can be used, and by several gateways."""
    url = context.settings.store.address
    if not url:
        return
    try:
        from gateway.store.postgres.schema import describe
        from gateway.store.postgres.server_facts import read_server_facts

        usable, facts = ok(describe(url), "store"), read_server_facts(url)
    except ModuleNotFoundError as missing:
        yield fail(f"store.url needs {missing.name}: {HOW_TO_INSTALL}", "store")
    except ParlourError as error:
        yield fail(str(error), "store")
    else:
        yield usable
        yield from server_findings(facts.sessions, facts.session_limit, facts.clock_ahead, facts.worker_versions)


def server_findings(
    sessions: int, session_limit: int, clock_ahead: timedelta, versions: tuple[str, ...]
) -> Iterator[Finding]:
    """Yield a warning for each fact of the server that will trouble its gateways.

    *clock_ahead* is how far this machine's clock is before the server's; *versions* are those of its gateways.
    """
    if sessions > session_limit * _CROWDED:
        line = (
            f"{sessions} of the server's {session_limit} connections are in use, and a gateway needs up to three: raise"
            " max_connections, or close other programs' sessions"
        )
        yield warn(line, "store", "connections")
    if abs(clock_ahead) > _CLOCK_LIMIT:
        seconds = round(abs(clock_ahead).total_seconds())
        side = "ahead of" if clock_ahead > timedelta() else "behind"
        line = (
            f"this machine's clock is {seconds} s {side} the database server's: set both by NTP, or reminders and caps"
            " are early or late"
        )
        yield warn(line, "store", "clock")
    if len(versions) > 1:
        line = (
            f"gateways of the versions {', '.join(versions)} share the database: finish the upgrade; one that runs an"
            " older version does not start again"
        )
        yield warn(line, "store", "versions")


async def check_objects(context: CheckContext) -> list[Finding]:
    """Try the object store for large attachments, if one is set."""
    settings = context.settings.store.objects
    if not settings.url:
        return []
    from gateway.store.objects import open_objects

    try:
        objects = open_objects(settings, context.settings.proxy_address)
    except ParlourError as error:
        return [fail(str(error), "store", "objects")]
    return [await probe_objects(objects, settings.url)]


async def probe_objects(objects: ObjectStore, url: str) -> Finding:
    """Write, read and remove a small object; return the finding."""
    name, written = f"probe-{secrets.token_hex(8)}", secrets.token_bytes(64)
    try:
        await objects.put(name, written)
        found = b"".join([data async for data in objects.read(name)])
        await objects.delete(name)
    except StoreUnavailable as error:
        return fail(str(error), "store", "objects")
    if found != written:
        line = f"{url} returns other bytes than were written: large attachments would be refused when they are read"
        return fail(line, "store", "objects")
    return ok(f"large attachments are in {url}, which can be written, read and deleted from", "store", "objects")


DATABASE = HealthCheck("store", check_database)
CHECKS = (HealthCheck("store", check_objects),)
