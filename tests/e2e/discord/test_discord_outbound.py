"""What is sent to Discord: parts once, files, and its rate limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gateway.channel import SupportsFiles
from gateway.errors import FileUnavailable, FormatRefused, OutcomeUnknown, RetryLater, SendFailed, SendRefused
from gateway.events import Attachment, InboundMessage, MessagePart, OutboundKind, OutboundMessage, SessionKey
from gateway.i18n import translate
from tests.fakes.discord_harness import NotedChannel, connected
from tests.fakes.discord_records import ANN, BOT, GENERAL, RANDOM
from tests.fakes.discord_rest import FILE_LIMIT
from tests.fakes.discord_server import DiscordServer
from tests.fakes.web_services import FakePageServices

TURN = "tabcdefghijklmnop"


KEY = SessionKey("discord", GENERAL)


@pytest.fixture
async def channel(discord: DiscordServer) -> AsyncIterator[NotedChannel]:
    """Bring the channel up."""
    async with connected(FakePageServices(), discord) as channel:
        yield channel


def parts(channel: NotedChannel, text: str, **fields: str) -> list[MessagePart]:
    """Cut an answer to GENERAL."""
    return list(channel.render(OutboundMessage(id=f"{TURN}.1", key=KEY, text=text, **fields)))  # type: ignore[arg-type]


async def test_every_send_has_its_key_and_pings_nobody(discord: DiscordServer, channel: NotedChannel) -> None:
    """The nonce is the part's id and enforced, no mention is allowed, no embed shown; only the first part replies."""
    asked = discord.say(GENERAL, ANN, "long?")
    for part in parts(channel, f"@everyone <@{ANN}> https://example.com\n\n" + "word " * 800, reply_to=asked):
        await channel.send(part)
    bodies = [each.body for each in discord.requests if each.method == "POST" and each.kind == "messages"]
    assert [body["nonce"] for body in bodies] == [f"{TURN}.1.{n}" for n in range(1, len(bodies) + 1)]
    assert all(body["enforce_nonce"] and body["flags"] & 4 for body in bodies)
    assert all(body["allowed_mentions"] == {"parse": [], "replied_user": False} for body in bodies)
    assert ["message_reference" in body for body in bodies] == [True] + [False] * (len(bodies) - 1)
    assert len(bodies) > 1


async def test_twenty_thousand_characters_arrive_in_order_with_their_fences(
    discord: DiscordServer, channel: NotedChannel
) -> None:
    """Each message is within the limit and has whole code blocks."""
    text = "\n\n".join(f"Section {n}\n\n```python\n" + f"print({n})\n" * 150 + "```" for n in range(15))
    assert len(text) > 20_000
    for part in parts(channel, text):
        await channel.send(part)
    shown = discord.chat(GENERAL)
    assert all(len(each) <= 2_000 and each.count("```") % 2 == 0 for each in shown)
    assert "".join(shown).count("print(") == 15 * 150


async def test_posted_but_the_answer_was_lost_stands_once(discord: DiscordServer, channel: NotedChannel) -> None:
    """The outcome is unknown; within the key's time the same part again is the same message, later it is found."""
    (part,) = parts(channel, "It is *late*.", reply_to=discord.say(GENERAL, ANN, "when?"))
    discord.fail("POST", "messages", "lost")
    with pytest.raises(OutcomeUnknown):
        await channel.send(part)
    again = await channel.send(part)
    discord.skew += timedelta(minutes=10)
    found = await channel.find(part)
    assert found is not None
    assert found.message_id == again.message_id
    assert discord.chat(GENERAL) == ["It is *late*."]


async def test_a_chat_that_may_not_be_read_tells_nothing(discord: DiscordServer, channel: NotedChannel) -> None:
    """Discord shows it empty: then nobody knows, and the resend is marked; a direct answer stands without a quote."""
    asked = discord.say(GENERAL, ANN, "when?")
    discord.denied = {"read_message_history"}
    (part,) = parts(channel, "Now.", reply_to=asked)
    await channel.send(part)
    assert "message_reference" not in discord.messages[GENERAL][-1]
    for each in (part, replace(part, reply_to="")):
        with pytest.raises(OutcomeUnknown):
            await channel.find(each)


