"""Fifteen planted mistakes, fifteen lines: each names what is wrong and how to mend it; none is there unplanted."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections import namedtuple
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gateway.app.composition import open_app, serve
from gateway.app.context import ExtraPlugins
from gateway.errors import UserError
from gateway.health import doctor
from gateway.health.doctor import collect_findings
from gateway.ports.setup import Finding, FindingLevel
from gateway.preflight import require_startable
from gateway.settings import load_settings
from tests.fakes.discord_server import DiscordServer, open_discord
from tests.fakes.gateway import free_port
from tests.fakes.openai_server import FakeOpenAI, ModelFault, ScriptedAnswer, chatter, open_server, with_calls
from tests.fakes.slack_server import SlackServer, slack_server
from tests.fakes.telegram_server import TelegramServer, open_telegram

Usage = namedtuple("Usage", "total used free")
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


@dataclass
class DoctorScene:
    """A set-up in which nothing is wrong: three platforms, a model, a home; and what is undone at the end."""

    environment: dict[str, str]
    home: Path
    telegram: TelegramServer
    discord: DiscordServer
    slack: SlackServer
    model: FakeOpenAI
    monkeypatch: pytest.MonkeyPatch
    undo: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def examine(self, *, is_offline: bool = False) -> list[Finding]:
        """Return everything that the doctor says."""
        return [each async for each in collect_findings(self.environment, is_offline=is_offline, asks_model=False)]


@pytest.fixture
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[DoctorScene]:
    """Build it over real servers."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    home = tmp_path / "home"
    (home / "secrets").mkdir(mode=0o700, parents=True)
    home.chmod(0o700)
    async with (
        open_telegram() as telegram,
        open_discord() as discord,
        slack_server() as slack,
        open_server(with_calls(chatter)) as model,
        AsyncExitStack() as undo,
    ):
        telegram.privacy = False
        telegram.say("waiting")  # who asks whether somebody else polls is answered at once
        environment = {
            "PARLOUR_HOME": str(home),
            "PARLOUR_WEB__PORT": str(free_port()),
            "PARLOUR_TIMEZONE": "Europe/Berlin",
            "PARLOUR_OWNERS": "telegram:42",
            "PARLOUR_LLM__MODEL": "openai/test",
            "PARLOUR_LLM__API_BASE": model.base,
            "PARLOUR_CHANNELS__TELEGRAM__TOKEN": telegram.token,
            "PARLOUR_CHANNELS__TELEGRAM__BASE_URL": f"{telegram.base}/bot",
            "PARLOUR_CHANNELS__TELEGRAM__FILE_URL": f"{telegram.base}/file/bot",
            "PARLOUR_CHANNELS__TELEGRAM__GROUP_POLICY": "open",
            "PARLOUR_CHANNELS__DISCORD__TOKEN": discord.token,
            "PARLOUR_CHANNELS__DISCORD__API_URL": f"http://{discord.base}/api/v10",
            "PARLOUR_CHANNELS__DISCORD__GATEWAY_URL": f"ws://{discord.base}/gateway",
            "PARLOUR_CHANNELS__SLACK__BOT_TOKEN": slack.bot_token,
            "PARLOUR_CHANNELS__SLACK__APP_TOKEN": slack.app_token,
            "PARLOUR_CHANNELS__SLACK__BASE_URL": f"{slack.base}/api/",
        }
        yield DoctorScene(environment, home, telegram, discord, slack, model, monkeypatch, undo)


async def wrong_token(scene: DoctorScene) -> None:
    """A token that the platform does not know."""
    scene.environment["PARLOUR_CHANNELS__TELEGRAM__TOKEN"] = "987654321:AAH-wrong_wrong-wrong_wrong-wrong-xyz"


async def missing_intent(scene: DoctorScene) -> None:
    """Discord keeps what people write to itself."""
    scene.discord.application_flags = 0


async def missing_scope(scene: DoctorScene) -> None:
    """Slack lets us say nothing."""
    scene.slack.scopes.discard("chat:write")


async def privacy_mode(scene: DoctorScene) -> None:
    """Telegram hides what does not mention the bot."""
    scene.telegram.privacy = True


async def webhook_set(scene: DoctorScene) -> None:
    """Somebody else is brought the messages."""
    await scene.telegram.hooks.do_set_webhook({"url": "https://elsewhere.example/hook"})


async def readable_secret(scene: DoctorScene) -> None:
    """A key that every user of the machine can read."""
    secret = scene.home / "secrets" / "llm__api_key"
    secret.write_text("planted-and-long-enough")
    secret.chmod(0o644)


