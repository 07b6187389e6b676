"""Files over the wire: fetched when they are asked for, sent as what Telegram shows, and no address in any log."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from channels.telegram import outbound
from gateway.channel import SupportsFiles, SupportsHistory
from gateway.errors import FileUnavailable, OutcomeUnknown, RetryLater, SendRefused
from gateway.events import Attachment, MessagePart, SessionKey
from gateway.i18n import translate
from gateway.logs import configure_logs
from tests.fakes.telegram_channel import TelegramConnection, open_line
from tests.fakes.telegram_files import png
from tests.fakes.telegram_server import TelegramFault, TelegramServer, open_telegram

ANN = SessionKey("telegram", "42")
TOPIC = SessionKey("telegram", "-1001234567890/7")


@pytest.fixture
async def server() -> AsyncIterator[TelegramServer]:
    """Give a Telegram in which Ann and a topic of the team have a chat with the bot."""
    async with open_telegram() as server:
        server.chat(42)
        team = server.chat(-1001234567890)
        team.topics, team.known, team.last_id = {7}, {1, 2, 3}, 3
        yield server


@pytest.fixture
async def line(server: TelegramServer) -> AsyncIterator[TelegramConnection]:
    """Give a channel that sends and fetches, and hears nothing."""
    async with open_line(server, runs=False) as line:
        yield line


async def fetched(line: TelegramConnection, ident: str, size: int = 5) -> bytes:
    """Fetch a file whole, as the gateway does."""
    data = bytearray()
    async with aclosing(line.channel.fetch(attached(ident, size))) as pieces:
        async for piece in pieces:
            data += piece
    return bytes(data)


def attached(ident: str, size: int = 5) -> Attachment:
    """Return the fact of a file that came with a message."""
    return Attachment(kind="document", name="a.bin", size=size, url=f"telegram-file:{ident}")


async def test_a_file_is_fetched_in_pieces(line: TelegramConnection) -> None:
    """getFile, then the bytes as they come; stopping early is no trouble; a channel of files and of what was heard."""
    assert isinstance(line.channel, SupportsFiles)
    assert isinstance(line.channel, SupportsHistory)
    data = bytes(range(256)) * 2000
    ident = line.server.files.keep(data)
    assert await fetched(line, ident) == data
    seen = 0
    async with aclosing(line.channel.fetch(attached(ident))) as pieces:
        async for piece in pieces:
            seen += len(piece)
            break
    assert 0 < seen < len(data)
    assert [name for name, _ in line.server.calls] == ["getFile", "getFile"]


TROUBLES = {
    "gone": outbound.GONE,
    "status": outbound.NOT_NOW,
    "cut": outbound.NOT_NOW,
    "elsewhere": outbound.NOT_NOW,  # an address that is not Telegram's is not followed
}


@pytest.mark.parametrize("fault", TROUBLES)
async def test_what_goes_wrong_with_a_download_is_said_in_words(line: TelegramConnection, fault: str) -> None:
    """A file that is gone, refused, broken off or elsewhere is a phrase for a person, and nothing else."""
    ident = line.server.files.keep(b"x" * 200_000)
    line.server.files.faults.append(fault)
    with pytest.raises(FileUnavailable, match=TROUBLES[fault]):
        await fetched(line, ident)


async def test_what_telegram_does_not_hand_to_bots(line: TelegramConnection) -> None:
    """Over 20 MB: said by the size it names, without a call; and by Telegram itself where it names none."""
    with pytest.raises(FileUnavailable, match="20 MB"):
        await fetched(line, "big", 20_000_001)
    assert line.server.calls == []
    line.server.files.keep(b"0" * 20_000_001, "big")
    with pytest.raises(FileUnavailable, match="20 MB"):
        await fetched(line, "big", 0)
    with pytest.raises(FileUnavailable, match=outbound.GONE):
        await fetched(line, "unknown")


async def test_only_telegram_s_own_ids_are_followed(line: TelegramConnection) -> None:
    """An address in place of an id, and a path that leads out of the server's files, are refused."""
    foreign = Attachment(kind="document", name="x", size=1, url="http://127.0.0.1:9/x")
    with pytest.raises(FileUnavailable):
        async with aclosing(line.channel.fetch(foreign)) as pieces:
            await anext(pieces)
    assert line.server.calls == []
    line.server.files.keep(b"x", "file")
    for root, words in (("/var/lib", "--local"), ("..", outbound.GONE), ("http://evil.example", outbound.GONE)):
        line.server.files.root = root
        with pytest.raises(FileUnavailable, match=words):
            await fetched(line, "file")
    assert line.server.files.downloads == []


async def test_getfile_is_asked_twice_at_most(line: TelegramConnection) -> None:
    """One failure is everyday; a server that stays down, or asks to wait, is said."""
    ident = line.server.files.keep(b"x")
    line.server.fail("getFile", TelegramFault("drop"))
    assert await fetched(line, ident) == b"x"
    line.server.fail("getFile", TelegramFault("status", 502), TelegramFault("status", 502))
    with pytest.raises(FileUnavailable, match=outbound.NOT_NOW):
        await fetched(line, ident)
    line.server.fail("getFile", TelegramFault("status", 429, retry_after=9))
    with pytest.raises(FileUnavailable, match=outbound.NOT_NOW):
        await fetched(line, ident)


