"""What every channel promises, whatever platform it speaks.

A channel joins by a harness: how a person there says something, and what that person sees. Harnesses (what they are
is in tests/fakes/channel_harness.py) are listed in HARNESSES; each runs against the same fake
services (tests/fakes/web_services.py), which store, repeat, refuse and break down on request.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from channels.api import plugin as api_kind
from channels.api.adapter import AnswerSubscription, ApiChannel
from channels.api.parse import read_idempotency_key
from channels.console import plugin as console_kind
from channels.web import plugin as web_kind
from channels.web.frame_channel import ConsoleChannel
from gateway.admission import admit, policy_of
from gateway.channel import ChannelPlugin, SupportsSenderLookup
from gateway.errors import FileUnavailable, OutcomeUnknown
from gateway.events import (
    Attachment,
    InboundKind,
    MessageButton,
    MessagePart,
    OutboundKind,
    OutboundMessage,
    Role,
    SessionKey,
    turn_id,
)
from gateway.i18n import translate
from gateway.ports.channel import ChatActivity, IntakeResult, IntakeVerdict
from gateway.ports.journal import InboxRow
from gateway.text.message_text import strip_control_characters
from gateway.web.server import WebServer
from tests.fakes.access_scene import FixedJudge
from tests.fakes.channel_harness import ChannelHarness, ChatView, PlatformUser, RunningChannel
from tests.fakes.conditions import eventually
from tests.fakes.discord_harness import DiscordHarness
from tests.fakes.slack_harness import SlackHarness
from tests.fakes.telegram_harness import TelegramHarness
from tests.fakes.tern import TernHarness
from tests.fakes.web_services import FakePageServices, serve_page

TURN = "tabcdefghijklmnop"
HOSTILE = (
    "\x1b]0;owned\x07\x1b[2J <script>x</script> @everyone <!channel> <@42> \u202egnp.exe [a](javascript:x) \0\ud800 end"
)


# The page: a real WebSocket to the real server.


class FrameUser:
    """A person before a window that speaks our frames."""

    def __init__(self, send: Callable[[Any], Any]) -> None:
        self.shown = ChatView()
        self._send = send
        self._rows: list[list[Mapping[str, Any]]] = []

    async def say(self, text: str, ident: str) -> None:
        """Send a say frame."""
        await self._send({"type": "say", "id": ident, "text": text})

    async def press(self, label: str) -> None:
        """Send a press frame, and send it again."""
        (command,) = [each["command"] for row in self._rows for each in row if each["label"] == label]
        part = list(self.shown.messages)[-1]
        for _ in range(2):
            await self._send({"type": "press", "id": "press-0001", "part": part, "command": command})

    async def garble(self) -> None:
        """Send frames of every wrong shape."""
        shapeless: list[Any] = [
            {"type": "say"},
            {"type": "say", "id": 5, "text": "x"},
            {"type": "no"},
            [],
            "x",
            None,
            3,
        ]
        for wrong in shapeless:
            await self._send(wrong)

    def see(self, frame: Mapping[str, Any]) -> None:
        """Fold one frame in, as the page does."""
        self.shown.events.append(frame["type"])
        getattr(self, f"_{frame['type']}")(frame)
        self.shown.news.set()

    def _history(self, frame: Mapping[str, Any]) -> None:
        self.shown.messages = {line["id"]: line["text"] for line in frame["lines"] if not line["message"]}

    def _accepted(self, frame: Mapping[str, Any]) -> None:
        self.shown.confirmed.append(frame["id"])

    def _rejected(self, frame: Mapping[str, Any]) -> None:
        self.shown.refused.append(frame["id"])
        self.shown.lines.append(frame["line"])

    def _later(self, frame: Mapping[str, Any]) -> None:
        self.shown.lines.append(frame["line"])

    def _trouble(self, frame: Mapping[str, Any]) -> None:
        self.shown.lines.append(frame["line"])

    def _preview(self, frame: Mapping[str, Any]) -> None:
        self.shown.previews.append(frame["text"])

    def _message(self, frame: Mapping[str, Any]) -> None:
        self.shown.messages[frame["part"]] = frame["text"]
        self._rows = frame["buttons"]
        self.shown.buttons = [[each["label"] for each in row] for row in self._rows]
        if frame["file"]:
            self.shown.files[frame["part"]] = frame["file"]
        if frame["marked"]:
            self.shown.marked.append(frame["part"])

    def _activity(self, frame: Mapping[str, Any]) -> None:
        self.shown.is_busy = frame["on"]

    def _said(self, frame: Mapping[str, Any]) -> None:
        self.shown.events.append(f"said {frame['id']}")

    def _pong(self, frame: Mapping[str, Any]) -> None:
        raise AssertionError("nobody asked")


class WebHarness:
    """The page's channel behind the real server."""

    kind: ChannelPlugin = web_kind

    @asynccontextmanager
    async def open(self, services: FakePageServices) -> AsyncIterator[RunningChannel]:
        """Serve the page."""
        async with serve_page(services) as served, aiohttp.ClientSession() as session:

            @asynccontextmanager
            async def join() -> AsyncIterator[PlatformUser]:
                async with session.ws_connect(f"{served.url}ws", headers={"Origin": served.url.rstrip("/")}) as socket:
                    person = FrameUser(lambda frame: socket.send_str(json.dumps(frame)))

                    async def read() -> None:
                        async for message in socket:
                            person.see(json.loads(message.data))

                    async with _reading(read, person):
                        yield person

            async def files(person: PlatformUser) -> list[tuple[str, bytes]]:
                found = []
                for file in person.shown.files.values():
                    async with session.get(f"{served.url}{file['href']}") as answer:
                        found.append((str(file["name"]), await answer.read()))
                return found

            yield RunningChannel(served.channel, served.key, join, files=files)


