"""Checks of a gateway: each fact is read once, for the status, the doctor, /readyz and the alerts."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from gateway.access.refusal_log import USUAL
from gateway.alerts.alert_sources import (
    LATE_AFTER,
    BurstSource,
    ChannelSource,
    LatePromiseSource,
    QuarantineSource,
    find_cap_use,
    find_changed_tools,
    find_dead_letters,
    find_delays,
    find_low_disk,
    find_models_without_tools,
    find_store_outages,
    find_unclean_stops,
    find_unpriced_models,
)
from gateway.alerts.alert_state import alert_status, is_unnotified
from gateway.control.registry import plain
from gateway.errors import ModelAbility, StoreUnavailable
from gateway.health.checks import HealthCheck, Status, read_closed_store
from gateway.health.home_checks import check_disk, check_quarantine, keyless_line, models_without_key
from gateway.home import Home
from gateway.i18n.failures import describe_models
from gateway.i18n.formats import find_midnight
from gateway.ports.memory import FACTS_EXPIRE
from gateway.ports.setup import Finding, fail, ok, warn
from gateway.store_watcher import DEADLINE, one_line

if TYPE_CHECKING:
    from gateway.alerts.monitor import Source
    from gateway.app.runtime import Runtime
    from gateway.store.alerts import Alert
    from gateway.store.database import Database

_LATELY = timedelta(days=1)
_MOST_ALERTS = 20
_MOST_DEAD = 20
_MOST_DELAYED = 20  # chats
_AT_ONCE = 200  # reminders that are judged before other work gets a chance
_GUESSES = 20  # wrong codes an hour; fewer are typing mistakes


# -- readers -----------------------------------------------------------------------------------------


async def read_status(app: Runtime, *, for_chat: bool = False) -> Status:
    """Return the facts of a running gateway, by name; *for_chat* those that /status tells everyone.

    Facts of the store are read at once, each with a deadline: one that is not there by then is in `unknown`, with the
    reason, and leaves the others known. When none is there, the store counts as not writable.
    """
    checks = [each for each in CHECKS if each.in_chat or not for_chat]
    status: dict[str, Any] = {}
    for each in checks:
        status |= each.read(app) if each.read is not None else {}
    fetches = {each.name: each.fetch for each in checks if each.fetch is not None}
    facts, unknown = dict[str, Any](), dict[str, str]()

    async def fetch(name: str) -> None:
        try:
            async with asyncio.timeout(DEADLINE.total_seconds()):
                facts[name] = await fetches[name](app)
        except StoreUnavailable as error:
            unknown[name] = one_line(error)
        except TimeoutError:
            unknown[name] = "it does not answer"

    if status["store"]["writable"]:
        await asyncio.gather(*map(fetch, fetches))
    if unknown and len(unknown) == len(fetches):
        cause, unknown = next(iter(unknown.values())), {}
        status["store"] = {"writable": False, "since": app.now(), "cause": cause}
    return {**status, **facts.pop("depth", {}), **facts, "unknown": unknown}


def read_stored_status(home: Home, url: str = "") -> Status:
    """Return the part of the status that the store of a stopped gateway has. Blocks."""
    # Each by itself: a journal that is not migrated yet may lack its table.
    reads = [each.read_stored for each in CHECKS if each.read_stored is not None]
    return {name: value for read in reads for name, value in (read_closed_store(home, url, read) or {}).items()}


def status_findings(status: Status) -> Iterator[Finding]:
    """Yield the findings in the facts of a gateway."""
    for each in CHECKS:
        if each.judge is not None:
            yield from each.judge(status)


def readiness(app: Runtime) -> tuple[bool, Status]:
    """Return whether traffic may come, and the body of /readyz. Waits for nothing."""
    found = [each.ready(app) for each in CHECKS if each.ready is not None]
    is_ready = all(ready for ready, _ in found)
    return is_ready, {"ready": is_ready, **{name: value for _, body in found for name, value in body.items()}}


# -- the store ---------------------------------------------------------------------------------------


def _read_store(app: Runtime) -> Status:
    state = app.store_watcher.state
    if state is None or not state.cause:
        return {"store": {"writable": True}}
    return {"store": {"writable": False, "since": state.since, "cause": state.cause}}


def _store_readiness(app: Runtime) -> tuple[bool, Status]:
    state = app.store_watcher.state
    is_writable = state is not None and state.is_writable
    return is_writable, {"journal": is_writable}


def _judge_store(status: Status) -> Iterator[Finding]:
    store = status.get("store", {})
    if store and not store["writable"]:
        line = (
            f"the running gateway cannot write its store since {_time(store['since'])}: {store['cause']}. Nothing"
            ' is confirmed until it can; see "The database does not answer" in deploy/RUNBOOK.md'
        )
        yield fail(line, "store", "writable")


def _judge_unknown(status: Status) -> Iterator[Finding]:
    for name, cause in status.get("unknown", {}).items():
        yield warn(f"{name.replace('_', ' ')}: unknown, the store could not be read: {cause}", "status", name)


# -- channels and deliveries -------------------------------------------------------------------------


def _channel_readiness(app: Runtime) -> tuple[bool, Status]:
    """Return whether each channel was tried; a degraded one is named and does not count."""
    states = app.supervisor.shard_states()
    untried = sorted(name for name, state in states.items() if state is None)
    degraded = sorted(name for name, state in states.items() if state is False)
    return not untried, {"untried": untried, "degraded": degraded}


def _judge_channels(status: Status) -> Iterator[Finding]:
    for name, is_connected in status.get("channels", {}).items():
        if is_connected is False:
            line = "the gateway receives nothing from it at the moment; see the log for the reason"
            yield warn(line, f"channel {name}", "heard")


def _read_delays(app: Runtime) -> Status:
    delayed = app.dispatcher.delayed()
    return {"delayed_chats": len(delayed), "delayed": delayed[:_MOST_DELAYED]}


def _judge_delays(status: Status) -> Iterator[Finding]:
    for each in status.get("delayed", ()):
        line = (
            f"replies to {each['key']} wait since {_time(each['since'])}: {each['reason']}; the next attempt is at"
            f" {_time(each['until'])}"
        )
        yield warn(line, "delivery", "delayed")
    if (more := status.get("delayed_chats", 0) - len(status.get("delayed", ()))) > 0:
        yield warn(f"and in {more:,} more chats", "delivery", "delayed")


def _stored_dead_letters(database: Database) -> Status:
    from gateway.store.outbox import dead_groups

    return {"dead_letters": plain(dead_groups(database)[:_MOST_DEAD])}


def _judge_dead_letters(status: Status) -> Iterator[Finding]:
    for group in status.get("dead_letters", ()):
        line = f"{group['count']} to {group['channel']}, the latest {_time(group['newest'])}: {group['reason']}"
        yield warn(line, "given up")


async def _fetch_late_promises(app: Runtime) -> object:
    return plain(await app.store.journal.late_promises(app.now() - LATE_AFTER))


def _stored_late_promises(database: Database) -> Status:
    from gateway.store.inspection import late_promises
    from gateway.store.row_codec import micros

    return {"promises": plain(late_promises(database, micros(datetime.now(UTC) - LATE_AFTER)))}


def _judge_late_promises(status: Status) -> Iterator[Finding]:
    late = status.get("promises") or {}
    if late.get("since"):
        what = [
            _count(number, one, f"{one}s")
            for number, one in ((late["messages"], "message"), (late["reminders"], "reminder"))
            if number
        ]
        where = f", the oldest in {late['key']}" if late["key"] else ""
        line = (
            f"{' and '.join(what)} not answered in {LATE_AFTER // timedelta(minutes=1)} minutes, since"
            f" {_time(late['since'])}{where}; `parlour promises` lists what is due, `parlour turn` with a reference"
            " shows how far it is, and /stop in its chat ends it"
        )
        yield warn(line, "promises", "late")


# -- models ------------------------------------------------------------------------------------------


def _judge_search(status: Status) -> Iterator[Finding]:
    if search := status.get("search"):
        yield warn(f"uses {search}; check PARLOUR_TOOLS__VECTOR_MEMORY__EMBEDDING_MODEL", "search")


def _read_search(app: Runtime) -> Status:
    error = app.recall.last_error()
    return {"search": f"keywords only: {error}"} if error else {}


def _stored_models(database: Database) -> Status:
    from gateway.store.shared_caches import load_facts

    limit = datetime.now(UTC) - FACTS_EXPIRE
    return {"models": describe_models([each for each in load_facts(database).values() if each.at > limit])}


def _judge_models(status: Status) -> Iterator[Finding]:
    for name, lacks in status.get("models", {}).items():
        line = (
            f"{name} lacks {lacks}; it is asked without. After a change of its server, `parlour doctor --model` tries"
            " everything again"
        )
        yield warn(line, "model", "lacks")


def _read_keyless(app: Runtime) -> Status:
    missing = models_without_key(app.settings, os.environ)
    return {"keyless": dict(missing)} if missing else {}


def _judge_keyless(status: Status) -> Iterator[Finding]:
    for setting, model in status.get("keyless", {}).items():
        yield warn(keyless_line(setting, model), "model", "key")


def _models_without_tools(app: Runtime) -> Mapping[str, datetime]:
    facts = app.models.default.facts.facts()
    return {each.model: each.at for each in facts if each.name == ModelAbility.TOOLS}


async def _usage_of_today(app: Runtime) -> Sequence[Mapping[str, Any]]:
    zone, now = app.settings.timezone, app.now()
    return await app.store.usage.by("day", since=find_midnight(now, ZoneInfo(zone)), until=now, zone=zone)


# -- people ------------------------------------------------------------------------------------------


def _read_requests(app: Runtime) -> Status:
    requests = app.pairing.pending_requests()
    places = sum(each.is_place for each in requests)
    return {"waits": {"people": len(requests) - places, "places": places}}


def _judge_requests(status: Status) -> Iterator[Finding]:
    waits = status.get("waits", {})
    if any(waits.values()):
        people, places = _count(waits["people"], "person", "people"), _count(waits["places"], "chat", "chats")
        yield warn(f"{people} and {places} wait for approval: `parlour people pending`", "waits")


async def _count_orphaned_reminders(app: Runtime) -> Sequence[Mapping[str, Any]]:
    """Return ``{"who": "channel:user_id", "count": n}`` for each person who has reminders and no access."""
    from agent.reminders.reminder import REMIND, reminders_in

    now = app.now()
    found = [each for each in reminders_in(await app.store.jobs.pending_of(REMIND)) if not each.is_fired]
    verdicts: dict[tuple[str, str], bool] = {}
    counts: Counter[str] = Counter()
    for n, reminder in enumerate(found, 1):
        place = (str(reminder.key), reminder.by)
        if place not in verdicts:
            verdicts[place] = app.judge.has_lost_access(reminder.message("", now, reminder.kind))
        if verdicts[place]:
            counts[f"{reminder.key.channel}:{reminder.by}"] += 1
        if n % _AT_ONCE == 0:
            await asyncio.sleep(0)
    return [{"who": who, "count": count} for who, count in sorted(counts.items())]


def _stored_orphaned_reminders(database: Database) -> Status:
    """Return those that the gateway has paused already: who has access is known to a running gateway alone."""
    reminders = [json.loads(row) for (row,) in database.execute("SELECT payload FROM job WHERE kind = 'remind'")]
    paused = Counter(
        f"{each['key'].partition(':')[0]}:{each['by']}" for each in reminders if each.get("paused") == "access"
    )
    return {"orphaned_reminders": [{"who": who, "count": count} for who, count in sorted(paused.items())]}


def _judge_orphaned_reminders(status: Status) -> Iterator[Finding]:
    for each in status.get("orphaned_reminders", ()):
        line = (
            f"{_count(each['count'], 'reminder', 'reminders')} of {each['who']}, who has no access, will not be sent:"
            f" `parlour people allow {each['who']}`, or remove all of their data with"
            f" `parlour people forget {each['who']}`"
        )
        yield warn(line, "reminders", "access")


def _read_refusals(app: Runtime) -> Status:
    return {
        "unheard": {
            name: {
                "since": each.since,
                "messages": each.messages,
                "people": len(each.people),
                "reasons": dict(each.reasons.most_common()),
            }
            for name, each in app.refusals.summary().items()
        }
    }


def _judge_refusals(status: Status) -> Iterator[Finding]:
    for name, each in sorted(status.get("unheard", {}).items()):
        if each["messages"]:
            messages = (
                f"{_count(each['messages'], 'message', 'messages')} of {_count(each['people'], 'person', 'people')}"
            )
            verb = "was" if each["messages"] == 1 else "were"
            why = ", ".join(f"{reason} {times}" for reason, times in each["reasons"].items() if reason not in USUAL)
            line = f"{messages} on {name} {verb} rejected since {_time(each['since'])} ({why}): `parlour why {name}`"
            yield ok(line, "unheard")


def _bursts(
    cause: str, line: str, counts: Callable[[Runtime], Mapping[str, int]], *, many: int = _GUESSES
) -> Callable[[Runtime, str], Source]:
    return lambda app, _: BurstSource(cause, line, partial(counts, app), app.now, many=many)


# -- alerts and stops --------------------------------------------------------------------------------


def _alert_statuses(alerts: Collection[Alert]) -> Sequence[Status]:
    """Return active and past alerts, the newest first, each with whether the owners were notified."""
    shown = [alert for alert in alerts if alert.line][:_MOST_ALERTS]
    return [alert_status(alert, is_untold=is_unnotified(alert)) for alert in shown]


async def fetch_alerts(app: Runtime) -> Sequence[Status]:
    """Return active and past alerts of a running gateway, the newest first."""
    return _alert_statuses(await app.store.alerts.all())


def _stored_alerts(database: Database) -> Status:
    from gateway.store.alerts import load_alerts

    return {"alerts": _alert_statuses(load_alerts(database))}


def _judge_alerts(status: Status) -> Iterator[Finding]:
    for alert in status.get("alerts", ()):
        yield from _judge_alert(alert)


def _judge_alert(alert: Status) -> Iterator[Finding]:
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
    if is_active or datetime.now(UTC) - datetime.fromisoformat(alert["since"]) < _LATELY:
        yield (warn if is_active else ok)(line, "alerts", alert["cause"])


def _stored_stops(database: Database) -> Status:
    from gateway.store.sql_store import count_unclean_stops

    return {"unclean_stops": count_unclean_stops(database)}


def _judge_stops(status: Status) -> Iterator[Finding]:
    if stops := status.get("unclean_stops", 0):
        times = "was killed" if stops == 1 else f"was killed {stops} times in a row"
        yield warn(f"the gateway {times}; check its log, its memory limit and the quarantine", "stops")


def _count(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"


def _time(stamp: str) -> str:
    return f"{stamp[:19]}Z"


def _read_api(app: Runtime) -> Status:
    return {"api_keys": len(app.apis[0].keys.all())} if app.apis else {}


def _judge_api(status: Status) -> Iterator[Finding]:
    if "api_keys" not in status:
        return
    if not status["api_keys"]:
        yield warn("the API is enabled, but has no key; `parlour web key --as NAME` makes one", "api")
    else:
        yield ok(f"the API has keys: {status['api_keys']}; `parlour web keys` lists them", "api")


def _read_mcp(app: Runtime) -> Status:
    troubles = app.mcp.troubles()
    return {"mcp": plain(troubles)} if troubles else {}


def _judge_mcp(status: Status) -> Iterator[Finding]:
    for each in status.get("mcp", ()):
        yield warn(f"{each['text']}; {each['remedy']}", "mcp", each["server"])


# In the order in which the status shows them. A fact of the store has the name of its field.
CHECKS = (
    HealthCheck(
        "store",
        in_chat=True,
        read=_read_store,
        judge=_judge_store,
        alert=lambda app, of: partial(find_store_outages, watcher=app.store_watcher, of=of),
        ready=_store_readiness,
    ),
    HealthCheck("unknown", judge=_judge_unknown),
    HealthCheck(
        "channels",
        read=lambda app: {"channels": dict(app.supervisor.states())},
        judge=_judge_channels,
        alert=lambda app, _: ChannelSource(app.supervisor.states, app.supervisor.refusals, app.now),
        ready=_channel_readiness,
    ),
    HealthCheck(
        "delivery",
        in_chat=True,
        read=_read_delays,
        judge=_judge_delays,
        alert=lambda app, _: partial(find_delays, delayed=app.dispatcher.delayed, states=app.supervisor.states),
    ),
    HealthCheck(
        "dead_letters",
        fetch=lambda app: app.store.outbox.dead(limit=_MOST_DEAD),
        read_stored=_stored_dead_letters,
        judge=_judge_dead_letters,
        alert=lambda app, _: partial(find_dead_letters, store=app.store.alerts),
    ),
    HealthCheck(
        "promises",
        fetch=_fetch_late_promises,
        read_stored=_stored_late_promises,
        judge=_judge_late_promises,
        alert=lambda app, _: LatePromiseSource(app.store.journal.late_promises, app.now),
    ),
    HealthCheck("search", read=_read_search, judge=_judge_search),
    HealthCheck("api", read=_read_api, judge=_judge_api),
    HealthCheck(
        "mcp",
        read=_read_mcp,
        judge=_judge_mcp,
        alert=lambda app, _: partial(find_changed_tools, tools=app.mcp.changed_tools),
    ),
    HealthCheck(
        "models",
        read=lambda app: {"models": describe_models(app.models.default.facts.facts())},
        read_stored=_stored_models,
        judge=_judge_models,
        alert=lambda app, _: partial(find_models_without_tools, models=partial(_models_without_tools, app)),
    ),
    HealthCheck("model", alert=lambda app, _: app.model_health),
    HealthCheck("keyless", read=_read_keyless, judge=_judge_keyless),
    HealthCheck("waits", read=_read_requests, judge=_judge_requests),
    HealthCheck(
        "orphaned_reminders",
        fetch=_count_orphaned_reminders,
        read_stored=_stored_orphaned_reminders,
        judge=_judge_orphaned_reminders,
    ),
    HealthCheck(
        "unheard",
        read=_read_refusals,
        judge=_judge_refusals,
        alert=_bursts("strangers", "alerts.strangers", lambda app: app.unknown_senders.unanswered, many=1),
    ),
    HealthCheck("alerts", fetch=fetch_alerts, read_stored=_stored_alerts, judge=_judge_alerts),
    HealthCheck("depth", in_chat=True, fetch=lambda app: app.store.journal.depth()),
    HealthCheck(
        "stops",
        read_stored=_stored_stops,
        judge=_judge_stops,
        alert=lambda app, of: partial(find_unclean_stops, stops=app.unclean_stops, of=of),
    ),
    HealthCheck("jobs", in_chat=True, fetch=lambda app: app.background.work()),
    HealthCheck("background_budget", in_chat=True, fetch=lambda app: app.background.budget()),
    HealthCheck("today", fetch=_usage_of_today),
    HealthCheck("cap", alert=lambda app, _: partial(find_cap_use, usage=app.caps.installation_usage)),
    HealthCheck(
        "prices",
        alert=lambda app, _: partial(find_unpriced_models, models=lambda: app.usage_recorder.unpriced_models),
    ),
    HealthCheck(
        "login codes",
        alert=_bursts(
            "login-codes", "alerts.login_codes", lambda app: {page.name: page.wrong_codes for page in app.chat_pages}
        ),
    ),
    HealthCheck("owner codes", alert=_bursts("owner-codes", "alerts.owner_codes", lambda app: app.owner_claims.wrong)),
    HealthCheck(
        "quarantine",
        check_quarantine,
        needs_settings=False,
        alert=lambda app, of: QuarantineSource(app.home.quarantine, of=of),
    ),
    HealthCheck(
        "disk",
        check_disk,
        needs_settings=False,
        alert=lambda app, of: partial(find_low_disk, home=app.home.path, of=of),
    ),
)
