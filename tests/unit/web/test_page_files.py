"""Files on the page: handed out to whom they were shown, to be saved and never to be shown; and safe names for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.web.adapter import OWNER, WebChannel
from channels.web.files import MOST_ADDRESSES, ServedFiles
from channels.web.frame_codec import safe_file_name
from gateway.events import Attachment, MessagePart
from gateway.ports.channel import DisplayedMessage
from tests.fakes.clock import EPOCH
from tests.fakes.web_services import FakePageServices, ServedPage, serve_page

PAGE = b"<script>alert(document.cookie)</script>"


def file(name: str = "page.html", blob: str = "people/ann/abc") -> Attachment:
    """Return a file."""
    return Attachment(kind="document", name=name, size=len(PAGE), media_type="text/html", blob=blob)


@pytest.fixture
async def services() -> FakePageServices:
    """Give a gateway that keeps one dangerous file."""
    services = FakePageServices()
    services.blobs.kept["people/ann/abc"] = PAGE
    return services


@pytest.fixture
async def served(services: FakePageServices) -> AsyncIterator[ServedPage]:
    """Serve the page."""
    async with serve_page(services) as served:
        yield served


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """Give a client."""
    async with aiohttp.ClientSession() as session:
        yield session


async def send_file_frame(served: ServedPage, session: aiohttp.ClientSession, *, what: Attachment) -> Any:
    """Send *what* to an open window and return the frame's file."""
    async with session.ws_connect(f"{served.url}ws", headers={"Origin": served.url.rstrip("/")}) as socket:
        assert (await socket.receive_json())["type"] == "history"
        await served.channel.send(MessagePart(id="t.1.1", key=served.key, payload="", plain="", file=what))
        return (await socket.receive_json())["file"]


async def test_a_file_is_saved_and_never_shown(served: ServedPage, session: aiohttp.ClientSession) -> None:
    """Whatever it claims to be, it comes as bytes to save: no type, no sniffing, no script, no scope in its address."""
    found = await send_file_frame(served, session, what=file('Bücher "<x>"\r\nSet-Cookie: a=b.html'))
    assert "people" not in found["href"]
    async with session.get(f"{served.url}{found['href']}") as answer:
        assert (answer.status, await answer.read()) == (200, PAGE)
        assert answer.headers["Content-Type"] == "application/octet-stream"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
        assert "sandbox" in answer.headers["Content-Security-Policy"]
        assert "Set-Cookie" not in answer.headers
        disposition = answer.headers["Content-Disposition"]
        assert disposition == "attachment; filename*=UTF-8''B%C3%BCcher%20x%20Set-Cookie%20a%3Db.html"


async def test_only_what_was_shown_can_be_had(served: ServedPage, session: aiohttp.ClientSession) -> None:
    """A guess, a path, a reference and another visitor's address are all not there."""
    channel = served.channel
    assert isinstance(channel, WebChannel)
    theirs = channel._shelf.add("somebody-else", file())
    for address in ("x", "people/ann/abc", "..%2f..%2fsecrets", theirs):
        async with session.get(f"{served.url}files/{address}") as answer:
            assert answer.status == 404, address
    async with session.post(f"{served.url}files/x", headers={"Origin": served.url.rstrip("/")}) as answer:
        assert answer.status == 405


async def test_without_a_login_there_is_no_file(services: FakePageServices, session: aiohttp.ClientSession) -> None:
    """The door is the page's own: no login, no file, though the address is right; nor under a foreign name."""
    async with serve_page(services, login="always") as served:
        channel = served.channel
        assert isinstance(channel, WebChannel)
        url = f"{served.url}files/{channel._shelf.add(OWNER, file())}"
        async with session.get(url) as answer:
            assert answer.status == 401
        async with session.get(url, headers={"Host": "evil.example"}) as answer:
            assert answer.status == 421
        headers = {"Origin": served.url.rstrip("/")}
        cookies = aiohttp.CookieJar(unsafe=True)
        async with aiohttp.ClientSession(cookie_jar=cookies) as visitor:
            code = await channel.issue_code()
            async with visitor.post(f"{served.url}login", json={"code": code}, headers=headers) as answer:
                assert answer.status == 204
            async with visitor.get(url) as answer:
                assert await answer.read() == PAGE


async def test_a_file_that_is_lost_is_not_there(
    served: ServedPage, session: aiohttp.ClientSession, services: FakePageServices
) -> None:
    """Shown yesterday, forgotten since: the link says 404 and nothing else."""
    found = await send_file_frame(served, session, what=file())
    services.blobs.kept.clear()
    async with session.get(f"{served.url}{found['href']}") as answer:
        assert (answer.status, await answer.read()) == (404, b"")


async def test_the_history_shows_files_again(
    served: ServedPage, session: aiohttp.ClientSession, services: FakePageServices
) -> None:
    """A reload gets new addresses for old files; what a person wrote is shown without the lines that name theirs."""
    line = DisplayedMessage(
        id="t/0",
        turn="t",
        role="user",
        text="look\n[file a.html]",
        at=EPOCH,
        message_id="m",
        typed="look",
        attachments=(file(),),
    )
    services.lines.append(line)
    async with session.ws_connect(f"{served.url}ws", headers={"Origin": served.url.rstrip("/")}) as socket:
        (told,) = (await socket.receive_json())["lines"]
    assert told["text"] == "look"
    async with session.get(f"{served.url}{told['files'][0]['href']}") as answer:
        assert await answer.read() == PAGE


def test_the_shelf_is_bounded_and_repeats_itself() -> None:
    """The same file keeps its address for one visitor; the oldest addresses go first."""
    sources = ServedFiles()
    first = sources.add("ann", file())
    assert sources.add("ann", file()) == first
    assert sources.add("bob", file()) != first
    assert sources.get("bob", first) is None
    for n in range(MOST_ADDRESSES):
        sources.add("ann", file(f"{n}"))
    assert sources.get("ann", first) is None
    assert sources.add("ann", file()) != first


@given(st.text(st.characters(), max_size=300))
def test_a_name_names_one_file_in_one_folder(name: str) -> None:
    """Whatever a name is, what becomes of it is one visible file, on every system, and stays so."""
    safe = safe_file_name(name)
    assert 1 <= len(safe) <= 100
    assert PurePosixPath("folder", safe).parent == PurePosixPath("folder")
    assert PureWindowsPath("folder", safe).parent == PureWindowsPath("folder")
    assert not safe.startswith(".")
    assert safe.encode()
    assert safe_file_name(safe) == safe


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("../../etc/passwd", "etc passwd"),
        ("plan.pdf", "plan.pdf"),
        (".bashrc", "bashrc"),
        ("a\u202egnp.exe", "a gnp.exe"),
        ("x" * 200 + ".tar", "x" * 96 + ".tar"),
        ("\0", "file"),
    ],
)
def test_names_by_example(name: str, safe: str) -> None:
    """The name stays as it was where it can."""
    assert safe_file_name(name) == safe