class ConsoleHarness:
    """The terminal's channel over a pair of queues, as over the control socket."""

    kind: ChannelPlugin = console_kind

    @asynccontextmanager
    async def open(self, services: FakePageServices) -> AsyncIterator[RunningChannel]:
        """Run the channel."""
        channel = console_kind.open(services.context("console"))
        assert isinstance(channel, ConsoleChannel)
        services.channel = channel

        @asynccontextmanager
        async def join() -> AsyncIterator[PlatformUser]:
            typed: asyncio.Queue[Any] = asyncio.Queue()
            person = FrameUser(typed.put)

            async def send(frame: Mapping[str, Any]) -> None:
                person.see(json.loads(json.dumps(frame)))

            # None ends a conversation, so the wrong frames here are without it.
            async def receive() -> Any:
                frame = await typed.get()
                return "null" if frame is None else frame

            async with _reading(lambda: channel.attach(receive, send), person):
                yield person

        async with asyncio.TaskGroup() as group:
            running = group.create_task(channel.run(), name="console channel")
            await asyncio.sleep(0)

            async def files(person: PlatformUser) -> list[tuple[str, bytes]]:
                found = []
                for file in person.shown.files.values():
                    stored = await services.blobs.get(file["blob"]) if file["blob"] else file["text"].encode()
                    found.append((str(file["name"]), stored or b""))
                return found

            yield RunningChannel(channel, SessionKey("console", "owner"), join, files=files)
            running.cancel()


class ApiView(AnswerSubscription):
    """A request that waits for every answer of its conversation."""

    def __init__(self, key: SessionKey, shown: ChatView) -> None:
        super().__init__(key, "", "")
        self._shown = shown

    def show(self, frame: Mapping[str, Any]) -> None:
        """Fold one frame in."""
        if frame["kind"] == OutboundKind.PREVIEW:
            self._shown.previews.append(frame["text"])
        else:
            self._shown.messages[frame["part"]] = frame["text"]
        self._shown.news.set()


