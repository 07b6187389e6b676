"""`parlour init` with the real platforms' kinds, each over the wire to its protocol server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.commands.init import InitOptions, InitWizard
from gateway.health.network_checks import installed_setups
from gateway.settings import load_settings
from tests.e2e.test_init import ScriptedPrompts, files
from tests.fakes.discord_server import DiscordServer, open_discord
from tests.fakes.setup_platform import in_the_background
from tests.fakes.slack_server import SlackServer, slack_server
from tests.fakes.telegram_server import TelegramServer, open_telegram


@dataclass(frozen=True, slots=True)
class PlatformServers:
    """The three servers."""

    telegram: TelegramServer
    slack: SlackServer
    discord: DiscordServer


@pytest.fixture
def platforms() -> Iterator[PlatformServers]:
    """Serve all three."""
    with (
        in_the_background(open_telegram()) as telegram,
        in_the_background(slack_server()) as slack,
        in_the_background(open_discord()) as discord,
    ):
        telegram.privacy = False
        yield PlatformServers(telegram, slack, discord)


def test_three_platforms_are_set_up_from_nothing(
    platforms: PlatformServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong tokens are told by the platforms and asked again; what is right is written, and each platform was asked."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    telegram, slack, discord = platforms.telegram, platforms.slack, platforms.discord
    environment = {
        "PARLOUR_HOME": str(tmp_path / "home"),
        "PARLOUR_CHANNELS__TELEGRAM__BASE_URL": f"{telegram.base}/bot",
        "PARLOUR_CHANNELS__TELEGRAM__FILE_URL": f"{telegram.base}/file/bot",
        "PARLOUR_CHANNELS__SLACK__BASE_URL": f"{slack.base}/api/",
        "PARLOUR_CHANNELS__DISCORD__API_URL": f"http://{discord.base}/api/v10",
        "PARLOUR_CHANNELS__DISCORD__GATEWAY_URL": f"ws://{discord.base}/gateway",
        "TZ": "UTC",
    }
    foreign = discord.token[:-4] + "xxxx"
    stale = f"{telegram.token[:-4]}xxxx"
    slack.scopes.discard("chat:write")
    person = ScriptedPrompts(
        {
            "The bot's token": ["canary", foreign, discord.token, stale, telegram.token],
            "The bot token": ["xoxb-wrong-wrong-wrong", slack.bot_token],
            "The app-level token": [slack.app_token],
            "Who may write: user ids": ["ann", "501501501501501501"],
            "Who may write: your own": ["U0ANN00000"],
            "Your own Telegram id": ["42"],
            # Discord's token, Slack's token, Slack's scope, Telegram's token.
            "Correct it": ["again", "again", "keep", "again"],
            "Owner": ["telegram:42"],
        }
    )
    InitWizard(environment, person, InitOptions()).run()
    wrong = [line for line in person.seen if line.startswith("FAIL: ")]
    reasons = ["Discord rejects the token", "Slack", "without the scope chat:write", "Telegram rejects the token"]
    assert len(wrong) == 4, person.told
    assert [reason in line for reason, line in zip(reasons, wrong, strict=True)] == [True] * 4, wrong
    assert "is not a Discord bot token; copy it from the developer portal" in person.told
    assert "is not a user id of this platform" in person.told
    for secret in ("canary", foreign, discord.token, stale, telegram.token, slack.bot_token, slack.app_token):
        assert secret not in person.told
    written = files(tmp_path / "home")
    assert sorted(written) == [
        "parlour.yaml",
        "secrets/channels__discord__token",
        "secrets/channels__slack__app_token",
        "secrets/channels__slack__bot_token",
        "secrets/channels__telegram__token",
    ]
    settings = load_settings(environment)
    assert settings.owners == ("telegram:42",)
    allowed = {name: block.allow_from for name, block in settings.channels.items() if name in installed_setups()}
    assert allowed == {"discord": ("501501501501501501",), "slack": ("U0ANN00000",), "telegram": ("42",)}
    again = ScriptedPrompts({"Correct it": ["keep"]})
    InitWizard(environment, again, InitOptions()).run()
    assert files(tmp_path / "home") == written
    assert "Nothing needed to be written." in again.told
