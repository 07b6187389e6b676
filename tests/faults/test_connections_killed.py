"""Connections that exist once, between worker processes on one database and platforms on this machine.

The worker that has the connection is killed, hangs or stops, at any moment while people write: every message is
answered once, by a worker that may not have the connection.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import pytest

from channels.discord.adapter import DiscordChannel, DiscordShard
from channels.discord.shards import IdentifyLimit
from gateway.store import claims as store_connections
from gateway.store.engine import StoreLimits
from gateway.store.postgres import open_database
from gateway.supervisor import Supervisor
from tests.fakes.discord_records import ANN, GENERAL, LOBBY
from tests.fakes.discord_records import TOKEN as DISCORD_TOKEN
from tests.fakes.discord_server import DiscordServer, open_discord
from tests.fakes.forked_command import ForkedCommand, fork_command
from tests.fakes.meter import FakeMeter
from tests.fakes.postgres_server import PostgresServer
from tests.fakes.slack_server import ANN as SLACK_ANN
from tests.fakes.slack_server import APP_TOKEN, BOT_TOKEN, BOT_USER, SlackServer, slack_server
from tests.fakes.slack_workspace import FakeSlackChat
from tests.fakes.telegram_server import TelegramServer, open_telegram
from tests.faults.connection_worker import open_channel
from tests.faults.process_pool import ForkServer

MESSAGES = 12
CHATS = 6
_LIMIT = 60.0  # seconds
_HOLDER = "SELECT worker FROM claim WHERE name LIKE 'conn:%{}' AND name NOT LIKE '%identify%'"
_SHARD = "/1"  # of "discord-shards"


class Platform(Protocol):
    """A platform with one person who writes."""

    block: dict[str, Any]

    def say(self, text: str, chat: int = 0) -> None:
        """Write to the bot, in one of `CHATS` chats."""
        ...

    def shown(self) -> Sequence[str]:
        """Return what the bot wrote, each message once."""
        ...

    def connections(self) -> int:
        """Return how many connections receive now."""
        ...


class TelegramPlatform:
    """The Bot API; an answer after a lost reply is marked, since bots cannot read chats."""

    def __init__(self, server: TelegramServer) -> None:
        self._server = server
        self.block = {
            "token": server.token, "base_url": f"{server.base}/bot", "file_url": f"{server.base}/file/bot",
            "allow_from": ["42"],
        }  # fmt: skip

    def say(self, text: str, chat: int = 0) -> None:
        """Write to the bot."""
        self._server.say(text, chat=42 + chat, sender=42 + chat)

    def shown(self) -> Sequence[str]:
        """Return what the bot wrote."""
        return [post.text for post in self._server.posts]

    def connections(self) -> int:
        """Return 1 while somebody polls: a second poll would end the first."""
        return int(self._server._poll is not None)


class DiscordPlatform:
    """The gateway and REST."""

    def __init__(self, server: DiscordServer) -> None:
        self._server = server
        people = [str(int(ANN) + 100 + number) for number in range(CHATS)]
        for person in people:
            server.users[person] = {"id": person, "username": person, "discriminator": "0", "avatar": None}
        self._chats = [(server.direct(person), person) for person in people]
        self.block: dict[str, Any] = {
            "token": DISCORD_TOKEN, "api_url": f"http://{server.base}/api/v10",
            "gateway_url": f"ws://{server.base}/gateway", "allow_from": [ANN], "commands": "off",
        }  # fmt: skip

    def say(self, text: str, chat: int = 0) -> None:
        """Write to the bot."""
        self._server.say(*self._chats[chat], text)

    def shown(self) -> Sequence[str]:
        """Return what the bot wrote."""
        return [
            str(each["content"])
            for chat, person in self._chats
            for each in self._server.messages[chat]
            if each["author"]["id"] != person
        ]

    def connections(self) -> int:
        """Return the sessions with a line."""
        return sum(session.line is not None for session in self._server.gateway.sessions)


class DiscordShardPlatform(DiscordPlatform):
    """The second of two shards: Ann writes in the server that it has."""

    def __init__(self, server: DiscordServer) -> None:
        super().__init__(server)
        self._chats = [(LOBBY, ANN)]
        self.gateway = server.gateway
        self.block["shards"] = 2

    def connections(self) -> int:
        """Return the sessions of that shard with a line."""
        return sum(each.line is not None and each.shard == (1, 2) for each in self._server.gateway.sessions)


class SlackPlatform:
    """Socket Mode and the Web API."""

    def __init__(self, server: SlackServer) -> None:
        self._server = server
        self.block = {
            "bot_token": BOT_TOKEN, "app_token": APP_TOKEN, "base_url": f"{server.base}/api/",
            "allow_from": [SLACK_ANN],
        }  # fmt: skip

    def say(self, text: str, chat: int = 0) -> None:
        """Write to the bot."""
        place = f"D{chat:04}ANN"
        if place not in self._server.places:
            self._server.places[place] = FakeSlackChat(place, "im", {SLACK_ANN, BOT_USER})
        self._server.say(place, SLACK_ANN, text)

    def shown(self) -> Sequence[str]:
        """Return what the bot wrote."""
        return [
            str(each["text"]) for place in self._server.places.values() for each in place.messages if each.get("bot_id")
        ]

    def connections(self) -> int:
        """Return the open sockets."""
        return len(self._server.sockets)


@asynccontextmanager
async def open_platform(kind: str) -> AsyncIterator[Platform]:
    """Serve a platform on this machine."""
    async with AsyncExitStack() as stack:
        if kind == "telegram":
            yield TelegramPlatform(await stack.enter_async_context(open_telegram()))
        elif kind == "discord":
            yield DiscordPlatform(await stack.enter_async_context(open_discord()))
        elif kind == "discord-shards":
            discord = DiscordServer(has_other=True, max_concurrency=2)
            yield DiscordShardPlatform(await stack.enter_async_context(open_discord(discord)))
        else:
            yield SlackPlatform(await stack.enter_async_context(slack_server()))


@dataclass
class WorkerProcess:
    """A running worker, and what it printed."""

    process: ForkedCommand
    name: str = ""
    printed: list[str] = field(default_factory=list)

    @classmethod
    async def start(cls, zygote: ForkServer, url: str, kind: str, platform: Platform, seconds: float) -> WorkerProcess:
        """Start one, and return when it has its store."""
        words = ("-m", "tests.faults.connection_worker", url, kind, json.dumps(platform.block), str(seconds))
        worker = cls(await fork_command(zygote, words, os.environ, typed=None))
        assert worker.process.stdout is not None
        async for line in worker.process.stdout:
            worker.printed.append(line.decode().rstrip())
            if line.startswith(b"ready "):
                worker.name = line.split()[1].decode()
                return worker
        raise AssertionError("\n".join(worker.printed))

    async def read(self) -> None:
        """Keep what it prints, until it ends."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.printed.append(line.decode().rstrip())

    def has_printed(self, word: str) -> bool:
        """Return True if one of its lines holds *word*."""
        return any(word in line for line in self.printed)


