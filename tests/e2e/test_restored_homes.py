"""A restored home treats what was open as of unknown outcome, before real protocol servers of three platforms."""

from __future__ import annotations

import asyncio
import hashlib
import tarfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.backup import backup
from gateway.health.doctor import collect_findings
from gateway.i18n import translate
from gateway.journal_file import OpenChoice
from gateway.ports.memory import BYTES
from gateway.restore import BackupContents, restore
from tests.e2e.discord.test_gateway_discord import open_gateway as open_discord_gateway
from tests.fakes.discord_records import ANN as DISCORD_ANN
from tests.fakes.discord_server import open_discord
from tests.fakes.held_model import HeldModel
from tests.fakes.inprocess_gateway import InProcessGateway, gateway
from tests.fakes.slack_gateway import open_gateway as open_slack_gateway
from tests.fakes.slack_server import ANN as SLACK_ANN
from tests.fakes.slack_server import DM, slack_server
from tests.fakes.stored_files import stored_files
from tests.fakes.telegram_gateway import open_gateway as open_telegram_gateway
from tests.fakes.telegram_server import open_telegram

MARK = translate("delivery.may_repeat")
SCOPE = "people/pocket%3aann"
NO_REACTION = {"PARLOUR_CHANNELS__SLACK__REACTION": ""}


@dataclass
class PrivateChatScene:
    """A platform on which one person writes to the bot in private."""

    live: Callable[[Path, HeldModel], AbstractAsyncContextManager[InProcessGateway]]
    ask: Callable[[str], object]
    shown: Callable[[], list[str]]
    until: Callable[[Callable[[], bool]], Awaitable[object]]


@asynccontextmanager
async def telegram() -> AsyncIterator[PrivateChatScene]:
    """Telegram has no send key and cannot be asked."""
    async with open_telegram() as server:
        server.now = lambda: int(time.time())
        yield PrivateChatScene(
            live=lambda home, model: open_telegram_gateway(server, model, home, REACTION=""),
            ask=server.say,
            shown=lambda: [post.text for post in server.posts],
            until=server.until,
        )


@asynccontextmanager
async def slack() -> AsyncIterator[PrivateChatScene]:
    """Slack can be read back."""
    async with slack_server() as server:
        yield PrivateChatScene(
            live=lambda home, model: open_slack_gateway(server, home=home, model=model, environment=NO_REACTION),
            ask=lambda text: server.say(DM, SLACK_ANN, text),
            shown=lambda: server.shown(DM),
            until=server.until,
        )


@asynccontextmanager
async def discord() -> AsyncIterator[PrivateChatScene]:
    """Discord can be read back."""
    async with open_discord() as server:
        chat = server.direct(DISCORD_ANN)
        yield PrivateChatScene(
            live=lambda home, model: open_discord_gateway(server, home=home, model=model),
            ask=lambda text: server.say(chat, DISCORD_ANN, text),
            shown=lambda: server.chat(chat),
            until=server.until,
        )


SCENES = {"telegram": telegram, "slack": slack, "discord": discord}


@pytest.fixture(autouse=True)
def _own_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


async def answered_after_the_backup(scene: PrivateChatScene, folder: Path) -> Path:
    """Make a backup while a message is thought about, then answer it; return the backup."""
    model, home, target = HeldModel(), folder / "home", folder / "b.tar.gz"
    async with scene.live(home, model) as parlour:
        scene.ask("What did we decide?")
        await model.asked.wait()
        await parlour.app.backup(target)
        model.go_on.set()
        await parlour.idle()
    assert len(scene.shown()) == 1
    return target


