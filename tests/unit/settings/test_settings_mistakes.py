"""Every wrong setting is one line that names its place and says how to mend it, without repeating a secret."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.settings import check_settings
from gateway.settings.channel_blocks import entry_error
from tests.fakes.settings import TELEGRAM_TOKEN, kinds

TELEGRAM = "PARLOUR_CHANNELS__TELEGRAM__"

WRONG = {
    "unknown": (
        {"PARLOUR_LLM__MODLE": "x"},
        "PARLOUR_LLM__MODLE is not a setting of Parlour; did you mean PARLOUR_LLM__MODEL?",
    ),
    "one-underscore": ({"PARLOUR_LLM_MODEL": "x"}, "did you mean PARLOUR_LLM__MODEL?"),
    "unknown-group": ({"PARLOUR_CHANELS__TELEGRAM__TOKEN": "x"}, "did you mean PARLOUR_CHANNELS__TELEGRAM__TOKEN?"),
    "unknown-in-block": ({f"{TELEGRAM}ENABLED": "0", f"{TELEGRAM}TOKENN": "x"}, f"did you mean {TELEGRAM}TOKEN?"),
    "unknown-kind": ({"PARLOUR_CHANNELS__TELEGRM__TOKEN": "x"}, "did you mean telegram?"),
    "number": ({"PARLOUR_WEB__PORT": "eighty"}, "PARLOUR_WEB__PORT must be a whole number"),
    "range": ({"PARLOUR_WEB__PORT": "70000"}, "PARLOUR_WEB__PORT must be at most 65535"),
    "word": ({"PARLOUR_AGENT__OVERLAP": "ster"}, "must be 'queue' or 'steer'; did you mean steer?"),
    "switch": ({"PARLOUR_ALLOW_EVERYONE": "maybe"}, "PARLOUR_ALLOW_EVERYONE must be true or false"),
    "zone": ({"PARLOUR_TIMEZONE": "Mars/Olympus"}, "use an IANA name such as Europe/Berlin"),
    "zone-near": ({"PARLOUR_TIMEZONE": "Berlin"}, "did you mean Europe/Berlin?"),
    "language": ({"PARLOUR_LANGUAGE": "pt-BR"}, "'pt-BR' is not a supported language; available: de (Deutsch), en"),
    "chat-language": (
        {"PARLOUR_CHATS": '{"web:owner": {"language": "xx"}}'},
        "chats.web:owner.language in PARLOUR_CHATS: 'xx' is not a supported language",
    ),
    "zone-path": ({"PARLOUR_TIMEZONE": "../../etc/passwd"}, "use an IANA name"),
    "address": ({"PARLOUR_LLM__API_BASE": "example.org"}, "must be a complete address starting with https://"),
    "group-as-value": ({"PARLOUR_WEB": "8787"}, "PARLOUR_WEB must be a group of settings"),
    "value-as-group": ({"PARLOUR_LANGUAGE__X": "de"}, "language is one value, not a group"),
    "home-in-file": ({"PARLOUR_HOMES": "x"}, "PARLOUR_HOMES is not a setting"),
    "empty-secret": ({"PARLOUR_LLM__API_KEY": ""}, "PARLOUR_LLM__API_KEY is empty; give it a value, or remove it"),
    "blank-secret": ({"PARLOUR_LLM__API_KEY": " canary "}, "contains a space or an invisible character"),
    "missing-file": ({"PARLOUR_LLM__API_KEY_FILE": "/nowhere/key"}, "/nowhere/key cannot be read"),
    "no-token": ({f"{TELEGRAM}ENABLED": "true"}, "channels.telegram needs a token from @BotFather"),
    "empty-token": ({f"{TELEGRAM}TOKEN": ""}, f"{TELEGRAM}TOKEN is empty"),
    "telegram-token": (
        {f"{TELEGRAM}TOKEN": "canary"},
        f"{TELEGRAM}TOKEN is not a Telegram bot token; copy it from @BotFather",
    ),
    "slack-token": ({"PARLOUR_CHANNELS__SLACK__BOT_TOKEN": "xoxp-canary"}, "it begins with xoxb-"),
    "slack-app": (
        {"PARLOUR_CHANNELS__SLACK__BOT_TOKEN": "xoxb-1234567890", "PARLOUR_CHANNELS__SLACK__APP_TOKEN": "canary"},
        "it begins with xapp-",
    ),
    "discord-token": ({"PARLOUR_CHANNELS__DISCORD__TOKEN": "canary"}, "is not a Discord bot token"),
    "everyone": (
        {f"{TELEGRAM}ENABLED": "0", f"{TELEGRAM}ALLOW_FROM": "*"},
        "confirm it with PARLOUR_ALLOW_EVERYONE=true",
    ),
    "owner": ({"PARLOUR_OWNERS": "ann"}, "'ann' is not an owner; write channel:user_id"),
    "owner-channel": ({"PARLOUR_OWNERS": "telegam:42"}, "did you mean telegram?"),
    "chat": ({"PARLOUR_CHATS": '{"nokey": {"language": "de"}}'}, "'nokey' is not a chat; write channel:chat_id"),
    "block-name": ({"PARLOUR_CHANNELS__9X__KIND": "web"}, "is not a valid channel name"),
    "proxy": ({"PARLOUR_TRUSTED": "x"}, "is not a setting"),
    "network": ({"PARLOUR_WEB__TRUSTED_PROXIES": "10.0.0.0/99"}, "is not an IP address or network"),
    "bad-json": ({"PARLOUR_CHATS": "{canary"}, "PARLOUR_CHATS looks like JSON, but is not valid JSON"),
    "overlap": ({"PARLOUR_TOOLS__VECTOR_MEMORY__CHUNK_OVERLAP": "600"}, "chunk_overlap must be smaller"),
}


def mistakes(home: Path, environment: dict[str, str]) -> tuple[str, ...]:
    """Return what is wrong with an environment."""
    report = check_settings({"PARLOUR_HOME": str(home), **environment}, kinds())
    assert (report.settings is None) == bool(report.mistakes)
    return report.mistakes


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_setting_is_one_line(tmp_path: Path, case: str) -> None:
    """One mistake gives exactly one line, with the place, the mend, and never the value of a secret."""
    environment, expected = WRONG[case]
    found = mistakes(tmp_path, environment)
    assert len(found) == 1, found
    assert expected in found[0]
    assert "\n" not in found[0]
    assert "canary" not in found[0]


def test_a_mistake_in_a_file_names_the_file_and_the_place(tmp_path: Path) -> None:
    """What stands in the file is named as it is written there."""
    (tmp_path / "parlour.yaml").write_text("web: {prot: 1}\nllm: {timeoutSeconds: soon}\nhome: /x\n")
    assert mistakes(tmp_path, {}) == (
        "web.prot in parlour.yaml is not a setting of Parlour; did you mean web.port?",
        "home in parlour.yaml: only PARLOUR_HOME can set the home folder; remove it here",
        "llm.timeoutSeconds in parlour.yaml must be a number",
    )


def test_a_settings_file_that_cannot_be_read_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container, where the file came with another owner, the line that gives the home back is in the message."""
    monkeypatch.setenv("container", "oci")
    (tmp_path / "parlour.yaml").mkdir()  # unreadable for root as well, who runs these tests
    (error,) = mistakes(tmp_path, {})
    assert "parlour.yaml cannot be read" in error
    assert error.endswith(f"--entrypoint chown parlour -R {os.geteuid()}:{os.getegid()} {tmp_path}")


