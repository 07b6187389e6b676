"""The entries of `chats` and `profiles`: the places of a chat, the settings of one, and what applies in a chat.

telegram-work:*          every chat of the block
discord:guild:811        every chat of a Discord server, written as in `allow_from`
slack:C042               a chat, and its threads
slack:C042/1712.34       one thread

None of the names of places can be the id of a chat. Entries are merged field by field, the most specific first, and the
fields of a profile go before all of them. A look-up costs a few dictionary accesses however many chats are named,
because places are merged once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from gateway.errors import SettingsError
from gateway.events import SessionKey
from gateway.ports.access import NO_OVERRIDE, CapOverrides, ChatOverride, service_of
from gateway.settings.setting_types import (
    Dollars,
    FrozenModel,
    GroupPolicy,
    Language,
    MaybeEffort,
    ReplyIn,
    TextList,
    TimeZone,
    error_line,
)

if TYPE_CHECKING:
    from gateway.settings.settings_model import Settings
from gateway.settings.sources import read_utf8

PROFILES = "profiles"  # and a dot, before a name, where a chat selector could stand
_ALL = "*"
_GUILD = "guild:"


def parse_selector(text: str) -> str:
    """Return *text* if it is a chat selector; raise a ValueError that explains the syntax."""
    try:
        key = SessionKey.parse(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a chat; write channel:chat_id, such as telegram:-100123") from None
    entry, colon, ident = key.chat.partition(":")
    if colon and entry == "team":
        raise ValueError(f"{text!r}: a Slack channel is a whole workspace; write {key.channel}:* for all of its chats")
    if colon and entry == "chat":
        raise ValueError(f"{text!r}: write {key.channel}:{ident or 'ID'}, without chat:")
    if colon and entry == "role":
        raise ValueError(
            f"{text!r} is a role, and only chats and guilds have settings; write {key.channel}:guild:ID or a chat"
        )
    rest = ident if key.chat.startswith(_GUILD) else key.chat
    is_whole = rest != "" and rest.isprintable() and not any(sign in rest for sign in " ,*")
    if key.chat != _ALL and not is_whole:
        raise ValueError(f"{text!r} is not a chat; write {key.channel}:chat_id, with the id and without spaces")
    return text


def guild_in(place: str) -> str:
    """Return the guild that *place* names, or ""."""
    chat = place.partition(":")[2]
    return chat.removeprefix(_GUILD) if chat.startswith(_GUILD) else ""


def is_block(place: str) -> bool:
    """Return True if *place* selects every chat of a block."""
    return place.partition(":")[2] == _ALL


def matching_selectors(key: SessionKey, guild: str) -> Iterator[str]:
    """Yield the places that a conversation is in, the most specific first."""
    yield str(key)
    if key.thread:
        yield str(key.parent)
    if guild:
        yield f"{key.channel}:{_GUILD}{guild}"
    yield f"{key.channel}:{_ALL}"


class ChatTools(FrozenModel):
    """Which tools the model has in one chat, or under a profile. A tool that both lists name is off."""

    allow: TextList | None = None  # these alone; None = all
    deny: TextList | None = None


class ChatCaps(FrozenModel):
    """The caps of one chat; None = the global value, 0 = no cap."""

    person_turns_per_10_min: Annotated[int, Field(ge=0)] | None = None
    chat_turns_per_10_min: Annotated[int, Field(ge=0)] | None = None
    person_tokens_per_day: Annotated[int, Field(ge=0)] | None = None
    chat_tokens_per_day: Annotated[int, Field(ge=0)] | None = None
    person_usd_per_day: Dollars | None = None
    chat_usd_per_day: Dollars | None = None


_PROFILE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}", re.ASCII)  # `/as NAME` fits a button of each platform
DEFAULT_WORDS = frozenset({"default", "auto", "reset", "-"})  # `agent.commands.settings`; no profile has such a name


def parse_profile_name(name: str) -> str:
    """Return *name* if a profile may have it; raise a ValueError that explains the syntax."""
    if name in DEFAULT_WORDS:
        raise ValueError(f"{name!r} always means no profile; choose another name")
    if not _PROFILE_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a valid profile name; use a-z, 0-9, - and _, at most 40 characters")
    return name


class ProfileSettings(FrozenModel):
    """A profile, which `chats` name and people choose with /as; None = as in the chat without it."""

    model: Annotated[str, Field(min_length=1)] | None = None  # an alias of llm.models, or as litellm names it
    effort: MaybeEffort = None
    soul: Annotated[str, Field(min_length=1)] | None = None  # a text, or the name of a file of the home
    tools: ChatTools = ChatTools()  # of those that the chat has
    language: Language | None = None
    offered: bool = True  # False: only `chats` select it


class ChatSettings(FrozenModel):
    """The operator's settings for one chat; None = the value of the block, then the global one."""

    profile: Annotated[str, Field(min_length=1)] | None = None  # a name of `profiles`
    timezone: TimeZone | None = None
    language: Language | None = None
    model: Annotated[str, Field(min_length=1)] | None = None  # an alias of llm.models, or as litellm names it
    effort: MaybeEffort = None
    soul: Annotated[str, Field(min_length=1)] | None = None  # a text, or the name of a file of the home
    group_policy: GroupPolicy | None = None
    reply_in: ReplyIn | None = None
    follow_threads: bool | None = None
    memory_window: Annotated[int, Field(ge=0, le=100_000)] | None = None
    tools: ChatTools = ChatTools()
    caps: ChatCaps = ChatCaps()