class ApiUser:
    """A program that posts messages, each with the idempotency key that it is said under."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self.shown = ChatView()
        self._http = http

    async def say(self, text: str, ident: str) -> None:
        """Post a message."""
        body, headers = {"text": text, "chat": "work"}, {"Idempotency-Key": ident}
        async with self._http.post("/v1/messages", json=body, headers=headers) as response:
            answer = await response.json()
        if response.status == 202:
            self.shown.confirmed.append(ident)
        else:
            self.shown.lines.append(answer["error"]["message"])
        self.shown.news.set()

    async def press(self, label: str) -> None:
        """Fail: there are no buttons."""
        raise AssertionError(label)

    async def garble(self) -> None:
        """Post bodies of every wrong shape."""
        for wrong in (b"", b"[]", b"{", b'{"text": 5}', b'{"text": ""}', b'{"text": "x", "more": 1}'):
            async with self._http.post("/v1/messages", data=wrong) as response:
                assert response.status == 400
                assert (await response.json())["error"]["message"]


class ApiHarness:
    """The API behind the real server."""

    kind: ChannelPlugin = api_kind

    @asynccontextmanager
    async def open(self, services: FakePageServices) -> AsyncIterator[RunningChannel]:
        """Serve it, with a key of Ann."""
        channel = api_kind.open(services.context("api"))
        assert isinstance(channel, ApiChannel)
        services.channel = channel
        secret, _ = await channel.create_key("ann")
        key = SessionKey("api", "ann/work")
        server = WebServer("127.0.0.1", 0, api_kind.routes(channel))

        async with asyncio.TaskGroup() as group:
            running = [group.create_task(server.serve()), group.create_task(channel.run())]
            await server.wait_started()
            async with aiohttp.ClientSession(server.url, headers={"Authorization": f"Bearer {secret}"}) as http:

                @asynccontextmanager
                async def join() -> AsyncIterator[PlatformUser]:
                    person = ApiUser(http)
                    view = ApiView(key, person.shown)
                    channel._subscriptions.setdefault(key, set()).add(view)
                    try:
                        yield person
                    finally:
                        channel._unsubscribe(view)

                async def files(_: PlatformUser) -> list[tuple[str, bytes]]:
                    raise AssertionError("the API sends no files")

                yield RunningChannel(channel, key, join, files=files, has_windows=False, ident=read_idempotency_key)
            for each in running:
                each.cancel()


@asynccontextmanager
async def _reading(read: Callable[[], Any], person: FrameUser) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(read(), name="person reads")
        await person.shown.until(lambda: "history" in person.shown.events)
        yield
        reading.cancel()


# A page or a terminal of ours knows who looks on, and can say a line beside a message; a platform has its own client.
WINDOWS: list[ChannelHarness] = [WebHarness(), ConsoleHarness()]
PLATFORMS: list[ChannelHarness] = [DiscordHarness(), SlackHarness(), TelegramHarness(), TernHarness()]
HARNESSES = [*WINDOWS, ApiHarness(), *PLATFORMS]


def _name(harness: ChannelHarness) -> str:
    return harness.kind.name


in_windows = pytest.mark.parametrize("harness", WINDOWS, indirect=True, ids=_name)
on_platforms = pytest.mark.parametrize("harness", PLATFORMS, indirect=True, ids=_name)


@pytest.fixture(params=HARNESSES, ids=_name)
def harness(request: pytest.FixtureRequest) -> ChannelHarness:
    """Give each harness in turn."""
    found: ChannelHarness = request.param
    return found


@pytest.fixture
async def services() -> FakePageServices:
    """Give a gateway that stores and does not answer by itself."""
    return FakePageServices()


@pytest.fixture
async def platform(harness: ChannelHarness, services: FakePageServices) -> AsyncIterator[RunningChannel]:
    """Bring the channel up."""
    async with harness.open(services) as platform:
        yield platform


@pytest.fixture
async def person(platform: RunningChannel) -> AsyncIterator[PlatformUser]:
    """Let one person join."""
    async with platform.join() as person:
        yield person


def message(
    platform: RunningChannel, text: str, row: int = 1, kind: OutboundKind = OutboundKind.ANSWER
) -> OutboundMessage:
    """Return an outbound message to the platform's chat."""
    return OutboundMessage(id=f"{TURN}.{row}", key=platform.key, text=text, kind=kind)


async def test_one_message_in_is_one_inbound_message(
    platform: RunningChannel, person: PlatformUser, services: FakePageServices
) -> None:
    """Text, key, sender and id arrive as they are; the platform is told once it is durable."""
    await person.say("good evening ✓ 🛋️", "message-0001")
    await person.shown.until(lambda: person.shown.confirmed == ["message-0001"])
    (heard,) = services.deliveries
    assert (heard.key, heard.message_id, heard.text) == (
        platform.key,
        platform.ident("message-0001"),
        "good evening ✓ 🛋️",
    )
    assert heard.kind is InboundKind.MESSAGE
    assert heard.sender.id
    assert not heard.sender.is_bot
    assert heard.sent_at.tzinfo is not None


async def test_a_redelivery_repeats_the_id(person: PlatformUser, services: FakePageServices) -> None:
    """The same message twice has the same logical key, so the journal can know it; both are confirmed."""
    await person.say("once", "message-0001")
    await person.say("once", "message-0001")
    await person.shown.until(lambda: len(person.shown.confirmed) == 2)
    first, second = services.deliveries
    assert first.logical_key == second.logical_key
    assert first.sender == second.sender
    assert len(services.accepted) == 1


