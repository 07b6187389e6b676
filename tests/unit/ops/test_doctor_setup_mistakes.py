"""What people get wrong when they set a bot up: each slip is one line of the doctor's that says how to mend it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import time_machine

from gateway.app.model_trial import try_model
from gateway.doctor import DoctorFinding, FindingLevel, check_machine
from gateway.ports import setup
from gateway.settings import check_settings
from gateway.settings.llm import LlmSettings

TELEGRAM = "123456789:AAH-fake_fake-fake_fake-fake_fake-abc"
SLACK_BOT, SLACK_APP = "xoxb-1234567890-fake", "xapp-1-A0FAKE-fake"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return a set-up in which nothing on this machine is wrong."""
    (tmp_path / "home" / "secrets").mkdir(mode=0o700, parents=True)
    (tmp_path / "home").chmod(0o700)
    return {
        "PARLOUR_HOME": str(tmp_path / "home"),
        "PARLOUR_WEB__PORT": "0",
        "PARLOUR_TIMEZONE": "Europe/Berlin",
        "PARLOUR_OWNERS": "telegram:42",
        "PARLOUR_LLM__MODEL": "openai/test",
        "PARLOUR_LLM__API_BASE": "http://127.0.0.1:9/v1",
        "PARLOUR_CHANNELS__TELEGRAM__TOKEN": TELEGRAM,
    }


def local_errors(environment: dict[str, str]) -> Iterator[DoctorFinding]:
    """Yield what this machine alone says is wrong."""
    return (
        each for each in check_machine(check_settings(environment), environment) if each.level is not FindingLevel.OK
    )


DISCORD_TOKEN = f"{'M' * 24}.abcdef.{'x' * 30}"
DISCORD = {"PARLOUR_CHANNELS__DISCORD__TOKEN": DISCORD_TOKEN}
MANY = {**DISCORD, "PARLOUR_CHANNELS__DISCORD__ALLOW_FROM": "guild:123456789012345678"}
ALL = {**DISCORD, "PARLOUR_CHANNELS__DISCORD__ALLOW_FROM": "*", "PARLOUR_ALLOW_EVERYONE": "true"}
SWAPPED = {"PARLOUR_CHANNELS__SLACK__BOT_TOKEN": SLACK_APP, "PARLOUR_CHANNELS__SLACK__APP_TOKEN": SLACK_APP}
SLIPS: list[tuple[dict[str, str], FindingLevel, str, str]] = [
    ({}, FindingLevel.OK, "", ""),
    ({"PARLOUR_CHANNELS__TELEGRAM__TOKEN": f"{TELEGRAM} "}, FindingLevel.FAIL, "settings", "without spaces"),
    (
        {"PARLOUR_CHANNELS__DISCORD__TOKEN": f"Bot {DISCORD_TOKEN}"},
        FindingLevel.FAIL,
        "settings",
        "or the word Bot",
    ),
    (SWAPPED, FindingLevel.FAIL, "settings", "it begins with xoxb- (OAuth & Permissions)"),
    ({"PARLOUR_LLM__API_BASE": "localhost:1/v1"}, FindingLevel.FAIL, "settings", "starting with https:// or http://"),
    ({"PARLOUR_PROXY": "localhost:1"}, FindingLevel.FAIL, "settings", "must be http://, https://, socks5://"),
    ({"PARLOUR_HOME": "/sys/fs/parlour"}, FindingLevel.FAIL, "home", "set PARLOUR_HOME to another directory"),
    ({"PARLOUR_OWNERS": "telegram:@ann"}, FindingLevel.WARN, "owners.id", "'@ann' is not a user id of this platform"),
    (MANY, FindingLevel.WARN, "access", "set PARLOUR_CAPS__TOKENS_PER_DAY=2000000"),
    ({**MANY, "PARLOUR_CAPS__TOKENS_PER_DAY": "2000000"}, FindingLevel.OK, "", ""),
    ({**MANY, "PARLOUR_CAPS__TOKENS_PER_DAY": "0"}, FindingLevel.OK, "", ""),
    (ALL, FindingLevel.WARN, "access", "set PARLOUR_CAPS__TOKENS_PER_DAY=2000000"),
    ({**ALL, "PARLOUR_CAPS__TOKENS_PER_DAY": "0"}, FindingLevel.WARN, "access", "* of discord"),
    ({**ALL, "PARLOUR_CAPS__TOKENS_PER_DAY": "2000000"}, FindingLevel.OK, "", ""),
    ({"PARLOUR_CAPS__PERSON_TOKENS_PER_DAY": "1000"}, FindingLevel.WARN, "caps", "set 100000 or more, or 0"),
]


@pytest.mark.parametrize(("slip", "level", "ident", "mend"), SLIPS)
def test_a_slip_is_one_line_that_says_how_to_mend_it(
    environment: dict[str, str], slip: dict[str, str], level: FindingLevel, ident: str, mend: str
) -> None:
    """By its stable id, and no other line with it; what was mended is said no more."""
    found = list(local_errors({**environment, **slip}))
    assert [(each.id, each.level) for each in found] == ([(ident, level)] if ident else [])
    assert mend in "".join(each.text for each in found)


@pytest.mark.parametrize("written", [b"%s\r\n", b"\xef\xbb\xbf%s\r\n", b"%s"])
def test_a_secret_s_file_may_come_from_any_editor(environment: dict[str, str], written: bytes) -> None:
    """Windows' line ends and the mark that its Notepad sets before a text are no part of the secret."""
    del environment["PARLOUR_CHANNELS__TELEGRAM__TOKEN"]
    file = Path(environment["PARLOUR_HOME"]) / "secrets" / "channels__telegram__token"
    file.write_bytes(written % TELEGRAM.encode())
    file.chmod(0o600)
    assert not list(local_errors(environment))


def test_a_clock_that_is_behind_what_was_written_is_found(environment: dict[str, str]) -> None:
    """Such a clock lets no certificate pass."""
    with time_machine.travel(datetime(2020, 1, 1, tzinfo=UTC)):
        (found,) = local_errors(environment)
    assert (found.id, found.level) == ("clock", FindingLevel.FAIL)
    assert "this machine's clock shows 2020-01-01 00:00 UTC" in found.text
    assert "sudo timedatectl set-ntp true" in found.text


@pytest.mark.parametrize("end", ["/chat/completions", "/completions/"])
async def test_an_address_that_says_too_much_is_corrected(end: str) -> None:
    """Copied from an example with curl; nobody is asked."""
    llm = LlmSettings.model_validate({"model": "openai/test", "api_base": f"http://127.0.0.1:9/v1{end}"})
    found = (await try_model(llm)).finding
    assert found.level is setup.SetupLevel.WRONG
    assert found.text.endswith("change the address to http://127.0.0.1:9/v1")
