"""Which language a chat is spoken to in, and which clock a scope goes by. Implements `gateway.ports.Locales`."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from gateway.events import ChatKind, InboundMessage, SessionKey
from gateway.i18n import SLASH, ChatLanguage
from gateway.i18n.time_zones import is_zone
from gateway.ports import PreferenceStore

LANGUAGE, ZONE = "language", "timezone"  # names of choices
PROFILE_ZONE = "profile_timezone"  # what the platform's profile says, for who chose none
_KEPT = 50_000  # chats whose scope is known

K = TypeVar("K")
V = TypeVar("V")
Setting = Callable[[SessionKey, str], str]  # what the operator decided for a chat in a guild; "" = nothing


class ChatLocales:
    """Chosen goes before decided, decided before what the platform says, and that before what holds everywhere."""

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
        known: Mapping[SessionKey, str],
        sign: Callable[[SessionKey], str] = lambda _: SLASH,
    ) -> None:
        """*scope* says whose memory a message reads, *scopes* guesses it of a chat that was not noted yet.

        *chat* is the chat of a shared scope.
        *sign* is what stands before a command's name in a chat.
        *known* is what the last run left: the chats of those who chose a language.
        """
        self._people = people
        self._language = language
        self._zone = zone
        self._set_language = set_language
        self._set_zone = set_zone
        self._scope = scope
        self._guess = scopes
        self._chat = chat
        self._sign = sign
        self._scopes: OrderedDict[SessionKey, str] = OrderedDict(known)
        self._keys: OrderedDict[str, SessionKey] = OrderedDict()
        self._guilds: OrderedDict[SessionKey, str] = OrderedDict()  # by parent

    def note(self, key: SessionKey, scope: str, guild: str = "") -> None:
        """Learn whose memory the chat *key* reads, and which server it is in."""
        _keep(self._scopes, key, scope)
        _keep(self._keys, scope, key)
        if guild:
            _keep(self._guilds, key.parent, guild)

    async def observe_language(self, message: InboundMessage) -> str:
        """Learn whose chat an admitted *message* came from, and return its language.

        What a sender's profile says of their time zone is kept for their direct chats. Raises StoreUnavailable.
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
        """Return the language of our own sentences in a chat, which knows how commands are typed there."""
        chosen = (self._people.preferences(scope).get(LANGUAGE, "") for scope in self._read_by(key))
        language = next(filter(None, chosen), "") or self._decided(self._set_language, key) or self._language
        sign = self._sign(key)
        return language if sign == SLASH else ChatLanguage(language, sign)

    def clock(self, key: SessionKey) -> str:
        """Return the IANA time zone of a chat."""
        scopes = self._read_by(key)
        chosen = (scope for scope in scopes if {ZONE, PROFILE_ZONE} & self._people.preferences(scope).keys())
        if (scope := next(chosen, None)) is not None:
            return self.zone(scope)
        return self._decided(self._set_zone, key) or self._zone

    def zone(self, scope: str) -> str:
        """Return the IANA time zone in force in *scope*."""
        key = self._chat(scope) or self._keys.get(scope)
        decided = self._decided(self._set_zone, key) if key is not None else ""
        chosen = self._people.preferences(scope)
        return chosen.get(ZONE, "") or decided or chosen.get(PROFILE_ZONE, "") or self._zone

    def _read_by(self, key: SessionKey) -> Sequence[str]:
        known = self._scopes.get(key)
        return self._guess(key) if known is None else (known,)

    def _decided(self, setting: Setting, key: SessionKey) -> str:
        return setting(key, self._guilds.get(key.parent, ""))


def _keep(known: OrderedDict[K, V], name: K, value: V) -> None:
    known[name] = value
    known.move_to_end(name)
    while len(known) > _KEPT:
        known.popitem(last=False)
