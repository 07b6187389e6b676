"""Slack in the shared contract suite: one person in a thread of a direct message."""

from __future__ import annotations

import asyncio
import html
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from channels.slack import plugin
from gateway.channel import ChannelPlugin
from gateway.events import ChatKind, InboundMessage, SessionKey
from tests.fakes.channel_harness import ChatView, PlatformUser, RunningChannel
from tests.fakes.slack import slack
from tests.fakes.slack_buttons import buttons
from tests.fakes.slack_server import ANN, BOT_USER, DM, ROOM, SlackFault, SlackServer
from tests.fakes.web_services import FakePageServices

_ROOT = "1700000000.000100"
_FIRST = 1_700_000_000


def _ts(ident: str) -> str:
    return f"{_FIRST + int(ident.rpartition('-')[2]) + 1}.000200"


class SlackUser:
    """Ann, before her own client."""

    def __init__(self, server: SlackServer) -> None:
        self.shown = ChatView()
        self._server = server
        self._names: dict[str, str] = {}  # event id -> what the suite calls the message

    async def say(self, text: str, ident: str) -> None:
        """Write in the thread; the same again is Slack delivering the same event again."""
        known = next((event for event, name in self._names.items() if name == ident), "")
        ts = _ts(ident)
        if not known:
            self._server.say(DM, ANN, text, thread=_ROOT, ts=ts, quiet=True)
        event = {**self._server._message(DM, ts), "channel": DM, "channel_type": "im"}
        self._names[self._server.event(event, event_id=known)] = ident

    async def press(self, label: str) -> None:
        """Press a button; Slack brings the same press twice."""
        message = next(each for each in self._server.places[DM].messages if buttons(each))
        trigger = self._server.press(DM, ANN, message, label)
        self._server.press(DM, ANN, message, label, again=trigger)

    async def garble(self) -> None:
        """Send frames and payloads of every wrong shape."""
        for frame in ("", "[]", "x", "{}", '{"type": "events_api"}', '{"type": "nobody", "envelope_id": "e"}'):
            await self._server.garble(frame)
        for event in (
            {},
            {"type": "message"},
            {"type": "message", "channel": DM, "ts": "x"},
            {"type": "message", "ts": 3},
        ):
            self._server.event(event)
        await self._server.until(lambda: len(self._server.acks) == 4)

    async def watch(self) -> None:
        """Fold in whatever changes."""
        while True:
            self._look()
            self.shown.news.set()
            await self._server.wait_changed()

    def _look(self) -> None:
        shown = self.shown
        shown.confirmed = [self._names[event] for event in self._server.acks if event in self._names]
        shown.is_busy = any(self._server.statuses.values())
        shown.messages = {}
        shown.buttons = next((buttons(each) for each in self._server.places[DM].messages if buttons(each)), [])
        for message in self._server.places[DM].messages:
            if message["user"] != BOT_USER:
                continue
            text = html.unescape(message["text"])
            if message.get("files"):  # that call takes no metadata
                shown.messages[message["ts"]] = text
            elif message["metadata"]["event_payload"]["part"].split(".")[1] == "0":
                shown.previews += [text] if shown.previews[-1:] != [text] else []
            else:
                shown.messages[message["ts"]] = text


class SlackHarness:
    """The real channel before a workspace on this machine."""

    kind: ChannelPlugin = plugin

    @asynccontextmanager
    async def open(self, services: FakePageServices) -> AsyncIterator[RunningChannel]:
        """Run the channel."""
        async with slack(services, reaction="") as up:
            up.server.say(DM, ANN, "so", ts=_ROOT, quiet=True)

            @asynccontextmanager
            async def join() -> AsyncIterator[PlatformUser]:
                person = SlackUser(up.server)
                async with watching(person):
                    yield person

            async def files(_: PlatformUser) -> list[tuple[str, bytes]]:
                shared = [each for said in up.server.places[DM].messages for each in said.get("files", ())]
                return [(up.server.files[each["id"]].name, up.server.files[each["id"]].data) for each in shared]

            def unknown(message: InboundMessage) -> InboundMessage:
                up.channel._inbound.members.profiles.forget(ANN)
                up.server.faults["users.info"] = [SlackFault(status=503)]
                return replace(message, key=SessionKey("slack", ROOM), chat_kind=ChatKind.GROUP)

            key = SessionKey("slack", f"{DM}/{_ROOT}")
            yield RunningChannel(
                up.channel, key, join, has_windows=False, late="It is *late*.", ident=_ts, files=files, unknown=unknown
            )


@asynccontextmanager
async def watching(person: SlackUser) -> AsyncIterator[None]:
    """Let *person* look on until the end of the block."""
    async with asyncio.TaskGroup() as tasks:
        watch = tasks.create_task(person.watch(), name="person watches")
        yield
        watch.cancel()
