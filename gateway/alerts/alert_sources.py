"""Alert sources: each detects one kind of problem. They are called every few seconds and change nothing."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from gateway.alerts.alert_messages import reason
from gateway.alerts.alert_state import Observation
from gateway.errors import FailureCause, LoginRefused, UserError
from gateway.events import SessionKey, short_turn_id
from gateway.ports import Alert, AlertStore, DelayedDelivery
from gateway.ports.caps import CapAllowance
from gateway.quarantine import list_events
from gateway.store_watcher import StoreWatcher

DOWN_AFTER = timedelta(minutes=5)
STORE_AFTER = timedelta(seconds=30)  # a server that restarts is no outage
DELAYED_AFTER = timedelta(minutes=5)
MODEL_AFTER = timedelta(minutes=10)
MODEL_FORGETS = timedelta(hours=1)  # failures further apart are separate outages
LITTLE_SPACE = 500 * 1024 * 1024  # bytes; a warning, here and in the doctor
TOO_LITTLE_SPACE = 50 * 1024 * 1024
NEAR_CAP = 80  # percent
_MODEL_FAULT = "model_fault"  # begins the names of such causes
_HOUR = timedelta(hours=1)
_MOST_NAMES = 5  # of damaged memory, in one alert
_EVENTS = 20  # of the quarantine that are looked at; more at once are as many


@dataclass(slots=True, eq=False)
class ChannelSource:
    """Channels that are not receiving: after five minutes, or at once if a platform refuses us permanently."""

    states: Callable[[], Mapping[str, bool | None]]
    refusals: Callable[[], Mapping[str, UserError]]
    now: Callable[[], datetime]
    _down: dict[str, datetime] = field(default_factory=dict, init=False)

    async def __call__(self, causes: Mapping[str, Alert]) -> Sequence[Observation]:
        """Look at every channel, and at causes of channels that are not there any more."""
        states, refusals = self.states(), self.refusals()
        gone = _of_removed_channels("channel", causes, states, self.now())
        return [*gone, *(self._look(name, state is True, refusals.get(name)) for name, state in states.items())]

    def _look(self, name: str, is_connected: bool, rejection: UserError | None) -> Observation:
        cause, now = f"channel.{name}", self.now()
        if is_connected:
            self._down.pop(name, None)
            return Observation(cause=cause, since=now)
        since = self._down.setdefault(name, now)
        if rejection is not None:
            line = "alerts.channel_token" if isinstance(rejection, LoginRefused) else "alerts.channel_refused"
            return Observation(cause=cause, since=since, stage=2, line=line, fields={"channel": name}, level="critical")
        if now - since < DOWN_AFTER:
            return Observation(cause=cause, since=since, stage=None)
        return Observation(cause=cause, since=since, stage=1, line="alerts.channel_down", fields={"channel": name})


@dataclass(slots=True, eq=False)
class DelaySource:
    """Channels that receive but cannot deliver: an answer waits for five minutes or more."""

    delayed: Callable[[], Sequence[DelayedDelivery]]
    states: Callable[[], Mapping[str, bool | None]]
    now: Callable[[], datetime]

    async def __call__(self, causes: Mapping[str, Alert]) -> Sequence[Observation]:
        """Look at every channel; that one is down is another cause's."""
        states = self.states()
        waits = [each for each in self.delayed() if each.until - each.since >= DELAYED_AFTER]
        gone = _of_removed_channels("delay", causes, states, self.now())
        return [*gone, *(self._look(name, state is True, waits) for name, state in states.items())]

    def _look(self, name: str, is_connected: bool, waits: Sequence[DelayedDelivery]) -> Observation:
        cause = f"delay.{name}"
        first = next((each for each in waits if each.key.channel == name), None)
        if not is_connected:
            return Observation(cause=cause, since=self.now(), stage=None)
        if first is None:
            return Observation(cause=cause, since=self.now())
        fields = {"channel": name, "until": first.until.isoformat()}
        return Observation(cause=cause, since=first.since, stage=1, line="alerts.delivery_delayed", fields=fields)


