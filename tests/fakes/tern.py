"""Tern: a small chat server over real HTTP, and the harness of its channel, which docs/adding-a-channel.md contains.

The server hands an event out until a later poll confirms it, and recognises a repeated post by its key.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from aiohttp import web

from gateway.channel import ChannelPlugin
from gateway.events import ChatKind, InboundMessage, SessionKey
from gateway.settings.channel_blocks import combine_models
from tests.fakes.channel_harness import ChatView, PlatformUser, RunningChannel
from tests.fakes.conditions import eventually
from tests.fakes.loopback import serve_app
from tests.fakes.web_services import FakePageServices

PAGE = Path(__file__).resolve().parents[2] / "docs/adding-a-channel.md"
TOKEN = "tern-0123456789"
ROOM, TEAM, ANN = "r1", "r2", "u1"
_POLL_SECONDS = 20.0


def load_example(name: str) -> ModuleType:
    """Return the example of docs/adding-a-channel.md whose first line is ``# <name>``, as an imported module."""
    blocks = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL))
    module = ModuleType(name.removesuffix("/__init__.py").removesuffix(".py").replace("/", "."))
    sys.modules[module.__name__] = module
    exec(compile(blocks[name], name, "exec"), module.__dict__)  # noqa: S102 -- our own document
    return module


