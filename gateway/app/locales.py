"""Languages and time zones of one installation: what the settings say, and whose memory a chat reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import unquote

from agent.chat_profiles import noted_guild
from agent.memory.scopes import person_of, quote, scope_of
from gateway.chat_locales import ChatLocales
from gateway.events import InboundMessage, SessionKey
from gateway.ports import AccountLinkStore, PreferenceStore
from gateway.settings import Settings
from gateway.settings.chat_overrides import ChatOverride, ChatOverrides


def open_locales(
    settings: Settings,
    chats: ChatOverrides,
    people: PreferenceStore,
    links: AccountLinkStore,
    kinds: Mapping[str, str],
    sign: Callable[[SessionKey], str],
) -> ChatLocales:
    """Return what says which language a chat is spoken to in and which zone a scope goes by; *sign* as `sign_of`."""

    def scope(message: InboundMessage) -> str:
        account = person_of(message, kinds.get(message.key.channel, ""))
        return scope_of(message, links.person(account), isolation=settings.memory.isolation)

    def decided(key: SessionKey, guild: str) -> ChatOverride:
        # Work that no message begins does not know where a chat is.
        return chats.of(key, guild or (noted_guild(people, key) if chats.has_guilds else ""))

    return ChatLocales(
        people,
        language=settings.language,
        zone=settings.timezone,
        set_language=lambda key, guild: decided(key, guild).language or "",
        set_zone=lambda key, guild: decided(key, guild).timezone or "",
        scope=scope,
        scopes=_scopes(settings.memory.isolation, links, kinds),
        chat=_chat,
        known=people.choosers(),
        sign=sign,
    )


def _scopes(
    isolation: str, links: AccountLinkStore, kinds: Mapping[str, str]
) -> Callable[[SessionKey], tuple[str, ...]]:
    """Return whose memory a chat may read that nobody has spoken in yet.

    A direct chat is often named after who sits there, which is a guess: where it is wrong, nobody of that name has
    chosen anything.
    """

    def scopes(key: SessionKey) -> tuple[str, ...]:
        if isolation == "shared":
            return ("",)
        account = quote(f"{kinds.get(key.channel, key.channel)}:{key.chat}")
        rooms = dict.fromkeys((f"chats/{quote(str(key))}", f"chats/{quote(str(key.parent))}"))
        return (f"people/{links.person(account)}", *rooms)

    return scopes


def _chat(scope: str) -> SessionKey | None:
    """Return the chat that a shared scope is the memory of; None for a person's, and for a name too long to be read."""
    area, _, name = scope.partition("/")
    if area != "chats" or "%-" in name:
        return None
    try:
        return SessionKey.parse(unquote(name))
    except ValueError:
        return None
