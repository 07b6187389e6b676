"""Setting up over the wire: each thing that can be wrong is one line that says what to click; nothing is changed."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from channels.telegram import plugin
from channels.telegram.inbound import TokenLock
from gateway.logs import configure_logs
from gateway.ports.setup import Finding, FindingLevel, SupportsSetup
from tests.fakes.telegram_channel import block, open_line
from tests.fakes.telegram_server import TelegramFault, TelegramServer, open_telegram

GROUP = -1001234567890


@pytest.fixture
async def server() -> AsyncIterator[TelegramServer]:
    """Give a Telegram with a message that waits, so that nobody who asks has to."""
    async with open_telegram() as server:
        server.say("waiting")
        yield server


class TokenLogStream(io.StringIO):
    """A log that says when it has a line about a token in use."""

    def __init__(self) -> None:
        super().__init__()
        self.told = asyncio.Event()

    def write(self, text: str) -> int:
        """Look at what is written."""
        if "telegram.token_in_use" in text:
            self.told.set()
        return super().write(text)


@pytest.fixture(autouse=True)
def _own_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


async def verified(server: TelegramServer, **fields: object) -> list[Finding]:
    """Verify a block that leads to *server*."""
    found = list(await plugin.verify(block(server, **fields), {}))
    assert not any(server.token.partition(":")[2] in finding.text for finding in found)
    assert not any("\n" in finding.text for finding in found)
    return found


def test_what_is_asked_is_what_a_block_needs() -> None:
    """The token, which is a secret, and who may speak; each with where it is found; all of them are settings."""
    assert isinstance(plugin, SupportsSetup)
    token, allowed = plugin.questions()
    assert (token.setting, token.is_secret, allowed.setting, allowed.is_optional) == ("token", True, "allow_from", True)
    assert "@BotFather" in token.help


async def test_a_bot_that_works_has_its_name(server: TelegramServer) -> None:
    """Everything in order: the name, what privacy mode means, and no complaint; no update is confirmed by it."""
    found = await verified(server)
    assert {finding.level for finding in found} == {FindingLevel.OK}
    assert "@parlour_bot" in found[0].text
    assert len(server.updates) == 1
    assert {name for name, _ in server.calls} == {"getMe", "getWebhookInfo", "getUpdates"}


async def test_a_refused_token_is_wrong(server: TelegramServer) -> None:
    """One line that leads to @BotFather, and no further call."""
    server.fail("getMe", TelegramFault("status", 401, description="Unauthorized"))
    (only,) = await verified(server)
    assert only.level is FindingLevel.FAIL
    assert "@BotFather" in only.text
    assert [name for name, _ in server.calls] == ["getMe"]


async def test_an_address_that_is_not_reached_is_wrong(server: TelegramServer) -> None:
    """Nobody listens there, or what does is no Bot API: the line names the host and what to look at."""
    for address in ("http://127.0.0.1:9/bot", f"{server.base}/bot"):
        server.fail("getMe", TelegramFault("garbage"))
        (only,) = await verified(server, base_url=address)
        assert only.level is FindingLevel.FAIL
        assert "127.0.0.1" in only.text
        assert "PARLOUR_PROXY" in only.text


async def test_privacy_mode_is_held_against_the_policy(server: TelegramServer) -> None:
    """Policy open while Telegram hides: a warning with the clicks; switched off there, none."""
    warning = (await verified(server, group_policy="open"))[1]
    assert warning.level is FindingLevel.WARN
    assert "Group Privacy, Turn off" in warning.text
    assert "add it again" in warning.text
    server.privacy = False
    assert {finding.level for finding in await verified(server, group_policy="open")} == {FindingLevel.OK}


async def test_a_webhook_and_another_poller_are_wrong(server: TelegramServer) -> None:
    """Whoever else takes the messages is named, with what to do."""
    server.hooks.url = "https://old.example/hook"
    wrong = (await verified(server))[-1]
    assert wrong.level is FindingLevel.FAIL
    assert "deleteWebhook" in wrong.text
    assert "old.example" in wrong.text
    server.hooks.url = ""
    server.fail(
        "getUpdates", TelegramFault("status", 409, description="Conflict: terminated by other getUpdates request")
    )
    wrong = (await verified(server))[-1]
    assert wrong.level is FindingLevel.FAIL
    assert "another program" in wrong.text


async def test_a_gateway_that_runs_is_not_disturbed(server: TelegramServer) -> None:
    """Beside our own gateway no poll is made, which would end its own."""
    async with open_line(server):
        found = await verified(server)
    asked = [fields for name, fields in server.calls if name == "getUpdates"]
    assert all(fields.get("allowed_updates") for fields in asked)  # its own, not one that would end them
    assert f"process {os.getpid()}" in found[-1].text
    assert {finding.level for finding in found} == {FindingLevel.OK}


async def test_groups_that_are_let_in_are_looked_at(server: TelegramServer) -> None:
    """A group the bot is not in, or may not be added to, is a warning; one it is in is none."""
    server.chat(GROUP)
    server.chat(GROUP - 1).has_put_us_out = True
    server.joins_groups = False
    found = await verified(server, allow_from=[f"chat:{GROUP}", f"chat:{GROUP - 1}", f"chat:{GROUP - 2}", "42"])
    texts = [finding.text for finding in found if finding.level is FindingLevel.WARN]
    assert len(texts) == 3
    assert "Allow Groups" in texts[0]
    assert str(GROUP - 1) in texts[1]
    assert str(GROUP - 2) in texts[2]


async def test_a_webhook_that_fails_is_told(server: TelegramServer) -> None:
    """In webhook mode Telegram's own word about its last call is passed on; another address is too."""
    fields = {"mode": "webhook", "webhook_url": "https://bot.example/hooks/telegram", "webhook_secret": "x" * 16}
    assert {finding.level for finding in await verified(server, **fields)} == {FindingLevel.OK}
    server.hooks.url, server.hooks.last_error = "https://bot.example/hooks/telegram", (1, "Connection refused")
    assert "Connection refused" in (await verified(server, **fields))[-1].text
    server.hooks.url = "https://old.example/"
    assert "old.example" in (await verified(server, **fields))[-1].text
    assert "getUpdates" not in [name for name, _ in server.calls]