@dataclass
class TernServer:
    """The state of the server: events for the bot, and the messages of each room."""

    base: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    confirmed: int = 0
    messages: list[dict[str, Any]] = field(default_factory=list)  # of the bot
    files: dict[str, bytes] = field(default_factory=dict)
    reactions: set[tuple[str, str]] = field(default_factory=set)
    typing: set[str] = field(default_factory=set)
    users: dict[str, dict[str, Any]] = field(default_factory=lambda: {ANN: {"name": "Ann", "admin": True}})
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def push(self, event: Mapping[str, Any]) -> int:
        """Queue *event* for the bot and return its number."""
        number = len(self.events) + 1
        self.events.append({**event, "event": number})
        self.change()
        return number

    def say(self, text: str, ident: str, *, room: str = ROOM, **more: Any) -> int:
        """Write as Ann in *room*, which is her direct chat unless *more* says otherwise."""
        event = {"type": "message", "room": room, "direct": True, "id": ident, "user": ANN, "text": text}
        return self.push({**event, "at": 1_763_769_600 + len(self.events), "mentions_bot": False, **more})

    def change(self) -> None:
        """Wake everything that waits for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_changed(self) -> None:
        """Return at the next change."""
        await self._changed.wait()

    def app(self) -> web.Application:
        """Return the routes."""
        app = web.Application(middlewares=[_authorize], client_max_size=20_000_000)
        app.router.add_get("/me", self._me)
        app.router.add_get("/events", self._events)
        app.router.add_get("/users/{id}", self._user)
        app.router.add_get("/keys/{key}", self._find)
        app.router.add_get("/files/{id}", self._download)
        app.router.add_post("/rooms/{room}/messages", self._post)
        app.router.add_post("/rooms/{room}/files", self._upload)
        app.router.add_patch("/messages/{id}", self._edit)
        app.router.add_route("*", "/rooms/{room}/typing", self._type)
        app.router.add_route("*", "/messages/{id}/reactions/{emoji}", self._react)
        return app

    async def _me(self, _: web.Request) -> web.Response:
        return web.json_response({"name": "parlour"})

    async def _events(self, request: web.Request) -> web.Response:
        after = int(request.query["after"])
        if after > self.confirmed:
            self.confirmed = after
            self.change()
        with suppress(TimeoutError):
            async with asyncio.timeout(float(request.query.get("wait", _POLL_SECONDS))):
                while len(self.events) <= self.confirmed:
                    await self._changed.wait()
        return web.json_response(self.events[self.confirmed :])

    async def _user(self, request: web.Request) -> web.Response:
        user = self.users.get(request.match_info["id"])
        if user is None:
            raise web.HTTPNotFound
        return web.json_response(user)

    async def _find(self, request: web.Request) -> web.Response:
        known = self._by_key(request.match_info["key"])
        return web.json_response({"id": known["id"] if known else ""})

    async def _download(self, request: web.Request) -> web.Response:
        if request.match_info["id"] not in self.files:
            raise web.HTTPNotFound
        return web.Response(body=self.files[request.match_info["id"]])

    async def _post(self, request: web.Request) -> web.Response:
        body = await request.json()
        return self._add(request.match_info["room"], body["key"], body["text"], body.get("buttons") or [])

    async def _upload(self, request: web.Request) -> web.Response:
        room, query = request.match_info["room"], request.query
        if self._by_key(query["key"]) is None:
            self.files[query["key"]] = await request.read()
        return self._add(room, query["key"], query["name"], [], file=query["key"])

    def _add(self, room: str, key: str, text: str, buttons: list[Any], *, file: str = "") -> web.Response:
        known = self._by_key(key)
        if known is None:
            known = {"id": f"b{len(self.messages) + 1}", "room": room, "key": key, "text": text, "buttons": buttons}
            self.messages.append(known | {"file": file})
            self.change()
        return web.json_response({"id": known["id"]})

    async def _edit(self, request: web.Request) -> web.Response:
        found = [each for each in self.messages if each["id"] == request.match_info["id"]]
        if not found:
            raise web.HTTPNotFound
        found[0].update(await request.json())
        self.change()
        return web.json_response({})

    async def _type(self, request: web.Request) -> web.Response:
        (self.typing.add if request.method == "PUT" else self.typing.discard)(request.match_info["room"])
        self.change()
        return web.json_response({})

    async def _react(self, request: web.Request) -> web.Response:
        reaction = (request.match_info["id"], request.match_info["emoji"])
        (self.reactions.add if request.method == "PUT" else self.reactions.discard)(reaction)
        self.change()
        return web.json_response({})

    def _by_key(self, key: str) -> dict[str, Any] | None:
        return next((each for each in self.messages if each["key"] == key), None)


@web.middleware
async def _authorize(request: web.Request, handler: Any) -> web.StreamResponse:
    if request.headers.get("Authorization") != f"Bearer {TOKEN}":
        raise web.HTTPUnauthorized
    response: web.StreamResponse = await handler(request)
    return response


@asynccontextmanager
async def open_tern() -> AsyncIterator[TernServer]:
    """Serve on loopback until the block ends."""
    server = TernServer()
    async with serve_app(server.app(), handler_cancellation=True) as place:
        server.base = f"http://{place}"
        yield server


class TernPerson:
    """Ann, in her direct chat with the bot."""

    def __init__(self, server: TernServer) -> None:
        self.shown = ChatView()
        self._server = server
        self._names: dict[int, str] = {}  # event -> the suite's name of the message

    async def say(self, text: str, ident: str) -> None:
        """Write; the same again is a redelivery."""
        self._names[self._server.say(text, ident)] = ident

    async def press(self, label: str) -> None:
        """Press a button; the server reports the press twice."""
        message = next(each for each in reversed(self._server.messages) if each["buttons"])
        (value,) = [each["value"] for row in message["buttons"] for each in row if each["label"] == label]
        for _ in range(2):
            press = {"type": "press", "message": message["id"], "buttons": message["buttons"]}
            self._server.say(value, "press-1", **press)

    async def garble(self) -> None:
        """Send events of every wrong shape."""
        for wrong in ({}, {"type": "message"}, {"type": 5, "room": 1}, {"type": "message", "room": None, "text": "x"}):
            self._server.push(wrong)

    async def watch(self) -> None:
        """Fold in every change."""
        while True:
            self._look()
            self.shown.news.set()
            await self._server.wait_changed()

    def _look(self) -> None:
        shown, server = self.shown, self._server
        shown.confirmed = [name for number, name in self._names.items() if number <= server.confirmed]
        shown.is_busy = ROOM in server.typing
        shown.messages = {}
        shown.buttons = []
        for message in server.messages:
            if message["key"].split(".")[1] == "0" and not message["text"].endswith("."):
                shown.previews += [message["text"]] if shown.previews[-1:] != [message["text"]] else []
                continue
            shown.messages[message["id"]] = message["text"]
            if message["buttons"]:
                shown.buttons = [[each["label"] for each in row] for row in message["buttons"]]


class TernHarness:
    """The channel of docs/adding-a-channel.md before a server on this machine."""

    def __init__(self) -> None:
        self.module = load_example("parlour_tern/__init__.py")
        self.kind: ChannelPlugin = self.module.plugin

    def settings(self, server: TernServer, **more: Any) -> Any:
        """Return the settings of a channel that leads to *server*."""
        model: Any = combine_models(self.module.TernSettings)
        return model(kind="tern", base_url=server.base, token=TOKEN, **more)

    @asynccontextmanager
    async def open(self, services: FakePageServices) -> AsyncIterator[RunningChannel]:
        """Run the channel."""
        async with open_tern() as server:
            channel = self.kind.open(services.context("tern", self.settings(server, reaction="")))
            services.channel = channel
            running = asyncio.create_task(channel.run(), name="tern channel")
            try:
                await eventually(channel.is_ready)

                @asynccontextmanager
                async def join() -> AsyncIterator[PlatformUser]:
                    person = TernPerson(server)
                    async with asyncio.TaskGroup() as tasks:
                        watch = tasks.create_task(person.watch(), name="person watches")
                        yield person
                        watch.cancel()

                async def files(_: PlatformUser) -> list[tuple[str, bytes]]:
                    return [(each["text"], server.files[each["file"]]) for each in server.messages if each["file"]]

                def unknown(message: InboundMessage) -> InboundMessage:
                    server.users.clear()
                    return replace(message, key=SessionKey("tern", TEAM), chat_kind=ChatKind.GROUP)

                yield RunningChannel(
                    channel,
                    SessionKey("tern", ROOM),
                    join,
                    files,
                    has_windows=False,
                    late="It is late.",
                    unknown=unknown,
                )
            finally:
                running.cancel()
                await asyncio.wait({running})
                await channel.close()