async def test_no_log_line_has_the_address_of_a_file(line: TelegramConnection) -> None:
    """It holds the token: at the lowest level, through success and every failure, no line has it."""
    out = io.StringIO()
    configure_logs(level="debug", form="json", stream=out)
    ident = line.server.files.keep(b"x" * 100_000)
    assert await fetched(line, ident)
    for fault in TROUBLES:
        line.server.files.faults.append(fault)
        with pytest.raises(FileUnavailable) as caught:
            await fetched(line, ident)
        assert line.server.token.partition(":")[2] not in f"{caught.value} {caught.value.__cause__}"
    assert "telegram.file_refused" in out.getvalue()
    assert line.server.token.partition(":")[2] not in out.getvalue()


def outgoing(file: Attachment, key: SessionKey = ANN, *, plain: str = "", reply_to: str = "") -> MessagePart:
    """Return the part that a file becomes."""
    return MessagePart(id="tabcdefghijklmnop.1.2", key=key, payload="", plain=plain, reply_to=reply_to, file=file)


async def stored_file(
    line: TelegramConnection, data: bytes, media_type: str, caption: str = "", name: str = "a.png"
) -> Attachment:
    """Return a file of ours."""
    blob = await line.services.blobs.put("people/ann", data)
    kind = media_type.partition("/")[0]
    return Attachment(kind=kind, name=name, size=len(data), media_type=media_type, blob=blob, caption=caption)


async def test_an_image_is_a_photo_with_its_caption(line: TelegramConnection) -> None:
    """In its topic, as a reply, with a caption that fits; the receipt names the message."""
    file = await stored_file(line, png(640, 480), "image/png", caption="word " * 400)
    receipt = await line.channel.send(outgoing(file, TOPIC, reply_to="2"))
    (post,) = line.server.posts
    assert post.file is not None
    assert (post.file.kind, post.file.data) == ("photo", png(640, 480))
    assert (post.thread, post.reply_to, receipt.message_id) == (7, 2, str(post.id))
    assert post.text.startswith("word word")
    assert len(post.text) <= 1024


async def test_a_caption_is_no_markup(line: TelegramConnection) -> None:
    """A prompt is its person's words: it goes as it stands, in no dialect."""
    caption = "*the* __red__ [fox](https://evil.example) <b>x</b> `y`"
    await line.channel.send(outgoing(await stored_file(line, png(9, 9), "image/png", caption)))
    (post,) = line.server.posts
    assert (post.text, post.entities) == (caption, [])


DOCUMENTS = {
    "wide": (png(9_000, 20), "image/png"),
    "large": (png(8_000, 8_000), "image/png"),
    "no image": (b"<html>", "image/png"),
    "heavy": (png(90, 90, 10_000_001), "image/png"),
    "drawing": (b"<svg/>", "image/svg+xml"),
    "pdf": (b"%PDF", "application/pdf"),
}


@pytest.mark.parametrize("name", DOCUMENTS)
async def test_what_is_no_photo_is_a_document(line: TelegramConnection, name: str) -> None:
    """Too wide, too large, too heavy or none that Telegram can decode: the same bytes arrive as a document, once."""
    data, media_type = DOCUMENTS[name]
    await line.channel.send(outgoing(await stored_file(line, data, media_type, name="../../a b.png")))
    (post,) = line.server.posts
    assert post.file is not None
    assert (post.file.kind, post.file.name, post.file.data) == ("document", ".._.._a b.png", data)


async def test_a_doubtful_file_says_so_in_its_caption(line: TelegramConnection) -> None:
    """Telegram has no send key for files either: a resend is marked, however long the caption is."""
    for caption in ("", "a chart", "😀" * 900):
        await line.channel.send(
            outgoing(await stored_file(line, png(9, 9), "image/png", caption)), may_be_duplicate=True
        )
    assert [post.text.endswith(translate("delivery.may_repeat")) for post in line.server.posts] == [True] * 3


async def test_a_file_that_is_lost_or_too_large_is_refused(line: TelegramConnection) -> None:
    """Lost bytes are FileUnavailable, for the line that takes their place; over 50 MB nothing leaves us."""
    lost = Attachment(kind="document", name="x", size=3, blob="people/ann/00")
    with pytest.raises(FileUnavailable):
        await line.channel.send(outgoing(lost))
    with pytest.raises(SendRefused):
        await line.channel.send(outgoing(await stored_file(line, b"0" * 50_000_001, "application/zip")))
    with pytest.raises(SendRefused):
        await line.channel.send(outgoing(await stored_file(line, b"", "application/zip")))
    assert line.server.calls == []


REFUSALS = {
    "blocked": (TelegramFault("status", 403, description="Forbidden: bot was blocked by the user"), SendRefused),
    "refused": (TelegramFault("status", 400, description="Bad Request: chat not found"), SendRefused),
    "large": (TelegramFault("status", 413, description="Request Entity Too Large"), SendRefused),
    "later": (TelegramFault("status", 429, retry_after=17), RetryLater),
    "server": (TelegramFault("status", 502, description="Bad Gateway"), OutcomeUnknown),
    "lost": (TelegramFault("lost"), OutcomeUnknown),
}


@pytest.mark.parametrize("name", REFUSALS)
async def test_what_goes_wrong_with_a_file_has_its_name(line: TelegramConnection, name: str) -> None:
    """As with texts: each failure tells delivery what to do, and one call is one try."""
    fault, expected = REFUSALS[name]
    line.server.fail("sendPhoto", fault)
    with pytest.raises(expected):
        await line.channel.send(outgoing(await stored_file(line, png(9, 9), "image/png")))
    assert [method for method, _ in line.server.calls] == ["sendPhoto"]


async def test_a_file_takes_no_text_s_place(line: TelegramConnection) -> None:
    """A preview cannot become a file: it is refused, so that the file is sent as a message of its own."""
    file = await stored_file(line, png(9, 9), "image/png")
    with pytest.raises(SendRefused):
        await line.channel.edit("5", outgoing(file))
