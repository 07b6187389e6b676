"""Whose language, and whose clock."""

from __future__ import annotations

from typing import Protocol

from gateway.events import SessionKey


def in_english(key: SessionKey) -> str:  # noqa: ARG001 - the same everywhere
    """Return the language of a chat where nobody has said which."""
    return "en"


def channel_wide_key(block: str) -> SessionKey:
    """Return the key that stands for all chats of a channel's block, for what is said to no chat: menus, a login."""
    return SessionKey(block, "*")


class LocaleProvider(Protocol):
    """The language of each chat and the time zone of each scope; served from memory, never from the disk.

    What a person or chat has chosen goes before what the operator decided for that chat, and that before what
    holds everywhere (PEOPLE.md, Time zone and Manners).
    """

    def language(self, key: SessionKey) -> str:
        """Return the language of our own sentences in a chat: one of `gateway.i18n.languages`."""
        ...

    def clock(self, key: SessionKey) -> str:
        """Return the IANA time zone of a chat."""
        ...

    def zone(self, scope: str) -> str:
        """Return the IANA time zone in force in *scope*."""
        ...

    def note(self, key: SessionKey, scope: str, guild: str = "") -> None:
        """Learn whose memory the chat *key* reads (a direct chat's key need not say who sits there), and its guild."""
        ...