@pytest.mark.parametrize("platform", SCENES)
@pytest.mark.parametrize("choice", OpenChoice)
async def test_what_was_open_is_looked_up_marked_or_dropped(tmp_path: Path, platform: str, choice: OpenChoice) -> None:
    """No unmarked second answer: Slack and Discord are asked, Telegram's says that it may be a repeat."""
    async with SCENES[platform]() as scene:
        source = await answered_after_the_backup(scene, tmp_path)
        (first,) = scene.shown()
        told: list[BackupContents] = []
        await asyncio.to_thread(restore, source, tmp_path / "home", force=True, choice=choice, confirm=told.append)
        assert told[0].work.messages == 1
        model = HeldModel(held=False)
        async with scene.live(tmp_path / "home", model) as parlour:
            await parlour.idle()
            again = scene.shown()
            if choice is OpenChoice.ANSWER and platform == "telegram":
                assert again == [first, f"{first}\n\n{MARK}"]
            else:
                assert again == [first]
            assert model.calls == (choice is OpenChoice.ANSWER)
            # What is said from now on is answered as ever.
            scene.ask("And what else?")
            await scene.until(lambda: len(scene.shown()) > len(again))
            await parlour.idle()
            new = scene.shown()[len(again) :]
            assert len(new) == 1
            assert MARK not in new[0]


async def test_a_restored_home_was_not_killed(tmp_path: Path) -> None:
    """Backups are made while a gateway or a command has the journal open; doctor and the next start know of no kill."""
    environment = {"PARLOUR_HOME": str(tmp_path / "home"), "PARLOUR_WEB__PORT": "0"}
    async with SCENES["telegram"]() as scene:
        source = await answered_after_the_backup(scene, tmp_path)
        await asyncio.to_thread(restore, source, tmp_path / "home", force=True)
        found = [each async for each in collect_findings(environment, is_offline=True, asks_model=False)]
        assert not [each for each in found if each.name == "stops"]
        async with scene.live(tmp_path / "home", HeldModel(held=False)) as parlour:
            assert (await parlour.app.store.journal.depth())["unclean_stops"] == 0


async def test_a_restored_home_has_its_conversations(tmp_path: Path) -> None:
    """The backup has them in its journal alone: they go on, are found, and their files are written again."""
    home, other, archive = tmp_path / "home", tmp_path / "other", tmp_path / "b.tar.gz"
    async with gateway(home=home) as parlour:
        await parlour.channel.ask("ann", "my boat is called Tern")
        await parlour.channel.ask("ann", "/new")
        await parlour.channel.ask("ann", "what is new?")
        await parlour.idle()
        made = await parlour.app.backup(archive)
    assert made.turns == 3
    with tarfile.open(archive) as packed:
        assert not [name for name in packed.getnames() if "sessions/" in name]
    written = {path.name: path.read_bytes() for path in (home / SCOPE / "sessions").glob("*.jsonl")}
    await asyncio.to_thread(restore, archive, other)
    async with gateway(home=other) as parlour:
        assert await parlour.app.recall.search(SCOPE, "boat")
        await parlour.app.session_files.flush()
    assert {path.name: path.read_bytes() for path in (other / SCOPE / "sessions").glob("*.jsonl")} == written


async def test_a_backup_has_every_file_that_its_journal_names(tmp_path: Path) -> None:
    """Files that are removed and added between the copy of the journal and that of the files are no exception."""
    home, other, archive = tmp_path / "home", tmp_path / "other", tmp_path / "b.tar.gz"
    small, large, late = b"small", b"large" * 40_000, b"late" * 40_000
    async with gateway(home=home) as parlour:
        app, blobs, files = parlour.app, parlour.app.blobs, parlour.app.store.files
        for data in (small, large):
            await blobs.put(SCOPE, data)

        async def copy_journal(target: Path) -> None:
            await app.store.backup(target)
            await files.remove(SCOPE)
            await blobs.put(SCOPE, late)

        await backup(app.home, copy_journal, archive, still=app.pause_writes())
        assert list(stored_files(home).values()) == [late]
        await files.collect_garbage()
        assert len(list((home / SCOPE / BYTES).iterdir())) == 1
    await asyncio.to_thread(restore, archive, other)
    assert set(stored_files(other).values()) == {small, large}
    async with gateway(home=other) as parlour:
        digests = [hashlib.sha256(data).hexdigest() for data in (small, large)]
        assert [await parlour.app.blobs.get(f"{SCOPE}/{digest}") for digest in digests] == [small, large]
