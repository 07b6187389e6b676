"""A press comes to one worker and is answered by another, or after a restart: its buttons go all the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from channels.discord.adapter import DiscordChannel
from channels.slack.adapter import SlackChannel
from channels.telegram.adapter import TelegramChannel
from gateway.events import InboundMessage, MessageButton, OutboundKind, OutboundMessage, SessionKey, turn_id
from tests.fakes.connection_claims import GrantedClaims
from tests.fakes.discord_harness import block as discord_block
from tests.fakes.discord_records import ANN as DISCORD_ANN
from tests.fakes.discord_records import buttons as discord_buttons
from tests.fakes.discord_server import open_discord
from tests.fakes.slack import PING
from tests.fakes.slack import settings as slack_block
from tests.fakes.slack_buttons import buttons as slack_buttons
from tests.fakes.slack_server import ANN as SLACK_ANN
from tests.fakes.slack_server import DM, slack_server
from tests.fakes.telegram_channel import QUICK
from tests.fakes.telegram_channel import block as telegram_block
from tests.fakes.telegram_server import open_telegram
from tests.fakes.web_services import FakePageServices

YES = "/memory approve eaaaaaaaaaaaaaaaa"
NO = "/memory reject eaaaaaaaaaaaaaaaa"
CHOICES = (MessageButton("Yes", YES, 1), MessageButton("No", NO, 1))
KINDS = ("telegram", "slack", "discord")


@dataclass
class TwoWorkers:
    """Two workers' channels of one bot, over the same notes; Ann's direct chat has a question of the first."""

    key: SessionKey
    build: Callable[..., Any]  # a channel from a context
    press: Callable[[], object]  # Ann presses Yes
    rows: Callable[[], list[list[str]]]  # buttons that are shown in her chat
    shown: Callable[[], int]  # how many messages her chat has
    services: FakePageServices = field(default_factory=FakePageServices)
    running: dict[Any, asyncio.Task[None]] = field(default_factory=dict)

    async def start(self, *, sends_only: bool = False, is_shared: bool = True) -> Any:
        """Start a worker's channel and return it."""
        claims = GrantedClaims() if is_shared else None
        channel = self.build(replace(self.services.context(self.key.channel), connections=claims))
        run = channel.run_sender if sends_only else channel.run
        self.running[channel] = asyncio.create_task(run(), name="channel of a worker")
        await _polled(lambda: sends_only or channel.is_ready())
        return channel

    async def kill(self, channel: Any) -> None:
        """End a worker; nothing that it has in memory is left."""
        running = self.running.pop(channel)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await channel.close()

    async def ask(self, channel: Any) -> None:
        """Send a question with two buttons."""
        await self.say(channel, OutboundMessage(id="tquestion.1", key=self.key, text="May I?", choices=CHOICES))
        await _polled(lambda: self.rows() == [["Yes", "No"]])

    async def pressed(self) -> InboundMessage:
        """Press Yes; return the press once its note is stored."""
        self.press()
        await _polled(lambda: bool(self.services.accepted))
        (message,) = self.services.accepted
        await _polled(lambda: f"press/{turn_id(message)}" in self.services.state.notes)
        return message

    async def answer(self, channel: Any, message: InboundMessage, *, settles: bool = True) -> None:
        """Answer the press."""
        turn = f"{turn_id(message)}.1"
        await self.say(channel, OutboundMessage(
            id=turn, key=self.key, text="Done.", kind=OutboundKind.NOTICE, settles=settles
        ))  # fmt: skip

    async def say(self, channel: Any, message: OutboundMessage) -> None:
        """Send *message*, which is one part, as the planner completes it."""
        for part in channel.render(message):
            await channel.send(replace(part, choices=message.choices, settles=message.settles))


@asynccontextmanager
async def two_workers(kind: str) -> AsyncIterator[TwoWorkers]:
    """Run a platform, and end the workers that were started."""
    async with asyncio.timeout(30), _SCENES[kind]() as scene:
        try:
            yield scene
        finally:
            for channel in list(scene.running):
                await scene.kill(channel)


