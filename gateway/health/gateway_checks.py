"""Checks of the gateway: the findings in its status, or in the store of one that does not run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from gateway.access.refusal_log import USUAL
from gateway.alerts.alert_state import alert_status, is_unnotified
from gateway.control.gateway_client import connect
from gateway.errors import ParlourError
from gateway.health.checks import CheckContext, HealthCheck
from gateway.home import Home, in_use, is_held
from gateway.i18n.missing_abilities import describe_models
from gateway.ports.memory import FACTS_EXPIRE
from gateway.ports.setup import Finding, fail, ok, warn
from gateway.settings import Settings
from gateway.settings.resolve import apply_rename, normalize_names
from gateway.settings.sources import read_environment

if TYPE_CHECKING:
    from gateway.store.database import Database

T = TypeVar("T")

LATELY = timedelta(days=1)


async def fetch_status(home: Home) -> Mapping[str, Any]:
    """Return the status of the gateway that runs on *home*; empty if none runs. Raises UserError if it is starting."""
    async with connect(home) as client:
        return {} if client is None else await anext(client.call("status", {}))


def check_holder(context: CheckContext) -> Iterator[Finding]:
    """Yield whether the gateway that holds the home has other settings than these."""
    if not is_held(context.home):
        return
    theirs = urlsplit(str(context.status.get("page", ""))).port
    ours = _chosen_port(context.settings, context.environment) if context.report.settings else 0
    where = f"its page is on port {theirs}"
    if ours and theirs and theirs != ours:
        yield fail(
            f"another gateway uses this home: {in_use(context.home)}; {where}, these settings say {ours}", "lock"
        )
    else:
        yield ok(f"a gateway is running on this home{f'; {where}' if theirs else ''}", "lock")
    if context.error:
        yield warn(context.error, "gateway")


def _chosen_port(settings: Settings, environment: Mapping[str, str]) -> int:
    """Return the page's port if *environment* names it, else 0: the gateway's own environment may name another one."""
    names = {apply_rename(normalize_names(leaf))[0].path for leaf in read_environment(environment)}
    is_chosen = not names.isdisjoint({("web", "port"), ("web", "published_port")})
    return (settings.web.published_port or settings.web.port) if is_chosen else 0


def check_status(context: CheckContext) -> Iterator[Finding]:
    """Yield the findings in the status; a trial of the models finds out again what they lack."""
    if "findings" in context.status:
        found = [Finding.from_line(each) for each in context.status["findings"]]
    else:  # no gateway runs, or one of an earlier release
        found = [*status_findings(context.status or read_stored_status(context.home, context.url))]
    return (each for each in found if not (context.asks_model and each.id == "model.lacks"))


def status_findings(status: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the findings in the line of the operation `status`; of a stopped gateway it has fewer fields."""
    store = status.get("store", {})
    if store and not store["writable"]:
        line = (
            f"the running gateway cannot write its store since {_time(store['since'])}: {store['cause']}. Nothing"
            ' is confirmed until it can; see "The database does not answer" in deploy/RUNBOOK.md'
        )
        yield fail(line, "store", "writable")
    for name, cause in status.get("unknown", {}).items():
        yield warn(f"{name.replace('_', ' ')}: unknown, the store could not be read: {cause}", "status", name)
    for name, is_connected in status.get("channels", {}).items():
        if is_connected is False:
            line = "the gateway receives nothing from it at the moment; see the log for the reason"
            yield warn(line, f"channel {name}", "heard")
    yield from _delivery_findings(status)
    if search := status.get("search"):
        yield warn(f"uses {search}; check PARLOUR_TOOLS__VECTOR_MEMORY__EMBEDDING_MODEL", "search")
    for name, lacks in status.get("models", {}).items():
        line = (
            f"{name} lacks {lacks}; it is asked without. After a change of its server, `parlour doctor --model` tries"
            " everything again"
        )
        yield warn(line, "model", "lacks")
    yield from _access_findings(status)
    for alert in status.get("alerts", ()):
        yield from _alert_findings(alert)
    if stops := status.get("unclean_stops", 0):
        times = "was killed" if stops == 1 else f"was killed {stops} times in a row"
        yield warn(f"the gateway {times}; check its log, its memory limit and the quarantine", "stops")


