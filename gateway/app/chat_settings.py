"""Effective settings of one chat: language, time zone, model, tools and the others, with their origin."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

import structlog

from agent.base.scopes import account_of, chat_scope, scope_of
from agent.skills import SkillLibrary
from agent.tools.rights import OperatorRights
from agent.tools.tool import AskRule, Tool
from agent.tools.toolbox import GROUP, Toolbox
from agent.turns.chat_profiles import (
    ChatProfiles,
    EffectiveSetting,
    ModelChoiceOrigin,
)
from gateway.app.context import ChannelPlatforms, ExtraPlugins
from gateway.channel import SupportsCommandPrefix
from gateway.chat_locales import LANGUAGE, ZONE, ChatLocales
from gateway.errors import SettingsError
from gateway.events import ChatKind, InboundMessage, PlatformAccount, Role, SessionKey
from gateway.i18n import SLASH
from gateway.installation import load_entry_points
from gateway.ports.access import ChatOverride, MessageContext
from gateway.ports.channel import ReplyPolicy
from gateway.settings.settings_model import Settings, ToolRightsSettings, disabled_tools

if TYPE_CHECKING:  # what is off is not imported
    from agent.web.search_engines import SearchEngine
    from agent.web.web_tools import WebPages
    from gateway.app.runtime import Runtime
    from gateway.store.account_links import SqlAccountLinks

log = structlog.get_logger(__name__)

_INSTALLATION, _CHANNEL, _CHOSEN = "everywhere", "block", "chosen"  # origins, as the catalogue knows them


def build_context_resolver(app: Runtime) -> Callable[[InboundMessage], MessageContext]:
    """Return the function that derives the sender's account and person, the memory scope and the chat's settings."""
    overrides_of, links, platforms = app.overrides_of, app.store.links, app.platforms
    isolation = app.settings.memory.isolation

    def context_of(message: InboundMessage) -> MessageContext:
        key = message.key
        account = account_of(message, platforms.get(key.channel, ""))
        person = links.person(account)
        overrides = overrides_of(key, message.guild)
        return MessageContext(
            account=account,
            person=person,
            linked=tuple(each.account for each in links.accounts(person)),
            scope=scope_of(message, person, isolation=isolation),
            overrides=overrides,
            parent_overrides=overrides_of(key.parent, message.guild) if "/" in key.chat else overrides,
        )

    return context_of


def build_locales(app: Runtime) -> ChatLocales:
    """Return the language of each chat and the time zone of each scope."""
    settings, people = app.settings, app.store.people
    return ChatLocales(
        people,
        language=settings.language,
        is_language_set="language" in settings.model_fields_set,
        zone=settings.timezone,
        overrides=app.overrides_of,
        scopes=build_scope_guess(settings.memory.isolation, app.store.links, app.platforms),
        chat=_chat,
        known_scopes=people.choosers(),
        command_prefix=app.command_prefix,
    )


def build_command_prefix(settings: Settings, plugins: ExtraPlugins) -> Callable[[SessionKey], str]:
    """Return the function that gives the prefix commands are typed with in a chat, as its platform has it."""
    entry_points = {entry.name: entry for entry in load_entry_points("parlour.channels")}
    installed = {name: entry_points[block.kind].load() for name, block in settings.channels.items() if block.enabled}
    installed |= {extra.name: extra.kind for extra in plugins.channels}
    prefixes = {
        name: plugin.command_prefix for name, plugin in installed.items() if isinstance(plugin, SupportsCommandPrefix)
    }

    def prefix(key: SessionKey) -> str:
        return prefixes[key.channel](key) if key.channel in prefixes else SLASH

    return prefix


def build_scope_guess(
    isolation: str, links: SqlAccountLinks, platforms: ChannelPlatforms
) -> Callable[[SessionKey], tuple[str, ...]]:
    """Return the function that names the scopes that a chat without messages may belong to.

    Where the id of a direct chat is its user's, these include the user's person. Where users belong to teams, the team
    is not known yet: each linked person of that user is included.
    """

    def persons(key: SessionKey) -> Iterable[str]:
        traits = platforms.traits(key.channel)
        if not traits.chat_is_person or traits.is_group(key):
            return ()
        user = PlatformAccount(kind=platforms.get(key.channel, key.channel), id=key.parent.chat)
        return (each.person for each in links.accounts_of_user(user)) if traits.has_teams else (links.person(user),)

    def scopes(key: SessionKey) -> tuple[str, ...]:
        if isolation == "shared":
            return ("",)
        chats = (chat_scope(key), chat_scope(key.parent))
        return tuple(dict.fromkeys((*(f"people/{person}" for person in persons(key)), *chats)))

    return scopes


def _chat(scope: str) -> SessionKey | None:
    """Return the chat of a chat scope; None for a person's scope, and for a name that was too long to be kept whole."""
    area, _, name = scope.partition("/")
    if area != "chats" or "%-" in name:
        return None
    try:
        return SessionKey.parse(unquote(name))
    except ValueError:
        return None


def list_disabled_tools(settings: Settings) -> Mapping[str, str]:
    """Return the reasons of all tools that are off, by name."""
    web, disabled = settings.tools.web, dict(disabled_tools(settings.tools))
    if not settings.tools.draw.model:
        disabled["draw"] = "no picture model is chosen: set PARLOUR_TOOLS__DRAW__MODEL"
    if not web.fetch:
        disabled["web_fetch"] = "PARLOUR_TOOLS__WEB__FETCH is false"
    if not web.search:
        disabled["web_search"] = "no search engine is chosen: set PARLOUR_TOOLS__WEB__SEARCH"
        return disabled
    from agent.web.web_tools import WebPages

    try:
        open_search_engine(settings, WebPages(proxy=settings.proxy_address))
    except SettingsError as error:
        disabled["web_search"] = str(error)
    return disabled


