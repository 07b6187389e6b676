"""`reply_in: thread`: a mention begins a thread, and its whole conversation stands there."""

from __future__ import annotations

import pytest

from gateway.events import InboundKind, OutboundKind, OutboundMessage, SessionKey
from gateway.ports.channel import ChatActivity
from tests.fakes.discord_harness import NotedChannel, connected
from tests.fakes.discord_records import ANN, BEN, BOT, GENERAL, DiscordFault
from tests.fakes.discord_server import DiscordServer
from tests.fakes.web_services import FakePageServices

CALL = f"<@{BOT}>"
TURN = "tabcdefghijklmnop"
THREADS = {"reply_in": "thread", "follow_threads": True}


async def answer(channel: NotedChannel, key: SessionKey, text: str, reply_to: str) -> None:
    """Show a preview and put the answer into its place, as delivery does."""
    await channel.show(ChatActivity(key=key, on=True))
    preview = OutboundMessage(id=f"{TURN}.0", key=key, text="so far", kind=OutboundKind.PREVIEW, reply_to=reply_to)
    receipt = await channel.send(channel.render(preview)[0])
    await channel.show(ChatActivity(key=key, on=False))
    (part,) = channel.render(OutboundMessage(id=f"{TURN}.1", key=key, text=text, reply_to=reply_to))
    await channel.edit(receipt.message_id, part)


async def test_a_mention_begins_a_thread_and_is_answered_there(
    discord: DiscordServer, services: FakePageServices
) -> None:
    """The thread has the message's id and first words; typing, preview and answer stand in it, and nothing outside."""
    async with connected(services, discord, **THREADS) as channel:
        asked = discord.say(GENERAL, ANN, f"{CALL} how high is the roof?")
        (message,) = await services.wait_deliveries(1)
        assert str(message.key) == f"discord:{GENERAL}/{asked}"
        await answer(channel, message.key, "Nine metres.", asked)
        assert discord.is_typing(asked)
    assert discord.channels[asked]["name"] == "Parlour how high is the roof?"
    assert (discord.chat(asked), discord.chat(GENERAL)) == (["Nine metres."], [])
    assert "message_reference" not in discord.messages[asked][-1]


async def test_a_thread_goes_on_without_a_mention_and_the_channel_does_not(
    discord: DiscordServer, services: FakePageServices
) -> None:
    """What is said in it is for us, until somebody else is addressed there; the channel itself needs our name."""
    async with connected(services, discord, **THREADS):
        thread = discord.say(GENERAL, ANN, f"{CALL} hello")
        await discord.until(lambda: thread in discord.channels)
        for number, text in enumerate(("go on", f"<@{BEN}> you?", "and now"), 2):
            discord.say(thread, ANN, text)
            await services.wait_deliveries(number)
        discord.say(GENERAL, ANN, "not for you")
        messages = await services.wait_deliveries(5)
    assert [each.is_addressed for each in messages] == [True, True, False, False, False]
    assert [each.key.chat for each in messages] == [*[f"{GENERAL}/{thread}"] * 4, GENERAL]


async def test_a_thread_that_is_begun_reads_the_channel_first(
    discord: DiscordServer, services: FakePageServices
) -> None:
    """What was said before the mention was said in the channel; in the thread later it is the thread's own."""
    async with connected(services, discord, **THREADS) as channel:
        discord.say(GENERAL, BEN, "the roof leaks")
        thread = discord.say(GENERAL, ANN, f"{CALL} what now?")
        call = (await services.wait_deliveries(2))[1]
        said = await channel.messages_before(call, since=None, limit=50)
        assert [each.text for each in said] == ["the roof leaks"]
        await discord.until(lambda: thread in discord.channels)
        discord.say(thread, BEN, "since Monday")
        discord.say(thread, ANN, f"{CALL} so?")
        later = (await services.wait_deliveries(4))[3]
        said = await channel.messages_before(later, since=None, limit=50)
    assert [each.text for each in said] == ["@Parlour what now?", "since Monday"]


