"""Language models: the default one, those a chat can select, and Dream's, each behind a client with retries.

Also the usage caps, and the recorder that stores every model call.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import structlog

from agent.llm.chat_model import ChatModel, ChatReply, ChatRequest, ModelConfig, Price, TokenUsage, estimate
from agent.llm.litellm_model import close_litellm
from agent.llm.media_model import TEXT_BYTES, MediaModel
from agent.llm.model_abilities import ContextWindows, LearnedModels, take_over_windows
from agent.llm.model_client import ModelClient, UsageRecorder
from agent.llm.model_registry import open_model
from agent.llm.openai_model import is_priced
from agent.turns.chat_profiles import ModelCatalog
from gateway.access.access_control import PersonQuotas
from gateway.access.usage_caps import ANSWER_TOKENS, COUNTED, CapLimits, UsageCapTracker
from gateway.alerts.alert_sources import ModelSource
from gateway.app.context import ExtraPlugins
from gateway.app.model_trial import take_over_trials
from gateway.ports.access import CapKind, CappedSender, Release, micro_dollars
from gateway.ports.journal import UsageRow
from gateway.ports.metrics import MetricsRecorder
from gateway.settings import Settings
from gateway.settings.settings_model import OFFLINE, LlmSettings, ModelSettings

if TYPE_CHECKING:
    from gateway.app.runtime import Runtime


class ModelServices:
    """The installation's model clients, all with the same recorder, retries and context windows.

    Each is built when it is first read. That raises SettingsError for a model that cannot be used.
    """

    def __init__(
        self,
        settings: Settings,
        plugins: ExtraPlugins,
        recorder: UsageRecorder,
        meter: MetricsRecorder,
        *,
        now: Callable[[], datetime],
        facts: LearnedModels | None = None,
        observer: ModelSource | None = None,
    ) -> None:
        """*facts* are what the models' answers have shown."""
        self._settings = settings
        self._plugins = plugins
        self._recorder = recorder
        self._meter = meter
        self._now = now
        self._facts = facts or LearnedModels()
        self._observer = observer
        self._windows = ContextWindows(self._facts)

    @cached_property
    def default(self) -> ModelClient:
        """Client of `llm.model` and its fallbacks, or of the caller's plugins."""
        llm, plugins = self._settings.llm, self._plugins.models
        models = list(plugins) or self._open((llm.model, *llm.fallbacks))
        if plugins and llm.context_window:  # plugins do not read settings
            for model in models:
                self._windows.set_window(model.name, llm.context_window)
        return self._client(models)

    @cached_property
    def memory(self) -> ModelClient:
        """Client of summaries, notes and flushes: the default one, unless `memory.model` names another."""
        return self._build_background(self._settings.memory.model, "memory.model")

    @cached_property
    def dream(self) -> ModelClient:
        """Client of Dream: the default one, unless `dream.model_override` names another."""
        name = self._settings.agents.defaults.dream.model_override
        return self._build_background(name, "agents.defaults.dream.model_override")

    def _build_background(self, name: str | None, setting: str) -> ModelClient:
        if not name:
            return self.default
        own = [each for each in self._plugins.models if each.name == name]
        return self._client(own or self._open((name, *self._settings.llm.fallbacks), setting=setting))

    @cached_property
    def catalog(self) -> ModelCatalog:
        """The default model and every other that a chat can have, each with the same fallbacks."""
        llm = self._settings.llm
        settings = {name: f"llm.models.{name}" for name in llm.models}
        for setting, model in chat_models(self._settings).items():  # users select only those of llm.models
            settings.setdefault(model, setting)
        clients: dict[str, ModelClient] = {}
        for name, setting in settings.items():
            model = llm.entry(name).model
            own = [each for each in self._plugins.models if each.name in (name, model)][:1]
            models = own or self._open([name], setting=setting)
            models += self._open([each for each in llm.fallbacks if each not in (name, model)])
            clients[name] = self._client(models)
        name = self.default.name if self._plugins.models else llm.model
        efforts = {each: llm.entry(each).effort or "" for each in (name, *settings)}
        return ModelCatalog(self.default, clients, name=name, choosable=tuple(llm.models), efforts=efforts)

    def all(self) -> tuple[ModelClient, ...]:
        """Return every client once."""
        return tuple(dict.fromkeys((self.default, *self.catalog.every(), self.memory, self.dream)))

    async def close(self) -> None:
        """Close the clients' connections."""
        for client in (self.memory, self.dream):
            if client is not self.default:
                await client.close()
        await self.catalog.close()
        await close_litellm()  # embeddings and transcriptions use it too

    def build_single(self, name: str) -> ModelClient:
        """Return a client of the model *name* alone, which learns nothing; raise SettingsError if it cannot be used."""
        own = [each for each in self._plugins.models if each.name == name]
        models = own or self._open((name,), setting="--model")
        return ModelClient(models, recorder=self._recorder, meter=self._meter, now=self._now)

    def _client(self, models: list[ChatModel]) -> ModelClient:
        return ModelClient(
            models,
            attempts=self._settings.llm.attempts,
            recorder=self._recorder,
            meter=self._meter,
            now=self._now,
            windows=self._windows,
            facts=self._facts,
            observer=self._observer,
        )

    def _open(self, names: Iterable[str], *, setting: str = "llm.model") -> list[ChatModel]:
        """Open the models called *names*. Raises SettingsError, which names *setting*."""
        llm, proxy = self._settings.llm, self._settings.proxy_address
        return [open_model(_config(llm, name, proxy), setting=setting) for name in names]


