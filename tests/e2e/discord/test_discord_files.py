"""Files both ways: in from Discord's own hosts alone, out once under their part's id."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gateway.channel import SupportsFiles
from gateway.errors import FileUnavailable, OutcomeUnknown, SendFailed, SendRefused
from gateway.events import Attachment, InboundMessage, MessagePart, OutboundKind, SessionKey
from tests.fakes.discord_harness import NotedChannel, connected
from tests.fakes.discord_records import ANN, BOT, GENERAL
from tests.fakes.discord_rest import FILE_LIMIT
from tests.fakes.discord_server import DiscordServer
from tests.fakes.web_services import FakePageServices

TURN = "tabcdefghijklmnop"
KEY = SessionKey("discord", GENERAL)
PICTURE = bytes(range(256)) * 700


async def fetched(channel: NotedChannel, attachment: Attachment) -> bytes:
    """Read a file to its end."""
    async with aclosing(channel.fetch(attachment)) as pieces:
        return b"".join([piece async for piece in pieces])


async def send_files(
    discord: DiscordServer, services: FakePageServices, *files: dict[str, Any], **fields: Any
) -> InboundMessage:
    """Let Ann send files, and return her message as the gateway gets it."""
    discord.say(discord.direct(ANN), ANN, "look", attachments=list(files), **fields)
    return (await services.wait_deliveries(1))[0]


async def test_files_of_a_message_can_be_had_each(discord: DiscordServer, services: FakePageServices) -> None:
    """Nothing is downloaded before it is asked for; then every byte, without our token."""
    async with connected(services, discord) as channel:
        assert isinstance(channel, SupportsFiles)
        one = discord.cdn.keep("a cat.png", PICTURE, content_type="image/png")
        two = discord.cdn.keep("said.ogg", b"OggS" * 20, content_type="audio/ogg")
        message = await send_files(discord, services, one, two, flags=1 << 13)
        assert discord.cdn.served == []
        assert [(each.kind, each.name, each.size) for each in message.attachments] == [
            ("image", "a_cat.png", len(PICTURE)), ("voice", "said.ogg", 80),
        ]  # fmt: skip
        assert [await fetched(channel, each) for each in message.attachments] == [PICTURE, b"OggS" * 20]


async def test_an_address_that_has_ended_is_asked_for_once_more(
    discord: DiscordServer, services: FakePageServices
) -> None:
    """Signed addresses hold a day; the message knows the new one, and when it is gone too, that is said."""
    async with connected(services, discord) as channel:
        message = await send_files(discord, services, discord.cdn.keep("a.png", PICTURE, content_type="image/png"))
        discord.skew += timedelta(hours=25)
        assert await fetched(channel, message.attachments[0]) == PICTURE
        assert len(discord.cdn.served) == 2
        discord.delete(message.message_id)
        discord.skew += timedelta(hours=25)
        with pytest.raises(FileUnavailable, match="gone from Discord"):
            await fetched(channel, message.attachments[0])


async def test_who_reads_too_much_stops(discord: DiscordServer, services: FakePageServices) -> None:
    """The file is streamed: who has had enough closes, and the rest never comes."""
    async with connected(services, discord) as channel:
        message = await send_files(discord, services, discord.cdn.keep("big.bin", bytes(40 << 20)))
        async with aclosing(channel.fetch(message.attachments[0])) as pieces:
            first = await anext(pieces)
        assert 0 < len(first) <= 64 * 1024
    assert discord.cdn.sent < 20 << 20


async def test_a_download_that_breaks_off_is_said(discord: DiscordServer, services: FakePageServices) -> None:
    """Half a file is none."""
    async with connected(services, discord) as channel:
        message = await send_files(discord, services, discord.cdn.keep("a.png", PICTURE))
        discord.cdn.breaks_after = 1
        with pytest.raises(FileUnavailable, match="broke off"):
            await fetched(channel, message.attachments[0])


ELSEWHERE = {
    "another host": "https://evil.example/attachments/1/1/a?ex=1",
    "a name like it": "https://cdn.discordapp.com.evil.example/a",
    "with a user": "https://cdn.discordapp.com@evil.example/a",
    "a user there": "https://me:pw@cdn.discordapp.com/a",
    "no TLS": "http://cdn.discordapp.com/a",
    "another port": "https://cdn.discordapp.com:8443/a",
    "metadata": "http://169.254.169.254/latest",
    "a file": "file:///etc/passwd",
    "nothing": "",
}


@pytest.mark.parametrize("url", ELSEWHERE.values(), ids=ELSEWHERE.keys())
async def test_an_address_that_discord_did_not_make_is_not_followed(
    discord: DiscordServer, services: FakePageServices, url: str
) -> None:
    """Attacks 19-42: the payload names it, but only Discord's own hosts are asked, over TLS."""
    async with connected(services, discord) as channel:
        file = {"id": "1", "filename": "a.png", "size": 3, "url": url}
        message = await send_files(discord, services, file)
        with pytest.raises(FileUnavailable, match="none of Discord's"):
            await fetched(channel, message.attachments[0])
        with pytest.raises(FileUnavailable):
            await fetched(channel, replace(message.attachments[0], url=url))


