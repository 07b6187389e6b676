"""One person on the page can neither exhaust memory nor stall others: bytes, time and count, over real connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from channels.kit import bodies
from channels.web import frame_codec
from channels.web import plugin as web_kind
from channels.web.adapter import MOST_WINDOWS, WebChannel
from channels.web.windows import MOST_WAITING, PAGE_BYTES, ClientConnection
from gateway.errors import FileUnavailable
from gateway.events import Attachment, MessagePart, OutboundMessage, SessionKey
from gateway.i18n import translate
from gateway.ports.channel import DisplayedMessage
from gateway.web.connections import ConnectionLimits
from tests.fakes.clock import EPOCH
from tests.fakes.web_services import FakeBlobs, FakePageServices, ServedPage, serve_page

LONG = "ü" * frame_codec.LONGEST_SAYING


@dataclass
class CountingPageServices(FakePageServices):
    """A gateway that counts how often its history is read, and lets a test hold a reading up."""

    reads: int = 0
    readable: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.readable.set()

    async def displayed_messages(self, key: SessionKey, *, limit: int) -> tuple[DisplayedMessage, ...]:
        """Count."""
        self.reads += 1
        await self.readable.wait()
        return await super().displayed_messages(key, limit=limit)


def line(n: int, text: str, role: str = "user") -> DisplayedMessage:
    """Return a line of the history."""
    at = EPOCH + timedelta(seconds=n)
    return DisplayedMessage(id=f"t{n}/0", turn=f"t{n}", role=role, text=text, at=at, message_id=f"message-{n:04d}")


@asynccontextmanager
async def window(served: ServedPage, session: aiohttp.ClientSession) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """Open a window; frames of any size are taken."""
    headers = {"Origin": served.url.rstrip("/")}
    async with session.ws_connect(f"{served.url}ws", headers=headers, max_msg_size=0) as socket:
        yield socket


@asynccontextmanager
async def visitor(served: ServedPage, name: str = "") -> AsyncIterator[aiohttp.ClientSession]:
    """Log *name* in, and give a client that has the cookie."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        code = await served.channel.issue_code(name)
        headers = {"Origin": served.url.rstrip("/")}
        async with session.post(f"{served.url}login", json={"code": code}, headers=headers) as answer:
            assert answer.status == 204
        yield session


def count_windows(served: ServedPage) -> int:
    """Return how many windows are served."""
    return sum(map(len, served.channel._windows.values()))


async def until(holds: Callable[[], bool]) -> None:
    """Return once it holds."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - nobody is told of windows and uploads that come and go
            await asyncio.sleep(0.005)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """Give a client."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


# History.


async def test_a_history_comes_in_pages_of_bounded_bytes(session: aiohttp.ClientSession) -> None:
    """Dozens of the longest messages: no frame is larger than a page, and the pages make up all of it, once each."""
    lines = [line(n, f"{n} {LONG}"[: frame_codec.LONGEST_SAYING]) for n in range(34)]
    async with serve_page(FakePageServices(lines=lines)) as served, window(served, session) as socket:
        got: list[Any] = []
        raw = await socket.receive_str()
        while True:
            assert len(raw.encode()) <= PAGE_BYTES
            frame = json.loads(raw)
            got = [*frame["lines"], *got]
            if not frame["before"]:
                break
            await socket.send_json({"type": "look", "before": frame["before"]})
            raw = await socket.receive_str()
            assert json.loads(raw)["type"] == "earlier"
    assert [(each["id"], each["text"]) for each in got] == [(each.id, each.text) for each in lines]


async def test_an_answer_longer_than_a_page_is_shown_as_it_was_delivered(session: aiohttp.ClientSession) -> None:
    """The history cuts an answer where its delivery cut it, so that it comes back whole, a page at a time."""
    answer = "\n\n".join(f"Paragraph {n}. {'words ' * 50}" for n in range(5_000))
    services = FakePageServices(lines=[line(0, "tell me everything"), line(1, answer, "assistant")])
    async with serve_page(services) as served, window(served, session) as socket:
        sent = OutboundMessage(id="t1.1", key=served.key, text=answer)
        delivered = [json.loads(part.payload)["text"] for part in served.channel.render(sent)]
        got: list[Any] = []
        frame = await socket.receive_json()
        while frame["before"]:
            got = [*frame["lines"], *got]
            await socket.send_json({"type": "look", "before": frame["before"]})
            frame = await socket.receive_json()
        got = [*frame["lines"], *got]
    assert len(delivered) > 20
    assert [each["text"] for each in got] == ["tell me everything", *delivered]
    assert len({each["id"] for each in got}) == len(got)


