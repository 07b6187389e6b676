"""Alert sources: each detects one kind of problem. They are called every few seconds and change nothing.

A source gets the causes as they are stored and returns its observations. One that remembers something is an object.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.alerts.alert_state import Observation, reason
from gateway.errors import FailureCause, LoginRefused, UserError
from gateway.events import SessionKey, short_turn_id
from gateway.ports.access import CapAllowance
from gateway.ports.journal import DelayedDelivery
from gateway.quarantine import list_events
from gateway.store.alerts import Alert
from gateway.store_watcher import StoreWatcher

if TYPE_CHECKING:
    from gateway.store.alerts import SqlAlerts
    from gateway.store.inspection import LatePromises


DOWN_AFTER = timedelta(minutes=5)
STORE_AFTER = timedelta(seconds=30)  # a server that restarts is no outage
DELAYED_AFTER = timedelta(minutes=5)
MODEL_AFTER = timedelta(minutes=10)
MODEL_FORGETS = timedelta(hours=1)  # failures further apart are separate outages
LATE_AFTER = timedelta(minutes=15)
_PROMISES_EVERY = timedelta(minutes=1)
LITTLE_SPACE = 500 * 1024 * 1024  # bytes
TOO_LITTLE_SPACE = 50 * 1024 * 1024
NEAR_CAP = 80  # percent
_MODEL_FAULT = "model_fault"  # begins the names of such causes
_HOUR = timedelta(hours=1)
_MOST_REPORTED = 200  # tools that are remembered
_EVENTS = 20  # of the quarantine that are looked at; more at once are as many


@dataclass(slots=True, eq=False)
class ChannelSource:
    """Channels that are not receiving: after five minutes, or at once if a platform refuses us permanently."""

    states: Callable[[], Mapping[str, bool | None]]
    refusals: Callable[[], Mapping[str, UserError]]
    now: Callable[[], datetime]
    _down: dict[str, datetime] = field(default_factory=dict, init=False)

    def __call__(self, causes: Mapping[str, Alert]) -> Iterator[Observation]:
        """Look at every channel, and at causes of channels that are not there any more."""
        states, refusals = self.states(), self.refusals()
        yield from _find_removed_channels("channel", causes, states)
        yield from (self._look(name, state is True, refusals.get(name)) for name, state in states.items())

    def _look(self, name: str, is_connected: bool, rejection: UserError | None) -> Observation:
        cause, fields, now = f"channel.{name}", {"channel": name}, self.now()
        if is_connected:
            self._down.pop(name, None)
            return Observation(cause=cause)
        since = self._down.setdefault(name, now)
        if rejection is not None:
            line = "alerts.channel_token" if isinstance(rejection, LoginRefused) else "alerts.channel_refused"
            return Observation(cause=cause, since=since, stage=2, line=line, fields=fields, level="critical")
        if now - since < DOWN_AFTER:
            return Observation(cause=cause, since=since, stage=None)
        return Observation(cause=cause, since=since, stage=1, line="alerts.channel_down", fields=fields)


def find_delays(
    causes: Mapping[str, Alert],
    *,
    delayed: Callable[[], Sequence[DelayedDelivery]],
    states: Callable[[], Mapping[str, bool | None]],
) -> Iterator[Observation]:
    """Yield channels that receive but cannot deliver: an answer waits for five minutes or more."""
    waits = [each for each in delayed() if each.until - each.since >= DELAYED_AFTER]
    yield from _find_removed_channels("delay", causes, states())
    for name, is_connected in states().items():
        first = next((each for each in waits if each.key.channel == name), None)
        if is_connected is not True:  # that is another cause's
            yield Observation(cause=f"delay.{name}", stage=None)
        elif first is None:
            yield Observation(cause=f"delay.{name}")
        else:
            fields = {"channel": name, "until": first.until.isoformat()}
            line = "alerts.delivery_delayed"
            yield Observation(cause=f"delay.{name}", since=first.since, stage=1, line=line, fields=fields)


def _find_removed_channels(
    family: str, causes: Mapping[str, Alert], channels: Collection[str]
) -> Iterator[Observation]:
    """Yield the end of trouble with channels that are not configured any more."""
    for cause, alert in causes.items():
        if alert.stage and cause.startswith(f"{family}.") and cause.partition(".")[2] not in channels:
            yield Observation(cause=cause, is_gone=True)


@dataclass(frozen=True, slots=True)
class _ModelFault:
    cause: FailureCause
    since: datetime
    read_in: tuple[SessionKey, ...]


class ModelSource:
    """Models that do not answer: at once where a person must repair the cause, else after ten minutes of failures.

    Clients of models note how their calls end. Each model and cause is one alert, which ends when the model answers.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self.check_now = asyncio.Event()  # set when a fault is new
        self._now = now
        self._failing: tuple[datetime, datetime] | None = None  # the first and the last failure, nothing good between
        self._has_answered = False
        self._faults: dict[str, _ModelFault | None] = {}  # by model; None = it has answered since

    def record_answer(self, model: str) -> None:
        """Record that *model* answered a call."""
        self._failing, self._has_answered = None, True
        self._faults[model] = None

    def record_failure(self) -> None:
        """Record that no model answered a call."""
        now = self._now()
        first, last = self._failing or (now, now)
        self._failing = (now if now - last > MODEL_FORGETS else first, now)

    def record_fault(self, model: str, cause: FailureCause, chat: str = "") -> None:
        """Record that *model* fails until a person has repaired *cause*; another model may answer the same call.

        *chat* is where the cause is shown, if its sender is an owner; "" if it is shown nowhere.
        """
        known = self._faults.get(model)
        if known is None or known.cause is not cause:
            self._faults[model] = _ModelFault(cause, self._now(), (SessionKey.parse(chat),) if chat else ())
            self.check_now.set()

    def __call__(self, causes: Mapping[str, Alert]) -> Iterator[Observation]:
        """Yield the observation of calls that no model answers, and one for each model and cause."""
        if self._failing is None:
            # Without a successful call it is not known that the model answers again.
            yield Observation(cause="model", stage=0 if self._has_answered else None)
        else:
            first, last = self._failing
            stage = 1 if last - first >= MODEL_AFTER else None
            yield Observation(cause="model", since=first, stage=stage, line="alerts.model_failing", level="critical")
        for model, fault in self._faults.items():
            name = f"{_MODEL_FAULT}.{fault.cause}.{model}" if fault is not None else ""
            if fault is not None:
                yield Observation(
                    cause=name,
                    since=fault.since,
                    stage=1,
                    line="alerts.model_fault",
                    fields={"model": model, "fault": fault.cause.value},
                    level="critical",
                    read_in=fault.read_in,
                )
            for each, alert in causes.items():
                family, _, about = each.partition(".")
                if alert.stage and each != name and family == _MODEL_FAULT and about.partition(".")[2] == model:
                    # Another cause has taken its place, or the model answers.
                    yield Observation(cause=each, is_gone=fault is not None)
        if self._has_answered:
            yield from self._look_at_replaced(causes)

    def _look_at_replaced(self, causes: Mapping[str, Alert]) -> Iterator[Observation]:
        """Yield the end of faults from before the start whose models were not called since, though others answer.

        The settings may name another model now. Of several gateways, the end of the one that saw it is enough.
        """
        for each, alert in causes.items():
            family, _, about = each.partition(".")
            is_earlier = family == _MODEL_FAULT and about.partition(".")[2] not in self._faults
            if alert.stage and is_earlier and not alert.seen_by:
                yield Observation(cause=each, is_gone=True)