@pytest.mark.parametrize("fault", ["down", "broken"])
async def test_what_is_not_stored_is_not_confirmed(
    platform: RunningChannel, person: PlatformUser, services: FakePageServices, fault: str
) -> None:
    """A journal that is down (or a bug) leaves the message with the platform; the channel lives on."""
    services.is_down, services.is_broken = fault == "down", fault == "broken"
    await person.say("lost?", "message-0001")
    await services.wait_deliveries(1)
    if platform.has_windows:
        await person.shown.until(lambda: bool(person.shown.lines))
    assert person.shown.confirmed == []
    assert person.shown.refused == []
    services.is_down = services.is_broken = False
    await person.say("lost?", "message-0001")
    await person.shown.until(lambda: "message-0001" in person.shown.confirmed)


@pytest.mark.parametrize("verdict", [IntakeVerdict.FULL, IntakeVerdict.REJECTED])
@in_windows
async def test_a_refusal_is_told_in_one_line(
    platform: RunningChannel, person: PlatformUser, services: FakePageServices, verdict: IntakeVerdict
) -> None:
    """Not taken is said beside the message; the gateway's line where it has one, never the reason's code."""
    services.verdict = IntakeResult(verdict=verdict, reason="secret_word")
    await person.say("hello", "message-0001")
    await person.shown.until(lambda: person.shown.refused == ["message-0001"])
    services.verdict = IntakeResult(verdict=verdict, reason="secret_word", line="Come back tomorrow.")
    await person.say("hello", "message-0002")
    await person.shown.until(lambda: len(person.shown.refused) == 2)
    assert person.shown.lines == [translate(f"frames.{verdict.value}"), "Come back tomorrow."]
    assert person.shown.confirmed == []


async def test_messages_keep_their_order(person: PlatformUser, services: FakePageServices) -> None:
    """Handed over in the order they were said, with times that say the same."""
    names = [f"message-{n:04}" for n in range(30)]
    for name in names:
        await person.say(name, name)
    await person.shown.until(lambda: person.shown.confirmed == names)
    assert [heard.text for heard in services.deliveries] == names
    times = [heard.sent_at for heard in services.deliveries]
    assert times == sorted(set(times))


async def test_garbage_costs_nobody_anything(
    platform: RunningChannel, person: PlatformUser, services: FakePageServices
) -> None:
    """What cannot be read is answered with a line, stored nowhere, and the next message arrives."""
    await person.garble()
    await person.say("still here", "message-0001")
    await person.shown.until(lambda: person.shown.confirmed == ["message-0001"])
    assert [heard.text for heard in services.deliveries] == ["still here"]
    assert bool(person.shown.lines) is platform.has_windows


async def test_rendering_is_pure_and_within_the_limits(platform: RunningChannel) -> None:
    """The same message is cut the same way every time; ids name turn, row and part; nothing is too long."""
    text = "word " * 40_000 + "\n```\n" + "code\n" * 40_000 + "```"
    once, again = (platform.channel.render(message(platform, text)) for _ in range(2))
    assert list(once) == list(again)
    assert [part.id for part in once] == [f"{TURN}.1.{n}" for n in range(1, len(once) + 1)]
    assert 1 < len(once) <= platform.channel.capabilities.max_parts
    assert all(len(part.plain) <= platform.channel.capabilities.text_limit for part in once)
    assert platform.channel.render(message(platform, "x" * 5_000_000))[-1].plain.endswith(translate("delivery.cut"))


async def test_a_part_that_is_sent_stands_in_the_chat(platform: RunningChannel, person: PlatformUser) -> None:
    """A receipt names the part; the person sees the text."""
    (part,) = platform.channel.render(message(platform, "It is **late**."))
    receipt = await platform.channel.send(part)
    assert receipt.part == part.id
    assert receipt.message_id
    assert receipt.at.tzinfo is not None
    await person.shown.until(lambda: list(person.shown.messages.values()) == [platform.late])


async def test_a_part_without_formatting_stands_as_it_is(platform: RunningChannel, person: PlatformUser) -> None:
    """An empty payload means the plain text: what delivery itself says, and what the platform could not format."""
    line = translate("delivery.no_files", name="plan.pdf")
    part = MessagePart(id=f"{TURN}.1.1", key=platform.key, payload="", plain=line)
    await platform.channel.send(part)
    await person.shown.until(lambda: list(person.shown.messages.values()) == [line])