async def test_a_page_that_is_asked_for_after_its_lines_are_gone_is_the_newest(session: aiohttp.ClientSession) -> None:
    """After /new there is nothing before the line that a window names: it gets the history as it is now."""
    services = FakePageServices(lines=[line(n, LONG) for n in range(9)])
    async with serve_page(services) as served, window(served, session) as socket:
        before = (await socket.receive_json())["before"]
        services.lines = [line(20, "a new beginning")]
        await socket.send_json({"type": "look", "before": before})
        frame = await socket.receive_json()
    assert (frame["type"], [each["text"] for each in frame["lines"]]) == ("history", ["a new beginning"])


async def test_a_window_has_one_history_request_outstanding(session: aiohttp.ClientSession) -> None:
    """Of 39 requests behind a slow reading one is answered, the newest; a window cannot pile up pages."""
    services = CountingPageServices(lines=[line(0, "hello")])
    async with serve_page(services) as served, window(served, session) as socket:
        assert (await socket.receive_json())["type"] == "history"
        services.readable.clear()
        await socket.send_json({"type": "look"})
        await until(lambda: services.reads == 2)  # otherwise a loaded server reads them all before the first is begun
        for _ in range(38):
            await socket.send_json({"type": "look"})
        await socket.send_json({"type": "say", "id": "message-0001", "text": "heard"})
        await until(lambda: bool(services.accepted))  # every request before it was read
        services.readable.set()
        assert [(await socket.receive_json())["type"] for _ in range(3)] == ["history", "accepted", "history"]
        await socket.send_json({"type": "ping"})
        assert (await socket.receive_json())["type"] == "pong"
    assert services.reads == 3  # the first, the one under way, and one for all that came behind it


async def test_what_is_said_while_the_history_is_read_comes_after_it(session: aiohttp.ClientSession) -> None:
    """A window shows the newest page in place of all it has: an answer that the page lacks is not lost from view."""
    services = CountingPageServices(lines=[line(0, "hello")])
    async with serve_page(services) as served, window(served, session) as socket:
        assert (await socket.receive_json())["type"] == "history"
        services.readable.clear()
        await socket.send_json({"type": "look"})
        await until(lambda: services.reads == 2)
        (part,) = served.channel.render(OutboundMessage(id="t9.1", key=served.key, text="an answer"))
        await served.channel.send(part)
        services.readable.set()
        assert [(await socket.receive_json())["type"] for _ in range(2)] == ["history", "message"]


async def test_windows_that_open_together_share_one_reading(session: aiohttp.ClientSession) -> None:
    """As many windows as one person may have, all at once: the history is read once for those who wait."""
    services = CountingPageServices(lines=[line(n, LONG) for n in range(60)])
    services.readable.clear()
    async with serve_page(services) as served, AsyncExitStack() as open_windows:
        sockets = [await open_windows.enter_async_context(window(served, session)) for _ in range(MOST_WINDOWS)]
        await until(lambda: count_windows(served) == MOST_WINDOWS)
        services.readable.set()
        frames = [await socket.receive_json() for socket in sockets]
        part = MessagePart(id="t9.1.1", key=served.key, payload="", plain="for everybody")
        await served.channel.send(part)
        assert {(await socket.receive_json())["text"] for socket in sockets} == {"for everybody"}
    assert all(frame == frames[0] for frame in frames)
    assert services.reads <= 2


# Windows.


async def test_windows_of_one_person_speak_at_one_pace() -> None:
    """Large frames from many windows wait for each other; another person's first frame does not wait at all."""
    channel = web_kind.open(FakePageServices().context("web"))
    assert isinstance(channel, WebChannel)
    slept: list[tuple[str, float]] = []

    async def attend(who: str, frames: list[str]) -> None:
        async def receive() -> object:
            return frames.pop() if frames else None

        async def send(_: Any) -> None: ...

        async def sleep(seconds: float) -> None:
            slept.append((who, seconds))

        await channel.attend(ClientConnection(SessionKey("web", who), who), receive, send, sleep=sleep)

    large = "[" + "1," * 450_000 + "1]"
    async with asyncio.TaskGroup() as tasks:
        for _ in range(MOST_WINDOWS):
            tasks.create_task(attend("mallory", [large, large]))
        tasks.create_task(attend("ben", ['{"type": "ping"}']))
    assert {who for who, _ in slept} == {"mallory"}
    assert len(slept) >= 2 * MOST_WINDOWS - 1
    assert max(seconds for _, seconds in slept) > 100