async def take_over_model_facts(models: ModelServices, home: Path) -> None:
    """Take over what earlier releases have kept about models in files of the home."""
    facts = models.default.facts
    names = {name: kept_as for each in models.all() for name, kept_as in each.names()}
    await take_over_trials(home, facts)
    await take_over_windows(home / "windows.json", facts, names)


def chat_models(settings: Settings) -> dict[str, str]:
    """Return the models of `chats` and `profiles`, by setting."""
    chats = {f"chats.{place}.model": entry.model for place, entry in settings.chats.items()}
    profiles = {f"profiles.{name}.model": entry.model for name, entry in settings.profiles.items()}
    return {setting: model for setting, model in (chats | profiles).items() if model}


def configured_models(settings: Settings) -> tuple[str, ...]:
    """Return the models that conversations may be sent to, as litellm names them."""
    llm = settings.llm
    background = (settings.memory.model, settings.agents.defaults.dream.model_override)
    names = (llm.model, *llm.fallbacks, *llm.models, *chat_models(settings).values(), *background)
    return tuple(dict.fromkeys(llm.entry(name).model for name in names if name))


def unpriced_models(settings: Settings) -> tuple[str, ...]:
    """Return the models that answer people without a known price. Blocks for some milliseconds each."""
    llm = settings.llm
    names = (llm.model, *llm.fallbacks, *llm.models, *chat_models(settings).values())
    entries = [llm.entry(name) for name in dict.fromkeys(names) if name]
    unpriced = (each.model for each in entries if each.prices is None and not is_priced(each.model))
    return tuple(dict.fromkeys(each for each in unpriced if each.partition(":")[0] != OFFLINE))


def unknown_fallbacks(llm: LlmSettings) -> tuple[str, ...]:
    """Return the fallbacks without a provider that are neither in `llm.models` nor in the table. Blocks a moment."""
    known = (OFFLINE, llm.model, *llm.models)
    bare = [name for name in llm.fallbacks if name not in known and "/" not in name and ":" not in name]
    return tuple(name for name in bare if not is_priced(name))


def build_media_model(
    app: Runtime, entry: ModelSettings, *, purpose: str, seconds: float, most_bytes: int = TEXT_BYTES
) -> MediaModel:
    """Return a model for sound or pictures; raise SettingsError without litellm."""
    return MediaModel(
        entry.model,
        purpose=purpose,
        seconds=seconds,
        most_bytes=most_bytes,
        api_base=str(entry.api_base or ""),
        api_key=entry.api_key.get_secret_value() if entry.api_key else "",
        proxy=app.settings.proxy_address,
        recorder=app.usage_recorder,
        meter=app.meter,
    )


def _config(llm: LlmSettings, name: str, proxy: str) -> ModelConfig:
    entry = llm.entry(name)
    return ModelConfig(
        model=entry.model,
        label=name,
        api_base=str(entry.api_base or ""),
        api_key=entry.api_key.get_secret_value() if entry.api_key else "",
        timeout=llm.timeout_seconds,
        stream_silence=llm.stream_silence_seconds,
        context_window=entry.context_window,
        vision=entry.vision,
        prices=entry.prices,
        proxy=proxy,
        client=llm.client,
    )


log = structlog.get_logger(__name__)

T = TypeVar("T", int, float)
_NO_TOKENS = TokenUsage()
_PRICED = frozenset({"answer", "speech", "picture"})  # transcriptions have no price before they are made


async def load_counts(app: Runtime) -> None:
    """Load what caps have counted until now; call it before the first turn. Raises StoreUnavailable."""
    store, caps = app.store, app.settings.caps
    limits = {CapKind.HOUSE_TOKENS: caps.tokens_per_day, CapKind.HOUSE_COST: _micros(caps.usd_per_day)}
    await app.caps.warm(store.caps, store.usage, installation_limits=limits)
    if store.shared_caps is not None:
        bases = (app.caps.hand_over(), await app.token_budget.hand_over())
        await store.shared_caps.start(bases)


