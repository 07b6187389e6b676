"""Checks across settings: entries of `chats` against the installed plugins, and tokens against each other."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping

from pydantic import SecretStr

from gateway.errors import SettingsError
from gateway.events import SessionKey
from gateway.settings.channel_blocks import ChannelSettings, InstalledPlugins, entry_error
from gateway.settings.chat_overrides import read_soul
from gateway.settings.chat_settings import ChatSettings, guild_in, is_block
from gateway.settings.error_messages import error_line
from gateway.settings.settings_model import Settings

Places = Mapping[tuple[str, ...], str]
TOOL_KINDS = ("act", "compute", "keep", "look", "run", "spend", "web")  # `agent.tools.tool.ToolKind`


def check_chats(settings: Settings, places: Places, kinds: InstalledPlugins) -> Iterator[str]:
    """Yield a line for each invalid selector, unreadable persona, and unknown model or tool.

    *places* maps each setting to where it was written.
    """
    for name, entry in settings.chats.items():
        text = _wrong_place(settings, name, kinds)
        if text:
            yield f"chats.{name}: {text}"
        where = ("chats", name)
        yield from _of_a_thread(name, entry, places)
        if entry.soul:
            try:
                read_soul(settings.home, entry.soul)
            except SettingsError as wrong:
                yield _line(places, (*where, "soul"), str(wrong))
        if entry.model and (text := _wrong_model(settings, entry.model)):
            yield _line(places, (*where, "model"), text)
        for kind in ("allow", "deny"):
            for tool in getattr(entry.tools, kind) or ():
                if kinds.tools is not None and tool not in kinds.tools:
                    text = f"no tool is called {tool!r}; {_guess(tool, kinds.tools)}"
                    yield _line(places, (*where, "tools", kind), text)


def check_tool_rights(settings: Settings, places: Places, kinds: InstalledPlugins) -> Iterator[str]:
    """Yield a line for each entry of `tools.rights` that names neither a kind of tools nor a tool."""
    if kinds.tools is None:
        return
    known = {*TOOL_KINDS, *kinds.tools}
    for name in settings.tools.rights:
        if name not in known:
            path = ("tools", "rights", name)
            place = next((place for each, place in places.items() if each[:3] == path), "")
            yield error_line(
                place or ".".join(path), f"no tool or kind of tools is called {name!r}; {_guess(name, known)}"
            )


def _of_a_thread(name: str, entry: ChatSettings, places: Places) -> Iterator[str]:
    """Yield errors for settings that a thread cannot have: it shares the chat's memory and caps."""
    key = SessionKey.parse(name)
    if not key.thread or guild_in(name):
        return
    said = {
        ("timezone",): entry.timezone,
        ("reply_in",): entry.reply_in,
        ("caps", "chat_turns_per_10_min"): entry.caps.chat_turns_per_10_min,
        ("caps", "chat_tokens_per_day"): entry.caps.chat_tokens_per_day,
        ("caps", "chat_usd_per_day"): entry.caps.chat_usd_per_day,
    }
    for path, value in said.items():
        if value is not None:
            yield _line(places, ("chats", name, *path), f"is set per chat, not per thread; set it for {key.parent}")


def _line(places: Places, path: tuple[str, ...], text: str) -> str:
    return error_line(places.get(path) or ".".join(path), text)


def _guess(name: str, names: Collection[str]) -> str:
    near = difflib.get_close_matches(name.lower(), names, n=1)
    return f"did you mean {near[0]}?" if near else f"available: {', '.join(sorted(names)) or 'none'}"


def _wrong_place(settings: Settings, place: str, kinds: InstalledPlugins) -> str:
    key = SessionKey.parse(place)
    block = settings.channels.get(key.channel)
    if block is None:
        known = {*settings.channels, *kinds.names()}
        return "" if key.channel in known else f"no channel is called {key.channel!r}; {_guess(key.channel, known)}"
    if is_block(place):
        return ""
    entry = f"guild:{guild_in(place)}" if guild_in(place) else f"chat:{key.parent.chat}"
    # A platform without entries for chats does not describe the ids of its chats.
    return entry_error(entry, block.entry_shapes) if entry.partition(":")[0] in (*block.entry_shapes, "guild") else ""


def _wrong_model(settings: Settings, name: str) -> str:
    """Return the error of a chat's model, or "". Models that users cannot choose are allowed for operators."""
    llm = settings.llm
    if name in llm.models or name in (llm.model, *llm.fallbacks) or "/" in name or ":" in name:
        return ""
    near = difflib.get_close_matches(name, llm.models, n=1)
    if near:
        return f"llm.models has no model {name!r}; did you mean {near[0]}?"
    return f"llm.models has no model {name!r}; add it there, or write it with its provider (openai/{name})"


def check_shared_tokens(settings: Settings, places: Places) -> list[str]:
    """Return a line for each token that a second enabled block has as well; no line repeats it.

    Both blocks would be the same bot, and take each other's messages away.
    """
    found: list[str] = []
    seen: dict[tuple[str, str, str], str] = {}
    for name, block in sorted(settings.channels.items()):
        for field, secret in _tokens(block):
            first = seen.setdefault((block.kind, field, secret), name)
            if first != name:
                place = places.get(("channels", name, field)) or f"channels.{name}.{field}"
                found.append(
                    f"{place}: channels.{first} uses the same token, so each would receive the other's messages;"
                    f" give channels.{name} its own bot, or remove one of the channels"
                )
    return found


def _tokens(block: ChannelSettings) -> list[tuple[str, str]]:
    values = ((field, getattr(block, field, None)) for field in block.one_bot)
    return [
        (field, value.get_secret_value()) for field, value in values if block.enabled and isinstance(value, SecretStr)
    ]
