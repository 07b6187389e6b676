"""Environment over file over defaults, in either spelling, with secrets from wherever they stand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.errors import SettingsError
from gateway.settings import Settings, check_settings, load_settings, secret_values
from tests.fakes.settings import TELEGRAM_TOKEN, kinds


def load(home: Path, **environment: str) -> Settings:
    """Return the settings of an environment."""
    return load_settings({"PARLOUR_HOME": str(home), **environment}, kinds())


def mistake(home: Path, **environment: str) -> str:
    """Return the one line of an environment that is wrong."""
    with pytest.raises(SettingsError) as wrong:
        load(home, **environment)
    return str(wrong.value)


def test_nothing_set_gives_the_documented_defaults(tmp_path: Path) -> None:
    """A fresh machine needs no configuration: the page on loopback, the offline model, the console."""
    settings = load(tmp_path)
    assert (settings.web.host, settings.web.port, settings.llm.model) == ("127.0.0.1", 8787, "")
    assert (settings.agent.workers, settings.agent.queued_per_chat, settings.agent.queued) == (64, 300, 10_000)
    assert (settings.llm.timeout_seconds, settings.llm.stream_silence_seconds, settings.llm.attempts) == (120, 30, 2)
    assert (settings.agent.max_tool_calls, settings.agent.shutdown_grace_seconds) == (25, 25)
    assert settings.agents.defaults.memory_window == 100
    assert {name: block.kind for name, block in settings.channels.items()} == {"web": "web", "console": "console"}
    assert not settings.allow_everyone
    assert not settings.owners


def test_the_home_is_dot_parlour_unless_said_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PARLOUR_HOME names the home; without it, it is ~/.parlour."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_settings({}, kinds()).home == tmp_path / ".parlour"
    assert load_settings({"PARLOUR_HOME": "~/x"}, kinds()).home == tmp_path / "x"


FILES = {
    "parlour.yaml": "llm:\n  model: file/model\n  apiBase: https://example.org/v1\nweb: {port: 9000}\n",
    "parlour.yml": "llm: {model: file/model, api_base: 'https://example.org/v1'}\nweb:\n  port: 9000\n",
    "parlour.json": '{"llm": {"model": "file/model", "apiBase": "https://example.org/v1"}, "web": {"port": 9000}}',
    "parlour.toml": '[llm]\nmodel = "file/model"\napi_base = "https://example.org/v1"\n[web]\nport = 9000\n',
}


@pytest.mark.parametrize("name", FILES)
def test_environment_wins_over_a_file_of_any_format(tmp_path: Path, name: str) -> None:
    """Each format says the same, in snake_case or camelCase; the environment replaces single values of it."""
    (tmp_path / name).write_text(FILES[name])
    settings = load(tmp_path, PARLOUR_WEB__PORT="9001")
    assert (settings.llm.model, settings.llm.api_base) == ("file/model", "https://example.org/v1")
    assert settings.web.port == 9001


def test_two_files_are_refused(tmp_path: Path) -> None:
    """Nobody has to guess which of two files counts."""
    (tmp_path / "parlour.yaml").write_text("")
    (tmp_path / "parlour.json").write_text("{}")
    assert "keep only one of them" in mistake(tmp_path)


def test_yaml_words_stay_words(tmp_path: Path) -> None:
    """`off` is a policy and 0123 is no octal number: YAML's guesses do not reach the settings."""
    (tmp_path / "parlour.yaml").write_text(
        "agent: {merge: off}\nchannels:\n  discord: {enabled: off, group_policy: off, allow_from: [1234567890123]}\n"
    )
    settings = load(tmp_path)
    block = settings.channels["discord"]
    assert (settings.agent.merge, block.group_policy, block.enabled) == ("off", "off", False)
    assert block.allow_from == ("1234567890123",)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("parlour.yaml", "llm:\n  model: a\n  model: b\n"),
        ("parlour.json", '{"llm": {"model": "a", "model": "b"}}'),
        ("parlour.yaml", "llm: {apiBase: 'https://a', api_base: 'https://b'}\n"),
    ],
    ids=["yaml-twice", "json-twice", "both-spellings"],
)
def test_one_setting_said_twice_is_refused(tmp_path: Path, name: str, text: str) -> None:
    """The same setting twice in one source is a mistake, however it is spelled."""
    (tmp_path / name).write_text(text)
    assert "keep one" in mistake(tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("parlour.yaml", "llm:\n  api_key: canary-secret\n   model: [\n"),
        ("parlour.json", '{"llm": {"api_key": "canary-secret",}}'),
        ("parlour.toml", '[llm]\napi_key = "canary-secret\n'),
    ],
)
def test_a_file_that_cannot_be_read_names_the_line_and_quotes_nothing(tmp_path: Path, name: str, text: str) -> None:
    """A broken file is one line with a position; parsers' quotations could hold a secret and are left out."""
    (tmp_path / name).write_text(text)
    line = mistake(tmp_path)
    assert "line" in line
    assert "canary" not in line
    assert "\n" not in line