@dataclass(frozen=True, slots=True)
class _ModelFault:
    cause: FailureCause
    since: datetime
    read_in: tuple[SessionKey, ...]


class ModelSource:
    """Models that do not answer: at once where a person must repair the cause, else after ten minutes of failures.

    An `agent.llm.model_client.ModelObserver`. Each model and cause is one alert, which ends when the model answers.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self.check_now = asyncio.Event()  # set when a fault is new
        self._now = now
        self._failing: tuple[datetime, datetime] | None = None  # the first and the last failure, nothing good between
        self._has_answered = False
        self._faults: dict[str, _ModelFault | None] = {}  # by model; None = it has answered since

    def note_answer(self, model: str) -> None:
        """Note that *model* answered a call."""
        self._failing, self._has_answered = None, True
        self._faults[model] = None

    def note_failure(self) -> None:
        """Note that no model answered a call."""
        now = self._now()
        first, last = self._failing or (now, now)
        self._failing = (now if now - last > MODEL_FORGETS else first, now)

    def note_fault(self, model: str, cause: FailureCause, chat: str = "") -> None:
        """Note that *model* fails until a person has repaired *cause*, which an owner reads in *chat*, if any."""
        known = self._faults.get(model)
        if known is None or known.cause is not cause:
            self._faults[model] = _ModelFault(cause, self._now(), (SessionKey.parse(chat),) if chat else ())
            self.check_now.set()

    async def __call__(self, causes: Mapping[str, Alert]) -> Sequence[Observation]:
        """Return the observation of calls that nobody answers, and one for each model and cause."""
        return [self._look(), *self._look_at_faults(causes)]

    def _look(self) -> Observation:
        if self._failing is None:
            # Without a successful call it is not known that the model answers again.
            return Observation(cause="model", since=self._now(), stage=0 if self._has_answered else None)
        first, last = self._failing
        stage = 1 if last - first >= MODEL_AFTER else None
        return Observation(cause="model", since=first, stage=stage, line="alerts.model_failing", level="critical")

    def _look_at_faults(self, causes: Mapping[str, Alert]) -> Iterator[Observation]:
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
                    yield Observation(cause=each, since=self._now(), is_gone=fault is not None)
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
                yield Observation(cause=each, since=self._now(), is_gone=True)


@dataclass(slots=True, eq=False)
class NoToolsSource:
    """Models whose servers have refused tools; *models* returns when each did. Each is reported once."""

    models: Callable[[], Mapping[str, datetime]]

    async def __call__(self, causes: Mapping[str, Alert]) -> Sequence[Observation]:
        """Return the models that were not reported yet."""
        found = {f"no-tools.{model}": (model, since) for model, since in self.models().items()}
        return [
            Observation(
                cause=cause,
                since=since,
                happened=1,
                line="alerts.no_tools",
                fields={"model": model.partition(" ")[0]},  # what follows is a digest of the address
                mark="reported",
            )
            for cause, (model, since) in found.items()
            if cause not in causes
        ]


@dataclass(slots=True, eq=False)
class DeadLetterSource:
    """Dead letters, as the journal keeps them."""

    store: AlertStore
    now: Callable[[], datetime]

    async def __call__(self, causes: Mapping[str, Alert]) -> Sequence[Observation]:
        """Return new dead letters. Those that existed before the first check are not reported."""
        known = causes.get("given-up")
        letters, mark = await self.store.given_up(known.mark if known else "")
        if not letters:
            return [] if known else [Observation(cause="given-up", since=self.now(), mark=mark)]
        last = letters[-1]
        fields = {"chat": last.chat, "turn": short_turn_id(last.turn), "reason": reason(last.reason)}
        fields["channel"] = last.chat.partition(":")[0]
        return [
            Observation(
                cause="given-up",
                since=last.at,
                happened=len(letters),
                line="alerts.given_up",
                fields=fields,
                mark=mark,
            )
        ]


@dataclass(slots=True, eq=False)
class DiskSource:
    """Free space on the home's disk; *of* ends the cause's name, where several gateways have a disk each."""

    home: Path
    now: Callable[[], datetime]
    of: str = ""

    async def __call__(self, causes: Mapping[str, Alert]) -> Sequence[Observation]:  # noqa: ARG002 - a source's signature
        """Ask the file system, off the loop."""
        cause = f"disk{self.of}"
        total, _, free = await asyncio.to_thread(shutil.disk_usage, self.home)
        if not total or free >= LITTLE_SPACE:
            return [Observation(cause=cause, since=self.now())]
        is_full = free < TOO_LITTLE_SPACE
        return [
            Observation(
                cause=cause,
                since=self.now(),
                stage=2 if is_full else 1,
                line="alerts.disk_full" if is_full else "alerts.disk_low",
                fields={"free": free},
                level="critical" if is_full else "warning",
            )
        ]


@dataclass(slots=True, eq=False)
class StoreSource:
    """Outages of the store that are over, one at each look; while there is one, nothing can be noted (`StoreNotifier`).

    *of* ends the cause's name, where several gateways have a connection each.
    """

    watcher: StoreWatcher
    of: str = ""

    async def __call__(self, causes: Mapping[str, Alert]) -> Sequence[Observation]:
        """Return the oldest outage of some length, as what has happened, until it is noted."""
        cause = f"store{self.of}"
        noted = causes[cause].mark if cause in causes else ""
        outages = [each for each in self.watcher.outages if each.until - each.since >= STORE_AFTER]
        if outages and outages[0].until.isoformat() == noted:
            del outages[0]
        self.watcher.outages[:] = outages
        return [
            Observation(
                cause=cause,
                since=each.since,
                happened=1,
                line="alerts.store_was_unwritable",
                fields={**store_fields(each.cause), "until": each.until.isoformat()},
                level="critical",
                mark=each.until.isoformat(),
            )
            for each in outages[:1]
        ]


def store_fields(cause: str) -> dict[str, str | int]:
    """Return the fields of an alert about the store; the cause is a server's text, and is shown as code."""
    return {"cause": "`" + cause.replace("`", "'") + "`"}


