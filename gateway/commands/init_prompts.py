"""Prompts of `parlour init`, at a terminal or unattended, and the parts of a configuration that it asks for."""

from __future__ import annotations

import getpass
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import typer
from pydantic import BaseModel, ValidationError
from rich.console import Console
from rich.markup import escape

from gateway.durable_files import write_private
from gateway.errors import SettingsError, UserError
from gateway.home import make_private
from gateway.ports.setup import Finding, FindingLevel
from gateway.settings import InstalledPlugins, home_of
from gateway.settings.setting_names import normalize_names
from gateway.settings.setting_types import errors_by_path, explain_error, split_list
from gateway.settings.sources import SettingLeaf, find_file, read_environment, read_file, read_secret_file, read_secrets
from gateway.settings_writer import Path_, SettingChanges, SettingsFileWriter, Value, WrittenFile
from gateway.text.message_text import strip_control_characters

_MARKS = {FindingLevel.OK: "[green]✓[/]", FindingLevel.WARN: "[yellow]![/]", FindingLevel.FAIL: "[red]✗[/]"}
AGAIN, KEEP, SKIP = "again", "keep", "skip"
_LOOKS = {"title": "bold", "hint": "dim", "wrong": "red"}


class InitPrompter(Protocol):
    """Asks for settings."""

    is_person: bool

    def say(self, text: str, *, look: str = "") -> None:
        """Show one line; *look* is title, hint, wrong, result or nothing."""

    def show(self, finding: Finding) -> None:
        """Show the result of a real call."""

    def ask(self, text: str, *, default: str = "", is_secret: bool = False, variable: str = "") -> str:
        """Return the answer, *default* when it is empty. Secrets are not shown, nor is their default.

        Unattended, a missing answer raises UserError that names *variable*.
        """

    def choose(self, text: str, options: Sequence[str]) -> str:
        """Return one of *options*; the first where nothing is typed."""

    def confirm(self, text: str, *, default: bool) -> bool:
        """Return yes or no."""


class TerminalPrompter:
    """A person at a terminal. Ctrl-C and Ctrl-D end the command as typer's Abort."""

    is_person = True

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)

    def say(self, text: str, *, look: str = "") -> None:
        """See `InitPrompter`."""
        if look == "title":
            self._console.print()
        self._console.print(escape(clean(text)), style=_LOOKS.get(look, ""))

    def show(self, finding: Finding) -> None:
        """See `InitPrompter`."""
        self._console.print(f"  {_MARKS[finding.level]} {escape(clean(finding.text))}")

    def ask(self, text: str, *, default: str = "", is_secret: bool = False, variable: str = "") -> str:  # noqa: ARG002 - the port's signature
        """See `InitPrompter`."""
        hint = f" [{'kept' if is_secret else clean(default)}]" if default else ""
        shown = f"  {clean(text)}{hint}"
        answer = _hidden(f"{shown}: ") if is_secret else typer.prompt(shown, default="", show_default=False)
        return str(answer).strip() or default

    def choose(self, text: str, options: Sequence[str]) -> str:
        """See `InitPrompter`."""
        while True:
            answer = str(typer.prompt(f"  {text} ({', '.join(options)})", default=options[0])).strip().lower()
            found = [option for option in options if option.startswith(answer)]
            if len(found) == 1:
                return found[0]
            self.say(f"  one of {', '.join(options)}", look="wrong")

    def confirm(self, text: str, *, default: bool) -> bool:
        """See `InitPrompter`."""
        return typer.confirm(clean(text), default=default)


def _hidden(prompt: str) -> str:
    """Read a line that is not echoed.

    typer's own hidden prompt shows its question first and turns the echo off only then.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", getpass.GetPassWarning)
        try:
            return getpass.getpass(prompt)
        except EOFError:
            raise typer.Abort from None
        except getpass.GetPassWarning:
            raise UserError(
                "this terminal shows what you type; put the secret in a file, set its path, as in"
                " PARLOUR_LLM__API_KEY_FILE=path, and run `parlour init` again"
            ) from None


class UnattendedPrompter:
    """Prompter of a script: answers are options, environment and settings. A missing answer is an error."""

    is_person = False

    def __init__(self, *, keeps: bool) -> None:
        self._keeps = keeps

    def say(self, text: str, *, look: str = "") -> None:
        """Print results only, because no user follows the steps."""
        if look in ("wrong", "result"):
            typer.echo(clean(text).strip(), err=look == "wrong")

    def show(self, finding: Finding) -> None:
        """See `InitPrompter`."""
        typer.echo(f"{finding.level.value:7}  {clean(finding.text)}")

    def ask(self, text: str, *, default: str = "", is_secret: bool = False, variable: str = "") -> str:  # noqa: ARG002 - the port's signature
        """See `InitPrompter`."""
        if not default and variable:
            raise UserError(f"{variable} is required; set it, or run `parlour init` in a terminal")
        return default

    def choose(self, text: str, options: Sequence[str]) -> str:  # noqa: ARG002 - the port's signature
        """Return KEEP with --keep; otherwise raise UserError."""
        if self._keeps and "keep" in options:
            return "keep"
        raise UserError("nothing was saved in this step; fix the error, or use --keep to save it unverified")

    def confirm(self, text: str, *, default: bool) -> bool:  # noqa: ARG002 - the port's signature
        """See `InitPrompter`."""
        return default


def clean(text: str) -> str:
    """Return *text* as one line that a terminal only shows."""
    return " ".join(strip_control_characters(text).splitlines()).replace("\t", " ")


def choose_next(prompter: InitPrompter, *, may_keep: bool) -> str:
    """Return the next action for an invalid answer: AGAIN, SKIP or, if *may_keep*, KEEP."""
    return prompter.choose("Correct it, or", (AGAIN, KEEP, SKIP) if may_keep else (AGAIN, SKIP))


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
