"""What people get wrong when they set a bot up: each slip is one line of the doctor's that says how to mend it."""

from __future__ import annotations

import resource
from datetime import UTC, datetime
from pathlib import Path

import pytest
import time_machine

from gateway.app.model_trial import try_model
from gateway.health import gateway_checks, home_checks
from gateway.health.checks import CheckContext
from gateway.health.home_checks import STOP_SECONDS, open_file_limit
from gateway.home import Home, hold_lock
from gateway.ports.setup import Finding, FindingLevel
from gateway.settings import check_settings
from gateway.settings.settings_model import LlmSettings

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


async def local_errors(environment: dict[str, str]) -> list[Finding]:
    """Return what this machine alone says is wrong."""
    context = CheckContext(report=check_settings(environment), environment=environment)
    checks = (*home_checks.CHECKS, *gateway_checks.CHECKS)
    found = [each for check in checks for each in await check.run(context)]
    return [each for each in found if each.level is not FindingLevel.OK]


DISCORD_TOKEN = f"{'M' * 24}.abcdef.{'x' * 30}"
DISCORD = {"PARLOUR_CHANNELS__DISCORD__TOKEN": DISCORD_TOKEN}
MANY = {**DISCORD, "PARLOUR_CHANNELS__DISCORD__ALLOW_FROM": "guild:123456789012345678"}
ALL = {**DISCORD, "PARLOUR_CHANNELS__DISCORD__ALLOW_FROM": "*", "PARLOUR_ALLOW_EVERYONE": "true"}
SWAPPED = {"PARLOUR_CHANNELS__SLACK__BOT_TOKEN": SLACK_APP, "PARLOUR_CHANNELS__SLACK__APP_TOKEN": SLACK_APP}
PUBLIC = {"PARLOUR_WEB__PUBLIC_URL": "https://chat.example/", "PARLOUR_WEB__TRUSTED_PROXIES": "127.0.0.1"}
EVERYWHERE = {"PARLOUR_WEB__HOST": "0.0.0.0"}  # noqa: S104 - the mistake
SHARED = {"PARLOUR_MEMORY__ISOLATION": "shared"}
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
    ({"PARLOUR_OWNERS": "telegram:42,slack:U1"}, FindingLevel.WARN, "owners.channel", "set up the channel"),
    (
        {"PARLOUR_OWNERS": "telegram:42,discord:7", **DISCORD, "PARLOUR_CHANNELS__DISCORD__ENABLED": "false"},
        FindingLevel.WARN,
        "owners.channel",
        "which is not enabled",
    ),
    ({"PARLOUR_AGENT__SHUTDOWN_GRACE_SECONDS": "30"}, FindingLevel.WARN, "stop.grace", "TimeoutStopSec of the unit"),
    ({"PARLOUR_AGENT__SHUTDOWN_GRACE_SECONDS": "29"}, FindingLevel.OK, "", ""),
    ({**PUBLIC, "PARLOUR_WEB__PUBLIC_URL": "http://chat.example/"}, FindingLevel.WARN, "web.plain", "write https://"),
    ({"PARLOUR_WEB__PUBLIC_URL": "http://127.0.0.1:9000/"}, FindingLevel.OK, "", ""),
    (
        {"PARLOUR_WEB__PUBLIC_URL": "https://chat.example/"},
        FindingLevel.WARN,
        "web.proxies",
        "set PARLOUR_WEB__TRUSTED_PROXIES",
    ),
    (PUBLIC, FindingLevel.OK, "", ""),
    ({"PARLOUR_LLM__CONTEXT_WINDOW": "1000"}, FindingLevel.WARN, "model.window", "16384 or more"),
    (
        {"PARLOUR_LLM__MODELS": '{"small": {"model": "openai/s", "context_window": 2000}}'},
        FindingLevel.WARN,
        "model.window",
        "llm.models.small.context_window=2000",
    ),
    ({"PARLOUR_LLM__CONTEXT_WINDOW": "16384"}, FindingLevel.OK, "", ""),
    (EVERYWHERE, FindingLevel.WARN, "web.metrics", "set PARLOUR_WEB__METRICS_TOKEN"),
    ({**EVERYWHERE, "PARLOUR_WEB__METRICS_TOKEN": "long-enough-to-be-one-token"}, FindingLevel.OK, "", ""),
    ({**EVERYWHERE, "container": "oci", "PARLOUR_WEB__PUBLISHED_PORT": "8787"}, FindingLevel.OK, "", ""),
    ({"PARLOUR_CAPS__PERSON_TOKENS_PER_DAY": "1000"}, FindingLevel.WARN, "caps", "set 100000 or more, or 0"),
    ({"PARLOUR_CHANNELS__TELEGRAM__ALLOW_FROM": "43"}, FindingLevel.OK, "", ""),
    (SHARED, FindingLevel.OK, "", ""),
    # Two accounts of one platform, or a whole chat, are several people.
    (
        {**SHARED, "PARLOUR_CHANNELS__TELEGRAM__ALLOW_FROM": "43"},
        FindingLevel.WARN,
        "isolation",
        "set PARLOUR_MEMORY__ISOLATION=strict",
    ),
    (
        {**SHARED, "PARLOUR_CHANNELS__TELEGRAM__ALLOW_FROM": "chat:-100"},
        FindingLevel.WARN,
        "isolation",
        "tell each of them",
    ),
]


