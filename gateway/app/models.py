"""Language models: the default one, those a chat can select, and Dream's, each behind a client with retries."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from pathlib import Path

from agent.llm.chat_model import ChatModel, ModelConfig
from agent.llm.litellm_model import close_litellm
from agent.llm.model_abilities import ContextWindows, LearnedModels, take_over_windows
from agent.llm.model_client import ModelClient, UsageRecorder
from agent.llm.model_registry import open_model
from agent.llm.openai_model import is_priced
from agent.turns.chat_profiles import ModelCatalog
from gateway.alerts.alert_sources import ModelSource
from gateway.app.context import ExtraPlugins
from gateway.app.model_trial import take_over_trials
from gateway.ports.metrics import MetricsRecorder
from gateway.settings import Settings
from gateway.settings.llm import OFFLINE, LlmSettings


@dataclass(frozen=True, slots=True)
class ModelServices:
    """The installation's model clients."""

    default: ModelClient
    catalog: ModelCatalog  # the default one and every other that a chat can have
    memory: ModelClient  # of summaries, notes and flushes: the default one, unless `memory.model` names another
    dream: ModelClient  # the default one, unless `dream.model_override` names another

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


@dataclass(slots=True, eq=False)
class ModelFactory:
    """Builds model clients from settings, all with the same recorder, retries and context windows."""

    settings: Settings
    plugins: ExtraPlugins
    recorder: UsageRecorder
    meter: MetricsRecorder
    _: KW_ONLY
    now: Callable[[], datetime]
    facts: LearnedModels = field(default_factory=LearnedModels)  # from answers of the models
    observer: ModelSource | None = None
    _windows: ContextWindows = field(init=False)

    def __post_init__(self) -> None:
        self._windows = ContextWindows(self.facts)

    def build_default(self) -> ModelClient:
        """Return the client of `llm.model` and its fallbacks, or of the caller's plugins."""
        models = list(self.plugins.models) or self._open((self.settings.llm.model, *self.settings.llm.fallbacks))
        if self.plugins.models and self.settings.llm.context_window:  # plugins do not read settings
            for model in models:
                self._windows.set_window(model.name, self.settings.llm.context_window)
        return self._client(models)

    def build_memory(self, default: ModelClient) -> ModelClient:
        """Return the client of `memory.model`; *default* where that is not set."""
        return self._build_background(self.settings.memory.model, default, "memory.model")

    def build_dream(self, default: ModelClient) -> ModelClient:
        """Return the client of `dream.model_override`; *default* where that is not set."""
        name = self.settings.agents.defaults.dream.model_override
        return self._build_background(name, default, "agents.defaults.dream.model_override")

    def _build_background(self, name: str | None, default: ModelClient, setting: str) -> ModelClient:
        if not name:
            return default
        own = [each for each in self.plugins.models if each.name == name]
        return self._client(own or self._open((name, *self.settings.llm.fallbacks), setting=setting))

    def build_catalog(self, default: ModelClient) -> ModelCatalog:
        """Return *default* and every other model that a chat can have, each with the same fallbacks."""
        llm = self.settings.llm
        settings = {name: f"llm.models.{name}" for name in llm.models}
        for place, entry in self.settings.chats.items():
            if entry.model:  # users cannot select it unless it is also in llm.models
                settings.setdefault(entry.model, f"chats.{place}.model")
        clients: dict[str, ModelClient] = {}
        for name, setting in settings.items():
            model = llm.entry(name).model
            own = [each for each in self.plugins.models if each.name in (name, model)][:1]
            models = own or self._open([name], setting=setting)
            models += self._open([each for each in llm.fallbacks if each not in (name, model)])
            clients[name] = self._client(models)
        name = default.name if self.plugins.models else llm.model
        efforts = {each: llm.entry(each).effort or "" for each in (name, *settings)}
        return ModelCatalog(default, clients, name=name, choosable=tuple(llm.models), efforts=efforts)

    def build_single(self, name: str) -> ModelClient:
        """Return a client of the model *name* alone, which learns nothing; raise SettingsError if it cannot be used."""
        own = [each for each in self.plugins.models if each.name == name]
        models = own or self._open((name,), setting="--model")
        return ModelClient(models, recorder=self.recorder, meter=self.meter, now=self.now)

    def _client(self, models: list[ChatModel]) -> ModelClient:
        return ModelClient(
            models,
            attempts=self.settings.llm.attempts,
            recorder=self.recorder,
            meter=self.meter,
            now=self.now,
            windows=self._windows,
            facts=self.facts,
            observer=self.observer,
        )

    def _open(self, names: Iterable[str], *, setting: str = "llm.model") -> list[ChatModel]:
        """Open the models called *names*. Raises SettingsError, which names *setting*."""
        llm, proxy = self.settings.llm, self.settings.proxy_address
        return [open_model(_config(llm, name, proxy), setting=setting) for name in names]


def build_models(factory: ModelFactory) -> ModelServices:
    """Build every model client. Raises SettingsError."""
    default = factory.build_default()
    background = (factory.build_memory(default), factory.build_dream(default))
    return ModelServices(default, factory.build_catalog(default), *background)


async def take_over_model_facts(models: ModelServices, home: Path) -> None:
    """Take over what earlier releases have kept about models in files of the home."""
    facts = models.default.facts
    names = {name: kept_as for each in models.all() for name, kept_as in each.names()}
    await take_over_trials(home, facts)
    await take_over_windows(home / "windows.json", facts, names)


def configured_models(settings: Settings) -> tuple[str, ...]:
    """Return the models that conversations may be sent to, as litellm names them."""
    llm = settings.llm
    background = (settings.memory.model, settings.agents.defaults.dream.model_override)
    chats = (entry.model for entry in settings.chats.values())
    names = (llm.model, *llm.fallbacks, *llm.models, *chats, *background)
    return tuple(dict.fromkeys(llm.entry(name).model for name in names if name))


def unpriced_models(settings: Settings) -> tuple[str, ...]:
    """Return the models that answer people without a known price. Blocks for some milliseconds each."""
    llm = settings.llm
    names = (llm.model, *llm.fallbacks, *llm.models, *(entry.model for entry in settings.chats.values()))
    entries = [llm.entry(name) for name in dict.fromkeys(names) if name]
    unpriced = (each.model for each in entries if each.prices is None and not is_priced(each.model))
    return tuple(dict.fromkeys(each for each in unpriced if each.partition(":")[0] != OFFLINE))


def unknown_fallbacks(llm: LlmSettings) -> tuple[str, ...]:
    """Return the fallbacks without a provider that are neither in `llm.models` nor in the table. Blocks a moment."""
    known = (OFFLINE, llm.model, *llm.models)
    bare = [name for name in llm.fallbacks if name not in known and "/" not in name and ":" not in name]
    return tuple(name for name in bare if not is_priced(name))


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