def test_block_names_come_from_variables_with_a_dash(tmp_path: Path) -> None:
    """PARLOUR_CHANNELS__TELEGRAM_WORK__… is the block telegram-work, and its kind may stand in the file."""
    (tmp_path / "parlour.yaml").write_text("channels:\n  telegram-work:\n    kind: telegram\n")
    settings = load(tmp_path, PARLOUR_CHANNELS__TELEGRAM_WORK__TOKEN=TELEGRAM_TOKEN)
    block = settings.channels["telegram-work"]
    assert block.kind == "telegram"
    assert TELEGRAM_TOKEN in set(secret_values(settings))


def test_a_secret_may_come_from_a_file(tmp_path: Path) -> None:
    """`*_FILE` in the environment and in the file, and the secrets folder; what stands nearer to the process wins."""
    (tmp_path / "key").write_text("from-the-file\n")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "LLM__API_KEY").write_text("from-the-folder")

    def key(**environment: str) -> str:
        secret = load(tmp_path, **environment).llm.api_key
        assert secret is not None
        return secret.get_secret_value()

    assert key() == "from-the-folder"
    assert key(PARLOUR_LLM__API_KEY_FILE=str(tmp_path / "key")) == "from-the-file"
    (tmp_path / "parlour.yaml").write_text(f"llm: {{api_key_file: {tmp_path / 'key'}}}\n")
    (tmp_path / "secrets" / "LLM__API_KEY").unlink()
    assert key() == "from-the-file"
    assert key(PARLOUR_LLM__API_KEY="from-the-variable") == "from-the-variable"


def test_a_secret_said_twice_in_the_environment_is_refused(tmp_path: Path) -> None:
    """Value and file of one secret are two answers to one question."""
    (tmp_path / "key").write_text("x")
    line = mistake(tmp_path, PARLOUR_LLM__API_KEY="y", PARLOUR_LLM__API_KEY_FILE=str(tmp_path / "key"))
    assert "keep one" in line


def test_lists_take_json_or_commas(tmp_path: Path) -> None:
    """Both forms of a list give the same."""
    commas = load(tmp_path, PARLOUR_LLM__FALLBACKS="a/b, c/d", PARLOUR_OWNERS="web:owner,console:1")
    as_json = load(tmp_path, PARLOUR_LLM__FALLBACKS='["a/b", "c/d"]', PARLOUR_OWNERS='["web:owner", "console:1"]')
    assert commas == as_json
    assert commas.llm.fallbacks == ("a/b", "c/d")


def test_a_group_may_be_json_in_one_variable(tmp_path: Path) -> None:
    """A whole group, and the settings of a chat, fit into one variable."""
    chats = json.dumps({"web:owner": {"language": "de", "replyIn": "thread"}})
    settings = load(tmp_path, PARLOUR_WEB='{"port": 1, "host": "::1"}', PARLOUR_CHATS=chats)
    assert (settings.web.port, settings.web.host) == (1, "::1")
    assert settings.chats["web:owner"].reply_in == "thread"


@pytest.mark.parametrize(("code", "language"), [("de", "de"), ("de-AT", "de"), ("zh_CN", "zh"), ("ES", "es")])
def test_a_regional_form_is_its_language(tmp_path: Path, code: str, language: str) -> None:
    """Whoever writes the code that their system has is understood, for all chats and for one."""
    chats = json.dumps({"web:owner": {"language": code}})
    settings = load(tmp_path, PARLOUR_LANGUAGE=code, PARLOUR_CHATS=chats)
    assert (settings.language, settings.chats["web:owner"].language) == (language, language)


def test_a_retired_name_warns_and_still_counts(tmp_path: Path) -> None:
    """A key once released is never unknown: its value moves to the successor, which is named."""
    (tmp_path / "parlour.json").write_text(
        '{"agents": {"defaults": {"dream": {"model": "x/y", "modelOverride": null}}}}'
    )
    report = check_settings({"PARLOUR_HOME": str(tmp_path)}, kinds())
    assert report.settings is not None
    assert report.settings.agents.defaults.dream.model_override == "x/y"
    assert report.warnings == (
        "agents.defaults.dream.model in parlour.json is now called agents.defaults.dream.model_override; rename it",
    )


def test_settings_cannot_be_changed(tmp_path: Path) -> None:
    """Settings are read once; nobody changes them under somebody else."""
    settings = load(tmp_path)
    with pytest.raises(ValueError, match="frozen"):
        setattr(settings, "language", "de")  # noqa: B010 - mypy refuses the plain form already


def test_printed_settings_hold_no_secret(tmp_path: Path) -> None:
    """A settings object that lands in a log or a traceback shows no key."""
    settings = load(
        tmp_path,
        PARLOUR_LLM__API_KEY="canary-key",
        PARLOUR_STORE__URL="postgresql://u:canary-word@h/d",
        PARLOUR_PROXY="http://u:canary-proxy@h:1",
        PARLOUR_ALERT_URL="https://h/canary-hook",
        PARLOUR_CHANNELS__TELEGRAM__TOKEN=TELEGRAM_TOKEN,
    )
    assert "canary" not in repr(settings) + str(settings) + settings.model_dump_json()
    assert sum("canary" in secret for secret in secret_values(settings)) == 5
