"""The doctor asks the platforms and the model, tells what went wrong lately, and changes nothing."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

# Loaded before a test begins: on a busy machine that took the seconds in which the platform has to answer.
import channels.telegram.setup  # noqa: F401
from gateway.app.composition import open_app, serve
from gateway.app.context import ExtraPlugins
from gateway.health import home_checks
from gateway.health.checks import CheckContext, HealthCheck
from gateway.health.doctor import collect_findings
from gateway.health.network_checks import verify
from gateway.ports.channel import PlatformEvent
from gateway.ports.journal import UsageRow
from gateway.ports.setup import Finding, FindingLevel, fail
from gateway.quarantine import Quarantine
from gateway.settings import check_settings, load_settings
from gateway.store.alerts import Alert, NotificationState
from gateway.store.engine import StoreLimits
from gateway.store.sqlite import open_store
from tests.fakes.clock import VirtualClock
from tests.fakes.inprocess_gateway import gateway
from tests.fakes.meter import FakeMeter
from tests.fakes.openai_server import chatter, open_server, with_calls
from tests.fakes.setup_platform import SetupPlatformPlugin, SetupPlatformSettings
from tests.fakes.telegram_server import TelegramServer, open_telegram
from tests.fakes.time_server import open_time_server


@pytest.fixture(autouse=True)
def _own_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A home that is there, and a free port."""
    (tmp_path / "home").mkdir(mode=0o700)
    return {"PARLOUR_HOME": str(tmp_path / "home"), "PARLOUR_WEB__PORT": "0", "PARLOUR_TIMEZONE": "Europe/Berlin"}


@pytest.fixture
async def telegram(environment: dict[str, str]) -> AsyncIterator[TelegramServer]:
    """A small Telegram, and a block that leads to it."""
    async with open_telegram() as server:
        server.say("waiting")
        environment |= {
            "PARLOUR_CHANNELS__TELEGRAM__TOKEN": server.token,
            "PARLOUR_CHANNELS__TELEGRAM__BASE_URL": f"{server.base}/bot",
            "PARLOUR_CHANNELS__TELEGRAM__FILE_URL": f"{server.base}/file/bot",
        }
        yield server


async def run_doctor(
    environment: Mapping[str, str], *, is_offline: bool = False, asks_model: bool = False
) -> list[Finding]:
    """Return everything that the doctor says."""
    return [each async for each in collect_findings(environment, is_offline=is_offline, asks_model=asks_model)]


def failing(found: Sequence[Finding], level: FindingLevel = FindingLevel.FAIL) -> dict[str, str]:
    """Return the lines of a level, by id."""
    return {each.id: each.text for each in found if each.level is level}


def line_of(found: Sequence[Finding], ident: str) -> str:
    """Return the first line of an id."""
    return next(each.text for each in found if each.id == ident)


async def test_offline_nobody_is_asked(environment: dict[str, str], telegram: TelegramServer) -> None:
    """`--offline` makes no call, to no platform and to no model."""
    environment |= {"PARLOUR_LLM__MODEL": "openai/x", "PARLOUR_LLM__API_BASE": "http://127.0.0.1:9/v1"}
    assert not failing(await run_doctor(environment, is_offline=True))
    assert not telegram.calls


