"""Environment over file over defaults, and every mistake as a line with its place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, SecretStr, ValidationError

from gateway.errors import SettingsError
from gateway.net.web_credentials import hide_password
from gateway.settings import setting_names, sources
from gateway.settings.channel_blocks import ChannelSettings, InstalledPlugins
from gateway.settings.cross_checks import check_chats, check_shared_tokens, check_tool_rights
from gateway.settings.error_messages import error_line, errors_by_path, explain_error
from gateway.settings.resolve import (
    Blocks,
    apply_rename,
    block_kinds,
    block_model,
    merge,
    models_of,
    normalize_names,
    resolve,
)
from gateway.settings.settings_model import Settings
from gateway.settings.sources import SettingLeaf


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
                continue
            if found[name].enabled and found[name].kind not in self.kinds.adapters:
                self.mistakes.append(
                    f"channels.{name} is enabled, but this Parlour has no adapter for {found[name].kind} yet;"
                    f" set channels.{name}.enabled to false"
                )
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
            place = places.get(whole) or (setting_names.environment_name(".".join(whole)) if path else "")
            if not path and prefix:
                place = ".".join(prefix)
            self.mistakes.append(error_line(place, text))

    def _check_owners(self, settings: Settings, places: Mapping[tuple[str, ...], str]) -> None:
        for owner in settings.owners:
            channel = owner.partition(":")[0]
            if channel not in settings.channels and channel not in self.kinds.names():
                near = setting_names.suggest_name(channel, [*settings.channels, *self.kinds.names()], ())
                guess = f"; did you mean {near}?" if near else ""
                place = places.get(("owners",), "owners")
                self.mistakes.append(f"{place}: {owner!r} names the channel {channel!r}, which does not exist{guess}")
