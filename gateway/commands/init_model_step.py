"""The first step of `parlour init`: which model, at which address, with which key."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import ValidationError

from gateway.commands.init_config import InitConfig
from gateway.commands.init_prompts import KEEP, SKIP, InitPrompter, choose_next
from gateway.net.web_credentials import hide_password, restore_password
from gateway.ports.findings import FindingLevel
from gateway.settings.llm import LlmSettings
from gateway.settings_writer import SettingChanges, changes_of, error_lines

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