async def test_what_never_arrived_is_not_found(discord: DiscordServer, channel: NotedChannel) -> None:
    """The same words that answer something else, or stand there from before, are not this part."""
    first = discord.say(GENERAL, ANN, "one?")
    await channel.send(parts(channel, "Yes.", reply_to=first)[0])
    second = discord.say(GENERAL, ANN, "two?")
    (part,) = parts(channel, "Yes.", reply_to=second)
    assert await channel.find(replace(part, id=f"{TURN}.2.1")) is None


async def test_the_librarys_own_repeats_do_not_double(discord: DiscordServer, channel: NotedChannel) -> None:
    """discord.py tries a 502 again by itself, with the same nonce."""
    (part,) = parts(channel, "once")
    discord.fail("POST", "messages", "done 502")
    await channel.send(part)
    assert discord.chat(GENERAL) == ["once"]


ANSWERS: list[tuple[str, type[SendFailed]]] = [
    ("404 10003", SendRefused),
    ("403 50001", SendRefused),
    ("403 50013", SendRefused),
    ("400 50035", FormatRefused),
    ("503 0", OutcomeUnknown),
    ("cloudflare", RetryLater),
    ("limit", RetryLater),
    ("drop", OutcomeUnknown),
    ("401 0", RetryLater),
]


@pytest.mark.parametrize(("what", "error"), ANSWERS, ids=[each[0] for each in ANSWERS])
async def test_what_discords_answers_mean(
    discord: DiscordServer, channel: NotedChannel, what: str, error: type[SendFailed]
) -> None:
    """Wait, never, not with this formatting, or nobody knows; nothing stands in the chat."""
    discord.fail("POST", "messages", what, seconds=61.0)
    with pytest.raises(error) as raised:
        await channel.send(parts(channel, "hello")[0])
    if isinstance(raised.value, RetryLater) and what in ("limit", "cloudflare"):
        assert raised.value.delay == timedelta(seconds=61)
    assert discord.chat(GENERAL) == []


async def test_a_full_bucket_stalls_its_own_chat_alone(discord: DiscordServer, channel: NotedChannel) -> None:
    """Another chat's message goes out while one waits for its limit."""
    discord.limit = (1, 0.7)
    one, two = parts(channel, "one")[0], replace(parts(channel, "two")[0], id=f"{TURN}.2.1")
    waiting = [asyncio.create_task(channel.send(each)) for each in (one, two)]
    await discord.until(lambda: discord.chat(GENERAL))
    other = replace(parts(channel, "else")[0], id=f"{TURN}.3.1", key=SessionKey("discord", RANDOM))
    waiting.append(asyncio.create_task(channel.send(other)))
    await discord.until(lambda: discord.chat(RANDOM))
    assert len(discord.chat(GENERAL)) == 1
    await asyncio.gather(*waiting)
    assert discord.chat(GENERAL) == ["one", "two"]


async def test_an_edit_that_is_gone_is_refused(discord: DiscordServer, channel: NotedChannel) -> None:
    """A deleted preview cannot become the answer; delivery then sends it anew."""
    (part,) = parts(channel, "so far")
    receipt = await channel.send(part)
    discord.delete(receipt.message_id)
    with pytest.raises(SendRefused):
        await channel.edit(receipt.message_id, part)


@pytest.mark.parametrize("takes", [True, False])
async def test_a_private_answer_is_a_direct_message_or_one_line(
    discord: DiscordServer, channel: NotedChannel, takes: bool
) -> None:
    """In a shared chat nobody else sees it; who takes none is asked to write first, once."""
    discord.takes_direct = takes
    for part in parts(channel, "your usage: " + "word " * 800, visible_to=ANN):
        await channel.send(part)
    assert len(discord.chat(discord.direct(ANN))) == (3 if takes else 0)
    assert discord.chat(GENERAL) == ([] if takes else [translate("discord.write_privately")])


WINDOWS = [60.0, 102_737.0]  # seconds; the real service has answered with the second


