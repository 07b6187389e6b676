"""Recent incidents: quarantine, dead letters, unclean stops, disconnected channels, alerts."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from gateway.access.access_roster import orphan_summary, pending_summary, refusal_summary
from gateway.alerts.alert_messages import alert_status, line_of_delay, status_line
from gateway.alerts.alert_state import is_unnotified
from gateway.control.gateway_client import connect
from gateway.doctor.findings import DoctorFinding, FindingLevel
from gateway.errors import ParlourError, UserError
from gateway.home import Home, in_use, is_held
from gateway.i18n.missing_abilities import describe_models
from gateway.ports.model_facts import FACTS_EXPIRE
from gateway.quarantine import count, list_events

if TYPE_CHECKING:
    from gateway.store.database import Database

T = TypeVar("T")

_AREAS, _IN = ("people", "chats"), ("", "memory/")  # where the documents of scopes are
_MOST_EVENTS = 3
_MOST_GROUPS = 5
LATELY = timedelta(days=1)


async def check_incidents(home: Home, *, port: int = 0, url: str = "") -> AsyncIterator[DoctorFinding]:
    """Yield findings from the status of the running gateway, or from the files of the home.

    *port* is the page's port as this process's environment names it, 0 where it names none: a gateway with another
    port has other settings. *url* is the address of a database that can be used; empty for the embedded store.
    """
    for finding in await asyncio.to_thread(lambda: [*_quarantine(home), *_unreadable(home)]):
        yield finding
    try:
        status = await _status(home)
    except UserError as error:
        if is_held(home):
            yield _holder({}, home, port)
        yield DoctorFinding(FindingLevel.WARN, "gateway", str(error))
        return
    if status is not None:
        yield _holder(status, home, port)
    else:
        status = await asyncio.to_thread(_journal, home, url) if url or home.journal.exists() else {}
    for finding in _status_findings(status):
        yield finding


def _holder(status: Mapping[str, Any], home: Home, port: int) -> DoctorFinding:
    """Return an error if the gateway that holds the home has other settings than these."""
    theirs = urlsplit(str(status.get("page", ""))).port
    if port and theirs and theirs != port:
        line = (
            f"another gateway uses this home: {in_use(home)}; its page is on port {theirs}, these settings say {port}"
        )
        return DoctorFinding(FindingLevel.FAIL, "lock", line)
    where = f"; its page is on port {theirs}" if theirs else ""
    return DoctorFinding(FindingLevel.OK, "lock", f"a gateway is running on this home{where}")


def _unreadable(home: Home) -> Iterator[DoctorFinding]:
    """Yield the files of documents that a person saved, and that cannot be read as text."""
    places = ("", "memory/", "shared/", "shared/memory/", *(f"{area}/*/{memory}" for area in _AREAS for memory in _IN))
    found = sorted(path for place in places for path in home.path.glob(f"{place}*.md.unreadable-*"))
    for path in found[:_MOST_EVENTS]:
        line = "it was edited by hand and is no text; save it as UTF-8, copy its lines into the document, and delete it"
        yield DoctorFinding(FindingLevel.WARN, "memory", f"{path.relative_to(home.path)}: {line}")
    if len(found) > _MOST_EVENTS:
        yield DoctorFinding(FindingLevel.WARN, "memory", f"and {len(found) - _MOST_EVENTS:,} more such files")


def _quarantine(home: Home) -> Iterator[DoctorFinding]:
    held = count(home.quarantine)
    for event in list_events(home.quarantine, _MOST_EVENTS):
        at = f" at {event.at[:19]}Z" if event.at else ""
        line = f"an event from {event.channel} was quarantined{at}: {event.reason}; it is in {event.file}"
        yield DoctorFinding(FindingLevel.WARN, "quarantine", line)
    if held > _MOST_EVENTS:
        commands = "`parlour quarantine list` lists them, `parlour quarantine replay` retries one"
        line = f"and {held - _MOST_EVENTS:,} more; {commands}"
        yield DoctorFinding(FindingLevel.WARN, "quarantine", line)
    if not held:
        yield DoctorFinding(FindingLevel.OK, "quarantine", "is empty")


async def _status(home: Home) -> dict[str, Any] | None:
    """Return the status of the running gateway; None when none runs."""
    async with connect(home) as client:
        if client is None:
            return None
        lines = [line async for line in client.call("status", {})]
        return dict(lines[0]) if lines else {}


def _status_findings(status: dict[str, Any]) -> Iterator[DoctorFinding]:
    store = status.get("store", {})
    if store and not store["writable"]:
        line = (
            f"the running gateway cannot write its store since {str(store['since'])[:19]}Z: {store['cause']}. Nothing"
            ' is confirmed until it can; see "The database does not answer" in deploy/RUNBOOK.md'
        )
        yield DoctorFinding(FindingLevel.FAIL, "store", line, "writable")
    for name, is_connected in dict(status.get("channels", {})).items():
        if is_connected is False:
            line = "the gateway receives nothing from it at the moment; see the log for the reason"
            yield DoctorFinding(FindingLevel.WARN, f"channel {name}", line, "heard")
    yield from _delayed(status)
    if search := status.get("search"):
        yield DoctorFinding(
            FindingLevel.WARN, "search", f"uses {search}; check PARLOUR_TOOLS__VECTOR_MEMORY__EMBEDDING_MODEL"
        )
    for name, lacks in dict(status.get("models", {})).items():
        line = (
            f"{name} lacks {lacks}; it is asked without. After a change of its server, `parlour doctor --model` tries"
            " everything again"
        )
        yield DoctorFinding(FindingLevel.WARN, "model", line, "lacks")
    yield from _people(status)
    groups = list(status.get("dead_letters", ()))
    for group in groups[:_MOST_GROUPS]:
        line = f"{group['count']} to {group['channel']}, the latest {str(group['newest'])[:19]}Z: {group['reason']}"
        yield DoctorFinding(FindingLevel.WARN, "given up", line)
    if len(groups) > _MOST_GROUPS:
        yield DoctorFinding(FindingLevel.WARN, "given up", "and more with other reasons; `parlour status` lists them")
    for alert in status.get("alerts", ()):
        yield from _alert(alert)
    stops = int(status.get("unclean_stops", 0))
    if stops:
        times = "was killed" if stops == 1 else f"was killed {stops} times in a row"
        yield DoctorFinding(
            FindingLevel.WARN, "stops", f"the gateway {times}; check its log, its memory limit and the quarantine"
        )


def _people(status: Mapping[str, Any]) -> Iterator[DoctorFinding]:
    """Yield people who wait for approval, who have lost access, and who were rejected."""
    for line in pending_summary(status.get("waits", {})):
        yield DoctorFinding(FindingLevel.WARN, "waits", line)
    for line in orphan_summary(status.get("orphaned_reminders", ())):
        yield DoctorFinding(FindingLevel.WARN, "reminders", line, "access")
    for line in refusal_summary(status.get("unheard", {})):
        yield DoctorFinding(FindingLevel.OK, "unheard", line)


def _delayed(status: Mapping[str, Any]) -> Iterator[DoctorFinding]:
    waits = list(status.get("delayed", ()))
    for each in waits[:_MOST_EVENTS]:
        yield DoctorFinding(FindingLevel.WARN, "delivery", line_of_delay(each), "delayed")
    more = int(status.get("delayed_chats", 0)) - len(waits[:_MOST_EVENTS])
    if more > 0:
        yield DoctorFinding(
            FindingLevel.WARN, "delivery", f"and in {more:,} more chats; `parlour status` lists them", "delayed"
        )


def _alert(alert: Mapping[str, Any]) -> Iterator[DoctorFinding]:
    """Yield an active or recent alert, and one that no owner could be notified of."""
    if alert["untold"]:
        fix = "write to the bot once (Telegram requires it), or " if alert.get("lost") else ""
        line = f"{status_line(alert)}; {fix}set PARLOUR_OWNERS to a user of a channel that works"
        yield DoctorFinding(FindingLevel.WARN, "alerts", line, "untold")
    elif alert["state"] == "firing":
        yield DoctorFinding(FindingLevel.WARN, "alerts", status_line(alert), str(alert["cause"]))
    elif datetime.now(UTC) - datetime.fromisoformat(str(alert["since"])) < LATELY:
        yield DoctorFinding(FindingLevel.OK, "alerts", status_line(alert), str(alert["cause"]))


def _read(home: Home, url: str, read: Callable[[Database], T]) -> T | None:
    """Read from the store without changing it; None if it cannot be read, which another check reports."""
    if not url and not home.journal.exists():
        return None
    # Here, since the store's own imports are not light, and most doctors need none of it.
    from gateway.store.closed_store import read_store

    try:
        return read_store(home.journal, url, read)
    except ParlourError:
        return None


def _journal(home: Home, url: str) -> dict[str, Any]:
    """Return the incidents in the store of a home whose gateway does not run."""
    from gateway.store.alerts import load_alerts
    from gateway.store.model_facts import load_facts
    from gateway.store.outbox import dead_groups
    from gateway.store.sql_store import count_unclean_stops

    def read(database: Database) -> dict[str, Any]:
        dead = [
            {"channel": group.channel, "count": group.count, "newest": group.newest.isoformat(), "reason": group.reason}
            for group in dead_groups(database)
        ]
        reminders = [json.loads(row) for (row,) in database.execute("SELECT payload FROM job WHERE kind = 'remind'")]
        paused = Counter(
            f"{each['key'].partition(':')[0]}:{each['by']}" for each in reminders if each.get("paused") == "access"
        )
        orphaned = [{"who": who, "count": count} for who, count in sorted(paused.items())]
        return {"dead_letters": dead, "orphaned_reminders": orphaned}

    # Each by itself: a journal that is not migrated yet may lack its table.
    stops = _read(home, url, count_unclean_stops) or 0
    alerts = _read(home, url, load_alerts) or ()
    statuses = [alert_status(alert, is_untold=is_unnotified(alert)) for alert in alerts if alert.line]
    limit = datetime.now(UTC) - FACTS_EXPIRE
    facts = [each for each in (_read(home, url, load_facts) or {}).values() if each.at > limit]
    found = {"unclean_stops": stops, "alerts": statuses, "models": describe_models(facts)}
    return {**(_read(home, url, read) or {}), **found}


def claimed_owners(home: Home, url: str) -> list[str]:
    """Return the owners who claimed the bot with a code, as channel:user_id. Blocks."""

    def read(database: Database) -> list[str]:
        found = database.execute("SELECT channel, who FROM access WHERE standing = 'owner' ORDER BY at")
        return [f"{channel}:{who}" for channel, who in found]

    return _read(home, url, read) or []


async def last_answer(home: Home, model: str, url: str = "") -> datetime | None:
    """Return when *model* last answered the gateway that runs on *home*; None when it did not, or none runs.

    An answer to an earlier run proves nothing: the key may have changed since, or be missing in a restored home.
    """
    try:
        status = await _status(home)
    except UserError:
        status = None
    if not status or "since" not in status:
        return None

    def read(database: Database) -> int | None:
        query = "SELECT max(at) FROM usage WHERE model = ? AND tokens_out > 0"
        (at,) = database.execute(query, (model,)).fetchone()
        return int(at) if at is not None else None

    microseconds = await asyncio.to_thread(_read, home, url, read)
    at = datetime.fromtimestamp(microseconds / 1_000_000, UTC) if microseconds is not None else None
    return at if at is not None and at >= datetime.fromisoformat(str(status["since"])) else None