async def unwritable_home(scene: DoctorScene) -> None:
    """A home where nothing can be written."""
    scene.environment["PARLOUR_HOME"] = "/proc/parlour"


async def wrong_owner(scene: DoctorScene) -> None:
    """Somebody ran a command as root: a file is not its owner's any more."""
    file = scene.home / "parlour.yaml"
    file.write_text("language: en\n")
    file.chmod(0o600)
    os.chown(file, 12345, 12345)


async def port_taken(scene: DoctorScene) -> None:
    """Another program has the port."""
    other = scene.undo.enter_context(socket.create_server(("127.0.0.1", 0)))
    scene.environment["PARLOUR_WEB__PORT"] = str(other.getsockname()[1])


async def utc_container(scene: DoctorScene) -> None:
    """A container, and nobody said where people live."""
    del scene.environment["PARLOUR_TIMEZONE"]
    scene.environment["container"] = "docker"
    scene.monkeypatch.setattr("gateway.settings.settings_model.machine_zone", lambda: "UTC")
    scene.monkeypatch.setenv("TZ", "UTC")


async def everyone_without_switch(scene: DoctorScene) -> None:
    """The whole world is let in by a slip."""
    scene.environment["PARLOUR_CHANNELS__SLACK__ALLOW_FROM"] = "*"


async def unreachable_model(scene: DoctorScene) -> None:
    """Nothing answers where the model is said to be."""
    scene.environment["PARLOUR_LLM__API_BASE"] = "http://127.0.0.1:9/v1"


async def unknown_model(scene: DoctorScene) -> None:
    """The provider knows no model of that name."""
    scene.model.script = [ScriptedAnswer(fault=ModelFault.NOT_FOUND)]


async def full_disk(scene: DoctorScene) -> None:
    """Ten megabytes are left."""
    scene.monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(10**11, 10**11 - 10**7, 10**7))


async def two_gateways(scene: DoctorScene) -> None:
    """Another gateway runs on the home, by other settings."""
    await scene.undo.enter_async_context(_running(scene))
    scene.environment["PARLOUR_WEB__PORT"] = str(free_port())


@asynccontextmanager
async def _running(scene: DoctorScene) -> AsyncIterator[None]:
    """Run another gateway on the same home, with its own page."""
    settings = load_settings({"PARLOUR_HOME": str(scene.home), "PARLOUR_WEB__PORT": str(free_port())})
    stop, ready = asyncio.Event(), asyncio.Event()
    async with open_app(settings, plugins=ExtraPlugins()) as app:
        serving = asyncio.create_task(serve(app, stop, ready=lambda _: ready.set()))
        await ready.wait()
        yield
        stop.set()
        await serving


Plant = Callable[[DoctorScene], Awaitable[None]]
FAIL, WARN = FindingLevel.FAIL, FindingLevel.WARN
PLANTED: list[tuple[Plant, FindingLevel, str, str, str]] = [
    (wrong_token, FAIL, "channel.telegram", "rejects the token", "@BotFather"),
    (missing_intent, FAIL, "channel.discord", "Message Content Intent", "Privileged Gateway Intents"),
    (missing_scope, FAIL, "channel.slack", "without the scope chat:write", "add it"),
    (privacy_mode, WARN, "channel.telegram", "privacy mode hides", "Group Privacy"),
    (webhook_set, FAIL, "channel.telegram", "elsewhere.example", "deleteWebhook"),
    (readable_secret, FAIL, "privacy", "llm__api_key is readable by other users", "chmod 600"),
    (unwritable_home, FAIL, "home", "/proc/parlour cannot be created", "set PARLOUR_HOME to another directory"),
    (wrong_owner, FAIL, "owner.files", "parlour.yaml belongs to user id 12345", "-R 0:0"),
    (port_taken, FAIL, "port", "is taken", "PARLOUR_WEB__PORT"),
    (utc_container, WARN, "timezone", "a container's clock is UTC", "set PARLOUR_TIMEZONE"),
    (everyone_without_switch, FAIL, "settings", "which admits everyone", "PARLOUR_ALLOW_EVERYONE=true"),
    (unreachable_model, FAIL, "model.answers", "nothing answers", "check that the address is correct"),
    (unknown_model, FAIL, "model.answers", "no model of this name exists", "list of models"),
    (full_disk, FAIL, "disk", "only 9 MB free", "free some space"),
    (two_gateways, FAIL, "lock", "another gateway uses this home", "stop that process first"),
]