async def until(is_met: Callable[[], object]) -> None:
    """Return when *is_met* says so."""
    while not is_met():  # noqa: ASYNC110 - other processes and platforms are only seen by looking
        await asyncio.sleep(0.02)


@dataclass
class Scene:
    """Two workers, one platform, one database."""

    zygote: ForkServer
    server: PostgresServer
    kind: str
    platform: Platform
    tasks: asyncio.TaskGroup
    workers: list[WorkerProcess] = field(default_factory=list)

    async def start(self, count: int, seconds: float) -> None:
        """Start workers, all at the same time; their turns take *seconds*."""
        kind = self.kind.partition("-")[0]
        begun = [WorkerProcess.start(self.zygote, self.server.url, kind, self.platform, seconds) for _ in range(count)]
        for worker in await asyncio.gather(*begun):
            self.workers.append(worker)
            self.tasks.create_task(worker.read())

    def holder(self) -> str:
        """Return the name of the worker that has the connection."""
        found = [name for (name,) in self.server.query(_HOLDER.format(_SHARD if self.kind == "discord-shards" else ""))]
        assert len(found) <= 1
        return found[0] if found else ""

    async def connected(self, *, other_than: str = "") -> WorkerProcess:
        """Return the worker that is connected, once one is."""
        await until(lambda: self.holder() not in ("", other_than) and self.platform.connections())
        name = self.holder()
        return next(each for each in self.workers if each.name == name)

    async def answered(self, count: int) -> None:
        """Return when messages 0 to *count* are answered and nothing is open."""
        wanted = {f"answer to m{number}" for number in range(count)}
        await until(lambda: wanted <= {_unmarked(text) for text in self.platform.shown()})
        await until(lambda: not self.server.query("SELECT 1 FROM outbox WHERE open IS NOT NULL LIMIT 1"))

    def check(self, count: int) -> None:
        """Check that each message was answered in one turn, and that a repeated answer is marked as one."""
        assert self.server.query("SELECT count(*), count(DISTINCT turn) FROM record") == [(count, count)]
        texts = [text for text in self.platform.shown() if text.startswith("answer to") and _unmarked(text) == text]
        assert sorted(texts) == sorted(set(texts))
        assert len({_unmarked(text) for text in self.platform.shown()}) == count


