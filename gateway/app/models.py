"""The models that the settings name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from agent.llm.books import Books
from agent.llm.client import ModelClient
from agent.llm.port import ChatModel, ModelConfig
from agent.llm.registry import open_model
from agent.llm.windows import Windows
from gateway.app.channels import Plugins
from gateway.ports import Meter
from gateway.settings import Settings
from gateway.settings.llm import Llm


def open_models(
    settings: Settings, books: Books, meter: Meter, plugins: Plugins, now: Callable[[], datetime]
) -> ModelClient:
    """Return the first model that answers of those that the settings (or the caller's plugins) name."""
    llm = settings.llm
    models = list(plugins.models) or _models(llm, (llm.model, *llm.fallbacks))
    windows = Windows(settings.home / "windows.json", now=now)
    if plugins.models and llm.context_window:  # models of the caller's know nothing of settings
        for model in models:
            windows.known(model.name, llm.context_window)
    return ModelClient(models, attempts=llm.attempts, books=books, meter=meter, now=now, windows=windows)


def open_dream_model(
    settings: Settings,
    house: ModelClient,
    books: Books,
    meter: Meter,
    plugins: Plugins,
    now: Callable[[], datetime],
) -> ModelClient:
    """Return the model that Dream asks: that of *house*, unless the settings name one of its own."""
    llm, name = settings.llm, settings.agents.defaults.dream.model_override
    if not name:
        return house
    models = [each for each in plugins.models if each.name == name] or _models(llm, (name, *llm.fallbacks))
    return ModelClient(models, attempts=llm.attempts, books=books, meter=meter, now=now, windows=house.windows)


def _models(llm: Llm, names: Iterable[str]) -> list[ChatModel]:
    return [
        open_model(
            ModelConfig(
                model=name,
                api_base=str(llm.api_base or ""),
                api_key=llm.api_key.get_secret_value() if llm.api_key else "",
                timeout=llm.timeout_seconds,
                stream_silence=llm.stream_silence_seconds,
                context_window=llm.context_window,
                vision=llm.vision,
            )
        )
        for name in names
    ]
