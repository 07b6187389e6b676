"""Channel blocks: the settings common to all channels, combined with those of each platform.

A platform's settings model (`ChannelPlugin.settings`) is a plain pydantic model of its own settings. The common part
is added here: the block a channel is built from is an instance of both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint
from typing import Annotated, ClassVar, cast

from pydantic import BaseModel, BeforeValidator, field_validator

from gateway.installation import load_entry_points
from gateway.ports.channel import PlatformTraits
from gateway.settings.setting_types import FrozenModel, GroupPolicy, ReplyIn, split_list

BLOCK_NAME = re.compile(r"[a-z][a-z0-9-]*\Z")
PAGE, TERMINAL = "web", "console"  # names and kinds of the two channels that every installation has
ALWAYS_THERE = (PAGE, TERMINAL)
API = "api"
_BUILT_TOOLS = frozenset({"draw", "skill", "web_fetch", "web_search"})  # built from settings, without entry points

# Ids of a kind that says nothing about its own.
_ANY_ID = r"[A-Za-z0-9][A-Za-z0-9._@+-]*|[@!#$][A-Za-z0-9._=/+-]+:[A-Za-z0-9._:-]+"  # also @ann:example.org
_PLACES = ("user", "role", "guild", "team", "chat")


def _plain_entries(value: object) -> object:
    """Turn whole numbers into text, since ids may be numbers; other types are left to fail validation."""
    value = split_list(value)
    if value == [] or not isinstance(value, list | tuple):
        return value
    return [str(entry) if type(entry) is int else entry for entry in value]


class ChannelSettings(FrozenModel):
    """Settings of every channel block."""

    # Which admission entries the platform knows, as full matches; see docs/admins.md, Letting people in.
    entry_shapes: ClassVar[Mapping[str, str]] = dict.fromkeys(_PLACES, _ANY_ID)
    traits: ClassVar[PlatformTraits] = PlatformTraits()
    one_bot: ClassVar[Sequence[str]] = ()  # secrets that name the bot itself: no two blocks have the same

    kind: str = ""
    enabled: bool = True
    allow_from: Annotated[tuple[str, ...], BeforeValidator(_plain_entries)] = ()
    group_policy: GroupPolicy = "mention"
    reply_in: ReplyIn = "channel"
    follow_threads: bool = True
    pairing: bool | None = None  # strangers get a code that an owner can approve; None = if there is an owner

    @field_validator("allow_from", mode="after")
    @classmethod
    def _entries(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        for entry in entries:
            wrong = entry_error(entry, cls.entry_shapes)
            if wrong:
                raise ValueError(wrong)
        return entries


def entry_error(entry: str, shapes: Mapping[str, str]) -> str:
    """Return the error of an allow-list entry, or "". Display names are not accepted as ids."""
    if entry == "*":
        return ""
    if not entry:
        return "has an empty entry; remove it, or write a user id"
    place, colon, ident = entry.partition(":")
    kind = place if colon and place in _PLACES[1:] else "user"
    ident = ident if kind != "user" else entry
    shape = shapes.get(kind)
    if shape is None:
        known = ", ".join(f"{name}:ID" for name in shapes if name != "user")
        return f"{entry!r}: this platform does not support {kind}:ID; use a user id{f' or {known}' if known else ''}"
    if not re.fullmatch(shape, ident, re.ASCII):
        hint = "anyone can take a name" if kind == "user" else "names can change"
        return f"{entry!r} is not a {kind} id of this platform; use the id itself, without spaces ({hint})"
    return ""


@dataclass(frozen=True)
class InstalledPlugins:
    """Installed plugins: platforms with their settings models, and tools."""

    models: Mapping[str, Callable[[], type[BaseModel]]]
    tools: frozenset[str] | None = None  # the names of the installed tools; None = unknown

    @classmethod
    def installed(cls) -> InstalledPlugins:
        """Return the plugins of the installed distributions; settings models are imported on first use."""
        found = load_entry_points("parlour.channels")
        tools = frozenset(point.name for point in load_entry_points("parlour.tools"))
        return cls({point.name: _loader(point) for point in found}, tools | _BUILT_TOOLS)

    def names(self) -> list[str]:
        """Return every kind's name."""
        return sorted(self.models)

    def model(self, kind: str) -> type[ChannelSettings] | None:
        """Return the settings model of *kind*, or None if it is not installed."""
        return combine_models(self.models[kind]()) if kind in self.models else None


def _loader(point: EntryPoint) -> Callable[[], type[BaseModel]]:
    return lambda: cast("type[BaseModel]", point.load().settings)


@cache
def combine_models(platform_model: type[BaseModel]) -> type[ChannelSettings]:
    """Return a block model that has the kind's own fields and the common ones; the kind's defaults win."""
    if issubclass(platform_model, ChannelSettings):
        return platform_model
    # Made at run time, since each third-party kind brings its own model.
    return cast(
        "type[ChannelSettings]",
        type(
            f"{platform_model.__name__}Block",
            (platform_model, ChannelSettings),
            {"__module__": platform_model.__module__},
        ),
    )
