"""Native commands and buttons: registered once, confirmed within three seconds, answered where they wait."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from channels.discord.interactions import definition
from gateway.events import ChatKind, InboundMessage, MessagePart, OutboundKind, OutboundMessage, turn_id
from gateway.i18n import LANGUAGES, translate
from gateway.ports.channel import IntakeResult, IntakeVerdict
from tests.fakes.discord_harness import NotedChannel, connected
from tests.fakes.discord_interactions import FakeInteraction
from tests.fakes.discord_records import ADMIN_ROLE, ANN, BEN, GENERAL, GUILD
from tests.fakes.discord_server import DiscordServer
from tests.fakes.web_services import FakePageServices


@asynccontextmanager
async def registered(
    services: FakePageServices, discord: DiscordServer, where: str = "global"
) -> AsyncIterator[NotedChannel]:
    """Run the channel; its commands are there when the block begins."""
    async with connected(services, discord, commands=where) as channel:
        await discord.until(lambda: discord.interactions.registered)
        yield channel


def answer(channel: NotedChannel, message: InboundMessage, text: str, *, private: bool = False) -> list[MessagePart]:
    """Cut what a command answers, as the gateway does."""
    shared = message.chat_kind is ChatKind.GROUP
    row = OutboundMessage(
        id=f"{turn_id(message)}.1",
        key=message.key,
        text=text,
        kind=OutboundKind.NOTICE,
        visible_to=message.sender.id if private and shared else "",
    )
    return list(channel.render(row))


async def wait_command(services: FakePageServices, discord: DiscordServer, used: FakeInteraction) -> InboundMessage:
    """Return the command as the gateway got it, once Discord shows that we think."""
    message = (await services.wait_deliveries(1))[-1]
    await discord.until(lambda: used.acknowledged)
    return message


async def test_commands_are_registered_only_when_they_changed(
    discord: DiscordServer, services: FakePageServices
) -> None:
    """Discord allows 200 creations a day: a restart costs none, a change costs one overwrite."""
    for _ in range(2):
        async with connected(services, discord, commands="global") as channel:
            await discord.until(lambda: discord.interactions.registered)
            await channel._commands.register([GUILD])
    assert discord.interactions.registrations == 1
    assert {each["name"] for each in discord.interactions.registered[""]} >= {"help", "new", "stop", "status", "usage"}
    services.state.notes["commands"] = '{"": "of an older release"}'
    async with connected(services, discord, commands="global"):
        await discord.until(lambda: discord.interactions.registrations == 2)


async def test_commands_move_between_everywhere_and_the_servers(
    discord: DiscordServer, services: FakePageServices
) -> None:
    """What is registered elsewhere from before is taken away, so that nobody sees a command twice."""
    for where, everywhere, here in (("guild", False, True), ("global", True, False), ("off", False, False)):
        async with connected(services, discord, commands=where) as channel:
            await channel._commands.register([GUILD])
        assert bool(discord.interactions.registered.get("")) is everywhere
        assert bool(discord.interactions.registered.get(GUILD)) is here


async def test_commands_that_cannot_be_registered_cost_nothing_else(
    discord: DiscordServer, services: FakePageServices
) -> None:
    """A bot that was invited without the scope still hears and answers."""
    discord.fail("PUT", "commands", "403 50001")
    async with connected(services, discord, commands="global"):
        discord.say(discord.direct(ANN), ANN, "hello")
        await services.wait_deliveries(1)
    assert "commands" not in services.state.notes


def test_every_command_fits_discords_rules() -> None:
    """Names and descriptions as the catalogue has them in each language, an optional text for each."""
    for language in LANGUAGES:
        for each in definition(language):
            for described in (each, *each["options"]):
                texts = [described["description"], *described["description_localizations"].values()]
                assert all(1 <= len(text) <= 100 and "`" not in text for text in texts)
            assert [option["required"] for option in each["options"]] == [False]
            assert not {language} & set(each["description_localizations"])
    stop = next(each for each in definition("de") if each["name"] == "stop")
    assert stop["description"] == translate("commands.help_stop", "de")
    assert stop["description_localizations"]["es-419"] == translate("commands.help_stop", "es")
    assert stop["description_localizations"]["en-GB"] == translate("commands.help_stop", "en")


async def test_a_command_is_what_one_could_have_typed(discord: DiscordServer, services: FakePageServices) -> None:
    """Text, facts and an event id; it speaks to us by what it is, and names no message."""
    discord.members[BEN]["roles"] = [ADMIN_ROLE]
    async with registered(services, discord):
        used = discord.interactions.use(GENERAL, BEN, "timezone", "Europe/Berlin")
        message = await wait_command(services, discord, used)
    assert (message.text, message.message_id, message.event_ids) == ("/timezone Europe/Berlin", "", (used.id,))
    assert (str(message.key), message.guild, message.is_addressed) == (f"discord:{GENERAL}", GUILD, True)
    assert (message.sender.id, message.sender.roles, message.sender.is_admin) == (BEN, (ADMIN_ROLE,), True)


async def test_a_private_answer_stays_with_its_sender(discord: DiscordServer, services: FakePageServices) -> None:
    """In a shared chat all of it is ephemeral, its length notwithstanding; and a repeat changes nothing."""
    async with registered(services, discord) as channel:
        used = discord.interactions.use(GENERAL, ANN, "usage")
        message = await wait_command(services, discord, used)
        assert used.is_thinking
        assert used.is_ephemeral
        parts = answer(channel, message, "yours: " + "word " * 600, private=True)
        receipts = [await channel.send(part) for part in (parts[0], parts[0], *parts[1:])]
        assert await channel.find(parts[0]) is None  # putting it there again is no second one
    assert used.original is not None
    assert used.original.startswith("yours:")
    assert [is_private for _, is_private in used.follow_ups] == [True] * (len(parts) - 1)
    assert all(receipt.message_id for receipt in receipts)
    assert discord.chat(GENERAL) == []
    assert discord.chat(discord.direct(ANN)) == []


async def test_what_everybody_may_see_is_a_message_with_its_key(
    discord: DiscordServer, services: FakePageServices
) -> None:
    """That we think goes away, and the answer stands in the chat once."""
    async with registered(services, discord) as channel:
        used = discord.interactions.use(GENERAL, ANN, "new")
        (part,) = answer(channel, await wait_command(services, discord, used), "New session started.")
        discord.fail("POST", "messages", "done 502")
        await channel.send(part)
        await discord.until(lambda: used.is_deleted)
    assert discord.chat(GENERAL) == ["New session started."]
    assert not used.is_thinking


async def test_in_a_direct_chat_the_answer_takes_the_place(discord: DiscordServer, services: FakePageServices) -> None:
    """Nobody else is there: nothing is ephemeral, and the chat keeps it."""
    direct = discord.direct(ANN)
    async with registered(services, discord) as channel:
        used = discord.interactions.use(direct, ANN, "usage")
        message = await wait_command(services, discord, used)
        for part in answer(channel, message, "yours", private=True):
            await channel.send(part)
    assert not used.is_ephemeral
    assert discord.chat(direct) == ["yours"]


@pytest.mark.parametrize("private", [True, False])
async def test_after_fifteen_minutes_the_chat_has_the_answer(
    discord: DiscordServer, services: FakePageServices, private: bool
) -> None:
    """The place is gone; what is private becomes a direct message."""
    async with registered(services, discord) as channel:
        used = discord.interactions.use(GENERAL, ANN, "usage")
        (part,) = answer(channel, await wait_command(services, discord, used), "yours", private=private)
        discord.skew += timedelta(minutes=16)
        await channel.send(part)
    assert discord.chat(discord.direct(ANN) if private else GENERAL) == ["yours"]


async def test_a_restart_in_between_answers_in_the_same_place(
    discord: DiscordServer, services: FakePageServices
) -> None:
    """The place is noted with the row, and forgotten once its time is over."""
    async with registered(services, discord):
        used = discord.interactions.use(GENERAL, ANN, "usage")
        message = await wait_command(services, discord, used)
        await discord.until(lambda: used.is_thinking)
    async with connected(services, discord) as channel:
        (part,) = answer(channel, message, "yours", private=True)
        await channel.send(part)
    assert used.original == "yours"


async def test_three_seconds_too_late_is_not_lost(discord: DiscordServer, services: FakePageServices) -> None:
    """Discord forgot the command, we did not: its answer stands in the chat."""
    async with registered(services, discord) as channel:
        services.is_down = True
        used = discord.interactions.use(GENERAL, ANN, "new")
        await services.wait_deliveries(1)
        assert not used.acknowledged  # nothing is confirmed that is not stored
        discord.skew += timedelta(seconds=4)
        services.is_down = False
        await discord.until(lambda: any(each.kind == "callback" for each in discord.requests))
        (part,) = answer(channel, services.accepted[0], "New session started.")
        await channel.send(part)
    assert discord.chat(GENERAL) == ["New session started."]


async def test_a_second_delivery_is_no_second_command(discord: DiscordServer, services: FakePageServices) -> None:
    """The event id decides, and the place stays the first one's."""
    async with registered(services, discord) as channel:
        used = discord.interactions.use(GENERAL, ANN, "usage")
        message = await wait_command(services, discord, used)
        discord.interactions.repeat(used)
        await services.wait_deliveries(2)
        assert len(services.accepted) == 1
        (part,) = answer(channel, message, "yours", private=True)
        await channel.send(part)
    assert used.original == "yours"