def _unmarked(text: str) -> str:
    """Return the first line of an answer: a mark is added below or above it."""
    return next((line for line in text.splitlines() if line.startswith("answer to")), text)


@pytest.fixture
async def server(postgres: PostgresServer) -> PostgresServer:
    """Return a server with empty tables of this version."""
    postgres.empty()
    store = await open_database(postgres.url, StoreLimits())
    await store.close()
    return postgres


@asynccontextmanager
async def scene(
    zygote: ForkServer, server: PostgresServer, kind: str, *, seconds: float = 0.01
) -> AsyncIterator[Scene]:
    """Run two workers before a platform; kill what is left at the end."""
    async with asyncio.timeout(_LIMIT), open_platform(kind) as platform, asyncio.TaskGroup() as tasks:
        opened = Scene(zygote, server, kind, platform, tasks)
        try:
            await opened.start(2, seconds)
            yield opened
        finally:
            for worker in opened.workers:
                worker.process.send_signal(signal.SIGKILL)
                await worker.process.wait()
                print(worker.name, *worker.printed, sep="\n  ")  # shown if the test fails


@pytest.mark.parametrize("kind", ["telegram", "discord-shards", "slack"])
async def test_a_killed_holder_loses_and_doubles_nothing(zygote: ForkServer, server: PostgresServer, kind: str) -> None:
    """Two workers start at once and one connects; it is killed while people write, and another takes over."""
    async with scene(zygote, server, kind) as running:
        first = await running.connected()
        (other,) = [each for each in running.workers if each is not first]
        killed_at = 0.0
        if kind == "discord-shards":
            await until(lambda: server.query("SELECT count(*) FROM note WHERE name LIKE '%session'") == [(2,)])
        for number in range(MESSAGES):
            running.platform.say(f"m{number}")
            await asyncio.sleep(random.uniform(0, 0.15))  # noqa: S311
            if number == MESSAGES // 3:
                first.process.send_signal(signal.SIGKILL)
                killed_at = time.monotonic()
        assert await running.connected(other_than=first.name) is other
        print("takeover", round(time.monotonic() - killed_at, 2))
        await running.answered(MESSAGES)
        running.check(MESSAGES)
        assert other.has_printed("channel.connection_claimed")
        if isinstance(running.platform, DiscordShardPlatform):  # it goes on with the sessions of the first
            gateway = running.platform.gateway
            assert sorted(gateway.identifies) == [(0, 2), (1, 2)]
            assert gateway.resumed_shards.count(1) == 1