async def test_a_file_stands_in_the_chat(
    platform: RunningChannel, person: PlatformUser, services: FakePageServices
) -> None:
    """A stored file and a text that is one arrive byte for byte, under their names, in order."""
    if not platform.channel.capabilities.file_limit:
        return  # delivery says so in a line
    data = bytes(range(256)) * 40
    blob = await services.blobs.put("people/ann", data)
    stored = Attachment(kind="document", name="plan.bin", size=len(data), blob=blob)
    text = Attachment(kind="document", name="answer.md", size=12, media_type="text/markdown")
    for n, file in enumerate((stored, text), 1):
        part = MessagePart(
            id=f"{TURN}.1.{n}", key=platform.key, payload="", plain="" if file.blob else "# Grüße\n", file=file
        )
        assert (await platform.channel.send(part)).part == part.id
    await person.shown.until(lambda: len(person.shown.messages) == 2)
    assert await platform.files(person) == [("plan.bin", data), ("answer.md", "# Grüße\n".encode())]


async def test_a_lost_file_is_no_outcome_that_nobody_knows(platform: RunningChannel) -> None:
    """Bytes that are gone are said at once, so that delivery sends a line in their place."""
    if not platform.channel.capabilities.file_limit:
        return
    lost = Attachment(kind="document", name="plan.pdf", size=4, blob=f"people/ann/{'0' * 64}")
    with pytest.raises(FileUnavailable):
        await platform.channel.send(MessagePart(id=f"{TURN}.1.1", key=platform.key, payload="", plain="", file=lost))


async def test_a_part_sent_again_stands_once(platform: RunningChannel, person: PlatformUser) -> None:
    """Where the platform takes a send key, an unknown part may be sent again; elsewhere it is asked for, or marked."""
    (part,) = platform.channel.render(message(platform, "once"))
    first = await platform.channel.send(part)
    if not platform.can_be_asked:
        with pytest.raises(OutcomeUnknown):
            await platform.channel.find(part)
        await platform.channel.send(part, may_be_duplicate=True)
        await person.shown.until(lambda: person.shown.marked == [part.id])
        return
    if not platform.channel.capabilities.send_key:
        assert await platform.channel.find(part) == first
        return
    second = await platform.channel.send(part, may_be_duplicate=True)
    assert first.message_id == second.message_id
    if platform.has_windows:
        await person.shown.until(lambda: person.shown.marked == [part.id])
    await person.shown.until(lambda: bool(person.shown.messages))
    assert list(person.shown.messages.values()) == ["once"]


async def test_parts_arrive_in_the_order_they_were_sent(platform: RunningChannel, person: PlatformUser) -> None:
    """The chat shows what delivery sent, in its order."""
    for row in range(1, 21):
        (part,) = platform.channel.render(message(platform, f"line {row}", row))
        await platform.channel.send(part)
    await person.shown.until(lambda: len(person.shown.messages) == 20)
    assert list(person.shown.messages.values()) == [f"line {row}" for row in range(1, 21)]


async def test_a_preview_grows_and_becomes_the_answer(platform: RunningChannel, person: PlatformUser) -> None:
    """The state of a stream is the full text so far: a repeated edit is harmless, the answer takes its place."""
    assert platform.channel.capabilities.preview_every is not None
    draft = message(platform, "It", 0, OutboundKind.PREVIEW)
    (part,) = platform.channel.render(draft)
    receipt = await platform.channel.send(part)
    await person.shown.until(lambda: person.shown.previews[-1:] == ["It"])
    for text in ("It is", "It is", "It is late"):
        (part,) = platform.channel.render(message(platform, text, 0, OutboundKind.PREVIEW))
        receipt = await platform.channel.edit(receipt.message_id, part)
    await person.shown.until(lambda: person.shown.previews[-1] == "It is late")
    assert person.shown.messages == {}
    (answer,) = platform.channel.render(message(platform, "It is late."))
    edited = await platform.channel.edit(receipt.message_id, answer)
    assert (edited.part, edited.message_id) == (answer.id, receipt.message_id)
    await person.shown.until(lambda: list(person.shown.messages.values()) == ["It is late."])