MOST_SOUL = 20_000  # characters: more is no voice
_FILES = (".md", ".txt")


class ChatOverrides:
    """The rules of every chat. Immutable but for what it has merged already."""

    def __init__(
        self,
        entries: Mapping[str, ChatSettings],
        souls: Mapping[str, str] | None = None,
        profiles: Mapping[str, ProfileSettings] | None = None,
        profile_souls: Mapping[str, str] | None = None,
    ) -> None:
        """Merge *entries*, by place, and *profiles*, by name; *souls* are the texts in place of the names of files."""
        self._overrides = {place: _explicit_fields(entry) for place, entry in entries.items()}
        self._profiles = {name: _explicit_fields(entry) for name, entry in (profiles or {}).items()}
        for known, texts in ((self._overrides, souls), (self._profiles, profile_souls)):
            for name, text in (texts or {}).items():
                known[name]["soul"] = text
        self.offered_profiles = tuple(name for name, entry in (profiles or {}).items() if entry.offered)
        self.has_guilds = any(map(guild_in, entries))  # some depend on a chat's guild
        self._merged: dict[tuple[str, ...], ChatOverride] = {("",): NO_OVERRIDE}

    def of(self, key: SessionKey, guild: str = "", chosen: str = "") -> ChatOverride:
        """Return the overrides of *key*: profile over thread over chat over guild over block; one object each time.

        The profile is the one *chosen* in the chat while it is offered, or else that of the entries.
        """
        if not self._overrides and not chosen:
            return NO_OVERRIDE
        places = (place for place in matching_selectors(key, guild) if place in self._overrides)
        found = (chosen if chosen in self.offered_profiles else "", *places)
        rules = self._merged.get(found)
        if rules is None:
            rules = self._merged[found] = self._merge(*found)  # as many as there are ways to be named, not chats
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

    def _merge(self, chosen: str, *places: str) -> ChatOverride:
        values: dict[str, Any] = {}
        said_by: dict[str, str] = {}
        for place in places:
            for name, value in self._overrides[place].items():
                if name not in values:
                    values[name], said_by[name] = value, place
        if chosen:
            values["profile"] = chosen
            said_by.pop("profile", None)  # neither a place nor the profile itself chose it
        if profile := values.get("profile"):
            for name, value in self._profiles.get(profile, {}).items():
                values[name] = _narrow(name, value, values.get(name))
                said_by[name] = f"{PROFILES}.{profile}"
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


def _narrow(name: str, value: Any, chat_value: Any) -> Any:
    """Return the *value* of a profile's setting; its tools are those that the chat's *chat_value* leaves."""
    if name == "tools.allow" and chat_value is not None:
        both = ((value, chat_value), (chat_value, value))
        found = (each for names, other in both for each in names if not {each, service_of(each)}.isdisjoint(other))
        return tuple(dict.fromkeys(found))
    return (*value, *(chat_value or ())) if name == "tools.deny" else value


def _explicit_fields(entry: ChatSettings | ProfileSettings) -> dict[str, Any]:
    """Return the settings that an entry says something about, by dotted name."""
    values: dict[str, Any] = {}
    for name in type(entry).model_fields:
        value = getattr(entry, name)
        if isinstance(value, FrozenModel):
            values |= {f"{name}.{inner}": getattr(value, inner) for inner in type(value).model_fields}
        elif name != "offered":
            values[name] = value
    return {name: value for name, value in values.items() if value is not None}


def open_chats(settings: Settings) -> ChatOverrides:
    """Return the rules of *settings*, the files that are souls read. Raises SettingsError."""
    souls = _read_souls(settings.home, "chats", settings.chats)
    return ChatOverrides(
        settings.chats, souls, settings.profiles, _read_souls(settings.home, PROFILES, settings.profiles)
    )


def _read_souls(home: Path, area: str, entries: Mapping[str, ChatSettings | ProfileSettings]) -> dict[str, str]:
    souls: dict[str, str] = {}
    for name, entry in entries.items():
        if entry.soul:
            try:
                souls[name] = read_soul(home, entry.soul)
            except SettingsError as wrong:
                raise SettingsError(error_line(f"{area}.{name}.soul", str(wrong))) from None
    return souls


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