def find_models_without_tools(
    causes: Mapping[str, Alert], *, models: Callable[[], Mapping[str, datetime]]
) -> Iterator[Observation]:
    """Yield models whose servers have refused tools, each once; *models* returns when each did."""
    for model, since in models().items():
        if (cause := f"no-tools.{model}") not in causes:
            fields = {"model": model.partition(" ")[0]}  # what follows is a digest of the address
            yield Observation(
                cause=cause, since=since, happened=1, line="alerts.no_tools", fields=fields, mark="reported"
            )


def find_unpriced_models(
    causes: Mapping[str, Alert], *, models: Callable[[], Collection[str]]
) -> Iterator[Observation]:
    """Yield models without a known price that were called under a cap in money, each once, over restarts too."""
    # The mark lists those that were reported.
    reported = set(causes["unpriced"].mark.split()) if "unpriced" in causes else set()
    if new := sorted(set(models()) - reported):
        mark, fields = " ".join(sorted(reported.union(new))), {"models": ", ".join(new)}
        yield Observation(cause="unpriced", happened=len(new), line="alerts.unpriced", fields=fields, mark=mark)


def find_changed_tools(causes: Mapping[str, Alert], *, tools: Callable[[], Mapping[str, str]]) -> Iterator[Observation]:
    """Yield pinned tools that their servers describe differently, each once for a pin, over restarts too.

    *tools* are the digests of their pins, by name.
    """
    reported = causes["mcp-changed"].mark.split() if "mcp-changed" in causes else []
    new = {f"{name}:{digest[:8]}": name for name, digest in sorted(tools().items())}
    new = {entry: name for entry, name in new.items() if entry not in reported}
    if new:
        mark = " ".join([*reported, *new][-_MOST_REPORTED:])
        fields = {"tools": ", ".join(f"`{name}`" for name in new.values())}
        yield Observation(cause="mcp-changed", happened=len(new), line="alerts.mcp_changed", fields=fields, mark=mark)


