"""Effective overrides of one chat: entries of `chats`, merged field by field, the most specific selector first.

Pure. A look-up costs a few dictionary accesses however many chats are named, because selectors are merged once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gateway.errors import SettingsError
from gateway.events import SessionKey
from gateway.ports.access import NO_OVERRIDE, CapOverrides, ChatOverride
from gateway.settings.chat_settings import ChatSettings, guild_in, is_block, matching_selectors
from gateway.settings.error_messages import error_line
from gateway.settings.settings_model import Settings
from gateway.settings.sources import read_utf8

MOST_SOUL = 20_000  # characters: more is no voice
_FILES = (".md", ".txt")


class ChatOverrides:
    """The rules of every chat. Immutable but for what it has merged already."""

    def __init__(self, entries: Mapping[str, ChatSettings], souls: Mapping[str, str] | None = None) -> None:
        """Merge *entries*, by place; *souls* are the texts in place of the names of files, by place."""
        self._overrides = {place: _explicit_fields(entry) for place, entry in entries.items()}
        for place, text in (souls or {}).items():
            self._overrides[place]["soul"] = text
        self._has_guilds = any(map(guild_in, entries))
        self._merged: dict[tuple[str, ...], ChatOverride] = {(): NO_OVERRIDE}

    @property
    def has_guilds(self) -> bool:
        """Return True if any override depends on a chat's guild."""
        return self._has_guilds

    def of(self, key: SessionKey, guild: str = "") -> ChatOverride:
        """Return the overrides of *key*, thread over chat over guild over block; the same object each time."""
        if not self._overrides:
            return NO_OVERRIDE
        found = tuple(place for place in matching_selectors(key, guild) if place in self._overrides)
        rules = self._merged.get(found)
        if rules is None:
            rules = self._merged[found] = self._merge(found)  # as many as there are ways to be named, not chats
        return rules

    def by_selector(self) -> Iterator[tuple[str, ChatOverride]]:
        """Yield each place that `chats` names, with its rules."""
        for place in self._overrides:
            is_many = guild_in(place) or is_block(place)
            key = SessionKey(place.partition(":")[0], "?") if is_many else SessionKey.parse(place)
            yield place, self.of(key, guild_in(place))

    def every(self, block: str) -> list[ChatOverride]:
        """Return the rules of each place of *block* that `chats` names."""
        return [rules for place, rules in self.by_selector() if place.startswith(f"{block}:")]

    def _merge(self, overrides: tuple[str, ...]) -> ChatOverride:
        values: dict[str, Any] = {}
        said_by: dict[str, str] = {}
        for place in overrides:
            for name, value in self._overrides[place].items():
                if name not in values:
                    values[name], said_by[name] = value, place
        plain = {name: value for name, value in values.items() if "." not in name}
        caps = {name.removeprefix("caps."): value for name, value in values.items() if name.startswith("caps.")}
        allow = values.get("tools.allow")
        return ChatOverride(
            **plain,
            allow=None if allow is None else frozenset(allow),
            deny=frozenset(values.get("tools.deny", ())),
            caps=CapOverrides(**caps),
            said_by=said_by,
        )


def _explicit_fields(entry: ChatSettings) -> dict[str, Any]:
    """Return the settings that an entry says something about, by dotted name."""
    values = {name: getattr(entry, name) for name in ChatSettings.model_fields if name not in ("tools", "caps")}
    for group in ("tools", "caps"):
        inner = getattr(entry, group)
        values |= {f"{group}.{name}": getattr(inner, name) for name in type(inner).model_fields}
    return {name: value for name, value in values.items() if value is not None}


def open_chats(settings: Settings) -> ChatOverrides:
    """Return the rules of *settings*, the files that are souls read. Raises SettingsError."""
    souls: dict[str, str] = {}
    for place, entry in settings.chats.items():
        if entry.soul:
            try:
                souls[place] = read_soul(settings.home, entry.soul)
            except SettingsError as wrong:
                raise SettingsError(error_line(f"chats.{place}.soul", str(wrong))) from None
    return ChatOverrides(settings.chats, souls)


def read_soul(home: Path, soul: str) -> str:
    """Return the text of a `soul`: the content of a file in the home if it ends in .md or .txt, else itself.

    Raises SettingsError, without the setting's name, for a file that cannot be read or an invalid text.
    """
    text = _read(home, soul) if soul.endswith(_FILES) and "\n" not in soul else soul
    if not text.strip():
        raise SettingsError("is empty; write a persona, or remove it")
    if len(text) > MOST_SOUL:
        raise SettingsError(f"has {len(text)} characters; a persona has at most {MOST_SOUL}")
    return text.strip()


def _read(home: Path, name: str) -> str:
    file = (home / name).resolve()
    if not file.is_relative_to(home.resolve()):
        raise SettingsError(f"{name} is outside the home folder; move the file into {home}")
    return read_utf8(file, mend="create that file, or write the text itself")