def build_caps(app: Runtime) -> UsageCapTracker:
    """Build the tracker of caps, with the limits of the settings, chats and people."""
    settings = app.settings
    caps, quotas = settings.caps, PersonQuotas(app.store.access)
    tool_limits = caps.tools.model_dump(exclude=None if settings.tools.draw.model else {"draw"})  # /usage names each

    def limits(sender: CappedSender) -> CapLimits:
        own, chat = sender.caps, sender.chat_caps
        return CapLimits(
            person_turns=_first(own.person_turns_per_10_min, caps.person_turns_per_10_min),
            person_tokens=_first(own.person_tokens_per_day, caps.person_tokens_per_day),
            chat_turns=_first(chat.chat_turns_per_10_min, caps.chat_turns_per_10_min),
            chat_tokens=_first(chat.chat_tokens_per_day, caps.chat_tokens_per_day),
            installation_tokens=caps.tokens_per_day,
            person_cost=_micros(_first(own.person_usd_per_day, caps.person_usd_per_day)),
            chat_cost=_micros(_first(chat.chat_usd_per_day, caps.chat_usd_per_day)),
            installation_cost=_micros(caps.usd_per_day),
            quota=quotas.of(sender.accounts),
        )

    return UsageCapTracker(
        limits=limits,
        zone=settings.timezone,
        now=app.now,
        meter=app.meter,
        refusals=app.refusals,
        tool_limits=tool_limits,
        store_row=app.store.journal.spend,
        shared_caps=app.store.shared_caps,
    )


def _first(chat_limit: T | None, installation_limit: T | None) -> T | None:
    return installation_limit if chat_limit is None else chat_limit


def _micros(usd: float | None) -> int | None:
    return None if usd is None else micro_dollars(usd)


class JournalUsageRecorder:
    """Implements `agent.llm.model_client.UsageRecorder` over the journal, the caps and the background budget.

    Each model call reserves its tokens, and its cost where a cap in money applies. It leaves one row in the journal
    however it ends.
    """

    def __init__(self, app: Runtime) -> None:
        self._app = app
        self.unpriced_models: set[str] = set()  # called under a cap in money, without a price
        self._run = secrets.token_hex(4)  # call ids of two runs differ
        self._numbers = count(1)

    async def begin_call(self, request: ChatRequest, model: str, price: Price | None = None) -> JournalCallRecord:
        """Open a call; raises CapReached when it exceeds a cap of the person who waits for it."""
        weight = request.weight or estimate(request).input
        tokens = TokenUsage(weight, request.max_tokens or ANSWER_TOKENS)
        if not (request.purpose in COUNTED and self._app.caps.has_cost_cap(request.turn)):
            price = None
        elif request.purpose in _PRICED and (price is None or price(tokens) is None):
            self._note_unpriced(model)
        cost = price(tokens) if price is not None else None
        release: Release = _release_nothing
        if request.purpose in COUNTED:
            release = await self._app.caps.reserve(request.turn, tokens.input + tokens.output, micro_dollars(cost or 0))
        row = self._row(request, model, weight, cost)  # counted after a kill, like the tokens
        self._app.store.journal.calling(row)
        return JournalCallRecord(self._app, row, release, price)

    def _note_unpriced(self, model: str) -> None:
        if model not in self.unpriced_models:
            self.unpriced_models.add(model)
            log.warning("caps.model_without_price", model=model)

    def note_call(self, request: ChatRequest, model: str, usage: ChatReply) -> None:
        """Record a call that has ended and that no cap limits."""
        JournalCallRecord(self._app, self._row(request, model, 0, None), _release_nothing).end(usage)

    def _row(self, request: ChatRequest, model: str, weight: int, cost: float | None) -> UsageRow:
        return UsageRow(
            turn=request.turn,
            # An account without an id, as of a job, has a file name too ("%"), and is no person.
            person=request.account.name if request.account is not None and str(request.account) else "",
            chat=request.chat,
            purpose=request.purpose,
            model=model,
            tokens_in=weight,
            tokens_out=0,
            tokens_cached=0,
            cost=cost,
            at=self._app.now(),
            call=f"{self._run}.{next(self._numbers)}",
            is_own=self._app.caps.is_own(request.turn),
        )


@dataclass(frozen=True, slots=True)
class JournalCallRecord:
    """A model call that has a row in the journal. *release* ends its reservation.

    *price* is for calls under a cap in money: of one that ends early, the cost of its tokens is estimated.
    """

    app: Runtime
    row: UsageRow
    release: Release
    price: Price | None = None

    def end(self, usage: ChatReply | None, *, was_refused: bool = False) -> None:
        """Store the tokens of the call, and count them in place of its reservation; see the port for *usage*."""
        app, row = self.app, self.row
        tokens = _NO_TOKENS if usage is None else usage.tokens
        cost = (0.0 if was_refused else None) if usage is None else usage.cost
        total = tokens.input + tokens.output
        if cost is None and total and self.price is not None:
            cost = self.price(tokens)
        app.caps.spend(
            turn=row.turn,
            person=row.person,
            chat=row.chat,
            purpose=row.purpose,
            tokens=total,
            cost=micro_dollars(cost or 0),
        )
        app.token_budget.note(row.purpose, row.turn, total)
        self.release()
        if cost:
            app.meter.count("model_cost_dollars", cost)
        elif cost is None:
            app.meter.count("model_unpriced")
        ended = replace(
            row,
            model=row.model if usage is None else usage.model,
            tokens_in=tokens.input,
            tokens_out=tokens.output,
            tokens_cached=tokens.cached,
            cost=cost,
            at=app.now(),
        )
        app.store.journal.spend(ended)


def _release_nothing() -> None:
    """Release a call that reserved nothing."""
