"""Locales that are the same everywhere."""

from __future__ import annotations

from gateway.chat_locales import ChatLocales
from gateway.events import SessionKey


class FixedLocales(ChatLocales):
    """English in every chat, and one time zone."""

    def __init__(self, zone: str = "UTC") -> None:
        """Know nobody."""
        self._fixed_zone = zone

    def language(self, key: SessionKey) -> str:
        """Return English."""
        return "en"

    def zone(self, scope: str) -> str:
        """Return the zone."""
        return self._fixed_zone
