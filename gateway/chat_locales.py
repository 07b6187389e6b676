"""Language of each chat and time zone of each scope."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cachetools import LRUCache

from gateway.events import ChatKind, InboundMessage, SessionKey
from gateway.i18n import SLASH, ChatLanguage, resolve_language
from gateway.i18n.formats import is_zone
from gateway.ports.access import ChatOverride, MessageContext

if TYPE_CHECKING:
    from gateway.store.records import SqlPreferences


LANGUAGE, ZONE = "language", "timezone"  # names of choices
PROFILE_ZONE = "profile_timezone"  # of the platform's profile or the browser, unless the user chose one
PROFILE_LANGUAGE = "profile_language"  # of the browser, unless the user or the operator chose one
_CACHED = 50_000  # chats


@dataclass(frozen=True, slots=True)
class ChatLocale:
    """The language of a chat, and the time zone of its memory scope."""

    language: str  # one of `gateway.i18n`
    zone: str  # IANA


class ChatLocales:
    """The effective language and time zone of chats and scopes.

    The user's choice has precedence over the operator's setting for the chat, that over the profile of the platform or
    browser, and that over the default of the installation. A language that the operator set for the installation has
    precedence over a browser's.
    """

    def __init__(
        self,
        people: SqlPreferences,
        *,
        language: str,
        is_language_set: bool = False,
        zone: str,
        overrides: Callable[[SessionKey, str], ChatOverride],
        scopes: Callable[[SessionKey], Sequence[str]],
        chat: Callable[[str], SessionKey | None],
        known_scopes: Mapping[SessionKey, str],
        command_prefix: Callable[[SessionKey], str] = lambda _: SLASH,
    ) -> None:
        """*overrides* returns the operator's settings for a chat in a guild ("" = not known).

        *scopes* returns the likely scopes of a chat without messages, *chat* the chat of a shared scope, and
        *command_prefix* the prefix of commands in a chat. *known_scopes* are the chats whose users chose a language
        before this start.
        """
        self._people = people
        self._language = language
        self._is_language_set = is_language_set
        self._zone = zone
        self._overrides = overrides
        self._guess = scopes
        self._chat = chat
        self._command_prefix = command_prefix
        self._scopes: LRUCache[SessionKey, str] = LRUCache(_CACHED)
        self._scopes.update(known_scopes)
        self._keys: LRUCache[str, SessionKey] = LRUCache(_CACHED)
        self._guilds: LRUCache[SessionKey, str] = LRUCache(_CACHED)  # by parent

    def observe(self, message: InboundMessage, context: MessageContext) -> ChatLocale:
        """Note the memory scope of the chat of *message*, and return the chat's language and the scope's time zone.

        A direct chat's key need not name its user.
        """
        key, scope = message.key, context.scope
        self._scopes[key] = scope
        self._keys[scope] = key
        if message.guild:
            self._guilds[key.parent] = message.guild
        chosen = self._people.preferences(scope)
        # A thread may have a language of its own; the clock is the scope's.
        is_whole_chat = (self._chat(scope) or key) == key
        zone = self._zone_of(chosen, context.overrides if is_whole_chat else context.parent_overrides)
        choice = chosen.get(LANGUAGE, "") or context.overrides.language or self._profile_language(scope)
        return ChatLocale(self._language_of(key, choice), zone)

    async def observe_language(self, message: InboundMessage, context: MessageContext) -> str:
        """Note the scope of an admitted *message*, and return the language of its chat.

        The time zone of the sender's profile is stored for direct chats. Raises StoreUnavailable.
        """
        language = self.observe(message, context).language
        if message.chat_kind is ChatKind.DIRECT and message.sender.timezone:
            await self._keep_zone(context.scope, message.sender.timezone)
        return language

    async def _keep_zone(self, scope: str, zone: str) -> None:
        is_news = self._people.preferences(scope).get(PROFILE_ZONE) != zone
        if is_news and await asyncio.to_thread(is_zone, zone):  # which reads a file
            await self._people.prefer(scope, PROFILE_ZONE, zone)

    def has_profile(self, scope: str) -> bool:
        """Return True if language and time zone of *scope* were chosen or are known from a profile."""
        names = self._people.preferences(scope).keys()
        return bool({LANGUAGE, PROFILE_LANGUAGE} & names and {ZONE, PROFILE_ZONE} & names)

    async def note_profile(self, scope: str, *, languages: Sequence[str], zone: str) -> None:
        """Store the first supported of a browser's *languages*, and its time zone, where nothing is known of *scope*.

        Raises StoreUnavailable.
        """
        known = self._people.preferences(scope).keys()
        language = next(filter(None, map(resolve_language, languages)), "")
        if language and not {LANGUAGE, PROFILE_LANGUAGE} & known:
            await self._people.prefer(scope, PROFILE_LANGUAGE, language)
        if not {ZONE, PROFILE_ZONE} & known:
            await self._keep_zone(scope, zone)

    def language(self, key: SessionKey) -> str:
        """Return the language of our own sentences in a chat, with the prefix of commands there."""
        return self._language_of(key, self._known_language(key))

    def page_language(self, key: SessionKey, languages: Sequence[str]) -> str:
        """Return the language of a page for a browser that prefers *languages*, in a chat or before a login.

        The browser's first supported language is taken if `language` would return the unset default.
        """
        known = self._known_language(key)
        if not known and not self._is_language_set:
            known = next(filter(None, map(resolve_language, languages)), "")
        return self._language_of(key, known)

    def _known_language(self, key: SessionKey) -> str:
        scopes = self._scopes_of(key)
        chosen = (self._people.preferences(scope).get(LANGUAGE, "") for scope in scopes)
        choice = next(filter(None, chosen), "") or self._overrides_of(key).language
        return choice or next(filter(None, map(self._profile_language, scopes)), "")

    def _profile_language(self, scope: str) -> str:
        return "" if self._is_language_set else self._people.preferences(scope).get(PROFILE_LANGUAGE, "")

    def _language_of(self, key: SessionKey, choice: str | None) -> str:
        language = choice or self._language
        prefix = self._command_prefix(key)
        return language if prefix == SLASH else ChatLanguage(language, prefix)

    def clock(self, key: SessionKey) -> str:
        """Return the IANA time zone of a chat."""
        scopes = self._scopes_of(key)
        chosen = (scope for scope in scopes if {ZONE, PROFILE_ZONE} & self._people.preferences(scope).keys())
        if (scope := next(chosen, None)) is not None:
            return self.zone(scope)
        return self._overrides_of(key).timezone or self._zone

    def zone(self, scope: str) -> str:
        """Return the effective IANA time zone of *scope*."""
        key = self._chat(scope) or self._keys.get(scope)
        return self._zone_of(self._people.preferences(scope), None if key is None else self._overrides_of(key))

    def _zone_of(self, chosen: Mapping[str, str], overrides: ChatOverride | None) -> str:
        setting = overrides.timezone if overrides is not None else None
        return chosen.get(ZONE, "") or setting or chosen.get(PROFILE_ZONE, "") or self._zone

    def _scopes_of(self, key: SessionKey) -> Sequence[str]:
        scope = self._scopes.get(key)
        return self._guess(key) if scope is None else (scope,)

    def _overrides_of(self, key: SessionKey) -> ChatOverride:
        return self._overrides(key, self._guilds.get(key.parent, ""))
