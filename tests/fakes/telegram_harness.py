"""Telegram in the shared contract suite: one person in a topic of a group, where a preview is a message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from channels.telegram import plugin
from channels.telegram.adapter import TelegramChannel
from channels.telegram.api import RetryDelays
from gateway.channel import ChannelContext, ChannelPlugin
from gateway.events import DeliveryReceipt, InboundMessage, MessagePart, SessionKey
from gateway.i18n import translate
from gateway.ports.channel import ChatActivity
from tests.fakes.channel_harness import ChatView, PlatformUser, RunningChannel
from tests.fakes.telegram_channel import QUICK, block
from tests.fakes.telegram_server import START, TelegramFault, TelegramServer, open_telegram
from tests.fakes.web_services import FakePageServices

_GROUP = -1001234567890
_TOPIC = 7


def _number(ident: str) -> str:
    return str(1000 + int(ident.rpartition("-")[2]))


class NotedChannel(TelegramChannel):
    """The real channel; notes which part a message shows, since nobody on the platform can tell."""

    def __init__(self, context: ChannelContext, server: TelegramServer, waits: RetryDelays) -> None:
        super().__init__(context, waits=waits, typing=0.05)
        self.server = server
        self.parts: dict[str, str] = {}

    async def send(self, part: MessagePart, *, may_be_duplicate: bool = False) -> DeliveryReceipt:
        """Send, and note it."""
        return self._note(await super().send(part, may_be_duplicate=may_be_duplicate))

    async def edit(self, message_id: str, part: MessagePart) -> DeliveryReceipt:
        """Edit, and note it."""
        return self._note(await super().edit(message_id, part))

    async def show(self, activity: ChatActivity) -> None:
        """Show, and note whether something is kept up."""
        await super().show(activity)
        self.server.changed()

    def _note(self, receipt: DeliveryReceipt) -> DeliveryReceipt:
        self.parts[receipt.message_id] = receipt.part
        self.server.changed()
        return receipt


class TelegramUser:
    """Ann, before her own client."""

    def __init__(self, channel: NotedChannel) -> None:
        self.shown = ChatView()
        self._channel = channel
        self._server = channel.server
        self._said: dict[str, Mapping[str, Any]] = {}
        self._names: dict[int, str] = {}  # update -> what the suite calls the message

    async def say(self, text: str, ident: str) -> None:
        """Write in the topic; the same again is Telegram delivering the same message again."""
        if ident not in self._said:
            message = self._server.message(
                _GROUP, 42, text=text, message_thread_id=_TOPIC, is_topic_message=True, message_id=int(_number(ident))
            )
            self._said[ident] = message | {"date": START + len(self._said)}
        self._names[self._server.push({"message": self._said[ident]})] = ident

    async def press(self, label: str) -> None:
        """Press a button; Telegram brings the same press twice."""
        post = next(each for each in reversed(self._server.posts) if each.buttons)
        rows = post.markup["inline_keyboard"]
        (data,) = [each["callback_data"] for row in rows for each in row if each["text"] == label]
        self._server.push(self._server.buttons.press(post, data))

    async def garble(self) -> None:
        """Have Telegram send updates of every wrong shape."""
        odd: list[Any] = [{}, {"message_id": "x"}, None, [], {"chat": {"id": "x", "type": "group"}, "text": "t"}]
        for wrong in odd:
            self._server.push({"message": wrong})
        await self._server.until(lambda: not self._server.updates)

    async def watch(self) -> None:
        """Fold in whatever changes."""
        while True:
            self._look()
            self.shown.news.set()
            await self._server.wait_changed()

    def _look(self) -> None:
        shown = self.shown
        shown.confirmed = [self._names[each] for each in self._server.confirmed if each in self._names]
        shown.is_busy = bool(self._server.actions) and self._channel._outbound.activity.is_active(
            SessionKey("telegram", _KEY)
        )
        shown.messages, shown.marked = {}, []
        shown.buttons = next((post.buttons for post in self._server.posts if post.buttons), [])
        for post in self._server.posts:
            part = self._channel.parts.get(str(post.id), "")
            if part.split(".")[1:2] == ["0"]:
                shown.previews += [post.text] if shown.previews[-1:] != [post.text] else []
            elif part:
                shown.messages[str(post.id)] = post.text
                shown.marked += [part] if post.text.endswith(translate("delivery.may_repeat")) else []


_KEY = f"{_GROUP}/{_TOPIC}"


class TelegramHarness:
    """The real channel before a server on this machine."""

    kind: ChannelPlugin = plugin

    @asynccontextmanager
    async def open(self, services: FakePageServices) -> AsyncIterator[RunningChannel]:
        """Run the channel."""
        async with open_telegram() as server:
            server.chat(_GROUP).topics = {_TOPIC}
            channel = NotedChannel(services.context("telegram", block(server, reaction="")), server, QUICK)
            running = asyncio.create_task(channel.run(), name="telegram channel")
            try:
                # Nothing for anybody: once it is confirmed, the channel has heard Telegram.
                server.push({"message": server.message(_GROUP, 42, new_chat_title="The team")})
                await server.until(lambda: not server.updates and channel.is_ready())

                @asynccontextmanager
                async def join() -> AsyncIterator[PlatformUser]:
                    person = TelegramUser(channel)
                    watch = asyncio.create_task(person.watch(), name="person watches")
                    yield person
                    watch.cancel()

                async def files(_: PlatformUser) -> list[tuple[str, bytes]]:
                    return [(post.file.name, post.file.data) for post in server.posts if post.file is not None]

                def unknown(message: InboundMessage) -> InboundMessage:
                    server.chat(_GROUP).admins = {42}
                    server.fail("getChatAdministrators", TelegramFault("status", 500))
                    return message

                yield RunningChannel(
                    channel,
                    SessionKey("telegram", _KEY),
                    join,
                    has_windows=False,
                    can_be_asked=False,
                    late="It is late.",
                    ident=_number,
                    files=files,
                    unknown=unknown,
                )
            finally:
                running.cancel()
                await asyncio.wait({running})
                await channel.close()
