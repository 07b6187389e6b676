"""Files that people send are fetched from Slack's own hosts, with the token for them alone, when they are wanted."""

from __future__ import annotations

from contextlib import aclosing

import pytest
from aiohttp import web

from gateway.channel import ChannelAttachmentFetcher
from gateway.errors import FileUnavailable
from gateway.events import Attachment, InboundMessage, SessionKey
from tests.fakes.loopback import serve_app
from tests.fakes.slack import RunningSlack, slack
from tests.fakes.slack_server import ANN, BOT_TOKEN, DM

PNG = b"\x89PNG\r\n" + bytes(range(256)) * 700
KEY = SessionKey("slack", DM)


async def fetch(up: RunningSlack, attachment: Attachment, *, most_mb: int = 20) -> bytes:
    """Ask for a file as the agent does."""
    return await ChannelAttachmentFetcher({"slack": up.channel}, most_mb=most_mb).fetch(KEY, attachment)


async def share(up: RunningSlack, *files: dict[str, object], text: str = "look") -> InboundMessage:
    """Let Ann write with files, and return what was heard."""
    up.server.say(DM, ANN, text, subtype="file_share", files=list(files))
    await up.server.until(lambda: len(up.server.acks) == 1)
    (heard,) = up.services.accepted
    return heard


async def test_a_message_with_several_files_is_one_message() -> None:
    """Each file a fact with kind, name and size; nothing is downloaded before somebody asks."""
    async with slack() as up:
        files = [up.server.attach("cat.png", PNG, "image/png"), up.server.attach("a.txt", b"words", "text/plain")]
        heard = await share(up, *files)
        assert [(file.kind, file.name, file.size) for file in heard.attachments] == [
            ("image", "cat.png", len(PNG)),
            ("document", "a.txt", 5),
        ]
        assert up.server.downloads == []
        assert [await fetch(up, file) for file in heard.attachments] == [PNG, b"words"]
        assert {authorization for _, authorization in up.server.downloads} == {f"Bearer {BOT_TOKEN}"}


async def test_a_file_that_is_only_named_is_looked_up() -> None:
    """`file_access: check_file_info`: the message has an id and no more, files.info has the rest."""
    async with slack() as up:
        heard = await share(up, up.server.attach("cat.png", PNG, "image/png", checked=True))
        assert await fetch(up, heard.attachments[0]) == PNG
        assert len(up.server.called("files.info")) == 1


@pytest.mark.parametrize("shows_login", [True, False], ids=["page", "redirect"])
async def test_a_login_page_is_no_file(shows_login: bool) -> None:
    """Without files:read Slack answers 200 with its login page: said by name, never taken for the file."""
    async with slack() as up:
        up.server.shows_login = shows_login
        up.server.scopes.discard("files:read")
        for checked in (False, True):
            file = up.server.attach("cat.png", PNG, "image/png", checked=checked)
            attachment = Attachment(
                kind="image", name="cat.png", size=1, url=str(file.get("url_private_download", file["id"]))
            )
            with pytest.raises(FileUnavailable, match="files:read"):
                await fetch(up, attachment)


async def test_a_page_that_somebody_sent_is_a_file() -> None:
    """HTML that comes as an attachment is what was sent."""
    async with slack() as up:
        heard = await share(up, up.server.attach("page.html", b"<html>hi</html>", "text/html"))
        assert await fetch(up, heard.attachments[0]) == b"<html>hi</html>"


async def test_the_token_goes_nowhere_else() -> None:
    """An address or a redirect that leads out of Slack is not followed; nobody outside is asked at all."""
    asked: list[str] = []

    async def note(request: web.Request) -> web.Response:
        asked.append(request.headers.get("Authorization", ""))
        return web.Response(body=b"evil")

    async with serve_app(note) as place, slack() as up:
        elsewhere = f"http://{place}/files-pri/F1/download"
        moved = up.server.attach("cat.png", PNG, "image/png")
        up.server.moved[str(moved["id"])] = elsewhere
        host = up.server.base.removeprefix("http://")
        for url in (
            elsewhere,
            str(moved["url_private_download"]),
            f"http://user@{host}/files-pri/F1/download",
            f"http://{host}@{place}/",
            "https://files.slack.com.evil.example/x",
            "https://evilslack.com/x",
            "http://files.slack.com/x",
            "https://files.slack.com:8443/x",
            "file:///etc/passwd",
            "https://[broken/x",
            "",
        ):
            with pytest.raises(FileUnavailable):
                await fetch(up, Attachment(kind="image", name="x", size=1, url=url))
    assert asked == []


async def test_circles_and_what_is_gone_are_said() -> None:
    """A redirect to itself ends, a deleted file is gone, a foreign one is kept outside."""
    async with slack() as up:
        circle = up.server.attach("cat.png", PNG, "image/png")
        up.server.moved[str(circle["id"])] = str(circle["url_private_download"])
        gone = f"{up.server.base}/files-pri/F9/download"
        for url, why in (
            (str(circle["url_private_download"]), "circles"),
            (gone, "gone"),
            ("F0NOBODY", "gone"),
            ("https://drive.example/x", "outside"),
        ):
            with pytest.raises(FileUnavailable, match=why):
                await fetch(up, Attachment(kind="image", name="x", size=1, url=url))
        assert len(up.server.downloads) < 8


async def test_no_more_is_read_than_the_house_takes() -> None:
    """A size that is said is believed when it is too large, one that is a lie is found out while it streams."""
    async with slack() as up:
        large = up.server.attach("big.bin", b"x" * 3_000_000, "application/octet-stream")
        url = str(large["url_private_download"])
        with pytest.raises(FileUnavailable, match="larger than 1 MB"):
            await fetch(up, Attachment(kind="document", name="big", size=3_000_000, url=url), most_mb=1)
        assert up.server.downloads == []
        with pytest.raises(FileUnavailable, match="larger than 1 MB"):
            await fetch(up, Attachment(kind="document", name="big", size=10, url=url), most_mb=1)
        pieces = 0
        async with aclosing(up.channel.fetch(Attachment(kind="document", name="big", size=10, url=url))) as stream:
            async for piece in stream:
                pieces += 1
                assert len(piece) <= 64 * 1024
        assert pieces > 10
