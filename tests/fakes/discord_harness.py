"""The real Discord channel before a Discord on this machine; and Discord in the shared contract suite."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from channels.discord import DiscordSettings, plugin
from channels.discord.adapter import DiscordChannel
from gateway.channel import ChannelContext, ChannelPlugin
from gateway.events import ChatKind, DeliveryReceipt, InboundKind, InboundMessage, MessagePart, OutboundKind, SessionKey
from gateway.ports.channel import IntakeResult, IntakeVerdict
from gateway.settings.channel_blocks import combine_models
from gateway.supervisor import Supervisor
from tests.fakes.channel_harness import ChatView, PlatformUser, RunningChannel
from tests.fakes.connection_claims import GrantedClaims
from tests.fakes.discord_records import ADMIN_ROLE, ANN, BOT, GENERAL, GUILD, TOKEN, buttons
from tests.fakes.discord_server import DiscordServer, open_discord
from tests.fakes.meter import FakeMeter
from tests.fakes.web_services import FakePageServices


def block(discord: DiscordServer, **fields: Any) -> Any:
    """Return the settings that point at *discord*."""
    addresses = {"api_url": f"http://{discord.base}/api/v10", "gateway_url": f"ws://{discord.base}/gateway"}
    return combine_models(DiscordSettings)(**{"token": TOKEN, "commands": "off", **addresses, **fields})


class NotedChannel(DiscordChannel):
    """The channel, with notes of what Discord's people cannot tell.

    `final`: messages that are no preview any more. `confirmed`: stored messages, once for each time they came.
    """

    def __init__(self, context: ChannelContext, **more: Any) -> None:
        super().__init__(context, **more)
        self.final: set[str] = set()
        self.confirmed: list[str] = []
        show_result = self._reactions.show_result

        def note_result(chat: str, message: InboundMessage, result: IntakeResult) -> None:
            is_new = message.kind is InboundKind.MESSAGE and not message.revision
            if result.verdict is IntakeVerdict.ACCEPTED and is_new:
                self.confirmed.append(message.message_id)
            show_result(chat, message, result)

        self._reactions.show_result = note_result  # type: ignore[method-assign]

    async def edit(self, message_id: str, part: MessagePart) -> DeliveryReceipt:
        """Edit, and note what it became."""
        if part.kind is not OutboundKind.PREVIEW:
            self.final.add(message_id)
        return await super().edit(message_id, part)


async def ready(channel: DiscordChannel) -> None:
    """Return when the channel hears Discord."""
    while not channel.is_ready():  # noqa: ASYNC110 - nobody is told
        await asyncio.sleep(0.005)


@asynccontextmanager
async def connected(services: FakePageServices, discord: DiscordServer, **fields: Any) -> AsyncIterator[NotedChannel]:
    """Run the channel in front of *house* until the block ends; it hears when the block begins.

    Afterwards Discord forgets its sessions, as it does some minutes later: the next run reads back what was said.
    """
    channel = NotedChannel(services.context("discord", block(discord, **fields)), identify_pause=0.01)
    services.channel = channel
    running = asyncio.create_task(channel.run(), name="discord channel")
    try:
        news = asyncio.create_task(ready(channel), name="connected")
        await asyncio.wait({running, news}, return_when=asyncio.FIRST_COMPLETED)
        news.cancel()
        if running.done():
            await running
        yield channel
    finally:
        running.cancel()
        await asyncio.wait({running})
        await channel.close()
        discord.gateway.sessions.clear()


@asynccontextmanager
async def gateway_of(
    services: FakePageServices, discord: DiscordServer, *held: str, **fields: Any
) -> AsyncIterator[tuple[Supervisor, GrantedClaims, asyncio.Task[None]]]:
    """Run one of several gateways, which has the connections *held*."""
    claims = GrantedClaims()
    context = replace(services.context("discord", block(discord, **{"shards": 2, **fields})), connections=claims)
    channel = DiscordChannel(context, identify_pause=0.01)
    claims.grant(*held)
    supervisor = Supervisor({"discord": channel}, meter=FakeMeter(), connections=claims)
    running = asyncio.create_task(supervisor.run(), name="gateway")
    try:
        yield supervisor, claims, running
    finally:
        running.cancel()
        await asyncio.wait({running})
        await channel.close()


class DiscordUser:
    """Ann, before her own client, in her direct chat with the bot."""

    def __init__(self, discord: DiscordServer, harness: DiscordHarness) -> None:
        self.shown = ChatView()
        self._discord = discord
        self._harness = harness
        self._chat = discord.direct(ANN)

    async def say(self, text: str, ident: str) -> None:
        """Write; the same again is Discord delivering the same event again."""
        known = self._harness.ident(ident)
        if any(message["id"] == known for message in self._discord.messages[self._chat]):
            self._discord.repeat(known)
        else:
            self._discord.say(self._chat, ANN, text, id=known)

    async def press(self, label: str) -> None:
        """Press a button; Discord brings the same press twice."""
        message = next(each for each in self._discord.messages[self._chat] if buttons(each))
        (value,) = [
            each["custom_id"] for row in message["components"] for each in row["components"] if each["label"] == label
        ]
        self._discord.interactions.repeat(self._discord.interactions.press(message["id"], ANN, value))

    async def garble(self) -> None:
        """Send payloads and a frame of every wrong shape; the last one costs the connection."""
        gateway = self._discord.gateway
        for data in ({}, {"id": "x"}, {"id": "1", "channel_id": self._chat}, {"id": "1", "channel_id": "x"}):
            gateway.dispatch("MESSAGE_CREATE", dict(data) | {"author": 5, "mentions": 3}, guild=False)
        gateway.dispatch("NOBODY_KNOWS", {}, guild=False)
        before = gateway.identified
        await gateway.settle()
        await gateway.send_raw("[]")
        assert self._harness.channel is not None
        await self._discord.until(lambda: gateway.identified > before)
        await ready(self._harness.channel)

    async def watch(self) -> None:
        """Fold in whatever changes."""
        while True:
            self._look()
            self.shown.news.set()
            try:
                async with asyncio.timeout(0.05):  # typing ends without a word
                    await self._discord.until_changed()
            except TimeoutError:
                continue

    def _look(self) -> None:
        shown = self.shown
        shown.confirmed = [self._harness.name(ident) for ident in self._harness.confirmed]
        shown.is_busy = self._discord.is_typing(self._chat)
        shown.messages = {}
        shown.buttons = next((buttons(each) for each in self._discord.messages[self._chat] if buttons(each)), [])
        for message in self._discord.messages[self._chat]:
            if message["author"]["id"] != BOT:
                continue
            is_preview = message["nonce"].split(".")[1] == "0"
            if is_preview and message["id"] not in self._harness.final:
                shown.previews += [message["content"]] if shown.previews[-1:] != [message["content"]] else []
            else:
                shown.messages[message["id"]] = message["content"]


class DiscordHarness:
    """The real channel before a Discord on this machine."""

    kind: ChannelPlugin = plugin

    def __init__(self) -> None:
        self.channel: NotedChannel | None = None
        self._first = 0

    @property
    def final(self) -> set[str]:
        """Return the previews that became answers."""
        return self.channel.final if self.channel else set()

    @property
    def confirmed(self) -> list[str]:
        """Return the ids of messages that were stored, one for each time they came."""
        return self.channel.confirmed if self.channel else []

    def ident(self, name: str) -> str:
        """Return the snowflake of what the suite calls *name*: a millisecond each."""
        return str(self._first + (int(name.rpartition("-")[2]) << 22))

    def name(self, ident: str) -> str:
        """Undo `ident`."""
        return f"message-{(int(ident) - self._first) >> 22:04}"

    @asynccontextmanager
    async def open(self, services: FakePageServices) -> AsyncIterator[RunningChannel]:
        """Run the channel."""
        async with open_discord(DiscordServer(typing_lasts=0.1)) as discord:
            self._first = int(discord.snowflake()) >> 22 << 22
            async with connected(services, discord) as self.channel:

                @asynccontextmanager
                async def join() -> AsyncIterator[PlatformUser]:
                    person = DiscordUser(discord, self)
                    async with asyncio.TaskGroup() as tasks:
                        watch = tasks.create_task(person.watch(), name="person watches")
                        yield person
                        watch.cancel()

                async def files(_: PlatformUser) -> list[tuple[str, bytes]]:
                    said = discord.messages[discord.direct(ANN)]
                    return [discord.cdn.files[each["id"]] for message in said for each in message["attachments"]]

                def unknown(message: InboundMessage) -> InboundMessage:
                    discord.members[ANN]["roles"] = [ADMIN_ROLE]
                    discord.fail("GET", "members", "403 50001")
                    place = {"key": SessionKey("discord", GENERAL), "chat_kind": ChatKind.GROUP, "guild": GUILD}
                    return replace(message, **place)  # type: ignore[arg-type]

                key = SessionKey("discord", discord.direct(ANN))
                yield RunningChannel(
                    self.channel, key, join, has_windows=False, ident=self.ident, files=files, unknown=unknown
                )
