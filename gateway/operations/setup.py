"""Operations on settings: those of chats with their origins; the console saves a model, platforms and a chat's.

A model and platforms are tried by real calls first.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING

from gateway.control import Line
from gateway.control.registry import AuditRule, operation
from gateway.errors import UserError
from gateway.events import Role
from gateway.i18n.failures import describe_missing
from gateway.net.addresses import hide_password, restore_password
from gateway.operations.group import OperationGroup, parse_chat
from gateway.ports.setup import Finding, FindingLevel
from gateway.settings import InstalledPlugins, check_settings, secret_values
from gateway.settings.chat_settings import ChatCaps, ChatSettings, ChatTools
from gateway.settings.setting_names import normalize_names
from gateway.settings.settings_model import OFFLINE, LlmSettings, provider_of
from gateway.settings.sources import HOME, read_environment
from gateway.text.redaction import SecretRedactor

if TYPE_CHECKING:
    from gateway.app.runtime import Runtime
    from gateway.settings_writer import SettingChanges, SettingsFileWriter

# What can be set for one chat: the fields of an entry of `chats`.
CHAT_SETTINGS = (
    *(name for name in ChatSettings.model_fields if name not in ("tools", "caps")),
    *(".".join(("tools", name)) for name in ChatTools.model_fields),
    *(".".join(("caps", name)) for name in ChatCaps.model_fields),
)
_LONGEST = 4_000  # characters of an answer
_MOST_SHOWN = 12


class SetupOperations(OperationGroup):
    """The operations `setup status|servers|models|model|platform|restart` and `chats list|settings|preview|change`.

    No answer has a secret.
    """

    def __init__(self, app: Runtime) -> None:
        super().__init__(app)
        self._run = secrets.token_hex(8)  # differs after a restart
        self._writes = asyncio.Lock()

    @operation("setup status", Role.OWNER)
    async def status(self) -> AsyncIterator[Line]:
        """Yield the model, and each platform with its channels and questions. No secret is in the line."""
        from gateway.health.network_checks import installed_setups

        llm, channels = self._app.settings.llm, self._app.settings.channels
        platforms = []
        for name, setup in sorted((await asyncio.to_thread(installed_setups)).items()):
            blocks = [block for block, each in channels.items() if each.kind == name and each.enabled]
            block = channels[blocks[0]] if blocks else None
            platforms.append(
                {
                    "name": name,
                    "title": setup.title,
                    "steps": list(setup.steps),
                    "channels": [
                        {"name": each, "is_ready": self._app.supervisor.states().get(each)} for each in blocks
                    ],
                    "questions": [
                        {
                            "setting": each.setting,
                            "text": each.text,
                            "help": each.help,
                            "is_secret": each.is_secret,
                            "is_optional": each.is_optional or bool(each.default),
                            "default": each.default,
                            "value": "" if each.is_secret else _text(getattr(block, each.setting, "")),
                        }
                        for each in setup.questions()
                    ],
                }
            )
        yield {
            "run": self._run,
            "can_restart": self._app.restart is not None,
            "model": llm.model if llm.model != OFFLINE else "",
            "api_base": hide_password(str(llm.api_base or "")),
            "has_key": llm.api_key is not None,
            "lacks": describe_missing(self._app.models.default.own_facts()),
            "platforms": platforms,
        }

    @operation("setup servers", Role.OWNER)
    async def list_servers(self) -> AsyncIterator[Line]:
        """Look for model servers on this machine; yield one line per server that answers, then one per provider."""
        from gateway.app.model_trial import PROVIDERS, find_local_servers

        for each in await find_local_servers():
            models = each.models
            yield {"title": each.title, "api_base": models.api_base, "models": models.chat_names}
        for provider in PROVIDERS.values():
            has_key = bool(self._saved_key(provider.id, ""))
            yield {"title": provider.title, "provider": provider.id, "keys": provider.keys, "has_key": has_key}

    @operation("setup models", Role.OWNER, audit=AuditRule.CALL)
    async def list_models(self, provider: str = "", api_base: str = "", api_key: str = "") -> AsyncIterator[Line]:
        """Yield the models of *provider*, or of the server at *api_base*, or the `problem` instead."""
        from pydantic import ValidationError

        from gateway.app.model_trial import PROVIDERS, list_models_at, list_provider_models
        from gateway.settings_writer import error_lines

        name, address, key = _answer(provider, "provider"), _answer(api_base, "api_base"), _answer(api_key, "api_key")
        typed, address = address, restore_password(address, str(self._app.settings.llm.api_base or ""))
        if address and "://" not in address:
            typed = address = f"http://{address}"
        try:
            LlmSettings.model_validate({"api_base": address})
        except ValidationError as error:
            raise _user_error(error_lines(error, {"api_base": address}), [key]) from None
        known, proxy = PROVIDERS.get(name), self._app.settings.proxy_address
        if known is not None:
            found = await list_provider_models(known, key or self._saved_key(name, ""), proxy=proxy)
        elif address:
            found = await list_models_at(address, key or self._saved_key("", address), proxy=proxy)
        else:
            raise UserError(f"name the provider ({', '.join(PROVIDERS)}), or the address of a server")
        base = found.api_base if address == typed else hide_password(found.api_base)
        yield {"api_base": base, "models": found.chat_names, "problem": found.problem or ""}

    @operation("setup model", Role.OWNER, audit=AuditRule.CALL, subject="model")
    async def set_model(self, model: str = "", api_base: str = "", api_key: str = "") -> AsyncIterator[Line]:
        """Call the model once and save it if it answers; *api_key* gets a secret file."""
        from pydantic import ValidationError

        from gateway.app.model_trial import OWN_SERVER, SECONDS_TO_LOAD, find_name_at_address, try_model
        from gateway.settings_writer import changes_of, error_lines

        given = {"model": model, "api_base": api_base, "api_key": api_key}
        answers = {name: _answer(value, name) for name, value in given.items()}
        key = answers["api_key"]
        if not answers["model"]:
            raise UserError("name the model, such as openai/gpt-5")
        base = str(self._app.settings.llm.api_base or "")
        answers["api_base"] = restore_password(answers["api_base"], base)
        if not key and self._app.settings.llm.api_key is not None:
            key = self._saved_key(provider_of(answers["model"]), answers["api_base"])
            if not key:
                raise UserError("the saved key is for another address; enter one for this (any, if it needs none)")
        if answers["api_base"]:
            proxy = self._app.settings.proxy_address
            name, others = await find_name_at_address(answers["model"], answers["api_base"], key, proxy=proxy)
            if others:
                own = name.removeprefix(OWN_SERVER)
                raise UserError(f"this server has no model {own!r}; it has {', '.join(others[:_MOST_SHOWN])}")
            answers["model"] = name
        given = {name: value for name, value in {**answers, "api_key": key}.items() if value}
        try:
            llm = LlmSettings.model_validate(given)
        except ValidationError as error:
            raise _user_error(error_lines(error, {**given, "api_key": ""}), [key]) from None
        trial = await try_model(llm, proxy=self._app.settings.proxy_address, seconds=SECONDS_TO_LOAD)
        finding = trial.finding
        _require([finding], [key])
        await trial.keep(self._app.models.default.facts)
        changes = changes_of(("llm",), answers, secret=("api_key",))
        if base and not answers["api_base"]:
            changes.plain["llm", "api_base"] = ""
        try:
            await self._write(changes)
        except UserError as error:
            raise UserError(f"{finding.text}, but {error}\n{_environment_lines(changes)}") from None
        warnings = [finding.text] if finding.level is FindingLevel.WARN else []
        yield {"findings": [finding.text], "warnings": warnings, "needs_restart": True}

    @operation("setup learned", makes_home=True)
    async def keep_trials(self, trials: object = None) -> AsyncIterator[Line]:
        """Keep the facts about models that trials of another process have shown."""
        from gateway.app.model_trial import keep_trials

        try:
            await keep_trials(trials, self._app.models.default.facts)
        except ValueError as error:
            raise UserError(str(error)) from None
        yield {}

    def _saved_key(self, provider: str, base: str) -> str:
        """Return the saved key if it was saved for this address, or without one for this provider; otherwise ""."""
        llm = self._app.settings.llm
        is_same = base == str(llm.api_base or "") and (bool(base) or provider == provider_of(llm.model))
        return llm.api_key.get_secret_value() if is_same and llm.api_key is not None else ""

    @operation("setup platform", Role.OWNER, audit=AuditRule.CALL, subject="platform")
    async def set_platform(self, platform: str = "", answers: object = None) -> AsyncIterator[Line]:
        """Verify *answers* to the questions of *platform* by calls to it, and save them if it accepts them."""
        from pydantic import ValidationError

        from gateway.health.network_checks import installed_setups, verify
        from gateway.settings_writer import changes_of, error_lines

        setups = await asyncio.to_thread(installed_setups)
        name = _answer(platform, "platform")
        setup, model = setups.get(name), InstalledPlugins.installed().model(name)
        if setup is None or model is None:
            raise UserError(f"{name[:40]!r} is not a platform that can be set up here; there are {', '.join(setups)}")
        questions = {each.setting: each for each in setup.questions()}
        if not isinstance(answers, dict) or answers.keys() - questions.keys():
            raise UserError(f"answers must be an object with {', '.join(questions)}")
        answers = {name: _answer(answers.get(name, ""), name) or each.default for name, each in questions.items()}
        for setting, each in questions.items():
            if not answers[setting] and not each.is_optional:
                raise UserError(f"{each.text}: is required")
        hidden = [answers[setting] for setting, each in questions.items() if each.is_secret]
        shown = {setting: value for setting, value in answers.items() if value}
        block = self._block_of(name)
        try:
            settings = model.model_validate({"kind": name, **self._keep_others(block, questions), **shown})
        except ValidationError as error:
            raise _user_error(error_lines(error, shown), hidden) from None
        environment = {**self._environment(), "PARLOUR_PROXY": self._app.settings.proxy_address}
        findings = await verify(setup, settings, environment)
        _require(findings, hidden)
        is_secret = [setting for setting, each in questions.items() if each.is_secret]
        changes = changes_of(("channels", block), answers, secret=is_secret, model=settings)
        changes.plain["channels", block, "enabled"] = "true"
        await self._write(changes)
        yield {"findings": [_cut_secrets(each.text, hidden) for each in findings], "needs_restart": True}

    @operation("chats preview", Role.OWNER)
    async def preview_chat(self, chat: str = "", name: str = "", value: str = "") -> AsyncIterator[Line]:
        """Yield the lines that a change of a chat's setting would remove from and add to the settings file."""
        changes = _chat_changes(chat, name, value)

        def preview() -> tuple[str, str]:
            writer = self._open_writer(changes)
            return str(writer.file), writer.preview(changes)

        file, lines = await asyncio.to_thread(preview)
        redact = SecretRedactor(secret_values(self._app.settings)).redact_log
        yield {"file": file, "lines": redact(lines), "needs_restart": True}

    @operation("chats change", Role.OWNER, audit=AuditRule.CALL, subject="chat")
    async def change_chat(self, chat: str = "", name: str = "", value: str = "") -> AsyncIterator[Line]:
        """Save a setting of one chat, without a value remove it from the file; the next start uses it."""
        await self._write(_chat_changes(chat, name, value))
        yield {"needs_restart": True}

    @operation("setup restart", Role.OWNER, audit=AuditRule.CALL)
    async def restart(self) -> AsyncIterator[Line]:
        """Stop as for SIGTERM and start again in the same process: running turns are finished or given back."""
        if self._app.restart is None:
            raise UserError("this gateway was started by another program; stop it there, and start it again")
        report = await asyncio.to_thread(check_settings, self._environment())
        if report.mistakes:  # it would stop, and not start
            raise UserError(f"the settings have errors, so the gateway was not stopped: {report.mistakes[0]}")
        yield {"run": self._run}
        self._app.restart.set()

    def _block_of(self, kind: str) -> str:
        """Return the name of the first block of a kind: the one of the kind's own name, or another, or a new one."""
        channels = self._app.settings.channels
        return kind if kind in channels else next((each for each in channels if channels[each].kind == kind), kind)

    def _keep_others(self, block: str, questions: Iterable[str]) -> dict[str, object]:
        """Return the settings of a block that no question asks for, such as its webhook."""
        found = self._app.settings.channels.get(block)
        names = set(found.model_fields_set if found is not None else ()) - {*questions, "enabled", "kind"}
        return {name: getattr(found, name) for name in names}

    def _environment(self) -> dict[str, str]:
        return {**os.environ, HOME: str(self._app.home.path)}

    async def _write(self, changes: SettingChanges) -> None:
        """Save *changes*; raise UserError for what the environment overrides and for settings that would be wrong."""

        def write() -> None:
            try:
                self._open_writer(changes).write(changes)
            except OSError as error:
                raise UserError(f"{self._app.home.path} cannot be written ({error.strerror})") from None

        async with self._writes:
            await asyncio.to_thread(write)

    def _open_writer(self, changes: SettingChanges) -> SettingsFileWriter:
        """Return the writer; raise UserError if the environment overrides one of *changes*. Blocks."""
        from gateway.settings_writer import SettingsFileWriter

        environment = self._environment()
        paths = {*changes.plain, *changes.secret}
        for leaf in map(normalize_names, read_environment(environment)):
            if leaf.path in paths or (*leaf.path[:-1], leaf.path[-1].removesuffix("_file")) in paths:
                raise UserError(
                    f"{leaf.place} is set in the environment, which overrides what is saved; change it there"
                )
        return SettingsFileWriter(self._app.home.path, environment, InstalledPlugins.installed())

    @operation("chats list", Role.OWNER)
    async def list_chats(self) -> AsyncIterator[Line]:
        """Yield one line per chat with a session, the most recently used first, with the number of its sessions."""
        chats: dict[str, dict[str, object]] = {}
        counts: dict[str, int] = {}
        for row in await self._app.store.records.sessions():
            name = str(row.key.parent)
            chats.setdefault(name, {"chat": name, "is_shared": row.scope.startswith("chats/")})
            counts[name] = counts.get(name, 0) + 1
        for name, line in chats.items():
            yield {**line, "sessions": counts[name]}

    @operation("chats settings", Role.ADMIN)
    async def list_settings(self, chat: str = "") -> AsyncIterator[Line]:
        """Yield one line per setting of a chat: its value, its origin, and the line that sets it for this chat."""
        from agent.turns.chat_profiles import stored_guild

        key = parse_chat(chat)
        scopes = {row.key: row.scope for row in await self._app.store.records.sessions()}
        guild = stored_guild(self._app.store.people, key)
        for each in self._app.commands.list_settings(key, guild, scopes.get(key, "")):
            yield {
                "name": each.name,
                "value": each.value,
                "origin": each.said_by,
                "paste": f"chats: {{{json.dumps(str(key))}: {{{_yaml(each.name, each.value)}}}}}",
            }


