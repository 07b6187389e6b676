"""`parlour init`: asks for settings one at a time, verifies each answer by a real call, and writes it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer
from pydantic import ValidationError

from gateway.commands.init_prompts import (
    KEEP,
    SKIP,
    InitConfig,
    InitPrompter,
    TerminalPrompter,
    UnattendedPrompter,
    as_list,
    as_text,
    choose_next,
    validation_message,
)
from gateway.commands.operation_commands import call_operation
from gateway.errors import ParlourError, UserError
from gateway.health.network_checks import installed_setups, verify
from gateway.home import is_held
from gateway.i18n.formats import find_zone
from gateway.installation import operator_command
from gateway.logs import configure_logs
from gateway.net.addresses import hide_password, restore_password
from gateway.operations.people import claim_row
from gateway.ports.setup import FindingLevel, SetupQuestion, SupportsSetup
from gateway.settings import ChannelSettings, InstalledPlugins, check_settings
from gateway.settings.setting_names import environment_name
from gateway.settings.setting_types import error_line, valid_zone
from gateway.settings.settings_model import LlmSettings, machine_zone
from gateway.settings_writer import Path_, SettingChanges, block_of, changes_of, error_lines, names_of

if TYPE_CHECKING:
    from gateway.app.model_trial import ModelTrial

_OFFLINE = ("", "none", "offline", "no")
_MOST_SHOWN = 12


class ModelStep:
    """Asks for a model and tries it by one real call; *draft* takes what was answered before that."""

    def __init__(self, config: InitConfig, prompter: InitPrompter, draft: dict[str, dict[str, str]]) -> None:
        self._config = config
        self._prompter = prompter
        self._draft = draft

    def run(self, *, model: str | None, api_base: str | None) -> None:
        """Ask until an answer is verified, kept or skipped; *model* and *api_base* are what the command line said."""
        self._prompter.say("The model", look="title")
        self._prompter.say(
            "  The name that litellm uses, such as openai/gpt-5, anthropic/claude-sonnet-4-5 or ollama/qwen3.",
            look="hint",
        )
        self._prompter.say(
            "  `none` selects the built-in `offline` model, which only finds what it was told to remember.", look="hint"
        )
        present = self._config.present()
        draft = self._draft.get("llm", {})
        answers = {
            name: given if given is not None else draft.get(name, str(present.get(("llm", name), "")))
            for name, given in (("model", model), ("api_base", api_base), ("api_key", None))
        }
        while True:
            answers = self._ask_for_model(answers)
            if answers["model"].lower() == SKIP:
                return
            if answers["model"].lower() in _OFFLINE:
                if present.get(("llm", "model")):
                    self._config.write(SettingChanges(plain={("llm", "model"): ""}))
                return
            error, trial = self._try_model(answers)
            finding = trial.finding if trial is not None else None
            if finding is None:
                self._prompter.say(f"  {error}", look="wrong")
                is_over = False
            else:
                self._prompter.show(finding)
                is_over = finding.level is not FindingLevel.FAIL
            choice = KEEP if is_over else choose_next(self._prompter, may_keep=finding is not None)
            if choice == SKIP:
                return
            if choice == KEEP:
                changes = changes_of(("llm",), answers, secret=("api_key",))
                if present.get(("llm", "api_base")) and not answers["api_base"]:
                    changes.plain["llm", "api_base"] = ""
                if self._config.write(changes):
                    self._keep(trial)
                    return

    def _keep(self, trial: ModelTrial | None) -> None:
        """Hand over what the trial has shown."""
        from gateway.app.model_trial import hand_over_trials

        if trial is not None:
            asyncio.run(hand_over_trials(self._config.home, [trial]))

    def _ask_for_model(self, before: Mapping[str, str]) -> dict[str, str]:
        ask = self._prompter.ask
        model = ask("Model", default=before["model"] or "none")
        if model.lower() in (*_OFFLINE, SKIP):
            return {**before, "model": model}
        self._draft["llm"] = draft = {"model": model}
        known = before["api_base"]
        base = ask("Address of your own model server, if you run one (- for none)", default=hide_password(known))
        draft["api_base"] = base = "" if base == "-" else restore_password(base, known)
        draft["api_key"] = key = ask(
            "Key, from the provider's console (not shown)", default=before["api_key"], is_secret=True
        )
        if base:
            draft["model"] = self._model_at_address(model, base, key)
        return dict(draft)

    def _model_at_address(self, model: str, api_base: str, api_key: str) -> str:
        """Return *model* as litellm names it behind *api_base*; ask again for one that the server does not list."""
        from gateway.app.model_trial import OWN_SERVER, find_name_at_address

        name, others = asyncio.run(find_name_at_address(model, api_base, api_key, proxy=self._config.proxy))
        if not others or not self._prompter.is_person:
            return name
        own = name.removeprefix(OWN_SERVER)
        more = f" and {len(others) - _MOST_SHOWN} more" if len(others) > _MOST_SHOWN else ""
        self._prompter.say(
            f"  This server has no {own}. Available: {', '.join(others[:_MOST_SHOWN])}{more}.", look="hint"
        )
        return f"{OWN_SERVER}{self._prompter.ask('Which model', default=others[0]).removeprefix(OWN_SERVER)}"

    def _try_model(self, answers: Mapping[str, str]) -> tuple[str, ModelTrial | None]:
        from gateway.app.model_trial import SECONDS_TO_LOAD, try_model

        try:
            llm = LlmSettings.model_validate({name: value for name, value in answers.items() if value})
        except ValidationError as error:
            return error_lines(error, answers)[0], None
        self._prompter.say("  calling the model with a short test …", look="hint")
        return "", asyncio.run(try_model(llm, proxy=self._config.proxy, seconds=SECONDS_TO_LOAD))


_LEAVES = frozenset({"no", "skip"})  # typed as the answer to any question of a platform


class PlatformSkipped(Exception):
    """The person does not want this platform after all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitOptions:
    """Options of the command line. None is secret, because every user can read the arguments of a process."""

    model: str | None = None
    api_base: str | None = None
    platforms: Sequence[str] = ()
    owners: Sequence[str] = ()
    timezone: str | None = None