async def find_dead_letters(causes: Mapping[str, Alert], *, store: SqlAlerts) -> Sequence[Observation]:
    """Return new dead letters. Those that existed before the first check are not reported."""
    known = causes.get("given-up")
    letters, mark = await store.given_up(known.mark if known else "")
    if not letters:
        return [] if known else [Observation(cause="given-up", mark=mark)]
    last = letters[-1]
    fields = {"chat": last.chat, "turn": short_turn_id(last.turn), "reason": reason(last.reason)}
    fields["channel"] = last.chat.partition(":")[0]
    happened, line = len(letters), "alerts.given_up"
    return [Observation(cause="given-up", since=last.at, happened=happened, line=line, fields=fields, mark=mark)]


@dataclass(slots=True, eq=False)
class LatePromiseSource:
    """Messages and reminders that have not been answered in time; looked for once a minute."""

    late: Callable[[datetime], Awaitable[LatePromises]]  # what was due before a time
    now: Callable[[], datetime]
    _next: datetime | None = field(default=None, init=False)

    async def __call__(self, _: Mapping[str, Alert]) -> Sequence[Observation]:
        """Return whether something is late."""
        now = self.now()
        if self._next is not None and now < self._next:
            return []
        self._next = now + _PROMISES_EVERY
        found = await self.late(now - LATE_AFTER)
        if found.since is None:
            return [Observation(cause="promises")]
        fields = {"count": found.messages + found.reminders}
        return [Observation(cause="promises", since=found.since, stage=1, line="alerts.promises_late", fields=fields)]


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """The space of a disk: stage 1 is little, stage 2 too little."""

    free: int  # bytes

    @property
    def is_full(self) -> bool:
        """Return True if there is too little to go on for long."""
        return self.free < TOO_LITTLE_SPACE

    @property
    def stage(self) -> int:
        """Return the stage of trouble, 0 for none."""
        return 2 if self.is_full else int(self.free < LITTLE_SPACE)


def measure_disk(home: Path) -> DiskSpace | None:
    """Return the space on the disk of *home*, or of the folder that it would be made in; None for no disk. Blocks."""
    there = home
    while not there.exists() and there != there.parent:
        there = there.parent
    total, _used, free = shutil.disk_usage(there)
    return DiskSpace(free) if total else None


async def find_low_disk(_: Mapping[str, Alert], *, home: Path, of: str = "") -> Sequence[Observation]:
    """Return the state of the home's disk; *of* ends the cause's name, where several gateways have a disk each."""
    space = await asyncio.to_thread(measure_disk, home)
    if space is None or not space.stage:
        return [Observation(cause=f"disk{of}")]
    line, level = ("alerts.disk_full", "critical") if space.is_full else ("alerts.disk_low", "warning")
    fields = {"free": space.free}
    return [Observation(cause=f"disk{of}", stage=space.stage, line=line, fields=fields, level=level)]


def find_store_outages(causes: Mapping[str, Alert], *, watcher: StoreWatcher, of: str = "") -> Iterator[Observation]:
    """Yield the oldest outage of some length that is over, until it is noted; `StoreNotifier` tells of one that is not.

    *of* ends the cause's name, where several gateways have a connection each.
    """
    cause = f"store{of}"
    noted = causes[cause].mark if cause in causes else ""
    outages = [each for each in watcher.outages if each.until - each.since >= STORE_AFTER]
    if outages and outages[0].until.isoformat() == noted:
        del outages[0]
    watcher.outages[:] = outages
    for each in outages[:1]:
        until, line = each.until.isoformat(), "alerts.store_was_unwritable"
        fields = {**store_fields(each.cause), "until": until}
        yield Observation(
            cause=cause, since=each.since, happened=1, line=line, fields=fields, level="critical", mark=until
        )