async def test_a_strangers_command_is_not_even_confirmed(discord: DiscordServer, services: FakePageServices) -> None:
    """No word, no place, no note."""
    services.verdict = IntakeResult(verdict=IntakeVerdict.REJECTED, reason="stranger")
    async with registered(services, discord):
        used = discord.interactions.use(GENERAL, ANN, "usage")
        discord.interactions.repeat(used)
        await services.wait_deliveries(2)  # one after the other: the first is done with
    assert not used.acknowledged
    assert not [name for name in services.state.notes if name.startswith("interaction/")]
    assert not [each for each in discord.requests if each.kind == "callback"]


async def test_a_refused_command_can_be_told_why(discord: DiscordServer, services: FakePageServices) -> None:
    """The line is shown to the sender alone."""
    services.verdict = IntakeResult(verdict=IntakeVerdict.REJECTED, reason="stranger", line="Ask Ann to let you in.")
    async with registered(services, discord):
        discord.interactions.use(GENERAL, BEN, "usage")
        await discord.until(lambda: any(each.kind == "callback" for each in discord.requests))
    body = discord.requests[-1].body
    assert (body["type"], body["data"]["content"], body["data"]["flags"]) == (4, "Ask Ann to let you in.", 64)


AMONG = {
    "a group of people": {"channel": {"id": "77002", "type": 3}, "context": 2},
    "two others": {"channel": {"id": "77001", "type": 1}, "context": 2},
    "a group without a context": {"channel": {"id": "77002", "type": 3}, "context": None},
}