def part(channel: NotedChannel, n: int, chat: str = GENERAL) -> MessagePart:
    """Return the only part of the answer number *n*."""
    key = SessionKey("discord", chat)
    (only,) = channel.render(OutboundMessage(id=f"tabcdefghijklmnop.{n}", key=key, text=f"answer {n}"))
    return only


@pytest.mark.parametrize("seconds", WINDOWS)
async def test_requests_are_sent_while_any_are_left(
    discord: DiscordServer, services: FakePageServices, seconds: float
) -> None:
    """50 requests in a window of any length are 50 messages, whether one at a time or all at once."""
    async with connected(services, discord) as channel:
        discord.limit = (50, seconds)
        for n in range(3):
            await channel.send(part(channel, n))
        await asyncio.gather(*(channel.send(part(channel, n)) for n in range(3, 50)))
        await asyncio.gather(*(channel.send(part(channel, n, RANDOM)) for n in range(50, 60)))
    assert sorted(discord.chat(GENERAL)) == sorted(f"answer {n}" for n in range(50))
    assert len(discord.chat(RANDOM)) == 10


@pytest.mark.parametrize("seconds", WINDOWS)
async def test_an_empty_bucket_asks_delivery_to_wait_at_most_fifteen_minutes(
    discord: DiscordServer, services: FakePageServices, seconds: float
) -> None:
    """With nothing left no request is sent, and delivery hears how long to wait; another chat does not notice."""
    async with connected(services, discord) as channel:
        discord.limit = (1, seconds)
        await channel.send(part(channel, 1))
        posts = len(discord.requests)
        for _ in range(3):
            with pytest.raises(RetryLater) as raised:
                await channel.send(part(channel, 2))
            assert min(seconds, 900) - 5 < raised.value.delay.total_seconds() <= min(seconds, 900)
        assert len(discord.requests) == posts
        await channel.send(part(channel, 3, RANDOM))
    assert (discord.chat(GENERAL), discord.chat(RANDOM)) == (["answer 1"], ["answer 3"])


async def test_a_429_of_a_day_is_tried_again_after_fifteen_minutes(
    discord: DiscordServer, services: FakePageServices
) -> None:
    """A wait that Discord names in the answer itself has the same bound."""
    async with connected(services, discord) as channel:
        for what in ("limit", "cloudflare"):
            discord.fail("POST", "messages", what, seconds=102_737)
            with pytest.raises(RetryLater) as raised:
                await channel.send(part(channel, 1))
            assert raised.value.delay == timedelta(minutes=15)


async def test_the_last_request_of_a_window_is_not_held_back_itself(
    discord: DiscordServer, services: FakePageServices
) -> None:
    """A request that empties its bucket returns at once; the window is the next one's to wait for."""
    async with connected(services, discord) as channel:
        discord.limit = (1, 29.0)
        async with asyncio.timeout(20):
            await channel.send(part(channel, 1))
    assert discord.chat(GENERAL) == ["answer 1"]


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
    """Under its part's id as nonce; the caption is no markup, pings nobody and shows no preview."""
    async with connected(services, discord) as channel:
        assert channel.capabilities.file_limit == FILE_LIMIT
        part = await part_of(services, PICTURE, caption="*The* chart, @everyone: https://a.example")
        await channel.send(part)
    assert list_posted_files(discord) == [("\\*The\\* chart, @everyone: https://a.example", PICTURE)]
    body = next(each.body for each in discord.requests if each.method == "POST" and each.kind == "messages")
    assert (body["nonce"], body["enforce_nonce"], body["flags"] & 4) == (part.id, True, 4)
    assert [each["description"] for each in body["attachments"]] == ["*The* chart, @everyone: https://a.example"]
    assert body["allowed_mentions"] == {"parse": [], "replied_user": False}


async def test_a_sound_does_not_repeat_the_answer(discord: DiscordServer, services: FakePageServices) -> None:
    """Its caption is what it says, which stands above it."""
    async with connected(services, discord) as channel:
        part = await part_of(services, b"OggS", name="answer.ogg", caption="The *whole* answer")
        assert part.file is not None
        await channel.send(replace(part, file=replace(part.file, kind="audio")))
    assert list_posted_files(discord) == [("", b"OggS")]


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