class DamagedMemorySource:
    """Memory that cannot be used, since an object of it is missing or damaged."""

    def __init__(self, damaged: Callable[[], Collection[str]], now: Callable[[], datetime]) -> None:
        """*damaged* returns the names of what cannot be used, as operators know them."""
        self._damaged = damaged
        self._now = now

    async def __call__(self, causes: Mapping[str, Alert]) -> Sequence[Observation]:  # noqa: ARG002 - a source's signature
        """Name the first few."""
        names = list(self._damaged())
        named = ", ".join([*names[:_MOST_NAMES], *(["…"] if len(names) > _MOST_NAMES else [])])
        stage, line = (1, "alerts.memory_damaged") if names else (0, "")
        return [Observation(cause="memory", since=self._now(), stage=stage, line=line, fields={"scopes": named})]


@dataclass(slots=True, eq=False)
class CapSource:
    """The daily caps of the installation; *usage* returns the one nearest to its limit, None without caps."""

    usage: Callable[[], CapAllowance | None]
    now: Callable[[], datetime]

    async def __call__(self, causes: Mapping[str, Alert]) -> Sequence[Observation]:  # noqa: ARG002 - a source's signature
        """Compare."""
        usage = self.usage()
        percent = usage.used * 100 // usage.limit if usage else 0
        if usage is None or percent < NEAR_CAP:
            return [Observation(cause="cap", since=self.now(), ends_from=2)]
        is_reached, until = percent >= 100, usage.until or self.now()
        amounts = {"used": usage.cap.format_amount(usage.used), "limit": usage.cap.format_amount(usage.limit)}
        fields: dict[str, str | int] = {"percent": percent, **amounts, "until": until.isoformat()}
        near, reached = "alerts.cap_near", "alerts.cap_reached"
        if usage.cap.is_cost:
            near, reached = "alerts.cost_near", "alerts.cost_reached"
        return [
            Observation(
                cause="cap",
                since=self.now(),
                stage=2 if is_reached else 1,
                line=reached if is_reached else near,
                fields=fields,
                level="critical" if is_reached else "warning",
                ends_from=2,
            )
        ]