@pytest.mark.parametrize("among", AMONG.values(), ids=AMONG)
async def test_a_chat_of_other_people_shows_nothing_of_anybody(
    discord: DiscordServer, services: FakePageServices, among: dict[str, Any]
) -> None:
    """A command there is refused, to its sender alone: the bot is no part of the chat, and all would read memory."""
    fields = {name: value for name, value in among.items() if value is not None}
    async with registered(services, discord):
        used = discord.interactions.use(discord.direct(ANN), ANN, "memory", among=fields)
        await discord.until(lambda: used.acknowledged)
        own = discord.interactions.use(discord.direct(ANN), ANN, "memory")
        message = await wait_command(services, discord, own)
    (line,) = [each.body["data"]["content"] for each in discord.requests if (each.body or {}).get("type") == 4]
    assert (line, used.is_ephemeral) == (translate("discord.not_among_others"), True)
    assert [each.event_ids for each in services.accepted] == [(own.id,)] == [message.event_ids]


async def test_commands_are_offered_in_guilds_and_in_chats_with_the_bot(
    discord: DiscordServer, services: FakePageServices
) -> None:
    """Not in the chats of people with each other (context 2), and not by apps that a person installs for themselves."""
    async with registered(services, discord):
        commands = discord.interactions.registered[""]
    assert all((each["contexts"], each["integration_types"]) == ([0, 1], [0]) for each in commands)
    async with registered(services, discord, "guild"):
        await discord.until(lambda: GUILD in discord.interactions.registered)
        assert not any("contexts" in each for each in discord.interactions.registered[GUILD])