def _environment_lines(changes: SettingChanges) -> str:
    """Return the variables to set by hand if nothing can be saved; they work in every installation."""
    plain = [f"PARLOUR_{'__'.join(path).upper()}={value}" for path, value in changes.plain.items()]
    secret = [f"PARLOUR_{'__'.join(path).upper()}=<the key>" for path in changes.secret]
    return "\n".join(["Set these variables where the gateway is started, and restart it:", *plain, *secret])


def _chat_changes(chat: str, name: str, value: str) -> SettingChanges:
    """Return the change of one setting of one chat, without a value its removal; raise UserError for another name."""
    from gateway.settings_writer import SettingChanges

    key, name, value = parse_chat(_answer(chat, "chat")), _answer(name, "name"), _answer(value, "value")
    if name not in CHAT_SETTINGS:
        raise UserError(f"name the chat, and one of {', '.join(CHAT_SETTINGS)}")
    if name == "soul" and value.endswith((".md", ".txt")):
        raise UserError("write the persona itself; a file is named in the settings file only")  # it may be a memory
    path = ("chats", str(key), *name.split("."))
    names = [each.strip() for each in value.split(",") if each.strip()]
    return SettingChanges(plain={path: (names if name.startswith("tools.") else value) or None})


def _answer(value: object, name: str) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST or not value.isprintable():
        raise UserError(f"{name} must be one line of at most {_LONGEST} characters")
    return value.strip()


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value or "")


def _require(findings: Iterable[Finding], hidden: Iterable[str]) -> None:
    wrong = [each.text for each in findings if each.level is FindingLevel.FAIL]
    if wrong:
        raise _user_error(wrong, hidden)


def _user_error(lines: Iterable[str], hidden: Iterable[str]) -> UserError:
    return UserError(_cut_secrets(f"{'; '.join(lines)}. Nothing was saved.", hidden))


def _cut_secrets(text: str, hidden: Iterable[str]) -> str:
    """Return *text* without the secrets *hidden*, which an error may quote."""
    for each in filter(None, hidden):
        text = text.replace(each, "…")
    return text


def _yaml(name: str, value: str) -> str:
    """Return the entry of a setting in flow style, which JSON's texts are valid in."""
    section, _, field = name.rpartition(".")
    if name == "tools":
        return "tools: {deny: [NAME]}"
    if name == "soul":
        return 'soul: "You are …"'
    plain = value if value.isdecimal() or value in ("true", "false") else json.dumps(value, ensure_ascii=False)
    return f"{section}: {{{field}: {plain}}}" if section else f"{name}: {plain}"