async def _polled(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - notes change without a signal
        await asyncio.sleep(0.005)


@asynccontextmanager
async def _telegram() -> AsyncIterator[TwoWorkers]:
    async with open_telegram() as server:
        server.chat(42)
        settings = telegram_block(server, reaction="")

        def rows() -> list[list[str]]:
            return next((post.buttons for post in server.posts if post.buttons), [])

        yield TwoWorkers(
            SessionKey("telegram", "42"),
            lambda context: TelegramChannel(replace(context, settings=settings), waits=QUICK),
            lambda: server.buttons.press(server.posts[0], YES),
            rows,
            lambda: len(server.posts),
        )


@asynccontextmanager
async def _slack() -> AsyncIterator[TwoWorkers]:
    async with slack_server() as server:
        settings = slack_block(server, reaction="")
        posted = server.places[DM].messages
        yield TwoWorkers(
            SessionKey("slack", DM),
            lambda context: SlackChannel(replace(context, settings=settings), ping=PING),
            lambda: server.press(DM, SLACK_ANN, posted[0], "Yes"),
            lambda: next((slack_buttons(each) for each in posted if slack_buttons(each)), []),
            lambda: len(posted),
        )


@asynccontextmanager
async def _discord() -> AsyncIterator[TwoWorkers]:
    async with open_discord() as discord:
        direct = discord.direct(DISCORD_ANN)
        settings = discord_block(discord, reaction="")
        posted = discord.messages[direct]
        yield TwoWorkers(
            SessionKey("discord", direct),
            lambda context: DiscordChannel(replace(context, settings=settings), identify_pause=0.01),
            lambda: discord.interactions.press(posted[0]["id"], DISCORD_ANN, YES),
            lambda: next((discord_buttons(each) for each in posted if discord_buttons(each)), []),
            lambda: len(posted),
        )


_SCENES = {"telegram": _telegram, "slack": _slack, "discord": _discord}


@pytest.mark.parametrize("kind", KINDS)
async def test_the_answer_of_another_worker_takes_the_buttons_away(kind: str) -> None:
    """The worker with the connection holds the press; the one with the chat answers, and leaves no note."""
    async with two_workers(kind) as scene:
        first, other = await scene.start(), await scene.start(sends_only=True)
        await scene.ask(first)
        await scene.answer(other, await scene.pressed())
        await _polled(lambda: scene.rows() == [])
        assert scene.shown() == 2
        assert not [name for name in scene.services.state.notes if name.startswith(("press/", "settled/"))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_shared", [True, False], ids=["taken over", "restarted"])
async def test_the_answer_after_a_kill_takes_the_buttons_away(kind: str, is_shared: bool) -> None:
    """The worker that received the press ends before its turn: the next one has the note."""
    async with two_workers(kind) as scene:
        first = await scene.start(is_shared=is_shared)
        await scene.ask(first)
        press = await scene.pressed()
        await scene.kill(first)
        await scene.answer(await scene.start(is_shared=is_shared), press)
        await _polled(lambda: scene.rows() == [])


@pytest.mark.parametrize("kind", KINDS)
async def test_a_press_that_is_stored_after_its_answer_loses_its_buttons(kind: str) -> None:
    """The other worker was faster than the note: the one that stores it finds that it was answered."""
    async with two_workers(kind) as scene:
        first, other = await scene.start(), await scene.start(sends_only=True)
        await scene.ask(first)
        save, may_save = scene.services.state.save, asyncio.Event()

        async def save_late(name: str, value: str | None, *, within: float = 0.0) -> None:
            if name.startswith("press/"):
                await may_save.wait()
            await save(name, value, within=within)

        scene.services.state.save = save_late  # type: ignore[method-assign]
        scene.press()
        await _polled(lambda: bool(scene.services.accepted))
        (press,) = scene.services.accepted
        await scene.answer(other, press)
        await _polled(lambda: f"settled/press/{turn_id(press)}" in scene.services.state.notes)
        assert scene.rows() != []
        may_save.set()
        await _polled(lambda: scene.rows() == [])


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_that_settles_nothing_leaves_the_buttons(kind: str) -> None:
    """As the refusal of a press that its sender may not decide; another may."""
    async with two_workers(kind) as scene:
        first, other = await scene.start(), await scene.start(sends_only=True)
        await scene.ask(first)
        await scene.answer(other, await scene.pressed(), settles=False)
        await _polled(lambda: scene.shown() == 2)
        assert scene.rows() == [["Yes", "No"]]