def test_every_mistake_is_named_at_once(tmp_path: Path) -> None:
    """The doctor has all of them; the one line of a start says how many more there are."""
    report = check_settings({"PARLOUR_HOME": str(tmp_path), "PARLOUR_X": "1", "PARLOUR_WEB__PORT": "x"}, kinds())
    assert len(report.mistakes) == 2
    with pytest.raises(Exception, match=r"\(and 1 more: `parlour doctor` lists them all\)"):
        report.require()


REFUSED = {
    "name": "bob",
    "handle": "@bob",
    "empty": '[""]',
    "blank": '[" 501"]',
    "leading-blank": " 501",
    "trailing-blank": "501 ",
    "float": "[501.0]",
    "float-text": '["501.0"]',
    "bool": "[true]",
    "null": "[null]",
    "full-width": '["\uff15\uff10\uff11"]',
    "arabic-digits": '["\u0665\u0660\u0661"]',
    "zero-width": '["501\u200b"]',
    "line-end": '["501\\n"]',
    "negative-user": "-501",
    "leading-zero": "0501",
    "nested": '[["501"]]',
    "double-comma": "501,,502",
    "guild-elsewhere": "guild:1",
    "role-name": "role:admins",
    "star-inside": "5*",
    "just-empty": "chat:",
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_allow_list_takes_ids_only(tmp_path: Path, case: str) -> None:
    """Attack 10: names, blanks, floats and digits of other scripts refuse the start; they never match somebody."""
    found = mistakes(tmp_path, {f"{TELEGRAM}TOKEN": TELEGRAM_TOKEN, f"{TELEGRAM}ALLOW_FROM": REFUSED[case]})
    assert len(found) == 1, found
    assert found[0].startswith(f"{TELEGRAM}ALLOW_FROM")


@pytest.mark.parametrize("text", ["501", "501, 502", "[501]", '["501", "chat:-100123"]'])
def test_an_allow_list_takes_ids(tmp_path: Path, text: str) -> None:
    """Ids pass as text or as whole numbers, in JSON or with commas."""
    environment = {"PARLOUR_HOME": str(tmp_path), f"{TELEGRAM}TOKEN": TELEGRAM_TOKEN, f"{TELEGRAM}ALLOW_FROM": text}
    settings = check_settings(environment, kinds()).settings
    assert settings is not None
    assert settings.channels["telegram"].allow_from[0] == "501"


@given(st.text(max_size=12))
def test_only_digits_pass_for_a_telegram_user(text: str) -> None:
    """No text but ASCII digits passes as a user id where ids are digits."""
    shapes = {"user": r"[1-9][0-9]{0,19}"}
    is_id = text.isascii() and text.isdigit() and not text.startswith("0")
    assert (entry_error(text, shapes) == "") == (is_id or text == "*")
