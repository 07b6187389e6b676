"""Environment over file over defaults, and every mistake as a line with its place."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, SecretStr, ValidationError

from gateway.errors import SettingsError
from gateway.events import SessionKey
from gateway.net.addresses import hide_password
from gateway.settings import sources
from gateway.settings.channel_blocks import ChannelSettings, InstalledPlugins, entry_error
from gateway.settings.chat_settings import PROFILES, ChatSettings, ProfileSettings, guild_in, is_block, read_soul
from gateway.settings.setting_names import (
    Blocks,
    apply_rename,
    block_kinds,
    block_model,
    environment_name,
    merge,
    models_of,
    normalize_names,
    resolve,
    suggest_name,
)
from gateway.settings.setting_types import error_line, errors_by_path, explain_error
from gateway.settings.settings_model import Settings
from gateway.settings.sources import SettingLeaf

Places = Mapping[tuple[str, ...], str]
TOOL_KINDS = ("act", "compute", "keep", "look", "run", "spend", "web")  # `agent.tools.tool.ToolKind`


def check_chats(settings: Settings, places: Places, kinds: InstalledPlugins) -> Iterator[str]:
    """Yield a line for each invalid selector, unreadable persona, and unknown profile, model or tool.

    *places* maps each setting to where it was written.
    """
    for name, profile in settings.profiles.items():
        yield from _wrong_entry(settings, (PROFILES, name), profile, places, kinds)
    for name, entry in settings.chats.items():
        text = _wrong_place(settings, name, kinds)
        if text:
            yield f"chats.{name}: {text}"
        where = ("chats", name)
        yield from _of_a_thread(name, entry, places)
        if entry.profile and entry.profile not in settings.profiles:
            text = f"no profile is called {entry.profile!r}; {_guess(entry.profile, settings.profiles)}"
            yield _line(places, (*where, "profile"), text)
        yield from _wrong_entry(settings, where, entry, places, kinds)


def _wrong_entry(
    settings: Settings,
    where: tuple[str, str],
    entry: ChatSettings | ProfileSettings,
    places: Places,
    kinds: InstalledPlugins,
) -> Iterator[str]:
    """Yield a line for each unreadable persona and unknown model or tool of an entry of `chats` or `profiles`."""
    if entry.soul:
        try:
            read_soul(settings.home, entry.soul)
        except SettingsError as wrong:
            yield _line(places, (*where, "soul"), str(wrong))
    if entry.model and (text := _wrong_model(settings, entry.model)):
        yield _line(places, (*where, "model"), text)
    for kind in ("allow", "deny"):
        for tool in getattr(entry.tools, kind) or ():
            if kinds.tools is not None and tool not in kinds.tools and not _is_of_a_service(tool):
                text = f"no tool is called {tool!r}; {_guess(tool, kinds.tools)}"
                yield _line(places, (*where, "tools", kind), text)


def check_tool_rights(settings: Settings, places: Places, kinds: InstalledPlugins) -> Iterator[str]:
    """Yield a line for each entry of `tools.rights` that names neither a kind of tools nor a tool."""
    if kinds.tools is None:
        return
    known = {*TOOL_KINDS, *kinds.tools}
    for name in settings.tools.rights:
        if name not in known and not _is_of_a_service(name):
            path = ("tools", "rights", name)
            place = next((place for each, place in places.items() if each[:3] == path), "")
            yield error_line(
                place or ".".join(path), f"no tool or kind of tools is called {name!r}; {_guess(name, known)}"
            )


def _is_of_a_service(name: str) -> bool:
    """Return True for a tool of an MCP server: the store has their names, and they come and go without a restart."""
    return name.startswith("mcp_") or name in ("find_tools", "use_tool")


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
        for setting, secret in _tokens(block):
            first = seen.setdefault((block.kind, setting, secret), name)
            if first != name:
                place = places.get(("channels", name, setting)) or f"channels.{name}.{setting}"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsReport:
    """The result of reading the settings, with `settings` only if they have no error."""

    home: Path
    file: Path | None
    settings: Settings | None
    mistakes: tuple[str, ...]
    warnings: tuple[str, ...]

    def require(self) -> Settings:
        """Return the settings; raise SettingsError with one line when anything is wrong."""
        if self.settings is None:
            more = len(self.mistakes) - 1
            rest = f" (and {more} more: `parlour doctor` lists them all)" if more else ""
            raise SettingsError(self.mistakes[0] + rest)
        return self.settings


def load_settings(environment: Mapping[str, str], kinds: InstalledPlugins | None = None) -> Settings:
    """Return the settings; raise SettingsError with one line when anything is wrong."""
    return check_settings(environment, kinds).require()


def check_settings(environment: Mapping[str, str], kinds: InstalledPlugins | None = None) -> SettingsReport:
    """Read every source and say everything that is wrong; never raises for a setting."""
    reading = _SettingsReader(kinds or InstalledPlugins.installed())
    home = home_of(environment)
    settings = reading.run(environment, home)
    return SettingsReport(
        home=home,
        file=reading.file,
        settings=None if reading.mistakes else settings,
        mistakes=tuple(dict.fromkeys(reading.mistakes)),
        warnings=tuple(dict.fromkeys(reading.warnings)),
    )


def home_of(environment: Mapping[str, str]) -> Path:
    """Return the home folder: PARLOUR_HOME, or ~/.parlour."""
    return Path(environment.get(sources.HOME) or "~/.parlour").expanduser().absolute()


def secret_values(settings: object) -> Iterator[str]:
    """Yield every secret in plain text, for code that redacts them."""
    if isinstance(settings, SecretStr):
        if settings.get_secret_value():
            yield settings.get_secret_value()
    elif isinstance(settings, str):
        if hide_password(settings) != settings:  # an address with a password
            yield settings
    elif isinstance(settings, BaseModel):
        for name in type(settings).model_fields:
            yield from secret_values(getattr(settings, name))
    elif isinstance(settings, Mapping):
        for value in settings.values():
            yield from secret_values(value)


@dataclass
class _SettingsReader:
    """One pass over the sources, collecting what is wrong on the way."""

    kinds: InstalledPlugins
    file: Path | None = None
    mistakes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def run(self, environment: Mapping[str, str], home: Path) -> Settings | None:
        # The weakest source first: later ones win.
        readers: tuple[Callable[[], Iterable[SettingLeaf]], ...] = (
            lambda: self._read_file(home),
            lambda: sources.read_secrets(home),
            lambda: sources.read_environment(environment),
        )
        written = models_of([self._spelled(self._all(reader)) for reader in readers])
        blocks = self._blocks(leaf for source in written for leaf in source)
        tree, places = merge(leaf for source in written for leaf in self._resolved(source, blocks))
        channels = self._channels(tree.pop("channels", {}), blocks, places)
        try:
            settings = Settings(home=home, channels=channels, **tree)  # type: ignore[arg-type]
        except ValidationError as wrong:
            self._explain(wrong, (), tree, places)
            return None
        self._check_owners(settings, places)
        self.mistakes += check_chats(settings, places, self.kinds)
        self.mistakes += check_tool_rights(settings, places, self.kinds)
        self.mistakes += check_shared_tokens(settings, places)
        return settings

    def _read_file(self, home: Path) -> Iterable[SettingLeaf]:
        self.file = sources.find_file(home)
        return sources.read_file(self.file) if self.file else ()

    def _all(self, read: Callable[[], Iterable[SettingLeaf]]) -> list[SettingLeaf]:
        try:
            return list(read())
        except SettingsError as wrong:
            self.mistakes.append(str(wrong))
            return []

    def _spelled(self, leaves: Iterable[SettingLeaf]) -> list[SettingLeaf]:
        found = []
        for leaf in leaves:
            current, warning = apply_rename(normalize_names(leaf))
            self.warnings += [warning] if warning else []
            found.append(current)
        return found

    def _blocks(self, leaves: Iterable[SettingLeaf]) -> dict[str, type[ChannelSettings]]:
        models = {}
        for name, (kind, place) in block_kinds(leaves, self.kinds).items():
            try:
                models[name] = block_model(name, kind, place, self.kinds)
            except SettingsError as wrong:
                self.mistakes.append(str(wrong))
        return models

    def _resolved(self, leaves: Iterable[SettingLeaf], blocks: Blocks) -> list[SettingLeaf]:
        """Return the leaves of one source under known names; one setting said twice is a mistake."""
        seen: dict[tuple[str, ...], SettingLeaf] = {}
        for leaf in leaves:
            try:
                known = resolve(leaf, blocks)
            except SettingsError as wrong:
                self.mistakes.append(str(wrong))
                continue
            if known is None:
                continue
            twin = seen.setdefault(known.path, known)
            if twin is not known:
                self.mistakes.append(f"{leaf.place}: {twin.place} sets the same setting; keep one of them")
        return list(seen.values())

    def _channels(
        self, raw: object, blocks: Blocks, places: Mapping[tuple[str, ...], str]
    ) -> dict[str, ChannelSettings]:
        values = raw if isinstance(raw, dict) else {}
        found = {}
        for name, model in blocks.items():
            block = {"kind": name, **values.get(name, {})}
            try:
                found[name] = model.model_validate(block)
            except ValidationError as wrong:
                self._explain(wrong, ("channels", name), block, places)
        return found

    def _explain(
        self, invalid: ValidationError, prefix: tuple[str, ...], tree: object, places: Mapping[tuple[str, ...], str]
    ) -> None:
        for path, error in errors_by_path(invalid):
            whole = prefix + path
            value = tree
            for name in path:
                value = value.get(name) if isinstance(value, dict) else None
            text = explain_error(error, value)
            place = places.get(whole) or (environment_name(".".join(whole)) if path else "")
            if not path and prefix:
                place = ".".join(prefix)
            self.mistakes.append(error_line(place, text))

    def _check_owners(self, settings: Settings, places: Mapping[tuple[str, ...], str]) -> None:
        for owner in settings.owners:
            channel = owner.partition(":")[0]
            if channel not in settings.channels and channel not in self.kinds.names():
                near = suggest_name(channel, [*settings.channels, *self.kinds.names()], ())
                guess = f"; did you mean {near}?" if near else ""
                place = places.get(("owners",), "owners")
                self.mistakes.append(f"{place}: {owner!r} names the channel {channel!r}, which does not exist{guess}")