async def test_nothing_is_wrong_where_nothing_was_planted(scene: DoctorScene) -> None:
    """The set-up that every mistake is planted in is a good one: no line of it fails or warns."""
    assert [(each.id, each.text) for each in await scene.examine() if each.level is not FindingLevel.OK] == []


@pytest.mark.parametrize(
    ("plant", "level", "ident", "wrong", "mend"),
    [
        pytest.param(*row, marks=ROOT if row[0] is wrong_owner else (), id=getattr(row[0], "__name__", ""))
        for row in PLANTED
    ],
)
async def test_a_planted_mistake_is_found(
    scene: DoctorScene, plant: Plant, level: FindingLevel, ident: str, wrong: str, mend: str
) -> None:
    """A line of its stable id says what is wrong and what to do; nothing is wrong that was not planted."""
    await plant(scene)
    is_here = not ident.startswith(("channel", "model"))  # this machine says it, and nobody else need be asked
    found = [each for each in await scene.examine(is_offline=is_here) if each.level is not FindingLevel.OK]
    (line,) = [each for each in found if each.id == ident and wrong in each.text] or found
    assert (line.id, line.level) == (ident, level)
    assert wrong in line.text
    assert mend in line.text
    assert {each.id for each in found} == {ident}
    secrets = (scene.environment["PARLOUR_CHANNELS__TELEGRAM__TOKEN"], scene.discord.token, scene.slack.bot_token)
    assert not [each for each in found if any(secret in each.text for secret in secrets)]


@pytest.mark.parametrize("file", ["", "web: {port: 8799}\n"], ids=["nowhere", "in the file"])
async def test_a_shell_without_the_port_takes_the_running_gateway_for_well(scene: DoctorScene, file: str) -> None:
    """The gateway's environment names the port, the shell's does not: the gateway says which one it has."""
    await scene.undo.enter_async_context(_running(scene))
    del scene.environment["PARLOUR_WEB__PORT"]
    if file:
        (scene.home / "parlour.yaml").write_text(file)
        (scene.home / "parlour.yaml").chmod(0o600)
    found = await scene.examine(is_offline=True)
    assert [(each.id, each.text) for each in found if each.level is not FindingLevel.OK] == []
    (line,) = [each.text for each in found if each.id == "lock"]
    assert line.startswith("a gateway is running on this home; its page is on port ")


@ROOT
def test_a_start_prints_the_line_that_gives_a_file_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command run as root left its journal: the gateway's own user is told whose it is, and what to paste."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        home = Path(folder) / "home"
        home.mkdir(mode=0o700)
        os.chown(home, 12345, 12345)
        (home / "journal.db").touch(0o600)
        settings = load_settings({"PARLOUR_HOME": str(home), "PARLOUR_WEB__PORT": "0"})
        for is_container, line in (
            (False, f"sudo chown -R 12345:12345 {home}"),
            (
                True,
                f"docker compose run --rm --user 0 --cap-add CHOWN --cap-add DAC_READ_SEARCH --entrypoint chown"
                f" parlour -R 12345:12345 {home}",
            ),
        ):
            monkeypatch.setattr("gateway.installation.in_container", lambda _, found=is_container: found)
            os.setegid(12345)
            os.seteuid(12345)
            try:
                with pytest.raises(UserError) as refused:
                    require_startable(settings)
            finally:
                os.seteuid(0)
                os.setegid(0)
            assert str(refused.value).endswith(f"but Parlour runs as 12345; change its owner: {line}")
            assert f"{home}/journal.db belongs to user id 0" in str(refused.value)


def test_the_worst_is_said_first_and_decides_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What fails, then what should be mended, then what is well; 2 when something fails, 0 when nothing does."""
    monkeypatch.setattr(os, "environ", {"PARLOUR_HOME": str(tmp_path / "home"), "PARLOUR_WEB__PORT": "0"})
    assert doctor.run_doctor(as_json=False, is_offline=True, asks_model=False) == 0
    levels = [line.split()[0] for line in capsys.readouterr().out.splitlines()[:-1]]
    assert levels == sorted(levels, key=["FAIL", "WARN", "OK"].index)
    monkeypatch.setattr(os, "environ", {"PARLOUR_HOME": "/proc/parlour", "PARLOUR_WEB__PORT": "0"})
    assert doctor.run_doctor(as_json=False, is_offline=True, asks_model=False) == 2
    assert capsys.readouterr().out.startswith("FAIL  home: ")
