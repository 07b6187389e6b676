"""Language of each chat and time zone of each scope. Implements `gateway.ports.LocaleProvider`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from cachetools import LRUCache

from gateway.events import ChatKind, InboundMessage, SessionKey
from gateway.i18n import SLASH, ChatLanguage
from gateway.i18n.time_zones import is_zone
from gateway.ports import PreferenceStore

LANGUAGE, ZONE = "language", "timezone"  # names of choices
PROFILE_ZONE = "profile_timezone"  # of the platform's profile, unless the user chose one
_CACHED = 50_000  # chats

Setting = Callable[[SessionKey, str], str]  # the operator's setting for a chat in a guild; "" = none


class ChatLocales:
    """The effective language and time zone of chats and scopes.

    The user's choice has precedence over the operator's setting for the chat, that over the platform's profile, and
    that over the default of the installation.
    """

    def __init__(
        self,
        people: PreferenceStore,
        *,
        language: str,
        zone: str,
        set_language: Setting,
        set_zone: Setting,
        scope: Callable[[InboundMessage], str],
        scopes: Callable[[SessionKey], Sequence[str]],
        chat: Callable[[str], SessionKey | None],
        known_scopes: Mapping[SessionKey, str],
        command_prefix: Callable[[SessionKey], str] = lambda _: SLASH,
    ) -> None:
        """*scope* returns the scope of a message, *scopes* the likely scopes of a chat without messages.

        *chat* returns the chat of a shared scope, *command_prefix* the prefix of commands in a chat. *known_scopes* are
        the chats whose users chose a language before this start.
        """
        self._people = people
        self._language = language
        self._zone = zone
        self._set_language = set_language
        self._set_zone = set_zone
        self._scope = scope
        self._guess = scopes
        self._chat = chat
        self._command_prefix = command_prefix
        self._scopes: LRUCache[SessionKey, str] = LRUCache(_CACHED)
        self._scopes.update(known_scopes)
        self._keys: LRUCache[str, SessionKey] = LRUCache(_CACHED)
        self._guilds: LRUCache[SessionKey, str] = LRUCache(_CACHED)  # by parent

    def note(self, key: SessionKey, scope: str, guild: str = "") -> None:
        """Note the scope and the guild of the chat *key*."""
        self._scopes[key] = scope
        self._keys[scope] = key
        if guild:
            self._guilds[key.parent] = guild

    async def observe_language(self, message: InboundMessage) -> str:
        """Note the scope of an admitted *message*, and return the language of its chat.

        The time zone of the sender's profile is stored for direct chats. Raises StoreUnavailable.
        """
        scope = self._scope(message)
        self.note(message.key, scope, message.guild)
        if message.chat_kind is ChatKind.DIRECT and message.sender.timezone:
            await self._keep_zone(scope, message.sender.timezone)
        return self.language(message.key)

    async def _keep_zone(self, scope: str, zone: str) -> None:
        is_news = self._people.preferences(scope).get(PROFILE_ZONE) != zone
        if is_news and await asyncio.to_thread(is_zone, zone):  # which reads a file
            await self._people.prefer(scope, PROFILE_ZONE, zone)

    def language(self, key: SessionKey) -> str:
        """Return the language of our own sentences in a chat, with the prefix of commands there."""
        chosen = (self._people.preferences(scope).get(LANGUAGE, "") for scope in self._scopes_of(key))
        language = next(filter(None, chosen), "") or self._setting_of(self._set_language, key) or self._language
        prefix = self._command_prefix(key)
        return language if prefix == SLASH else ChatLanguage(language, prefix)

    def clock(self, key: SessionKey) -> str:
        """Return the IANA time zone of a chat."""
        scopes = self._scopes_of(key)
        chosen = (scope for scope in scopes if {ZONE, PROFILE_ZONE} & self._people.preferences(scope).keys())
        if (scope := next(chosen, None)) is not None:
            return self.zone(scope)
        return self._setting_of(self._set_zone, key) or self._zone

    def zone(self, scope: str) -> str:
        """Return the effective IANA time zone of *scope*."""
        key = self._chat(scope) or self._keys.get(scope)
        setting = self._setting_of(self._set_zone, key) if key is not None else ""
        chosen = self._people.preferences(scope)
        return chosen.get(ZONE, "") or setting or chosen.get(PROFILE_ZONE, "") or self._zone

    def _scopes_of(self, key: SessionKey) -> Sequence[str]:
        scope = self._scopes.get(key)
        return self._guess(key) if scope is None else (scope,)

    def _setting_of(self, setting: Setting, key: SessionKey) -> str:
        return setting(key, self._guilds.get(key.parent, ""))
