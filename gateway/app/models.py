"""The models that the settings name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from agent.llm.chat_model import ChatModel, ModelConfig
from agent.llm.context_windows import ContextWindows
from agent.llm.model_client import ModelClient
from agent.llm.model_registry import open_model
from agent.llm.usage_recorder import UsageRecorder
from gateway.app.channels import ExtraPlugins
from gateway.ports import MetricsRecorder
from gateway.settings import Settings
from gateway.settings.llm import LlmSettings


def open_models(
    settings: Settings, books: UsageRecorder, meter: MetricsRecorder, plugins: ExtraPlugins, now: Callable[[], datetime]
) -> ModelClient:
    """Return the first model that answers of those that the settings (or the caller's plugins) name."""
    llm = settings.llm
    models = list(plugins.models) or open_named(llm, (llm.model, *llm.fallbacks), settings.proxy_address)
    windows = ContextWindows(settings.home / "windows.json", now=now)
    if plugins.models and llm.context_window:  # models of the caller's know nothing of settings
        for model in models:
            windows.set_window(model.name, llm.context_window)
    return ModelClient(models, attempts=llm.attempts, books=books, meter=meter, now=now, windows=windows)


def open_dream_model(
    settings: Settings,
    house: ModelClient,
    books: UsageRecorder,
    meter: MetricsRecorder,
    plugins: ExtraPlugins,
    now: Callable[[], datetime],
) -> ModelClient:
    """Return the model that Dream asks: that of *house*, unless the settings name one of its own."""
    llm, name = settings.llm, settings.agents.defaults.dream.model_override
    if not name:
        return house
    named = [each for each in plugins.models if each.name == name]
    models = named or open_named(llm, (name, *llm.fallbacks), settings.proxy_address)
    return ModelClient(models, attempts=llm.attempts, books=books, meter=meter, now=now, windows=house.windows)


def open_named(llm: LlmSettings, names: Iterable[str], proxy: str, *, setting: str = "llm.model") -> list[ChatModel]:
    """Open the models that *names* mean, each at its own address. Raises SettingsError, about *setting*."""
    opened = []
    for name in names:
        entry = llm.entry(name)
        config = ModelConfig(
            model=entry.model,
            label=name,
            api_base=str(entry.api_base or ""),
            api_key=entry.api_key.get_secret_value() if entry.api_key else "",
            timeout=llm.timeout_seconds,
            stream_silence=llm.stream_silence_seconds,
            context_window=entry.context_window,
            vision=entry.vision,
            proxy=proxy,
        )
        opened.append(open_model(config, setting=setting))
    return opened