class InitWizard:
    """One run of `parlour init`. Verified steps are written; answers of unfinished ones are offered again."""

    def __init__(
        self,
        environment: Mapping[str, str],
        prompter: InitPrompter,
        options: InitOptions,
        *,
        kinds: InstalledPlugins | None = None,
        setups: Mapping[str, SupportsSetup] | None = None,
    ) -> None:
        self._environment = environment
        self._prompter = prompter
        self._options = options
        self._kinds = kinds or InstalledPlugins.installed()
        self._setups = setups if setups is not None else installed_setups()
        self._config = InitConfig(environment, prompter, self._kinds)
        self._draft = self._config.read_draft()
        self._unknown = [name for name in options.platforms if name not in self._setups]

    def run(self) -> None:
        """Ask everything. Raises UserError for what a script left out."""
        if self._unknown:
            known = ", ".join(sorted(self._setups)) or "none"
            raise UserError(f"{self._unknown[0]!r} is not a platform that can be set up here; available: {known}")
        self._prompter.say(
            f"Parlour stores everything in {self._config.home.path}. Press Enter to keep the value in [ ]."
        )
        try:
            self._ask_everything()
        finally:
            self._config.keep_draft(self._draft)
        self._print_next_steps()

    def _ask_everything(self) -> None:
        ModelStep(self._config, self._prompter, self._draft).run(
            model=self._options.model, api_base=self._options.api_base
        )
        self._draft.pop("llm", None)
        for name, setup in sorted(self._setups.items(), key=lambda item: item[1].title):
            self._platform(name, setup)
            self._draft.pop(name, None)
        self._owner()
        self._zone()

    # -- steps -------------------------------------------------------------------------------------

    def _platform(self, name: str, setup: SupportsSetup) -> None:
        present = self._config.present()
        block = block_of(name, present)
        mine = {path[2]: value for path, value in present.items() if path[:2] == ("channels", block) and len(path) == 3}
        is_there = bool(mine) and str(mine.get("enabled", "true")).lower() != "false"
        is_wanted = name in self._options.platforms or is_there
        self._prompter.say(f"{setup.title}", look="title")
        if not self._prompter.confirm(f"Connect {setup.title}?", default=is_wanted):
            return
        for number, step in enumerate(setup.steps, 1):
            self._prompter.say(f"  {number}. {step}", look="hint")
        draft = self._draft.get(name, {})
        answers = {
            each.setting: draft.get(each.setting, as_text(mine.get(each.setting, each.default)))
            for each in setup.questions()
        }
        rest = {key: value for key, value in mine.items() if key not in answers and key != "enabled"}
        while True:
            try:
                settings = self._ask_for_platform(name, setup, answers, rest)
            except PlatformSkipped:
                self._prompter.say(f"  {setup.title} was not changed.", look="hint")
                return
            choice = self._judge(setup, settings)
            if choice == SKIP:
                return
            if choice == KEEP:
                secret = [each.setting for each in setup.questions() if each.is_secret]
                changes = changes_of(("channels", block), answers, secret=secret, model=settings)
                if block != name:
                    changes.plain["channels", block, "kind"] = name
                if "enabled" in mine and not is_there:
                    changes.plain["channels", block, "enabled"] = "true"
                if self._config.write(changes):
                    return

    def _judge(self, setup: SupportsSetup, settings: ChannelSettings | None) -> str:
        """Verify *settings* with the platform, show its findings, and return the next action."""
        if settings is None:
            return choose_next(self._prompter, may_keep=False)
        findings = asyncio.run(verify(setup, settings, {**self._environment, "PARLOUR_PROXY": self._config.proxy}))
        for finding in findings:
            self._prompter.show(finding)
        is_wrong = any(finding.level is FindingLevel.FAIL for finding in findings)
        return choose_next(self._prompter, may_keep=True) if is_wrong else KEEP

    def _ask_for_platform(
        self, name: str, setup: SupportsSetup, answers: dict[str, str], rest: Mapping[str, object]
    ) -> ChannelSettings | None:
        """Ask every question, each until its answer has the right shape; None when together they are wrong."""
        model = self._kinds.model(name)
        if model is None:
            raise UserError(f"this version of Parlour has no settings for {name}")
        for question in setup.questions():
            answers[question.setting] = self._ask(name, model, question, answers[question.setting])
            self._draft.setdefault(name, {})[question.setting] = answers[question.setting]
        given = {key: value for key, value in answers.items() if value}
        try:
            return model.model_validate({"kind": name, **rest, **given})
        except ValidationError as error:
            for line in error_lines(error, given):
                self._prompter.say(f"  {line}", look="wrong")
            return None

    def _ask(self, name: str, model: type[ChannelSettings], question: SetupQuestion, before: str) -> str:
        if question.help:
            self._prompter.say(f"  {question.help}", look="hint")
        needed = "" if question.is_optional else environment_name(f"channels.{name}.{question.setting}")
        while True:
            answer = self._prompter.ask(question.text, default=before, is_secret=question.is_secret, variable=needed)
            if answer == "-" and question.is_optional:
                return ""
            if answer.lower() in _LEAVES and self._prompter.is_person:
                raise PlatformSkipped
            error = validation_message(model, question.setting, answer) if answer else ""
            if not answer and not question.is_optional:
                error = "is required"
            if not error:
                return answer
            self._prompter.say(f"  {error_line(question.setting, error)}", look="wrong")
            if not self._prompter.is_person:
                raise UserError(error_line(environment_name(f"channels.{name}.{question.setting}"), error))
            before = before if before != answer else ""

    def _owner(self) -> None:
        present = self._config.present()
        before = list(self._options.owners) or as_list(present.get(("owners",), ""))
        self._prompter.say("The owner", look="title")
        self._prompter.say(
            "  Who runs the bot, as channel:user_id, such as telegram:501; separate several with commas.", look="hint"
        )
        while True:
            guess = ", ".join(before) or self._guess_owner(present)
            answer = self._prompter.ask("Owner", default=guess)
            if not answer or answer.lower() in _LEAVES:
                return
            if self._config.write(SettingChanges(plain={("owners",): as_list(answer)})):
                return
            self._mend_or_end()

    def _guess_owner(self, present: Mapping[Path_, object]) -> str:
        """Offer the only admitted user as the owner. Only a person at the terminal is asked, never a script."""
        if not self._prompter.is_person:
            return ""
        for path, value in present.items():
            entries = as_list(value)
            if path[0] == "channels" and path[-1] == "allow_from" and len(entries) == 1 and ":" not in entries[0]:
                return "" if entries == ["*"] else f"{path[1]}:{entries[0]}"
        return ""

    def _zone(self) -> None:
        present = self._config.present()
        before = str(present.get(("timezone",), ""))
        self._prompter.say("Time", look="title")
        while True:
            answer = self._prompter.ask("Time zone", default=self._options.timezone or before or machine_zone())
            named = find_zone(answer).name  # a city will do: "Berlin", "new york"
            if named and named != answer:
                self._prompter.say(f"  {named}", look="hint")
            answer = named or answer
            try:
                valid_zone(answer)
            except ValueError as error:
                self._prompter.say(f"  {error}", look="wrong")
                self._mend_or_end()
                continue
            is_machines = not before and answer == machine_zone()
            if is_machines or self._config.write(SettingChanges(plain={("timezone",): answer})):
                return

    # -- small answers ---------------------------------------------------------------------------------

    def _mend_or_end(self) -> None:
        if not self._prompter.is_person:
            raise UserError("nothing was saved in this step; fix the error and run `parlour init` again")

    def _print_next_steps(self) -> None:
        self._prompter.say("Written" if self._config.written else "Nothing needed to be written.", look="title")
        for line in names_of(self._config.written):
            self._prompter.say(f"  {line}", look="result")
        for mistake in check_settings(self._environment, self._kinds).mistakes:
            self._prompter.say(f"  Still to fix: {mistake}", look="wrong")
        if is_held(self._config.home):
            self._prompter.say("A gateway is running on this home; restart it to apply the new settings.")
        else:
            start, check = operator_command("run"), operator_command("doctor")
            self._prompter.say(f"Next: run `{start}`. `{check}` checks everything again.")


