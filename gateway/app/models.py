"""Language models: the default one, those a chat can select, and Dream's, each behind a client with retries."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cached_property
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
        for place, entry in self._settings.chats.items():
            if entry.model:  # users cannot select it unless it is also in llm.models
                settings.setdefault(entry.model, f"chats.{place}.model")
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
