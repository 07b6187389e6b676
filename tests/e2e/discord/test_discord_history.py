"""Called into a running conversation, the bot reads first: what was said, by whom, and nothing it may not."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from gateway.channel import SupportsHistory
from gateway.events import InboundMessage
from tests.fakes.discord_harness import NotedChannel, connected
from tests.fakes.discord_records import ANN, BEN, BOT, EVA, GENERAL, TEAM_ROLE
from tests.fakes.discord_server import DiscordServer
from tests.fakes.web_services import FakePageServices

CALL = f"<@{BOT}>"


async def called(services: FakePageServices) -> InboundMessage:
    """Return the mention, once it is there."""
    while not any(each.is_addressed for each in services.deliveries):
        await services.wait_deliveries(len(services.deliveries) + 1)
    return next(each for each in reversed(services.deliveries) if each.is_addressed)


async def before(
    channel: NotedChannel, message: InboundMessage, since: datetime | None = None, limit: int = 50
) -> list[str]:
    """Return what the channel says was said before."""
    assert isinstance(channel, SupportsHistory)
    said = await channel.messages_before(message, since=since, limit=limit)
    assert all(each.key == message.key for each in said)
    return [each.text for each in said]


async def test_what_was_said_before_a_mention_with_who_said_it(
    discord: DiscordServer, services: FakePageServices
) -> None:
    """Oldest first, our own words left out, roles and names looked up, bots as facts."""
    discord.members[BEN] = {"roles": [TEAM_ROLE], "nick": "Benny"}
    async with connected(services, discord) as channel:
        discord.say(GENERAL, ANN, "the roof leaks")
        discord.say(GENERAL, BOT, "our own")
        discord.say(GENERAL, BEN, "since when?")
        discord.say(GENERAL, EVA, "beep", author={**discord.users[EVA], "bot": True})
        discord.say(GENERAL, ANN, f"{CALL} what now?")
        message = await called(services)
        said = await channel.messages_before(message, since=None, limit=50)
    assert [(each.sender.name, each.text) for each in said] == [
        ("Ann", "the roof leaks"), ("Benny", "since when?"), ("Eva", "beep"),
    ]  # fmt: skip
    assert [(each.sender.roles, each.sender.is_bot) for each in said] == [
        ((), False),
        ((TEAM_ROLE,), False),
        ((), True),
    ]


async def test_the_newest_and_only_what_is_new(discord: DiscordServer, services: FakePageServices) -> None:
    """At most so many, and nothing that is not newer than the time given."""
    async with connected(services, discord) as channel:
        idents = [discord.say(GENERAL, ANN, f"line {number}") for number in range(6)]
        discord.say(GENERAL, ANN, f"{CALL} hello")
        message = await called(services)
        assert await before(channel, message, limit=2) == ["line 4", "line 5"]
        since = next(each.sent_at for each in services.deliveries if each.message_id == idents[3])
        fresh = await before(channel, message, since=since)
        assert "line 3" not in fresh
        assert await before(channel, message, since=since + timedelta(hours=1)) == []


@pytest.mark.parametrize("kind", ["thread", "forum post", "archived thread"])
async def test_a_thread_comes_with_its_start(discord: DiscordServer, services: FakePageServices, kind: str) -> None:
    """The message it began from stands in its parent; a forum post's own is its first."""
    if kind == "forum post":
        discord.add_channel("4009", "ideas", kind=15)
        thread = discord.open_forum_post("4009", "a garden", ANN, "the start")
    else:
        start = discord.say(GENERAL, ANN, "the start")
        thread = discord.open_thread(GENERAL, "plans", ident=start, archived=kind == "archived thread")
    async with connected(services, discord) as channel:
        for number in range(4):
            discord.say(thread, BEN, f"line {number}")
        discord.say(thread, ANN, f"{CALL} hello")
        message = await called(services)
        assert message.key.thread == thread
        assert await before(channel, message, limit=2) == ["the start", "line 2", "line 3"]
        assert await before(channel, message) == ["the start", *(f"line {number}" for number in range(4))]


async def test_who_cannot_be_looked_up_has_no_roles(discord: DiscordServer, services: FakePageServices) -> None:
    """Gone from the server, or Discord does not answer now: then roles grant nothing, and nothing fails."""
    discord.members[BEN]["roles"] = [TEAM_ROLE]
    discord.members[EVA]["roles"] = [TEAM_ROLE]
    async with connected(services, discord) as channel:
        discord.say(GENERAL, BEN, "gone")
        discord.say(GENERAL, EVA, "unknown")
        discord.say(GENERAL, ANN, f"{CALL} hello")
        message = await called(services)
        said = await channel.messages_before(message, since=None, limit=50)
        assert [each.sender.roles for each in said] == [(TEAM_ROLE,), (TEAM_ROLE,)]  # they spoke just now
        channel._members.members.expire()  # as five minutes do
        del discord.members[BEN]
        discord.fail("GET", "members", "503 0", times=2)
        said = await channel.messages_before(message, since=None, limit=50)
        assert [(each.sender.roles, each.sender.is_guest) for each in said] == [((), True), ((), True)]


async def test_without_the_right_to_read_there_is_nothing_and_one_line(
    discord: DiscordServer, services: FakePageServices, capsys: pytest.CaptureFixture[str]
) -> None:
    """Discord shows an empty chat without a word; so it is said in the log, once, with what to allow."""
    discord.denied = {"read_message_history"}
    async with connected(services, discord) as channel:
        discord.say(GENERAL, ANN, "something")
        discord.say(GENERAL, ANN, f"{CALL} hello")
        message = await called(services)
        assert await before(channel, message) == []
        assert await before(channel, message) == []
    assert capsys.readouterr().out.count("allow Read Message History") == 1
