"""What we say on Discord: once, in order, within its rules, whatever the platform answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest

from gateway.errors import FormatRefused, OutcomeUnknown, RetryLater, SendFailed, SendRefused
from gateway.events import MessagePart, OutboundMessage, SessionKey
from gateway.i18n import translate
from tests.fakes.discord_harness import NotedChannel, connected
from tests.fakes.discord_records import ANN, GENERAL, RANDOM
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