@dataclass(slots=True, eq=False)
class UnpricedModelSource:
    """Models without a known price that were called under a cap in money. Each is reported once, over restarts too."""

    models: Callable[[], Collection[str]]
    now: Callable[[], datetime]

    async def __call__(self, causes: Mapping[str, Alert]) -> Sequence[Observation]:
        """Compare with those that were reported, which the cause's mark lists."""
        known = causes.get("unpriced")
        reported = set(known.mark.split()) if known else set()
        if not (new := sorted(set(self.models()) - reported)):
            return []
        return [
            Observation(
                cause="unpriced",
                since=self.now(),
                happened=len(new),
                line="alerts.unpriced",
                fields={"models": ", ".join(new)},
                mark=" ".join(sorted(reported.union(new))),
            )
        ]


@dataclass(slots=True, eq=False)
class QuarantineSource:
    """Events that were set aside, as their folder tells; it is read only when it changed.

    *of* ends the cause's name, where several gateways have a folder each.
    """

    folder: Path
    now: Callable[[], datetime]
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
            return [Observation(cause=cause, since=self.now(), mark=newest)]
        fresh = [event for event in events if event.at > known.mark]
        if not fresh:
            return []
        # The mark of what cannot be stored is lost with it, so the folder is read again.
        self._changed = None
        last = max(fresh, key=lambda event: event.at)
        return [
            Observation(
                cause=cause,
                since=self.now(),
                happened=len(fresh),
                line="alerts.set_aside",
                fields={"channel": last.channel},
                mark=last.at,
            )
        ]

    def _age(self) -> int:
        try:
            return self.folder.stat().st_mtime_ns
        except OSError:
            return 0


@dataclass(slots=True, eq=False)
class CrashSource:
    """Unclean stops, counted once per start; *of* ends the cause's name, where several gateways start."""

    unclean_stops: int  # in a row before this start; 0 after a clean stop
    now: Callable[[], datetime]
    of: str = ""

    async def __call__(self, causes: Mapping[str, Alert]) -> Sequence[Observation]:
        """Return the stops that were not reported."""
        cause = f"killed{self.of}"
        known = causes.get(cause)
        before = int(known.mark or 0) if known else 0
        if self.unclean_stops == before:
            return []
        happened = max(self.unclean_stops - before, 0)
        return [
            Observation(
                cause=cause,
                since=self.now(),
                happened=happened,
                line="alerts.killed",
                level="critical",
                mark=str(self.unclean_stops),
            )
        ]


@dataclass(slots=True, eq=False)
class BurstSource:
    """Repeated actions of unknown senders, such as guessing codes: reported from *many* within an hour."""

    cause: str
    line: str  # the key of the sentence
    counts: Callable[[], Mapping[str, int]]  # by channel, how often it happened since the start
    now: Callable[[], datetime]
    many: int
    _before: dict[str, tuple[datetime, int]] = field(default_factory=dict, init=False)

    async def __call__(self, causes: Mapping[str, Alert]) -> Sequence[Observation]:  # noqa: ARG002 - a source's signature
        """Return the channels where it is many."""
        found = (self._look(channel, count) for channel, count in self.counts().items())
        return [seen for seen in found if seen is not None]

    def _look(self, channel: str, count: int) -> Observation | None:
        now = self.now()
        since, before = self._before.setdefault(channel, (now, 0))
        is_many = count - before >= self.many
        if is_many or now - since >= _HOUR:
            self._before[channel] = (now, count)
        if not is_many:
            return None
        cause, fields = f"{self.cause}.{channel}", {"channel": channel}
        return Observation(cause=cause, since=now, happened=count - before, line=self.line, fields=fields)


def _of_removed_channels(
    family: str, causes: Mapping[str, Alert], channels: Collection[str], now: datetime
) -> list[Observation]:
    """Return the end of trouble with channels that are not configured any more."""
    return [
        Observation(cause=cause, since=now, is_gone=True)
        for cause, alert in causes.items()
        if alert.stage and cause.startswith(f"{family}.") and cause.partition(".")[2] not in channels
    ]