async def test_two_mentions_are_two_threads(discord: DiscordServer, services: FakePageServices) -> None:
    """Two people who ask at once each have their own."""
    async with connected(services, discord, **THREADS) as channel:
        idents = [discord.say(GENERAL, user, f"{CALL} {user}") for user in (ANN, BEN)]
        for message in await services.wait_deliveries(2):
            await answer(channel, message.key, f"to {message.sender.id}", message.message_id)
            discord.rest._nonces.clear()  # one turn id for both, here
    assert [discord.chat(ident) for ident in idents] == [[f"to {ANN}"], [f"to {BEN}"]]


async def test_a_correction_finds_its_thread(discord: DiscordServer, services: FakePageServices) -> None:
    """An edit that names us no more and a deletion go to the session that the message began; over a restart too."""
    async with connected(services, discord, **THREADS):
        asked = discord.say(GENERAL, ANN, f"{CALL} hello")
        await discord.until(lambda: asked in discord.channels)
    async with connected(services, discord, **THREADS):
        discord.edit(asked, "never mind")
        discord.delete(asked)
        _, edit, deletion = await services.wait_deliveries(3)
    assert {edit.key.thread, deletion.key.thread} == {asked}
    assert (edit.text, deletion.kind) == ("never mind", InboundKind.DELETION)


async def test_without_the_right_to_begin_one_the_channel_has_the_answer(
    discord: DiscordServer, services: FakePageServices, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a reply to the question, and the operator is told once what to allow. The session stays the message's own."""
    discord.denied = {"create_public_threads"}
    async with connected(services, discord, **THREADS) as channel:
        for number in (1, 2):
            asked = discord.say(GENERAL, ANN, f"{CALL} {number}")
            message = (await services.wait_deliveries(number))[-1]
            await answer(channel, message.key, f"answer {number}", asked)
            discord.rest._nonces.clear()
    assert discord.chat(GENERAL) == ["answer 1", "answer 2"]
    assert discord.find(asked)[0] == GENERAL
    assert discord.messages[GENERAL][-1]["message_reference"]["message_id"] == asked
    assert capsys.readouterr().out.count("allow Create Public Threads") == 1


async def test_whatever_forbids_the_thread_the_answer_is_not_sent_into_it(
    discord: DiscordServer, services: FakePageServices
) -> None:
    """A refusal with another code than Discord's usual ones: no message to a thread that is not there."""
    discord.faults += [DiscordFault("POST", "threads", "403 0")] * 2
    async with connected(services, discord, **THREADS) as channel:
        asked = discord.say(GENERAL, ANN, f"{CALL} 1")
        message = (await services.wait_deliveries(1))[-1]
        await answer(channel, message.key, "answer 1", asked)
    assert discord.chat(GENERAL) == ["answer 1"]


async def test_a_restart_before_the_thread_was_begun_begins_it(
    discord: DiscordServer, services: FakePageServices
) -> None:
    """The thread is begun when it is needed, and found when it is there already."""
    async with connected(services, discord, **THREADS):
        discord.fail("POST", "threads", "503 0", times=9)
        asked = discord.say(GENERAL, ANN, f"{CALL} hello")
        (message,) = await services.wait_deliveries(1)
        await discord.until(lambda: any(each.kind == "threads" for each in discord.requests))
    assert asked not in discord.channels
    discord.faults.clear()
    async with connected(services, discord, **THREADS) as channel:
        await answer(channel, message.key, "there", asked)
    async with connected(services, discord, **THREADS) as channel:
        (part,) = channel.render(OutboundMessage(id=f"{TURN}.2", key=message.key, text="again", reply_to=asked))
        await channel.send(part)
    assert discord.chat(asked) == ["there", "again"]


async def test_commands_and_direct_chats_begin_none(discord: DiscordServer, services: FakePageServices) -> None:
    """What acts on the channel's own session stays in it."""
    async with connected(services, discord, **THREADS):
        discord.say(GENERAL, ANN, f"{CALL} /stop")
        await services.wait_deliveries(1)
        discord.say(discord.direct(ANN), ANN, "hello")
        messages = await services.wait_deliveries(2)
    assert [each.key.thread for each in messages] == ["", ""]