def build_web_tools(settings: Settings) -> Sequence[Tool]:
    """Return the web tools that are on. If the search engine cannot be used, the bot says that it cannot search."""
    web = settings.tools.web
    if not (web.fetch or web.search):
        return ()
    from agent.web.web_tools import WebPages, build_fetch_tool, build_search_tool

    pages = WebPages(proxy=settings.proxy_address, ports=web.ports)
    tools = [build_fetch_tool(pages)] if web.fetch else []
    if web.search:
        try:
            tools.append(build_search_tool(open_search_engine(settings, pages)))
        except SettingsError as error:
            log.warning("search.off", reason=str(error))
    return tools


def open_search_engine(settings: Settings, pages: WebPages) -> SearchEngine:
    """Return the configured engine over the client of *pages*; raise SettingsError if something is missing for it."""
    from agent.web.search_engines import SearchAccess, load_engine

    web = settings.tools.web
    key = web.search_key.get_secret_value() if web.search_key else ""
    access = SearchAccess(url=str(web.search_url or ""), key=key, proxy=settings.proxy_address, client=pages.client)
    return load_engine(web.search, access)


def build_profiles(app: Runtime, built: Sequence[Tool]) -> ChatProfiles:
    """Return the model, tools and persona of each chat. Loads every installed tool beside those already *built*."""
    result_chars = app.settings.agent.max_tool_result_chars
    disabled = disabled_tools(app.settings.tools)
    entries = [each for each in load_entry_points(GROUP) if each.name not in disabled]
    tools = (*app.plugins.tools, *build_web_tools(app.settings), *built)
    rights = {name: _rights(rule) for name, rule in app.settings.tools.rights.items()}
    toolbox = Toolbox.load(*tools, entries=entries, result_chars=result_chars, meter=app.meter, rights=rights)
    return ChatProfiles(
        app.models.catalog,
        toolbox,
        app.store.people,
        app.overrides_of,
        has_guilds=app.chats.has_guilds,
        choosable=app.chats.offered_profiles,
        deferred=lambda: app.mcp.tools,
        skills=SkillLibrary(app.settings.skills_folder),
        rights=rights,
    )


def _rights(rule: ToolRightsSettings) -> OperatorRights:
    kinds = {"direct": ChatKind.DIRECT, "shared": ChatKind.GROUP}
    return OperatorRights(
        who=None if rule.who is None else Role(rule.who),
        where=None if rule.where is None else frozenset(kinds[each] for each in rule.where),
        ask=None if rule.ask is None else AskRule(rule.ask),
    )


def build_vision_check(app: Runtime) -> Callable[[SessionKey], Awaitable[bool]]:
    """Return a predicate that is True for a chat whose model accepts images."""
    forced = {"on": True, "off": False}.get(app.settings.llm.vision)

    async def accepts_images(key: SessionKey) -> bool:
        model = app.profiles.of(key).model
        return await model.sees() if forced is None or model is not app.models.default else forced

    return accepts_images


def build_settings_view(app: Runtime) -> Callable[[SessionKey, str, str], Sequence[EffectiveSetting]]:
    """Return the function that lists the effective settings of a chat, its guild and its scope. None is secret."""
    settings, overrides_of, people, locales = app.settings, app.overrides_of, app.store.people, app.locales

    def list_settings(key: SessionKey, guild: str, scope: str) -> Sequence[EffectiveSetting]:
        rules, preferences = overrides_of(key, guild), people.preferences(scope)
        profile = app.profiles.of(key, guild)
        default = ReplyPolicy.of_block(settings.channels.get(key.channel))
        window = settings.agents.defaults.memory_window if rules.memory_window is None else rules.memory_window
        follows = default.follow_threads if rules.follow_threads is None else rules.follow_threads
        return [
            _setting(rules, "profile", profile.name or "–", is_chosen=profile.has_chosen_name),
            _setting(rules, "model", profile.active.name, is_chosen=profile.active.origin is ModelChoiceOrigin.CHOSEN),
            _setting(rules, "effort", profile.effort or "–", is_chosen=profile.has_chosen_effort),
            _setting(rules, "soul", "…" if rules.soul else "SOUL.md"),
            _setting(rules, "tools", ", ".join(profile.toolbox.names) or "–"),
            _setting(rules, "memory_window", str(window)),
            _setting(rules, "language", locales.language(key), is_chosen=LANGUAGE in preferences),
            _setting(rules, "timezone", locales.zone(scope), is_chosen=ZONE in preferences),
            _setting(rules, "group_policy", rules.group_policy or default.group_policy, _CHANNEL),
            _setting(rules, "reply_in", rules.reply_in or default.reply_in, _CHANNEL),
            _setting(rules, "follow_threads", str(follows).lower(), _CHANNEL),
            *_caps(rules),
        ]

    return list_settings


def _setting(
    rules: ChatOverride, name: str, value: str, origin: str = _INSTALLATION, *, is_chosen: bool = False
) -> EffectiveSetting:
    places = (rules.said_by.get(each, "") for each in (name, f"{name}.deny", f"{name}.allow"))
    origin = _CHOSEN if is_chosen else next(filter(None, places), origin)
    return EffectiveSetting(name=name, value=value, said_by=origin)


def _caps(rules: ChatOverride) -> Sequence[EffectiveSetting]:
    """Return the caps of this chat alone; /usage shows what is left of all caps."""
    names = sorted(name for name in rules.said_by if name.startswith("caps."))
    return [_setting(rules, name, str(getattr(rules.caps, name.removeprefix("caps.")))) for name in names]
