"""What `parlour init` and `parlour doctor` find out about a Slack block, by real calls to a workspace."""

from __future__ import annotations

import json
from typing import Any

import pytest

from channels.slack import SCOPES, manifest, plugin
from gateway.ports.setup import Finding, FindingLevel, SupportsSetup
from tests.fakes.slack import running, settings
from tests.fakes.slack_http_events import SIGNING_SECRET
from tests.fakes.slack_server import ANN, APP_TOKEN, DM, SlackFault, SlackServer, slack_server
from tests.fakes.web_services import FakePageServices


async def verify(server: SlackServer, environment: dict[str, str] | None = None, **more: Any) -> list[Finding]:
    """Verify a block that leads to *server*."""
    return list(await plugin.verify(settings(server, **more), environment or {}))


def worst(findings: list[Finding], level: FindingLevel) -> list[str]:
    """Return the lines of one level."""
    return [finding.text for finding in findings if finding.level is level]


def test_it_is_asked_for_what_is_needed() -> None:
    """Two secrets and who may write; the steps hold a manifest that can be pasted as it stands."""
    assert isinstance(plugin, SupportsSetup)
    questions = {question.setting: question for question in plugin.questions()}
    assert list(questions) == ["bot_token", "app_token", "allow_from"]
    assert [question.is_secret for question in questions.values()] == [True, True, False]
    pasted = next(step for step in plugin.steps if "{" in step)
    assert json.loads(pasted[pasted.index("{") :]) == manifest()
    assert all("\n" not in step for step in plugin.steps)


async def test_a_good_block_is_good() -> None:
    """Token, scopes and connection are said to be well; nothing in the workspace changes."""
    async with slack_server() as server:
        found = await verify(server, allow_from=["team:T0HOME"])
        assert {finding.level for finding in found} == {FindingLevel.OK}
        assert "T0HOME" in found[0].text
        assert {name for name, _ in server.calls} == {"auth.test", "bots.info", "apps.connections.open"}


@pytest.mark.parametrize("full", [True, False], ids=["full", "least"])
async def test_every_scope_that_is_missing_is_named_with_what_is_lost(full: bool) -> None:
    """One line each: the scope, what does not work without it, and what to click."""
    granted = set(manifest(full=full)["oauth_config"]["scopes"]["bot"])
    async with slack_server() as server:
        server.scopes = set(granted)
        found = await verify(server)
        assert worst(found, FindingLevel.FAIL) == []
        assert len(worst(found, FindingLevel.WARN)) == len(SCOPES) - len(granted)
        for scope in SCOPES:
            server.scopes = granted - {scope.name}
            lines = [finding for finding in await verify(server) if f"scope {scope.name}, " in finding.text]
            assert len(lines) == 1
            assert scope.lost in lines[0].text
            assert "reinstall the app" in lines[0].text
            assert (lines[0].level is FindingLevel.FAIL) is scope.is_needed


async def test_a_wrong_token_is_said_by_which_one_it_is() -> None:
    """The bot's own, the app's, one of another app, one without its scope: each with where to find the right one."""
    async with slack_server() as server:
        (line,) = await verify(server, bot_token="xoxb-another-one-0000")
        assert (line.level, "Install App" in line.text) == (FindingLevel.FAIL, True)
        (text,) = worst(await verify(server, app_token="xapp-1-A0PARLOUR-9-wrongwrong"), FindingLevel.FAIL)
        assert "app-level token (invalid_auth)" in text
        server.app_token = "xapp-1-A0OTHER-9-fakefakefake"
        (text,) = worst(await verify(server, app_token=server.app_token), FindingLevel.FAIL)
        assert "two apps" in text
        assert "A0OTHER" in text
        server.app_token = APP_TOKEN
        server.faults["apps.connections.open"] = [SlackFault(error="missing_scope")]
        (text,) = worst(await verify(server), FindingLevel.FAIL)
        assert "connections:write" in text


async def test_a_workspace_that_is_not_ours_is_said() -> None:
    """`team:` of another workspace than the token's lets nobody in, and that is said."""
    async with slack_server() as server:
        (text,) = worst(await verify(server, allow_from=["team:T0FAR", ANN]), FindingLevel.WARN)
        assert "T0FAR" in text
        assert "T0HOME" in text


async def test_socket_mode_that_is_off_is_found() -> None:
    """Slack opens the connection and closes it again: what to click."""
    async with slack_server() as server:
        server.is_socket_mode = False
        (text,) = worst(await verify(server), FindingLevel.FAIL)
        assert "Enable Socket Mode" in text


async def test_a_silent_or_missing_slack_is_a_finding() -> None:
    """Never an exception: what cannot be reached is said with its address."""
    async with slack_server() as server:
        block = settings(server)
        server.faults["auth.test"] = [SlackFault(status=503)]
        assert [each.level for each in await plugin.verify(block, {})] == [FindingLevel.FAIL]
    (finding,) = await plugin.verify(block, {})
    assert finding.level is FindingLevel.FAIL
    assert block.base_url in finding.text  # type: ignore[attr-defined]  # the combined block's


async def test_http_mode_says_which_address_to_enter() -> None:
    """No connection is opened; the address is the public one, where that is known."""
    async with slack_server() as server:
        environment = {"PARLOUR_WEB__PUBLIC_URL": "https://parlour.example"}
        found = await verify(server, environment, app_token=None, signing_secret=SIGNING_SECRET)
        assert "https://parlour.example/hooks/" in found[-1].text
        assert server.called("apps.connections.open") == []


async def test_a_gateway_that_runs_loses_nothing_to_the_question() -> None:
    """An event that falls into doctor's connection is not acknowledged there, and comes again."""
    async with slack_server() as server, running(server, FakePageServices()) as up:
        server.ack_within = 0.1
        await verify(server)
        server.say(DM, ANN, "meanwhile")
        await server.until(lambda: len(server.acks) == 1)
        assert [heard.text for heard in up.services.accepted] == ["meanwhile"]
