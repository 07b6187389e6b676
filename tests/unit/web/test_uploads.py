"""Files in by the page: durable before the page is told, the visitor's own, bounded, and there for the turn."""

from __future__ import annotations

import io
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from channels.kit.bodies import LARGEST, MOST
from channels.web.adapter import WebChannel
from channels.web.routes import page
from gateway.errors import FileUnavailable
from gateway.events import Attachment
from gateway.i18n import translate
from tests.fakes.web_services import FakePageServices, ServedPage, serve_page

DATA = bytes(range(256)) * 4_000


@pytest.fixture
async def services(tmp_path: Path) -> FakePageServices:
    """Give a gateway with a folder for its page."""
    return FakePageServices(folder=tmp_path / "uploads")


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


async def upload(
    session: aiohttp.ClientSession, url: str, data: Any = None, *, name: str = "plan.pdf", **headers: str
) -> tuple[int, Any]:
    """Hand *data* over as the page does; return status and answer."""
    given = {"Origin": url.rstrip("/"), "X-File-Name": name, "Content-Type": "application/pdf"} | headers
    async with session.post(f"{url}files", data=io.BytesIO(DATA) if data is None else data, headers=given) as answer:
        return answer.status, await answer.json(content_type=None) if answer.content_type.endswith("json") else None


async def tell(session: aiohttp.ClientSession, url: str, ident: str, *files: str, text: str = "") -> Any:
    """Say something that names *files*; return the server's answer."""
    async with session.ws_connect(f"{url}ws", headers={"Origin": url.rstrip("/")}) as socket:
        await socket.receive_json()
        await socket.send_json({"type": "say", "id": ident, "text": text, "files": list(files)})
        return await socket.receive_json()


async def whole(channel: WebChannel, attachment: Attachment) -> bytes:
    """Fetch a file as the gateway does."""
    async with aclosing(channel.fetch(attachment)) as pieces:
        return b"".join([piece async for piece in pieces])


async def test_a_file_comes_with_its_message_and_survives_a_restart(
    services: FakePageServices, session: aiohttp.ClientSession
) -> None:
    """Handed over, named after one restart, fetched after another: the same bytes, and only we can read them."""
    async with serve_page(services) as served:
        status, told = await upload(session, served.url, name="Gr%C3%BC%C3%9Fe%0d%0a%2F..%2Fx.pdf")
        assert (status, told["name"], told["size"]) == (200, "Grüße .. x.pdf", len(DATA))
    async with serve_page(services) as served:
        assert (await tell(session, served.url, "message-0001", told["token"]))["type"] == "accepted"
        assert (await tell(session, served.url, "message-0001", told["token"]))["type"] == "accepted"
    (message,) = services.accepted
    (attachment,) = message.attachments
    assert (message.text, attachment.kind, attachment.size) == ("", "document", len(DATA))
    assert (attachment.name, attachment.media_type, attachment.blob) == ("Grüße .. x.pdf", "application/pdf", "")
    async with serve_page(services) as served:
        assert await whole(served.channel, attachment) == DATA
    assert services.folder is not None
    (path,) = services.folder.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert services.folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("media_type", "mark", "kind"),
    [
        ("audio/webm;codecs=opus", "1", "voice"),
        ("audio/webm", "", "audio"),
        ("audio/webm", "yes", "audio"),
        ("application/pdf", "1", "document"),
    ],
)
async def test_only_sound_that_is_marked_is_what_its_sender_says(
    served: ServedPage, session: aiohttp.ClientSession, media_type: str, mark: str, kind: str
) -> None:
    """A mark on another file changes nothing, and neither does another mark."""
    _, told = await upload(session, served.url, **{"Content-Type": media_type, "X-Recording": mark})
    assert served.channel.uploads is not None
    found = await served.channel.uploads.find_file("owner", told["token"])
    assert found is not None
    assert found.kind == kind


async def test_only_our_own_page_and_its_visitor_hand_files_over(
    services: FakePageServices, session: aiohttp.ClientSession
) -> None:
    """Another origin, none, or no login: nothing is read, nothing kept."""
    async with serve_page(services, login="always") as served:
        assert (await upload(session, served.url))[0] == 401
        assert (await upload(session, served.url, b"x", Origin="http://evil.example"))[0] == 403
    async with serve_page(services) as served, session.post(f"{served.url}files", data=b"x") as answer:
        assert answer.status == 403
    assert services.folder is not None
    assert not services.folder.exists()


async def test_sizes_are_bounded(
    served: ServedPage, session: aiohttp.ClientSession, services: FakePageServices
) -> None:
    """Too large by its own word, too large without one, and empty: told in a line, and nothing is left of it."""

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(LARGEST // 1_000_000 + 1):
            yield bytes(1_000_000)

    assert await upload(session, served.url, io.BytesIO(bytes(LARGEST + 1))) == (
        413,
        {"line": translate("web.upload_large")},
    )
    assert await upload(session, served.url, endless()) == (413, {"line": translate("web.upload_large")})
    assert await upload(session, served.url, b"") == (400, {"line": translate("web.upload_empty")})
    assert services.folder is not None
    assert not services.folder.exists() or list(services.folder.iterdir()) == []


async def test_the_folder_is_bounded_and_forgets(
    served: ServedPage, session: aiohttp.ClientSession, services: FakePageServices
) -> None:
    """Half a gigabyte at once; what is two days old goes, finished or not, and its message says that it is gone."""
    assert services.folder is not None
    _, told = await upload(session, served.url)
    with (services.folder / "large").open("wb") as large:
        large.truncate(MOST)
    assert await upload(session, served.url) == (507, {"line": translate("web.upload_full")})
    for path in services.folder.iterdir():
        os.utime(path, (0, 0))
    assert (await upload(session, served.url))[0] == 200
    assert len(list(services.folder.iterdir())) == 1
    answer = await tell(session, served.url, "message-0001", told["token"])
    assert (answer["type"], answer["line"]) == ("rejected", translate("frames.file_gone"))
    assert services.accepted == []


async def test_a_file_is_its_visitors_own(served: ServedPage, session: aiohttp.ClientSession) -> None:
    """Another's token, a path and a guess name nothing; too many at once is no frame."""
    channel = served.channel
    assert channel.uploads is not None
    _, told = await upload(session, served.url)
    assert await channel.uploads.find_file("somebody-else", told["token"]) is None
    for token in ("../secrets", "x" * 24, "", ".."):
        assert (await tell(session, served.url, "message-0001", token))["type"] == "rejected"
    assert (await tell(session, served.url, "message-0002", *[told["token"]] * 11))["type"] == "trouble"


@pytest.mark.parametrize("url", ["upload:../../parlour.yaml", "upload:" + "x" * 24, "https://example.com/x", ""])
async def test_an_address_that_the_page_did_not_make_is_not_followed(served: ServedPage, url: str) -> None:
    """Neither a path nor another scheme."""
    with pytest.raises(FileUnavailable):
        await whole(served.channel, Attachment(kind="document", name="x", size=1, url=url))


def test_the_page_knows_the_bound() -> None:
    """It says so itself, before anything is sent for nothing."""
    assert f'data-largest="{LARGEST}"' in page("en").body.decode()