class SilentPlugin(SetupPlatformPlugin):
    """A platform that takes the connection and says nothing, or a kind with a bug."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    async def verify(self, settings: Any, environment: Mapping[str, str]) -> Sequence[Finding]:
        if self._error is not None:
            raise self._error
        await asyncio.Event().wait()
        return ()


async def test_a_clock_days_ahead_is_found(environment: dict[str, str]) -> None:
    """Where every message would look expired, the doctor says why; offline nobody is asked."""
    async with open_time_server(datetime.now(UTC) - timedelta(days=3)) as server:
        environment |= {"PARLOUR_LLM__API_BASE": server.base, "PARLOUR_LLM__MODEL": "openai/x"}
        assert "72 hours ahead" in failing(await run_doctor(environment))["clock"]
        asked = len(server.paths)
        assert "clock" not in failing(await run_doctor(environment, is_offline=True))
        assert len(server.paths) == asked


async def test_a_chat_folder_of_somebody_else_is_found(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it may not even be looked into."""
    folder = Path(environment["PARLOUR_HOME"]) / "chats" / "telegram_3a42"
    folder.mkdir(parents=True, mode=0o700)
    (folder / "sessions").mkdir()
    scandir, uid = os.scandir, home_checks._uid

    def refuse(path: Any = ".") -> Any:
        if Path(str(path)) == folder:
            raise PermissionError(errno.EACCES, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    monkeypatch.setattr(home_checks, "_uid", lambda path: 4242 if path == folder else uid(path))
    assert f"{folder} belongs to user id 4242" in failing(await run_doctor(environment, is_offline=True))["owner.files"]


async def test_a_silent_platform_and_a_bug_are_findings(clock: VirtualClock) -> None:
    """The doctor ends within 15 seconds, and a traceback is nobody's line."""
    (silent,) = await verify(SilentPlugin(), SetupPlatformSettings(), {})
    assert clock.seconds == 15
    assert silent == fail("Parrot did not answer within 15 s; check that this machine is online", about="reached")
    (broken,) = await verify(SilentPlugin(KeyError("canary")), SetupPlatformSettings(), {})
    assert broken.text == "Parrot could not be checked (KeyError); check that this machine is online"


async def test_a_check_that_hangs_or_has_a_bug_is_a_finding(tmp_path: Path, clock: VirtualClock) -> None:
    """Each check has its deadline, and none keeps the others from being made; those of wrong settings are left out."""

    async def hang(_: CheckContext) -> list[Finding]:
        await asyncio.Event().wait()
        return []

    def break_off(_: CheckContext) -> list[Finding]:
        raise KeyError("canary")

    context = CheckContext(report=check_settings({"PARLOUR_HOME": str(tmp_path), "PARLOUR_PROXY": "x"}), environment={})
    hung = await HealthCheck("disk", hang, needs_settings=False).run(context)
    assert hung == [fail("could not be checked within 30 s", "disk", "deadline")]
    assert clock.seconds == 30
    broken = await HealthCheck("disk", break_off, needs_settings=False).run(context)
    assert broken == [fail("could not be checked (KeyError); please report it", "disk", "failed")]
    assert await HealthCheck("disk", break_off).run(context) == []


async def test_a_read_that_never_ends_keeps_no_process(tmp_path: Path) -> None:
    """A plain check that blocks for ever is a finding, and its thread does not delay the end of the command."""
    release = threading.Event()

    def block(_: CheckContext) -> list[Finding]:
        release.wait()
        return []

    context = CheckContext(report=check_settings({"PARLOUR_HOME": str(tmp_path)}), environment={})
    try:
        (found,) = await HealthCheck("disk", block, seconds=0.05).run(context)
        assert found.id == "disk.deadline"
        assert [each.daemon for each in threading.enumerate() if each.name == "check disk"] == [True]
    finally:
        release.set()


async def test_a_model_is_asked_unless_the_running_gateway_had_its_answer(environment: dict[str, str]) -> None:
    """A trial costs money: none when this run was answered lately; an earlier run may have had another key."""
    async with open_server(with_calls(chatter)) as server:
        environment |= {"PARLOUR_LLM__MODEL": "openai/test", "PARLOUR_LLM__API_BASE": server.base}
        home = Path(environment["PARLOUR_HOME"])
        assert line_of(await run_doctor(environment), "model.answers").startswith("openai/test answered in ")
        assert len(server.bodies) == 2
        store = await open_store(home, "", StoreLimits())
        store.journal.spend(answer_of("openai/test", datetime.now(UTC) - timedelta(minutes=5)))
        await store.close()
        assert line_of(await run_doctor(environment), "model.answers").startswith("openai/test answered in ")
        assert len(server.bodies) == 4
        async with gateway(home=home) as parlour:
            await run_doctor(environment)
            assert len(server.bodies) == 6  # it answered before this gateway started
            parlour.app.store.journal.spend(answer_of("openai/test", datetime.now(UTC)))
            await parlour.idle()
            assert "answered 0 minutes ago" in line_of(await run_doctor(environment), "model.answers")
            assert len(server.bodies) == 6
            await run_doctor(environment, asks_model=True)
            assert len(server.bodies) == 8
        environment["PARLOUR_LLM__API_BASE"] = "http://127.0.0.1:9/v1"
        assert "nothing answers" in failing(await run_doctor(environment, asks_model=True))["model.answers"]


def answer_of(model: str, at: datetime) -> UsageRow:
    """Return the usage row of one answer."""
    return UsageRow(
        turn="t1",
        person="p",
        chat="c",
        purpose="answer",
        model=model,
        tokens_in=1,
        tokens_out=1,
        tokens_cached=0,
        cost=None,
        at=at,
    )


def content(home: Path) -> dict[str, str]:
    """Return every file and what is in it."""
    return {
        str(path.relative_to(home)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(home.rglob("*"))
        if path.is_file()
    }


async def test_a_stopped_home_tells_what_went_wrong(environment: dict[str, str]) -> None:
    """Killed twice, events in quarantine with reason and path, edits that are no text; nothing is touched."""
    home = Path(environment["PARLOUR_HOME"])

    async def work() -> None:
        raise ValueError

    keeper = Quarantine(home / "quarantine", unclean_stops=0, meter=FakeMeter(), now=lambda: datetime.now(UTC))
    for _ in range(3):
        try:
            await keeper.handle(PlatformEvent(channel="slack", id="1", raw="canary"), work)
        except ValueError:
            continue
    store = await open_store(home, "", StoreLimits())
    await store.close()
    with sqlite3.connect(home / "journal.db") as database:
        database.execute("INSERT INTO worker VALUES ('killed', 'here', 1, '0.1', 0, 0, 0)")
        database.execute("UPDATE meta SET value = '1' WHERE name = 'unclean_stops'")
        database.execute(
            "INSERT INTO dead (id, turn, key, reason, at) VALUES ('x', 't', 'telegram:42', 'blocked by the person', 1)"
        )
    database.close()
    for n in range(5):
        aside = home / "people" / f"telegram%3a{n}" / "memory" / "MEMORY.md.unreadable-20261128T210000000000"
        aside.parent.mkdir(parents=True)
        aside.write_bytes(b"canary \x81")
    before = content(home)
    found = await run_doctor(environment)
    assert content(home) == before
    warned = failing(found, FindingLevel.WARN)
    assert warned["memory"] == "and 2 more such files"
    assert any("people/telegram%3a0/memory/MEMORY.md.unreadable-" in each.text for each in found)
    assert "an event from slack was quarantined" in warned["quarantine"]
    assert "it failed 3 times: ValueError; it is in " in warned["quarantine"]
    assert warned["given.up"].startswith("1 to telegram, the latest 1970-01-01T00:00:00Z: blocked by the person")
    assert "killed 2 times in a row" in warned["stops"]
    assert "canary" not in str(found)


async def test_what_owners_were_told_and_what_nobody_could_tell_them(environment: dict[str, str]) -> None:
    """Of a gateway that does not run: trouble that is there, what is past, and, first of all, what nobody knows of."""
    now = datetime.now(UTC)
    store = await open_store(Path(environment["PARLOUR_HOME"]), "", StoreLimits())
    known = NotificationState(stage=1, at=now, worst=1, told=2)
    fields = {"free": 40_000_000}
    rows = [
        Alert(cause="disk", stage=1, since=now, line="alerts.disk_low", fields=fields, owners=known, monitor=known),
        Alert(cause="killed", since=now, line="alerts.killed", owners=NotificationState(waiting=1), monitor=known),
        Alert(cause="channel.slack", since=now, line="alerts.channel_down", fields={"channel": "slack"}),
        Alert(cause="set-aside", since=now, mark="-"),
    ]
    for row in rows:
        await store.alerts.save(row, at=now)
    await store.close()
    found = await run_doctor(environment, is_offline=True)
    warned = failing(found, FindingLevel.WARN)
    assert warned["alerts.untold"].startswith("The bot was terminated without a clean shutdown")
    assert "no owner has been notified yet" in warned["alerts.untold"]
    assert warned["alerts.disk"].startswith("The server's disk is nearly full: 40 MB left.")
    assert "(now, owners notified at " in warned["alerts.disk"]
    assert "(past, " in line_of(found, "alerts.channel.slack")
    assert not any(each.id.startswith("alerts.set-aside") for each in found)


async def test_a_running_gateway_is_asked_itself(environment: dict[str, str]) -> None:
    """While the home is held the answers come through the control socket: a deaf channel is a warning of its own."""
    settings = load_settings(environment)
    stop, ready = asyncio.Event(), asyncio.Event()
    async with open_app(settings, plugins=ExtraPlugins()) as app, asyncio.TaskGroup() as tasks:
        tasks.create_task(serve(app, stop, ready=lambda _: ready.set()))
        await ready.wait()
        found = await run_doctor(environment, is_offline=True)
        stop.set()
    assert {each.id: each.text for each in found}["lock"].startswith(
        "a gateway is running on this home; its page is on port "
    )
    assert not failing(found)