@in_windows
async def test_whoever_comes_in_the_middle_sees_what_is_going_on(platform: RunningChannel) -> None:
    """A stream and its typing are shown to a window that opens later, and not once they are over."""
    (part,) = platform.channel.render(message(platform, "so far", 0, OutboundKind.PREVIEW))
    await platform.channel.show(ChatActivity(key=platform.key, on=True, text="thinking"))
    await platform.channel.send(part)
    async with platform.join() as late:
        await late.shown.until(lambda: late.shown.is_busy and late.shown.previews == ["so far"])
    (answer,) = platform.channel.render(message(platform, "done"))
    await platform.channel.send(answer)
    await platform.channel.show(ChatActivity(key=platform.key, on=False))
    async with platform.join() as later:
        await later.say("hello", "message-0001")
        await later.shown.until(lambda: later.shown.confirmed == ["message-0001"])
        assert not later.shown.is_busy
        assert later.shown.previews == []


async def test_typing_ends(platform: RunningChannel, person: PlatformUser) -> None:
    """Activity that began ends on every path; ending twice is harmless, and it never raises."""
    if not platform.channel.capabilities.shows_activity:
        return
    await platform.channel.show(ChatActivity(key=platform.key, on=True))
    await person.shown.until(lambda: person.shown.is_busy)
    await platform.channel.show(ChatActivity(key=platform.key, on=False))
    await platform.channel.show(ChatActivity(key=platform.key, on=False))
    await person.shown.until(lambda: not person.shown.is_busy)
    await platform.channel.show(ChatActivity(key=SessionKey(platform.key.channel, "nobody"), on=False))


async def test_hostile_text_comes_out_inert(platform: RunningChannel, person: PlatformUser) -> None:
    """Control characters, half characters and other platforms' markup harm neither the wire nor the reader."""
    (part,) = platform.channel.render(message(platform, HOSTILE))
    await platform.channel.send(part)
    await person.shown.until(lambda: bool(person.shown.messages))
    (shown,) = person.shown.messages.values()
    shown.encode()
    assert not re.search("[\x00\x07\x1b]", shown)
    assert shown.endswith("end")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", strip_control_characters(shown))


async def test_hostile_text_in_is_storable(person: PlatformUser, services: FakePageServices) -> None:
    """What a person sends can be written as UTF-8 and holds no NUL."""
    await person.say("a\0b\ud800c\r\nd", "message-0001")
    await person.shown.until(lambda: person.shown.confirmed == ["message-0001"])
    assert services.deliveries[0].text == "ab\ufffdc\nd"


@in_windows
async def test_a_message_nobody_reads_is_no_failure(platform: RunningChannel) -> None:
    """With nobody there a send succeeds, and the chat says that nobody watches a stream."""
    assert not platform.channel.is_watched(platform.key)
    (part,) = platform.channel.render(message(platform, "for later"))
    assert (await platform.channel.send(part)).part == part.id
    async with platform.join():
        assert platform.channel.is_watched(platform.key)
        assert not platform.channel.is_watched(SessionKey(platform.key.channel, "somebody-else"))
    await eventually(lambda: not platform.channel.is_watched(platform.key))


@in_windows
async def test_a_private_answer_is_seen_by_its_person_alone(platform: RunningChannel, person: PlatformUser) -> None:
    """What is visible to one sender reaches nobody else's window."""
    for visible_to, row in (("somebody-else", 1), ("", 2)):
        text = OutboundMessage(id=f"{TURN}.{row}", key=platform.key, text=f"row {row}", visible_to=visible_to)
        (part,) = platform.channel.render(text)
        await platform.channel.send(part)
    await person.shown.until(lambda: bool(person.shown.messages))
    assert list(person.shown.messages.values()) == ["row 2"]


async def test_a_press_is_the_command_said_by_whoever_pressed(
    platform: RunningChannel, person: PlatformUser, services: FakePageServices
) -> None:
    """Rows of buttons below the text; a press names its event, its presser and its message, and comes twice as one.

    Where there are no buttons the channel says so, and delivery writes the commands into the text.
    """
    if not platform.channel.capabilities.choices:
        assert platform.channel.name in ("api", "console")
        return
    choices = (
        MessageButton("Yes", "/memory approve e7"),
        MessageButton("No", "/memory reject e7"),
        MessageButton("Later", "/help", 1),
    )
    (part,) = platform.channel.render(message(platform, "Shall I?", kind=OutboundKind.NOTICE))
    receipt = await platform.channel.send(replace(part, choices=choices))
    await person.shown.until(lambda: person.shown.buttons == [["Yes", "No"], ["Later"]])
    await person.press("No")
    first, second = await services.wait_deliveries(2)
    for heard in (first, second):
        assert (heard.kind, heard.text, heard.message_id) == (InboundKind.BUTTON, "/memory reject e7", "")
        assert heard.key == platform.key
        assert heard.reply_to == receipt.message_id
        assert heard.sender.id
        assert heard.is_addressed
    assert first.event_ids == second.event_ids
    assert first.event_ids


