"""The current settings from every source, and the writing of new ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ValidationError

from gateway.commands.init_prompts import InitPrompter
from gateway.errors import SettingsError, UserError
from gateway.home import make_private
from gateway.ports.durable_files import write_private
from gateway.settings import InstalledPlugins, home_of
from gateway.settings.error_messages import errors_by_path, explain_error
from gateway.settings.resolve import normalize_names
from gateway.settings.setting_types import split_list
from gateway.settings.sources import SettingLeaf, find_file, read_environment, read_file, read_secret_file, read_secrets
from gateway.settings_writer import Path_, SettingChanges, SettingsFileWriter, Value, WrittenFile

DRAFT = ".init-answers.json"  # in the home, in no backup


class InitConfig:
    """The settings, with their writer."""

    def __init__(self, environment: Mapping[str, str], prompter: InitPrompter, kinds: InstalledPlugins) -> None:
        self._environment = environment
        self._prompter = prompter
        self._files = SettingsFileWriter(home_of(environment), environment, kinds)
        self.home = self._files.home
        self.written: list[WrittenFile] = []
        self._draft = self.home.path / DRAFT

    def present(self) -> dict[Path_, object]:
        """Return the effective settings, secrets behind `_file` read."""
        settings: dict[Path_, object] = {}
        for leaf in (*self._at_home(), *map(normalize_names, read_environment(self._environment))):
            path, value = leaf.path, leaf.value
            if path[-1].endswith("_file") and isinstance(value, str):
                try:
                    value = read_secret_file(Path(value).expanduser(), leaf.place)
                except SettingsError:
                    continue
                path = (*path[:-1], path[-1].removesuffix("_file"))
            if value not in (None, {}):
                settings[path] = value
        return settings

    def _at_home(self) -> list[SettingLeaf]:
        file = find_file(self.home.path)
        return [normalize_names(leaf) for leaf in (*(read_file(file) if file else ()), *read_secrets(self.home.path))]

    def write(self, changes: SettingChanges) -> bool:
        """Write those *changes* that are not effective yet; print errors and return False when they would be invalid.

        A script gets SettingsError instead.
        """
        current = {leaf.path: leaf.value for leaf in self._at_home()}
        plain = {path: value for path, value in changes.plain.items() if not _is_effective(current.get(path), value)}
        secret = {path: value for path, value in changes.secret.items() if current.get(path) != value}
        if not plain and not secret:
            return True
        try:
            self.written += self._files.write(SettingChanges(plain, secret))
        except UserError as error:
            return self._is_not_written(str(error))
        except OSError as error:
            return self._is_not_written(
                f"{self.home.path} cannot be written now ({error.strerror}); free some space there"
            )
        self._warn_of_overrides({**plain, **secret})
        return True

    @property
    def proxy(self) -> str:
        """The proxy that is set, or ""; secret."""
        return str(self.present().get(("proxy",), ""))

    def read_draft(self) -> dict[str, dict[str, str]]:
        """Return the answers of steps that an earlier run did not finish, by step; secrets are among them."""
        try:
            draft = json.loads(self._draft.read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return {str(step): {str(name): str(text) for name, text in answers.items()} for step, answers in draft.items()}

    def keep_draft(self, draft: Mapping[str, Mapping[str, str]]) -> None:
        """Keep the answers of unfinished steps for the next run, readable by us alone; without any, nothing is kept."""
        try:
            if draft and self._prompter.is_person:
                make_private(self.home.path)
                write_private(self._draft, json.dumps(draft))
            else:
                self._draft.unlink(missing_ok=True)
        except (OSError, UserError) as error:  # verified steps are written; only the unfinished one is lost
            self._prompter.say(f"  The answers to the unfinished step could not be saved: {error}", look="wrong")

    def _is_not_written(self, why: str) -> bool:
        if not self._prompter.is_person:
            raise SettingsError(why)
        for line in why.splitlines():
            self._prompter.say(f"  {line}", look="wrong")
        return False

    def _warn_of_overrides(self, changes: Mapping[Path_, Value | None]) -> None:
        for leaf in map(normalize_names, read_environment(self._environment)):
            path = leaf.path if leaf.path in changes else (*leaf.path[:-1], leaf.path[-1].removesuffix("_file"))
            if self._prompter.is_person and path in changes and not _is_effective(leaf.value, changes[path]):
                line = f"  {leaf.place} is also set in the environment, which overrides the file; change it there too"
                self._prompter.say(line, look="wrong")


def validation_message(model: type[BaseModel], setting: str, answer: str) -> str:
    """Return the error line of one answer; otherwise ""."""
    try:
        model.model_validate({setting: answer})
    except ValidationError as wrong:
        for path, error in errors_by_path(wrong):
            if path and path[0] == setting:
                return explain_error(error, answer)
    return ""


def as_text(value: object) -> str:
    """Return a setting's value as it would be typed."""
    return ", ".join(str(each) for each in value) if isinstance(value, list | tuple) else str(value)


def as_list(value: object) -> list[str]:
    """Return a list that was written in JSON, in YAML or with commas."""
    items = split_list(value)
    return [str(each).strip() for each in items if str(each).strip()] if isinstance(items, list | tuple) else []


def _is_effective(current: object, value: Value | None) -> bool:
    if isinstance(value, list):
        return as_list(current or "") == value
    return (current or "") == value
