"""Setting Discord up: what is asked, and what real calls find, each with what to click."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest

from channels.discord import plugin, setup
from gateway.ports.setup import Finding, FindingLevel, SupportsSetup
from tests.fakes.discord_harness import block
from tests.fakes.discord_records import BOT
from tests.fakes.discord_server import CONTENT_INTENT, DiscordServer


async def findings_by_level(discord: DiscordServer) -> dict[FindingLevel, list[str]]:
    """Return the findings by level."""
    findings: dict[FindingLevel, list[str]] = {level: [] for level in FindingLevel}
    for each in await plugin.verify(block(discord), {}):
        assert isinstance(each, Finding)
        assert "\n" not in each.text
        findings[each.level].append(each.text)
    return findings


def test_what_is_asked_can_be_answered() -> None:
    """Every question names a field of the block, and the token is a secret."""
    assert isinstance(plugin, SupportsSetup)
    assert [(each.setting, each.is_secret) for each in plugin.questions()] == [("token", True), ("allow_from", False)]


@pytest.mark.parametrize("flags", [CONTENT_INTENT, CONTENT_INTENT << 1], ids=["approved", "limited"])
async def test_a_block_that_works_has_good_findings_alone(discord: DiscordServer, flags: int) -> None:
    """Token, intent, sessions and servers; nothing is changed there."""
    discord.application_flags = flags
    findings = await findings_by_level(discord)
    assert len(findings[FindingLevel.OK]) == 4
    assert not findings[FindingLevel.FAIL]
    assert not findings[FindingLevel.WARN]
    assert {each.method for each in discord.requests} == {"GET"}


async def test_a_bot_in_no_server_is_told_its_invite_link(discord: DiscordServer) -> None:
    """The link names the application, both scopes and exactly the rights that are used."""
    discord.has_joined = False
    (warning,) = (await findings_by_level(discord))[FindingLevel.WARN]
    query = parse_qs(urlsplit(warning.rpartition(" ")[2]).query)
    rights = str(sum(setup.PERMISSIONS.values()))
    assert query == {"client_id": [BOT], "scope": ["bot applications.commands"], "permissions": [rights]}


async def test_what_is_wrong_says_what_to_click(discord: DiscordServer) -> None:
    """A token that is refused, an intent that is off, a day's sessions used up."""
    discord.application_flags, discord.identifies_left = 0, 0
    findings = await findings_by_level(discord)
    assert "Privileged Gateway Intents" in findings[FindingLevel.FAIL][0]
    assert "0 of 1000 sessions" in findings[FindingLevel.FAIL][1]
    discord.token = "another"
    findings = await findings_by_level(discord)
    assert "Reset Token" in findings[FindingLevel.FAIL][0]
    assert not findings[FindingLevel.OK]


@pytest.mark.parametrize("trouble", ["drop", "500 0", "429 0"])
async def test_a_discord_that_is_not_there_is_a_finding_too(discord: DiscordServer, trouble: str) -> None:
    """Unreachable, broken or busy: one line, no exception."""
    discord.fail("GET", "users", trouble, times=2)
    (wrong,) = (await findings_by_level(discord))[FindingLevel.FAIL]
    assert "Discord" in wrong


async def test_buttons_that_go_elsewhere_are_found(discord: DiscordServer) -> None:
    """An address for interactions takes commands and buttons away from the gateway."""
    discord.interactions_url = "https://other.example/interactions"
    (warning,) = (await findings_by_level(discord))[FindingLevel.WARN]
    assert "Interactions Endpoint URL" in warning