def _delivery_findings(status: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield chats whose replies wait, and dead letters by channel and reason."""
    for each in status.get("delayed", ()):
        line = (
            f"replies to {each['key']} wait since {_time(each['since'])}: {each['reason']}; the next attempt is at"
            f" {_time(each['until'])}"
        )
        yield warn(line, "delivery", "delayed")
    if (more := status.get("delayed_chats", 0) - len(status.get("delayed", ()))) > 0:
        yield warn(f"and in {more:,} more chats", "delivery", "delayed")
    for group in status.get("dead_letters", ()):
        line = f"{group['count']} to {group['channel']}, the latest {_time(group['newest'])}: {group['reason']}"
        yield warn(line, "given up")


def _access_findings(status: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield requests for access, people with reminders who have lost it, and rejected messages by channel."""
    waits = status.get("waits", {})
    if any(waits.values()):
        people, places = _count(waits["people"], "person", "people"), _count(waits["places"], "chat", "chats")
        yield warn(f"{people} and {places} wait for approval: `parlour people pending`", "waits")
    for each in status.get("orphaned_reminders", ()):
        line = (
            f"{_count(each['count'], 'reminder', 'reminders')} of {each['who']}, who has no access, will not be sent:"
            f" `parlour people allow {each['who']}`, or remove all of their data with"
            f" `parlour people forget {each['who']}`"
        )
        yield warn(line, "reminders", "access")
    for name, each in sorted(status.get("unheard", {}).items()):
        if each["messages"]:
            messages = (
                f"{_count(each['messages'], 'message', 'messages')} of {_count(each['people'], 'person', 'people')}"
            )
            verb = "was" if each["messages"] == 1 else "were"
            why = ", ".join(f"{reason} {times}" for reason, times in each["reasons"].items() if reason not in USUAL)
            line = f"{messages} on {name} {verb} rejected since {_time(each['since'])} ({why}): `parlour why {name}`"
            yield ok(line, "unheard")


def _alert_findings(alert: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield an active or recent alert, and one that no owner could be notified of."""
    is_active = alert["state"] == "firing"
    line = f"{alert['text']} ({'now' if is_active else 'past'}, "
    if alert["untold"]:
        knows = "the notice to an owner did not arrive" if alert["lost"] else "no owner has been notified yet"
        fix = "write to the bot once (Telegram requires it), or " if alert["lost"] else ""
        fix += "set PARLOUR_OWNERS to a user of a channel that works"
        yield warn(f"{line}{knows}); {fix}", "alerts", "untold")
        return
    line += f"owners notified at {alert['told_at']})" if alert["told_at"] else "no notice was needed)"
    if is_active or datetime.now(UTC) - datetime.fromisoformat(alert["since"]) < LATELY:
        yield (warn if is_active else ok)(line, "alerts", alert["cause"])


def _count(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"


def _time(stamp: str) -> str:
    return f"{stamp[:19]}Z"


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


def read_stored_status(home: Home, url: str = "") -> Mapping[str, Any]:
    """Return the part of the status that the store of a stopped gateway has. Blocks."""
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
    limit = datetime.now(UTC) - FACTS_EXPIRE
    alerts = _read(home, url, load_alerts) or ()
    return {
        "unclean_stops": _read(home, url, count_unclean_stops) or 0,
        "alerts": [alert_status(each, is_untold=is_unnotified(each)) for each in alerts if each.line],
        "models": describe_models([each for each in (_read(home, url, load_facts) or {}).values() if each.at > limit]),
        **(_read(home, url, read) or {}),
    }


def claimed_owners(home: Home, url: str) -> list[str]:
    """Return the owners who claimed the bot with a code, as channel:user_id. Blocks."""

    def read(database: Database) -> list[str]:
        found = database.execute("SELECT channel, who FROM access WHERE standing = 'owner' ORDER BY at")
        return [f"{channel}:{who}" for channel, who in found]

    return _read(home, url, read) or []


def last_answer(context: CheckContext, model: str) -> datetime | None:
    """Return when *model* last answered the gateway that runs on the home; None when it did not, or none runs. Blocks.

    An answer to an earlier run proves nothing: the key may have changed since, or be missing in a restored home.
    """
    if "since" not in context.status:
        return None

    def read(database: Database) -> int | None:
        query = "SELECT max(at) FROM usage WHERE model = ? AND tokens_out > 0"
        (at,) = database.execute(query, (model,)).fetchone()
        return int(at) if at is not None else None

    microseconds = _read(context.home, context.url, read)
    at = datetime.fromtimestamp(microseconds / 1_000_000, UTC) if microseconds is not None else None
    return at if at is not None and at >= datetime.fromisoformat(context.status["since"]) else None


CHECKS = (
    HealthCheck("lock", check_holder, needs_settings=False),
    HealthCheck("gateway", check_status, needs_settings=False),
)