def store_fields(cause: str) -> dict[str, str | int]:
    """Return the fields of an alert about the store; the cause is a server's text, and is shown as code."""
    return {"cause": "`" + cause.replace("`", "'") + "`"}


def find_cap_use(_: Mapping[str, Alert], *, usage: Callable[[], CapAllowance | None]) -> Iterator[Observation]:
    """Yield the use of the installation's daily cap that is nearest to its limit, which *usage* returns."""
    found = usage()
    percent = found.used * 100 // found.limit if found else 0
    if found is None or percent < NEAR_CAP:
        yield Observation(cause="cap", ends_from=2)
        return
    fields: dict[str, str | int] = {
        "percent": percent,
        "used": found.cap.format_amount(found.used),
        "limit": found.cap.format_amount(found.limit),
        "until": found.until.isoformat() if found.until else "",
    }
    near, reached = "alerts.cap_near", "alerts.cap_reached"
    if found.cap.is_cost:
        near, reached = "alerts.cost_near", "alerts.cost_reached"
    stage, line, level = (2, reached, "critical") if percent >= 100 else (1, near, "warning")
    yield Observation(cause="cap", stage=stage, line=line, fields=fields, level=level, ends_from=2)


@dataclass(slots=True, eq=False)
class QuarantineSource:
    """Events that were set aside, as their folder tells; it is read only when it changed.

    *of* ends the cause's name, where several gateways have a folder each.
    """

    folder: Path
    of: str = ""
    _changed: int | None = field(default=None, init=False)

    async def __call__(self, causes: Mapping[str, Alert]) -> Sequence[Observation]:
        """Return newly quarantined events. Those that existed before the first check are not reported."""
        cause = f"set-aside{self.of}"
        changed = await asyncio.to_thread(self._age)
        known = causes.get(cause)
        if known is not None and changed == self._changed:
            return []
        events = await asyncio.to_thread(list_events, self.folder, _EVENTS)
        newest = max((event.at for event in events), default="-")
        self._changed = changed
        if known is None:
            return [Observation(cause=cause, mark=newest)]
        fresh = [event for event in events if event.at > known.mark]
        if not fresh:
            return []
        # The mark of what cannot be stored is lost with it, so the folder is read again.
        self._changed = None
        last = max(fresh, key=lambda event: event.at)
        fields, happened = {"channel": last.channel}, len(fresh)
        return [Observation(cause=cause, happened=happened, line="alerts.set_aside", fields=fields, mark=last.at)]

    def _age(self) -> int:
        try:
            return self.folder.stat().st_mtime_ns
        except OSError:
            return 0


def find_unclean_stops(causes: Mapping[str, Alert], *, stops: int, of: str = "") -> Iterator[Observation]:
    """Yield the unclean stops that were not reported, of *stops* in a row before this start.

    *of* ends the cause's name, where several gateways start.
    """
    cause = f"killed{of}"
    before = int(causes[cause].mark or 0) if cause in causes else 0
    if stops != before:
        happened, line = max(stops - before, 0), "alerts.killed"
        yield Observation(cause=cause, happened=happened, line=line, level="critical", mark=str(stops))


@dataclass(slots=True, eq=False)
class BurstSource:
    """Repeated actions of unknown senders, such as guessing codes: reported from *many* within an hour."""

    cause: str
    line: str  # the key of the sentence
    counts: Callable[[], Mapping[str, int]]  # by channel, how often it happened since the start
    now: Callable[[], datetime]
    many: int
    _before: dict[str, tuple[datetime, int]] = field(default_factory=dict, init=False)

    def __call__(self, _: Mapping[str, Alert]) -> Iterator[Observation]:
        """Yield the channels where it is many."""
        now = self.now()
        for channel, count in self.counts().items():
            since, before = self._before.setdefault(channel, (now, 0))
            is_many = count - before >= self.many
            if is_many or now - since >= _HOUR:
                self._before[channel] = (now, count)
            if is_many:
                cause, fields = f"{self.cause}.{channel}", {"channel": channel}
                yield Observation(cause=cause, happened=count - before, line=self.line, fields=fields)
