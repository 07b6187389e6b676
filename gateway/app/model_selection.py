"""How each chat is answered: the models there are to choose from, and what the settings decide for one chat."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

from agent.chat_profiles import ChatProfiles
from agent.llm.model_catalog import ModelCatalog, ModelSelector
from agent.llm.model_client import ModelClient
from agent.llm.usage_recorder import UsageRecorder
from agent.tools.toolbox import Toolbox
from gateway.app.channels import ExtraPlugins
from gateway.app.models import open_named
from gateway.events import SessionKey
from gateway.ports import MetricsRecorder, PreferenceStore
from gateway.settings import Settings
from gateway.settings.chat_overrides import ChatOverrides


def open_choices(
    settings: Settings,
    usual: ModelClient,
    books: UsageRecorder,
    meter: MetricsRecorder,
    plugins: ExtraPlugins,
    now: Callable[[], datetime],
) -> ModelCatalog:
    """Return *usual* and every other model that a chat can have; the fallbacks stand in for whichever it is."""
    llm, proxy = settings.llm, settings.proxy_address
    wanted = {name: f"llm.models.{name}" for name in llm.models}
    for place, entry in settings.chats.items():
        if entry.model:  # the operator's alone to choose, where it is not among those
            wanted.setdefault(entry.model, f"chats.{place}.model")
    named: dict[str, ModelClient] = {}
    for name, setting in wanted.items():
        model = llm.entry(name).model
        own = [each for each in plugins.models if each.name in (name, model)][:1]
        models = own or open_named(llm, [name], proxy, setting=setting)
        models += open_named(llm, [each for each in llm.fallbacks if each not in (name, model)], proxy)
        named[name] = ModelClient(
            models, attempts=llm.attempts, books=books, meter=meter, now=now, windows=usual.windows
        )
    name = usual.name if plugins.models else llm.model
    return ModelCatalog(usual, named, name=name, offered=tuple(llm.models))


def open_manners(chats: ChatOverrides, models: ModelCatalog, toolbox: Toolbox, people: PreferenceStore) -> ChatProfiles:
    """Return what says how a chat is answered."""
    desk = ModelSelector(models, people, lambda key, guild: chats.of(key, guild).model)
    return ChatProfiles(desk, toolbox, people, chats.of, has_guilds=chats.has_guilds)


def configured_models(settings: Settings) -> tuple[str, ...]:
    """Return the models that conversations may be sent to, as litellm names them."""
    llm = settings.llm
    names = (llm.model, *llm.fallbacks, *llm.models, *(entry.model for entry in settings.chats.values()))
    return tuple(dict.fromkeys(llm.entry(name).model for name in names if name))


def build_vision_check(settings: Settings, manners: ChatProfiles) -> Callable[[SessionKey], Awaitable[bool]]:
    """Return what says whether the model that answers in a chat looks at pictures."""
    always = {"on": True, "off": False}.get(settings.llm.vision)

    async def looks(key: SessionKey) -> bool:
        model = manners.of(key).model
        return await model.sees() if always is None or model is not manners.models.models.usual else always

    return looks
