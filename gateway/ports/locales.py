"""Language of each chat and time zone of each memory scope, served from memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gateway.events import InboundMessage, SessionKey
from gateway.ports.message_context import MessageContext


def in_english(key: SessionKey) -> str:  # noqa: ARG001 - the same everywhere
    """Return "en", the language of chats without a choice."""
    return "en"


def channel_wide_key(block: str) -> SessionKey:
    """Return the key that stands for all chats of a channel's block, for what is said to no chat: menus, a login."""
    return SessionKey(block, "*")


@dataclass(frozen=True, slots=True)
class ChatLocale:
    """The language of a chat, and the time zone of its memory scope."""

    language: str  # one of `gateway.i18n.languages`
    zone: str  # IANA


class LocaleProvider(Protocol):
    """Language of each chat and time zone of each scope. Served from memory, without disk access.

    A choice of the person or chat precedes the operator's setting for the chat, which precedes the global setting.
    """

    def language(self, key: SessionKey) -> str:
        """Return the language of our own sentences in a chat: one of `gateway.i18n.languages`."""

    def zone(self, scope: str) -> str:
        """Return the effective IANA time zone of *scope*."""

    def observe(self, message: InboundMessage, context: MessageContext) -> ChatLocale:
        """Note the memory scope of the chat of *message*, and return the chat's language and the scope's time zone.

        A direct chat's key need not name its user.
        """