async def test_a_holder_that_hangs_is_replaced_and_stops_its_connection(
    zygote: ForkServer, server: PostgresServer
) -> None:
    """It polls again when it goes on, until it notices; what it receives is not confirmed, and comes to the other."""
    async with scene(zygote, server, "telegram") as running:
        first = await running.connected()
        first.process.send_signal(signal.SIGSTOP)
        for number in range(MESSAGES):
            running.platform.say(f"m{number}")
        await running.connected(other_than=first.name)
        await running.answered(MESSAGES // 2)
        first.process.send_signal(signal.SIGCONT)
        running.platform.say(f"m{MESSAGES}")
        await running.answered(MESSAGES + 1)
        running.check(MESSAGES + 1)
        await until(lambda: first.has_printed("channel.connection_lost"))


@pytest.mark.parametrize("kind", ["telegram", "discord", "slack"])
async def test_a_holder_that_stops_hands_over_at_once(zygote: ForkServer, server: PostgresServer, kind: str) -> None:
    """The other has the connection while the first still lives; then the first's end changes nothing."""
    async with scene(zygote, server, kind) as running:
        first = await running.connected()
        running.platform.say("m0")
        await running.answered(1)
        first.process.send_signal(signal.SIGTERM)
        stopped_at = time.monotonic()
        await running.connected(other_than=first.name)
        print("handover", round(time.monotonic() - stopped_at, 2))
        await until(lambda: first.has_printed("disconnected"))
        assert server.query("SELECT count(*) FROM worker") == [(2,)]  # it is not the takeover from a dead one
        running.platform.say("m1")
        await running.answered(2)
        first.process.stdin.close()
        assert await first.process.wait() == 0
        running.platform.say("m2")
        await running.answered(3)
        running.check(3)


async def test_a_worker_without_the_connection_answers(zygote: ForkServer, server: PostgresServer) -> None:
    """Chats are divided among the workers, wherever their messages come in; sending needs no connection."""
    async with scene(zygote, server, "telegram", seconds=1.0) as running:
        await running.connected()
        for chat in range(CHATS):
            running.platform.say(f"m{chat}", chat)
        await running.answered(CHATS)
        running.check(CHATS)
        await until(lambda: all(worker.has_printed("sent to") for worker in running.workers))
        assert running.platform.connections() == 1


async def test_gateways_that_connect_at_once_begin_one_session_at_a_time(server: PostgresServer) -> None:
    """Shards of one bot in two gateways: Discord refuses no IDENTIFY as one that came too early."""
    discord = DiscordServer(has_other=True)
    discord.gateway.identify_period = 0.1
    async with asyncio.timeout(_LIMIT), open_discord(discord), AsyncExitStack() as stack:
        block, shards = {**DiscordShardPlatform(discord).block, "shards": 3}, list[DiscordShard]()
        for number in range(2):
            store = await open_database(server.url, StoreLimits(), shares=True)
            stack.push_async_callback(store.close)
            channel, _ = open_channel(store, "discord", block)
            stack.push_async_callback(channel.close)
            assert isinstance(channel, DiscordChannel)
            channel._identify_limit = IdentifyLimit(0.3, store.connections, "discord:1")
            shards += (await channel.shards())[number::2]
        runs = [asyncio.create_task(shard.run(), name="shard") for shard in shards]
        await discord.until(lambda: sum(each.line is not None for each in discord.gateway.sessions) == 3)
        for run in runs:
            run.cancel()
        await asyncio.wait(runs)
    assert discord.gateway.too_early == 0
    assert sorted(discord.gateway.identifies) == [(each, 3) for each in range(3)]


async def test_a_gateway_that_joins_gets_shards_with_their_sessions(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two moves to it: its session goes on, and whatever is said meanwhile comes once."""
    monkeypatch.setattr(store_connections, "MOVE_AFTER", timedelta())
    async with asyncio.timeout(_LIMIT), open_discord(DiscordServer(has_other=True)) as discord, AsyncExitStack() as end:
        platform, said = DiscordShardPlatform(discord), 0

        async def join() -> None:
            store = await open_database(server.url, StoreLimits(), shares=True)
            end.push_async_callback(store.close)
            channel, _ = open_channel(store, "discord", platform.block)
            end.push_async_callback(channel.close)
            assert isinstance(channel, DiscordChannel)
            channel._identify_limit = IdentifyLimit(0.01)
            supervisor = Supervisor({"discord": channel}, meter=FakeMeter(), connections=store.connections)
            running = asyncio.create_task(supervisor.run(), name="gateway")
            end.push_async_callback(asyncio.wait, {running})
            end.callback(running.cancel)

        def say() -> None:
            nonlocal said
            for chat in (LOBBY, GENERAL):
                discord.say(chat, ANN, f"m{said}")
                said += 1

        await join()
        await discord.until(lambda: len(discord.gateway.sessions) == 2)
        await join()
        while len(set(server.query("SELECT worker FROM claim WHERE name LIKE 'conn:%/_'"))) < 2:
            say()
            await asyncio.sleep(0.05)
        await discord.until(lambda: all(session.line is not None for session in discord.gateway.sessions))
        say()
        await until(lambda: server.query("SELECT count(DISTINCT message_id) FROM inbox") == [(said,)])
        assert len(discord.gateway.identifies) == 2
        assert len(discord.gateway.resumed_shards) == 1