@on_platforms
async def test_a_press_that_is_settled_takes_its_row_away(
    platform: RunningChannel, person: PlatformUser, services: FakePageServices
) -> None:
    """The answer to a press says that it is settled: that row goes and the others stay.

    On the page its script does it (tests/e2e/test_page_buttons.py).
    """
    choices = (
        MessageButton("Yes", "/memory approve e7"),
        MessageButton("No", "/memory reject e7"),
        MessageButton("Later", "/help", 1),
    )
    (part,) = platform.channel.render(message(platform, "Shall I?", kind=OutboundKind.NOTICE))
    await platform.channel.send(replace(part, choices=choices))
    await person.shown.until(lambda: bool(person.shown.buttons))
    await person.press("No")
    heard = (await services.wait_deliveries(2))[0]
    answer = OutboundMessage(id=f"{turn_id(heard)}.1", key=platform.key, text="Dropped.", kind=OutboundKind.NOTICE)
    (told,) = platform.channel.render(answer)
    await platform.channel.send(replace(told, settles=True))
    await person.shown.until(lambda: person.shown.buttons == [["Later"]])


async def test_an_admin_look_up_that_fails_grants_nothing(
    platform: RunningChannel, person: PlatformUser, services: FakePageServices
) -> None:
    """Whatever the event said of them: an admin of whom the platform tells nothing now may speak, and decide nothing.

    Where there are no shared chats, whoever got through the door is the owner, and nobody is asked.
    """
    channel = platform.channel
    if platform.unknown is None:
        assert not isinstance(channel, SupportsSenderLookup)
        return
    await person.say("/new", "message-0001")
    heard = (await services.wait_deliveries(1))[0]
    as_admin = replace(heard, kind=InboundKind.COMMAND, sender=replace(heard.sender, is_admin=True))
    row = InboxRow(seq=1, message=platform.unknown(as_admin), accepted_at=heard.sent_at, role=Role.ADMIN)
    policy = policy_of(channel.name, [heard.sender.id], [], "open")
    judge = FixedJudge(lambda each: admit(each, policy), {channel.name: channel})
    admitted = await judge.current_admission(row)
    assert admitted is not None
    assert admitted.role is Role.MEMBER


async def test_a_channel_is_ready_while_it_runs(platform: RunningChannel) -> None:
    """Readiness follows run; the capabilities are data that delivery can work with."""
    assert platform.channel.is_ready()
    assert platform.channel.name == platform.key.channel
    assert platform.channel.capabilities.text_limit > 0


async def test_a_channel_that_is_started_again_receives_again(
    platform: RunningChannel, services: FakePageServices
) -> None:
    """The supervisor cancels a deaf channel's run and begins another: connections, windows and all come back."""
    channel = platform.channel
    runs = [task for task in asyncio.all_tasks() if type(channel).run.__code__ in _codes(task)]
    assert len(runs) == 1
    for n in range(2):
        runs[-1].cancel()
        await asyncio.wait(runs)
        runs.append(asyncio.create_task(channel.run(), name="begun anew"))
        await eventually(channel.is_ready)
        async with platform.join() as person:
            await person.say(f"and again {n}", f"message-000{n}")
            await person.shown.until(lambda person=person, n=n: f"message-000{n}" in person.shown.confirmed)  # type: ignore[misc]
    assert [heard.text for heard in services.deliveries][-1] == "and again 1"
    runs[-1].cancel()
    await asyncio.wait(runs)


def _codes(task: asyncio.Task[Any]) -> Iterator[object]:
    """Yield what *task* is in: its own coroutine, and those that it waits for."""
    waited: Any = task.get_coro()
    while waited is not None:
        yield getattr(waited, "cr_code", None)
        waited = getattr(waited, "cr_await", None)