async def test_a_redirect_is_not_followed(discord: DiscordServer, services: FakePageServices) -> None:
    """Attacks 33-36 of docs/attacks.md."""
    async with connected(services, discord) as channel:
        message = await send_files(discord, services, discord.cdn.keep("a.png", PICTURE))
        discord.cdn.redirects_to = f"http://{discord.base}/api/v10/users/@me"
        with pytest.raises(FileUnavailable):
            await fetched(channel, message.attachments[0])
        assert not [each for each in discord.requests if each.path.endswith("/users/@me") and each.body]


# Out.


async def part_of(services: FakePageServices, data: bytes, **fields: Any) -> MessagePart:
    """Return a part that is a file."""
    name = fields.pop("name", "chart.png")
    blob = await services.blobs.put("people/ann", data)
    file = Attachment(kind="image", name=name, size=len(data), blob=blob, caption=fields.pop("caption", ""))
    return MessagePart(id=f"{TURN}.1.2", key=KEY, payload="", plain="", file=file, kind=OutboundKind.ANSWER, **fields)


def list_posted_files(discord: DiscordServer) -> list[tuple[str, bytes]]:
    """Return the files that stand in GENERAL, with what is written above them."""
    return [
        (message["content"], discord.cdn.files[each["id"]][1])
        for message in discord.messages[GENERAL]
        if message["author"]["id"] == BOT
        for each in message["attachments"]
    ]


async def test_a_file_is_sent_once_with_its_caption(discord: DiscordServer, services: FakePageServices) -> None:
    """Under its part's id as nonce; the caption is ours to format, pings nobody and shows no preview."""
    async with connected(services, discord) as channel:
        assert channel.capabilities.file_limit == FILE_LIMIT
        part = await part_of(services, PICTURE, caption="*The* chart, @everyone: https://a.example")
        await channel.send(part)
    assert list_posted_files(discord) == [("*The* chart, @everyone: https://a.example", PICTURE)]
    body = next(each.body for each in discord.requests if each.method == "POST" and each.kind == "messages")
    assert (body["nonce"], body["enforce_nonce"], body["flags"] & 4) == (part.id, True, 4)
    assert body["allowed_mentions"] == {"parse": [], "replied_user": False}


@pytest.mark.parametrize("how", ["lost", "done 502"])
async def test_a_file_whose_answer_was_lost_stands_once(
    discord: DiscordServer, services: FakePageServices, how: str
) -> None:
    """Within the nonce's time a repeat finds it; later the chat is read, and the size tells."""
    async with connected(services, discord) as channel:
        asked = discord.say(GENERAL, ANN, "chart?")
        part = await part_of(services, PICTURE, reply_to=asked)
        discord.fail("POST", "messages", how)
        if how == "lost":
            with pytest.raises(OutcomeUnknown):
                await channel.send(part)
        receipt = await channel.send(part)
        discord.skew += timedelta(minutes=10)
        found = await channel.find(part)
        assert found is not None
        assert found.message_id == receipt.message_id
        assert await channel.find(await part_of(services, PICTURE + b"x", reply_to=asked)) is None
    assert len(list_posted_files(discord)) == 1


TOO_MUCH = {"too large": "too large", "no right": "attach_files", "a refusal": "413 40005"}


@pytest.mark.parametrize("what", TOO_MUCH.values(), ids=TOO_MUCH.keys())
async def test_a_file_that_discord_will_not_have_is_refused_for_good(
    discord: DiscordServer, services: FakePageServices, what: str
) -> None:
    """Too large (before it leaves), not allowed, or Discord's own limit: never tried again."""
    discord.denied |= {what} if what == "attach_files" else set()
    async with connected(services, discord) as channel:
        part = await part_of(services, bytes(FILE_LIMIT + 1) if what == "too large" else PICTURE)
        if what[:1].isdigit():
            discord.fail("POST", "messages", what)
        with pytest.raises(SendRefused) as refused:
            await channel.send(part)
    if what != "attach_files":
        assert "larger than" in str(refused.value)
    assert list_posted_files(discord) == []


async def test_a_file_that_is_lost_here_is_said_to_be(discord: DiscordServer, services: FakePageServices) -> None:
    """Delivery then says so in the file's place."""
    async with connected(services, discord) as channel:
        part = await part_of(services, PICTURE)
        services.blobs.kept.clear()
        with pytest.raises(FileUnavailable):
            await channel.send(part)
        assert not issubclass(FileUnavailable, SendFailed)