async def test_windows_of_one_person_are_bounded_and_the_next_is_told(session: aiohttp.ClientSession) -> None:
    """A window too many reads why and is closed; one that closes makes room, and another person has their own."""
    async with serve_page(FakePageServices()) as served, AsyncExitStack() as open_windows:
        sockets = [await open_windows.enter_async_context(window(served, session)) for _ in range(MOST_WINDOWS)]
        for socket in sockets:
            assert (await socket.receive_json())["type"] == "history"
        async with window(served, session) as socket:
            assert await socket.receive_json() == {
                "type": "trouble",
                "line": translate("frames.windows", most=MOST_WINDOWS),
            }
            assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
            assert socket.close_code == 1013
        async with visitor(served, "ann") as ann, window(served, ann) as socket:
            assert (await socket.receive_json())["type"] == "history"
        await sockets[0].close()
        await until(lambda: count_windows(served) < MOST_WINDOWS)
        async with window(served, session) as socket:
            assert (await socket.receive_json())["type"] == "history"


async def test_a_window_that_was_refused_is_not_read_on(session: aiohttp.ClientSession) -> None:
    """Closing takes a while, and a client may send all through it: its connection ends after a little of that."""
    sent = 0
    async with serve_page(FakePageServices()) as served, AsyncExitStack() as open_windows:
        for _ in range(MOST_WINDOWS):
            socket = await open_windows.enter_async_context(window(served, session))
            assert (await socket.receive_json())["type"] == "history"
        async with window(served, session) as socket:
            with suppress(ConnectionError):
                while sent < 100:
                    await socket.send_str("1" * 900_000)
                    sent += 1
    assert sent < 20  # what the sockets' own buffers hold


async def test_a_window_that_never_reads_its_history_is_closed() -> None:
    """What waits behind a history that is not taken is bounded too, and the window ends like every slow one."""
    channel = web_kind.open(FakePageServices().context("web"))
    assert isinstance(channel, WebChannel)
    slow = ClientConnection(SessionKey("web", "owner"), "owner")
    never = asyncio.get_running_loop().create_future()

    async def stuck(*_: Any) -> None:
        await never

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        served = tasks.create_task(channel.attend(slow, stuck, stuck))
        await until(lambda: channel.is_watched(slow.key))
        for n in range(3 * MOST_WAITING):
            slow.push({"type": "message", "turn": f"t{n}", "text": "x"})
        await served
    assert len(slow._waiting) <= MOST_WAITING + 1


# Downloads.


class PiecewiseBlobs(FakeBlobs):
    """Blobs that note how much was read at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    async def get(self, reference: str) -> bytes | None:
        """Note a whole file."""
        data = await super().get(reference)
        self.largest = max(self.largest, len(data or b""))
        return data

    async def stream(self, reference: str) -> AsyncIterator[bytes]:
        """Note each piece."""
        async for piece in super().stream(reference):
            self.largest = max(self.largest, len(piece))
            yield piece


async def test_a_download_is_never_whole_in_memory(session: aiohttp.ClientSession) -> None:
    """Shown and handed out, 50 MB are read in pieces; their number stands in the header and what comes is the file."""
    data = bytes(range(256)) * 195_313
    services = FakePageServices(blobs=PiecewiseBlobs())
    blob = await services.blobs.put("people/ann", data)
    async with serve_page(services) as served, window(served, session) as socket:
        await socket.receive_json()
        file = Attachment(kind="video", name="a.mp4", size=len(data), media_type="video/mp4", blob=blob)
        await served.channel.send(MessagePart(id="t.1.1", key=served.key, payload="", plain="", file=file))
        href = (await socket.receive_json())["file"]["href"]
        async with session.get(f"{served.url}{href}") as answer:
            assert int(answer.headers["Content-Length"]) == len(data)
            assert await answer.read() == data
    assert isinstance(services.blobs, PiecewiseBlobs)
    assert services.blobs.largest <= 1 << 20


async def test_a_file_that_ends_early_breaks_its_download_off(session: aiohttp.ClientSession) -> None:
    """Forgotten while it is handed out: the visitor's browser sees a broken download, not a short file."""

    class VanishingBlobs(FakeBlobs):
        async def stream(self, reference: str) -> AsyncIterator[bytes]:
            async for piece in super().stream(reference):
                yield piece
                raise FileUnavailable("it is lost")

    services = FakePageServices(blobs=VanishingBlobs())
    blob = await services.blobs.put("people/ann", bytes(3_000_000))
    async with serve_page(services) as served:
        file = Attachment(kind="document", name="a.bin", size=3_000_000, media_type="", blob=blob)
        async with session.get(f"{served.url}files/{served.channel._shelf.add('owner', file)}") as answer:
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()


async def test_downloads_of_one_person_are_bounded(session: aiohttp.ClientSession) -> None:
    """A person who lets many downloads hang is refused another in a line; others get theirs."""
    services = FakePageServices()
    blob = await services.blobs.put("people/ann", bytes(30_000_000))
    file = Attachment(kind="document", name="a.bin", size=30_000_000, media_type="", blob=blob)
    async with serve_page(services) as served, AsyncExitStack() as stack:
        url = f"{served.url}files/{served.channel._shelf.add('owner', file)}"
        answers = [await stack.enter_async_context(session.get(url)) for _ in range(6)]
        assert [answer.status for answer in answers] == [200] * 6
        async with session.get(url) as refused:
            assert (refused.status, await refused.text()) == (429, translate("web.download_busy"))
        ann = await stack.enter_async_context(visitor(served, "ann"))
        async with ann.get(f"{served.url}files/{served.channel._shelf.add('ann', file)}") as theirs:
            assert theirs.status == 200