# One process of this machine per bot.


async def test_two_processes_never_poll_with_one_token(server: TelegramServer) -> None:
    """The second one says so in one clear line, asks Telegram nothing, and goes on when the first has ended."""
    out = TokenLogStream()
    configure_logs(form="json", stream=out)
    other = TokenLock(server.token, f"{server.base}/bot")
    assert other.acquire()
    running = asyncio.create_task(_hear(server))
    await out.told.wait()
    assert server.calls == []
    assert f'"process":"{os.getpid()}"' in out.getvalue().replace(" ", "")
    other.release()
    await running
    assert out.getvalue().count("telegram.token_in_use") == 1
    assert server.token.partition(":")[2] not in out.getvalue()


async def _hear(server: TelegramServer) -> None:
    async with open_line(server):
        await server.until(lambda: bool(server.calls))


def test_the_lock_is_private_and_says_nothing(tmp_path: Path) -> None:
    """A folder and a file of this user alone, named by a hash; other bots and servers are other locks."""
    lock = TokenLock("1:secret", "https://api.telegram.org/bot")
    assert lock.acquire()
    assert lock.acquire()
    (folder,) = tmp_path.iterdir()
    (file,) = folder.iterdir()
    assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    assert "secret" not in file.name + file.read_text("ascii")
    assert not TokenLock("1:secret", "https://api.telegram.org/bot").acquire()
    for another in (TokenLock("2:secret", "https://api.telegram.org/bot"), TokenLock("1:secret", "http://mine/bot")):
        assert another.acquire()
        another.release()
    lock.release()
    again = TokenLock("1:secret", "https://api.telegram.org/bot")
    assert again.acquire()
    again.release()


def test_a_folder_that_others_can_write_is_not_trusted(tmp_path: Path) -> None:
    """Somebody else's folder in our place: no lock, which is said, and the bot works all the same."""
    out = io.StringIO()
    configure_logs(form="json", stream=out)
    (tmp_path / f"parlour-{os.geteuid()}").mkdir()
    (tmp_path / f"parlour-{os.geteuid()}").chmod(0o777)
    lock = TokenLock("1:secret", "https://api.telegram.org/bot")
    assert lock.acquire()
    assert lock.holder() == "unknown"
    assert "telegram.no_lock" in out.getvalue()
    lock.release()
