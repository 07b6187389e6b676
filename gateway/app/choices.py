"""How each chat is answered: the models there are to choose from, and what the settings decide for one chat."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

from agent.llm.books import Books
from agent.llm.choices import ModelDesk, Models
from agent.llm.client import ModelClient
from agent.manners import Manners
from agent.tools.registry import Toolbox
from gateway.app.channels import Plugins
from gateway.app.models import open_named
from gateway.events import SessionKey
from gateway.ports import Meter, People
from gateway.settings import Settings
from gateway.settings.chats import Chats


def open_choices(
    settings: Settings,
    usual: ModelClient,
    books: Books,
    meter: Meter,
    plugins: Plugins,
    now: Callable[[], datetime],
) -> Models:
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
    return Models(usual, named, name=name, offered=tuple(llm.models))


def open_manners(chats: Chats, models: Models, toolbox: Toolbox, people: People) -> Manners:
    """Return what says how a chat is answered."""
    desk = ModelDesk(models, people, lambda key, guild: chats.of(key, guild).model)
    return Manners(desk, toolbox, people, chats.of, has_guilds=chats.has_guilds)


def asked(settings: Settings) -> tuple[str, ...]:
    """Return the models that conversations may be sent to, as litellm names them."""
    llm = settings.llm
    names = (llm.model, *llm.fallbacks, *llm.models, *(entry.model for entry in settings.chats.values()))
    return tuple(dict.fromkeys(llm.entry(name).model for name in names if name))


def sees(settings: Settings, manners: Manners) -> Callable[[SessionKey], Awaitable[bool]]:
    """Return what says whether the model that answers in a chat looks at pictures."""
    always = {"on": True, "off": False}.get(settings.llm.vision)

    async def looks(key: SessionKey) -> bool:
        model = manners.of(key).model
        return await model.sees() if always is None or model is not manners.models.models.usual else always

    return looks