# Uploads.


class SlowBody:
    """Bodies that send one piece, and the rest when they are told to."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def __call__(self) -> AsyncIterator[bytes]:
        """Yield the pieces."""
        yield b"a"
        await self.go_on.wait()
        yield b"b"


async def upload(session: aiohttp.ClientSession, url: str, data: Any) -> tuple[int, Any]:
    """Hand *data* over as the page does; return status and answer."""
    headers = {"Origin": url.rstrip("/"), "X-File-Name": "a.bin", "Content-Type": "application/pdf"}
    async with session.post(f"{url}files", data=data, headers=headers) as answer:
        return answer.status, await answer.json(content_type=None)


async def test_slow_uploads_of_one_person_hold_nobody_else_up(tmp_path: Path) -> None:
    """Eight bodies that do not go on: the person's own wait for each other, another person's file is taken."""
    services = FakePageServices(folder=tmp_path / "uploads")
    async with serve_page(services, login="always") as served, AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        ann, bob = [await stack.enter_async_context(visitor(served, name)) for name in ("ann", "bob")]
        body = SlowBody()
        slow = [tasks.create_task(upload(ann, served.url, body())) for _ in range(8)]
        assert served.channel.uploads is not None
        uploads_of = served.channel.uploads.busy
        await until(lambda: uploads_of("ann") >= 4)
        async with asyncio.timeout(60):
            assert (await upload(bob, served.url, b"quick"))[0] == 200
        body.go_on.set()
        assert [status for status, _ in await asyncio.gather(*slow)] == [200] * 8


async def test_uploads_that_wait_are_bounded(tmp_path: Path) -> None:
    """Beyond those at work and as many as wait, a file is refused in a line."""
    services = FakePageServices(folder=tmp_path / "uploads")
    most = bodies.AT_ONCE + bodies.MOST_WAITING
    async with serve_page(services) as served, asyncio.TaskGroup() as tasks:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            body = SlowBody()
            slow = [tasks.create_task(upload(session, served.url, body())) for _ in range(most)]
            assert served.channel.uploads is not None
            uploads_of = served.channel.uploads.busy
            await until(lambda: uploads_of("owner") == most)
            assert await upload(session, served.url, b"one more") == (429, {"line": translate("web.upload_busy")})
            body.go_on.set()
            assert [status for status, _ in await asyncio.gather(*slow)] == [200] * most


async def test_a_body_that_stops_coming_frees_its_slot(tmp_path: Path) -> None:
    """After the web server's deadline the upload ends, nothing is left of it, and its slot is free."""
    services = FakePageServices(folder=tmp_path / "uploads")
    async with serve_page(services, limits=ConnectionLimits(body=0.2)) as served, aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            await upload(session, served.url, SlowBody()())
        assert served.channel.uploads is not None
        uploads_of = served.channel.uploads.busy
        await until(lambda: uploads_of("owner") == 0)
        assert list((tmp_path / "uploads").iterdir()) == []


async def test_one_person_cannot_fill_the_common_store(tmp_path: Path) -> None:
    """At their own limit, in bytes or in files, a person is refused with their own line, and another is not."""
    folder = tmp_path / "uploads"
    services = FakePageServices(folder=folder)
    async with serve_page(services, login="always") as served, AsyncExitStack() as stack:
        ann, bob = [await stack.enter_async_context(visitor(served, name)) for name in ("ann", "bob")]
        status, told = await upload(ann, served.url, b"first")
        assert status == 200
        with (folder / told["token"]).open("ab") as grown:
            grown.truncate(bodies.MOST_OF_ONE)
        assert await upload(ann, served.url, b"more") == (507, {"line": translate("web.upload_yours")})
        assert (await upload(bob, served.url, b"mine"))[0] == 200


async def test_one_persons_files_are_counted(tmp_path: Path) -> None:
    """Small files use up a count, not only bytes; after a restart they are still counted."""
    folder = tmp_path / "uploads"
    folder.mkdir()
    head = json.dumps({"who": "owner", "name": "a", "type": ""}).encode() + b"\n"
    for n in range(bodies.MOST_FILES_OF_ONE):
        (folder / f"{n:024d}").write_bytes(head + b"x")
    async with serve_page(FakePageServices(folder=folder)) as served, aiohttp.ClientSession() as session:
        assert await upload(session, served.url, b"more") == (507, {"line": translate("web.upload_yours")})