@pytest.mark.parametrize(("slip", "level", "ident", "mend"), SLIPS)
async def test_a_slip_is_one_line_that_says_how_to_mend_it(
    environment: dict[str, str], slip: dict[str, str], level: FindingLevel, ident: str, mend: str
) -> None:
    """By its stable id, and no other line with it; what was mended is said no more."""
    found = await local_errors({**environment, **slip})
    assert [(each.id, each.level) for each in found] == ([(ident, level)] if ident else [])
    assert mend in "".join(each.text for each in found)


async def test_memory_that_one_shared_memory_does_not_read_is_named(environment: dict[str, str]) -> None:
    """What people had of their own before is not merged, and not erased either."""
    (Path(environment["PARLOUR_HOME"]) / "people/telegram%3a42/memory").mkdir(parents=True)
    found = {each.id: each.text for each in await local_errors({**environment, **SHARED})}
    assert "the memories in people are not used" in found["isolation.unread"]


FILES = [(64, FindingLevel.FAIL), (127, FindingLevel.FAIL), (128, FindingLevel.WARN), (1_023, FindingLevel.WARN)]


@pytest.mark.parametrize(("limit", "level"), [*FILES, (1_024, None)])
async def test_too_few_open_files_are_found(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, limit: int, level: FindingLevel | None
) -> None:
    """Below 128 nothing works for long, below 1,024 a busy gateway refuses connections; the hard limit counts."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (10, limit))
    found = [(each.id, each.level, each.text) for each in await local_errors(environment)]
    assert [each[:2] for each in found] == ([("open.files", level)] if level else [])
    assert not found or (f"only {limit} files" in found[0][2] and "LimitNOFILE=" in found[0][2])


def test_the_stop_time_is_that_of_the_unit_and_of_compose() -> None:
    """What doctor compares the grace with is what stands in the files."""
    root = Path(__file__).parents[3]
    assert f"TimeoutStopSec={STOP_SECONDS}\n" in (root / "deploy/systemd/parlour.service").read_text()
    assert f"stop_grace_period: {STOP_SECONDS}s\n" in (root / "docker-compose.yml").read_text()


def test_the_limit_of_a_running_gateway_counts_not_that_of_the_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read from the process that holds the home."""
    home = Home(tmp_path)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (10, 64))
    assert open_file_limit(home) == 64
    with hold_lock(home):
        assert open_file_limit(home) == limit


@pytest.mark.parametrize("written", [b"%s\r\n", b"\xef\xbb\xbf%s\r\n", b"%s"])
async def test_a_secret_s_file_may_come_from_any_editor(environment: dict[str, str], written: bytes) -> None:
    """Windows' line ends and the mark that its Notepad sets before a text are no part of the secret."""
    del environment["PARLOUR_CHANNELS__TELEGRAM__TOKEN"]
    file = Path(environment["PARLOUR_HOME"]) / "secrets" / "channels__telegram__token"
    file.write_bytes(written % TELEGRAM.encode())
    file.chmod(0o600)
    assert not await local_errors(environment)


async def test_a_clock_that_is_behind_what_was_written_is_found(environment: dict[str, str]) -> None:
    """Such a clock lets no certificate pass."""
    with time_machine.travel(datetime(2020, 1, 1, tzinfo=UTC)):
        (found,) = await local_errors(environment)
    assert (found.id, found.level) == ("clock", FindingLevel.FAIL)
    assert "this machine's clock shows 2020-01-01 00:00 UTC" in found.text
    assert "sudo timedatectl set-ntp true" in found.text


@pytest.mark.parametrize("end", ["/chat/completions", "/completions/"])
async def test_an_address_that_says_too_much_is_corrected(end: str) -> None:
    """Copied from an example with curl; nobody is asked."""
    llm = LlmSettings.model_validate({"model": "openai/test", "api_base": f"http://127.0.0.1:9/v1{end}"})
    found = (await try_model(llm)).finding
    assert found.level is FindingLevel.FAIL
    assert found.text.endswith("change the address to http://127.0.0.1:9/v1")