def offer_ownership(prompter: InitPrompter) -> None:
    """Print a claim code if a platform is set up and the bot has no owner."""
    settings = check_settings(os.environ).settings
    if settings is None or settings.owners or all(block.traits.is_local for block in settings.channels.values()):
        return
    try:
        (line,) = call_operation("owner claim")
    except UserError:  # it was claimed in the meantime
        return
    except ParlourError as error:
        prompter.say(f"The bot has no owner yet; `{operator_command('owner claim')}` prints a code ({error}).")
        return
    prompter.say("The owner", look="title")
    for row in claim_row(line).splitlines():
        prompter.say(f"  {row}", look="result")


def set_up(options: InitOptions, *, asks: bool, keeps: bool) -> int:
    """Run `parlour init`; return the exit code."""
    if asks and not sys.stdin.isatty():
        raise UserError("setting up needs a terminal, and there is none; in scripts, use --yes")
    configure_logs(level="error", form="text", secrets=())
    prompter = TerminalPrompter() if asks else UnattendedPrompter(keeps=keeps)
    try:
        InitWizard(os.environ, prompter, options).run()
        if asks:
            offer_ownership(prompter)
    except (KeyboardInterrupt, typer.Abort):
        typer.echo(f"\nStopped. Your answers are kept; run `{operator_command('init')}` to continue.", err=True)
        return 130
    return 0
