"""The whole gateway before Discord: conversations, buttons, letting in, and answers of another worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.tools.tool import Tool
from channels.discord.adapter import DiscordChannel
from gateway.events import InboundKind, MessagePart, OutboundKind, OutboundMessage, SessionKey, turn_id
from gateway.i18n import translate
from tests.fakes.connection_claims import GrantedClaims
from tests.fakes.discord_harness import block, connected
from tests.fakes.discord_records import ADMIN_ROLE, ANN, BEN, BOT, EVA, GENERAL, GUILD, RANDOM, buttons
from tests.fakes.discord_server import DiscordServer, open_discord
from tests.fakes.held_model import HeldModel
from tests.fakes.inprocess_gateway import InProcessGateway, InstantModel, gateway
from tests.fakes.staged_changes import memory, scope_in, staged
from tests.fakes.web_services import FakePageServices

CALL = f"<@{BOT}>"


TALE = "These are the first words of the answer, and these are the last ones."


@asynccontextmanager
async def open_gateway(
    discord: DiscordServer,
    *,
    home: Path | None = None,
    model: Any = None,
    tools: Sequence[Tool] = (),
    more: Mapping[str, str] | None = None,
    **block: str,
) -> AsyncIterator[InProcessGateway]:
    """Run the gateway with a Discord block for Ann and Ben and the variables *more*; it is connected on entry."""
    environment = {**discord.settings(**{"ALLOW_FROM": f"{ANN},{BEN}", **block}), **(more or {})}
    async with gateway(home=home, model=model or InstantModel(), environment=environment, tools=tools) as parlour:
        await discord.until(lambda: discord.gateway.line is not None)
        yield parlour


async def test_people_are_answered_where_they_wrote_and_a_stranger_is_not() -> None:
    """In a direct message, a channel and a thread; without a mention, and to a stranger, nothing."""
    async with open_discord() as discord, open_gateway(discord) as parlour:
        direct, thread = discord.direct(ANN), discord.open_thread(GENERAL, "plans")
        discord.say(direct, ANN, "good evening")
        discord.say(GENERAL, EVA, f"{CALL} stranger")
        discord.say(GENERAL, ANN, "not for you")
        discord.say(GENERAL, ANN, f"{CALL} to all")
        discord.say(thread, BEN, f"{CALL} in here")
        await discord.until(lambda: all(discord.chat(chat) for chat in (direct, GENERAL, thread)))
        await parlour.idle()
        for chat, end in ((direct, "good evening"), (GENERAL, "@Parlour to all"), (thread, "@Parlour in here")):
            (shown,) = discord.chat(chat)
            assert shown.endswith(end)
        await discord.until(lambda: sum(on for *_, on in discord.reactions) == 3)
        await discord.until(lambda: sum(not on for *_, on in discord.reactions) == 3)


async def test_an_answer_streams_and_survives_the_loss_of_its_connection() -> None:
    """The preview rings, the answer takes its place; a cut of the gateway in between costs nothing."""
    model = HeldModel(TALE, first=41)
    async with open_discord() as discord, open_gateway(discord, model=model) as parlour:
        discord.say(GENERAL, ANN, f"{CALL} tell me")
        await discord.until(lambda: discord.chat(GENERAL))
        assert discord.chat(GENERAL) == [TALE[:40].strip()]
        assert discord.is_typing(GENERAL)
        await discord.gateway.drop()
        model.go_on.set()
        await parlour.idle()
        (shown,) = discord.chat(GENERAL)
        assert shown == TALE


async def test_a_stopped_answer_keeps_its_words_and_no_reaction_stays() -> None:
    """One message: the words that had streamed, marked as stopped. 👀 goes from the question and from /stop."""
    model = HeldModel(TALE, first=41)
    async with open_discord() as discord, open_gateway(discord, model=model) as parlour:
        discord.say(GENERAL, ANN, f"{CALL} tell me")
        await discord.until(lambda: discord.chat(GENERAL))
        (words,) = discord.chat(GENERAL)
        discord.say(GENERAL, ANN, f"{CALL} !stop")
        await discord.until(lambda: discord.chat(GENERAL) != [words])
        await parlour.idle()
        assert discord.chat(GENERAL) == [f"{words}\n\n{translate('delivery.stopped_here')}"]
        await discord.until(lambda: _reactions(discord) == [])
        model.go_on.set()


def _reactions(discord: DiscordServer) -> list[Any]:
    """Return the reactions of ours that stand."""
    standing: list[Any] = []
    for *place, on in discord.reactions:
        (standing.append if on else standing.remove)(tuple(place))
    return standing


async def test_a_native_command_is_answered_to_its_sender_alone() -> None:
    """`/help` and `/status` in a channel: nobody else sees what was typed, and nobody else the answer."""
    async with open_discord() as discord, open_gateway(discord) as parlour:
        await discord.until(lambda: bool(discord.interactions.registered))
        used = [discord.interactions.use(GENERAL, ANN, name) for name in ("help", "status")]
        await discord.until(lambda: all(each.original for each in used))
        await parlour.idle()
        assert all(each.is_ephemeral for each in used)
        # The list is longer than a message: its end follows, for its reader alone as well.
        assert "`/stop`" in "\n".join((str(used[0].original), *(text for text, _ in used[0].follow_ups)))
        assert all(is_ephemeral for each in used for _, is_ephemeral in each.follow_ups)
        assert discord.chat(GENERAL) == []
        assert discord.chat(discord.direct(ANN)) == []


async def test_an_empty_bucket_of_a_day_delays_its_chat_and_is_seen() -> None:
    """One chat waits 15 minutes at most and its answer is kept; the next chat is answered, and says so in /status."""
    async with open_discord() as discord, open_gateway(discord) as parlour:
        discord.limit = (1, 102_737.0)
        discord.say(GENERAL, ANN, f"{CALL} one")
        await discord.until(lambda: discord.chat(GENERAL))
        discord.say(GENERAL, ANN, f"{CALL} two")
        while not parlour.app.dispatcher.delayed():  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.01)
        (delayed,) = parlour.app.dispatcher.delayed()
        assert (str(delayed.key), delayed.reason) == (f"discord:{GENERAL}", "rate limited by Discord")
        assert delayed.until - delayed.since <= timedelta(minutes=15)
        discord.say(RANDOM, BEN, f"{CALL} !status")
        await discord.until(lambda: discord.chat(RANDOM))
        assert translate("commands.status_delayed", chats=1) in discord.chat(RANDOM)[-1]
        assert len(discord.chat(GENERAL)) == 1


@pytest.mark.parametrize("is_native", [True, False], ids=["native", "mention"])
async def test_stop_in_a_channel_finds_the_askers_turn_in_its_thread(*, is_native: bool) -> None:
    """With `reply_in: thread` the turn runs in a thread; `/stop` and `@bot stop` in the channel end it."""
    model = HeldModel()
    async with open_discord() as discord, open_gateway(discord, model=model, REPLY_IN="thread") as parlour:
        await discord.until(lambda: bool(discord.interactions.registered))
        thread = discord.say(GENERAL, ANN, f"{CALL} tell me")
        await model.asked.wait()
        known = set(discord.channels)
        if is_native:
            used = discord.interactions.use(GENERAL, ANN, "stop")
            await discord.until(lambda: used.original == translate("commands.stopped_turn"))
        else:
            discord.say(GENERAL, ANN, f"{CALL} stop")
            await discord.until(lambda: translate("commands.stopped_turn") in discord.chat(discord.direct(ANN)))
        model.go_on.set()
        await parlour.idle()
        assert model.calls == 0
        assert set(discord.channels) - {discord.direct(ANN)} <= known | {thread}


PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(64)


@asynccontextmanager
async def open_gateway_of(discord: DiscordServer, model: Any) -> AsyncIterator[InProcessGateway]:
    """Run the gateway with a Discord block for Ann."""
    async with gateway(model=model, environment=discord.settings(ALLOW_FROM=ANN)) as parlour:
        await discord.until(lambda: discord.gateway.identified and discord.interactions.registered)
        yield parlour


async def test_a_forum_post_is_a_session_of_its_own(discord: DiscordServer, services: FakePageServices) -> None:
    """`<forum>/<post>`, from its first message on."""
    async with connected(services, discord):
        discord.add_channel("4009", "ideas", kind=15)
        discord.gateway.dispatch("CHANNEL_CREATE", discord.channels["4009"], guild=True)
        post = discord.open_forum_post("4009", "a garden", ANN, f"{CALL} what grows here?")
        (message,) = await services.wait_deliveries(1)
    assert (str(message.key), message.message_id) == (f"discord:4009/{post}", post)


async def test_a_stranger_with_a_file_costs_nothing(discord: DiscordServer) -> None:
    """Nanobot bug 8: no download, no typing, no reaction, no model, no word; in a direct chat and by our name."""
    model = HeldModel("never")
    async with open_gateway_of(discord, model) as parlour:
        before = len(discord.requests)
        file = discord.cdn.keep("a.png", PICTURE, content_type="image/png")
        direct = discord.direct(EVA)
        for _ in range(2):
            discord.say(direct, EVA, "let me in", attachments=[file])
            discord.say(GENERAL, EVA, f"{CALL} let me in", attachments=[file])
        model.go_on.set()
        discord.say(RANDOM, ANN, f"{CALL} hello")
        await discord.until(lambda: discord.chat(RANDOM))
        await parlour.idle()
        done = [each for each in discord.requests[before:] if each.method != "GET"]
        assert {each.path.split("/")[4] for each in done} == {RANDOM}
        assert discord.cdn.served == []
        assert len(model.prompts) == 1


@pytest.mark.parametrize("how", ["limit", "global"])
async def test_a_global_limit_is_waited_out(discord: DiscordServer, services: FakePageServices, how: str) -> None:
    """A 429 for one chat or for all: what waits goes out afterwards, in order and once, other chats beside it."""
    async with connected(services, discord) as channel:
        discord.fail("POST", "messages", how, seconds=0.3)
        parts = [
            channel.render(
                OutboundMessage(id=f"tabcdefghijklmn{n}p.1", key=SessionKey("discord", chat), text=f"to {chat}")
            )[0]
            for n, chat in enumerate((GENERAL, RANDOM))
        ]
        first = asyncio.create_task(channel.send(parts[0]))
        await discord.until(lambda: any(each.method == "POST" for each in discord.requests))
        second = asyncio.create_task(channel.send(parts[1]))
        if how == "limit":
            await discord.until(lambda: discord.chat(RANDOM))
            assert discord.chat(GENERAL) == []
        await asyncio.gather(first, second)
    assert (discord.chat(GENERAL), discord.chat(RANDOM)) == ([f"to {GENERAL}"], [f"to {RANDOM}"])


YES, NO = "/memory approve eaaaaaaaaaaaaaaaa", "/memory reject eaaaaaaaaaaaaaaaa"


async def asked(discord: DiscordServer, chat: str) -> dict[str, Any]:
    """Return the question once it stands in *chat*, with its buttons."""

    def found() -> list[dict[str, Any]]:
        return [each for each in discord.messages[chat] if each["author"]["id"] == BOT and buttons(each)]

    await discord.until(lambda: bool(found()))
    return found()[-1]


async def test_in_a_channel_admins_decide_in_private_and_strangers_are_not_heard() -> None:
    """A stranger's press: nothing. A member's: refused to them alone, the buttons stay. An admin's: done."""
    async with open_discord() as discord, open_gateway(discord, model=InstantModel()) as parlour:
        discord.members[ANN]["roles"] = [ADMIN_ROLE]
        discord.say(GENERAL, ANN, f"{CALL} hello")
        await discord.until(lambda: bool(discord.chat(GENERAL)))
        scope = await scope_in(parlour, f"discord:{GENERAL}")
        await staged(parlour, scope, f"discord:{GENERAL}")
        question = await asked(discord, GENERAL)
        shown = list(discord.chat(GENERAL))
        stranger = discord.interactions.press(question["id"], EVA, YES)
        member = discord.interactions.press(question["id"], BEN, YES)
        await discord.until(lambda: bool(member.follow_ups))
        assert (stranger.acknowledged, stranger.follow_ups) == (0, [])
        assert member.follow_ups == [
            ("Only an admin of this chat or an owner of this bot can use /memory approve here.", True)
        ]
        assert buttons(question)
        assert memory(parlour, scope) == ""
        admin = discord.interactions.press(question["id"], ANN, NO)
        await discord.until(lambda: not buttons(question) and bool(admin.follow_ups))
        assert admin.follow_ups == [("Rejected. My memory stays unchanged.", True)]
        assert list(discord.chat(GENERAL)) == shown


@asynccontextmanager
async def owned(discord: DiscordServer, model: InstantModel) -> AsyncIterator[InProcessGateway]:
    """Run the gateway for Ann, who owns it, and for nobody else."""
    environment = {"PARLOUR_OWNERS": f"discord:{ANN}", **discord.settings(REACTION="")}
    async with gateway(model=model, environment=environment) as parlour:
        await discord.until(lambda: discord.gateway.identified and discord.interactions.registered)
        yield parlour


async def test_a_server_waits_in_silence_for_the_owners_yes(discord: DiscordServer) -> None:
    """Added to a server: Ann is asked with buttons; Ben, who calls, is told in private, and answered after her yes."""
    model = InstantModel()
    discord.has_joined = False
    async with owned(discord, model) as parlour:
        direct = discord.direct(ANN)
        discord.say(direct, ANN, "hello")
        await discord.until(lambda: bool(discord.chat(direct)))
        discord.join_server(is_in=True)
        question = await asked(discord, direct)
        (waiting,) = parlour.app.pairing.pending_requests()
        assert waiting.who == f"guild:{GUILD}"
        assert "Should I answer all members there?" in question["content"]
        discord.say(GENERAL, BEN, f"{CALL} hello?")
        private = discord.direct(BEN)
        await discord.until(lambda: bool(discord.chat(private)))
        assert "I'm new here" in discord.chat(private)[0]
        assert discord.chat(GENERAL) == []
        assert [str(each.reason) for each in parlour.app.refusals.recent("discord", BEN)] == ["place-pending"]
        discord.interactions.press(question["id"], ANN, f"/pair yes {waiting.ref}")
        await discord.until(lambda: len(discord.chat(direct)) == 3)
        discord.say(GENERAL, BEN, f"{CALL} and now?")
        await discord.until(lambda: bool(discord.chat(GENERAL)))
        await parlour.idle()
        assert model.calls == 2


async def test_a_strangers_slash_command_is_answered_at_once(discord: DiscordServer) -> None:
    """Discord waits three seconds for it: the line is there in time, for them alone, the server's one of the day.

    A direct message afterwards has a line of its own, with the code: notices in shared chats have a separate budget.
    """
    async with owned(discord, InstantModel()) as parlour:
        first = discord.interactions.use(GENERAL, EVA, "status")
        await discord.until(lambda: bool(first.acknowledged))
        discord.say(GENERAL, EVA, f"{CALL} hello?")
        discord.say(discord.direct(EVA), EVA, "and here?")
        discord.say(discord.direct(ANN), ANN, "hello")
        await discord.until(lambda: bool(discord.chat(discord.direct(ANN))))
        await discord.until(lambda: bool(discord.chat(discord.direct(EVA))))
        await parlour.idle()
        assert discord.chat(GENERAL) == []
        (line,) = discord.chat(discord.direct(EVA))
        assert "Your code is" in line
        assert [each.who for each in parlour.app.pairing.pending_requests()] == [str(EVA)]


@asynccontextmanager
async def sending(services: FakePageServices, discord: DiscordServer) -> AsyncIterator[DiscordChannel]:
    """Run a channel that waits for the connection which another worker has."""
    channel = DiscordChannel(replace(services.context("discord", block(discord)), connections=GrantedClaims()))
    running = asyncio.create_task(channel.run_sender(), name="discord sender")
    try:
        yield channel
    finally:
        running.cancel()
        await asyncio.wait({running})
        await channel.close()


def first_part(channel: DiscordChannel, message: OutboundMessage) -> MessagePart:
    """Return the first part of *message*."""
    return channel.render(message)[0]


async def test_a_native_command_is_answered_by_another_worker(
    discord: DiscordServer, services: FakePageServices
) -> None:
    """The response that shows "is thinking" is replaced, although the command did not come here; once."""
    direct = discord.direct(ANN)
    async with connected(services, discord, commands="global"), sending(services, discord) as other:
        await discord.until(lambda: discord.interactions.registered)
        used = discord.interactions.use(direct, ANN, "usage")
        message = (await services.wait_deliveries(1))[-1]
        await discord.until(lambda: used.acknowledged)
        answer = OutboundMessage(id=f"{turn_id(message)}.1", key=message.key, text="Little.", kind=OutboundKind.NOTICE)
        assert (await other.send(first_part(other, answer))).message_id
        assert used.original == "Little."


async def test_rights_and_history_are_read_over_rest(discord: DiscordServer, services: FakePageServices) -> None:
    """An admin's command runs in the worker that has the chat; a guild is read once for many messages."""
    discord.members[BEN]["roles"] = [ADMIN_ROLE]
    async with connected(services, discord), sending(services, discord) as other:
        discord.say(GENERAL, ANN, "The roof is green.")
        discord.say(GENERAL, BEN, f"<@{BOT}> what did we decide?")
        asked = (await services.wait_deliveries(2))[-1]
        for kind in (InboundKind.BUTTON, InboundKind.COMMAND, InboundKind.MESSAGE):
            sender = await other.sender(replace(asked, kind=kind))
            assert (sender.is_admin, sender.roles) == (True, (ADMIN_ROLE,))
        assert not (await other.sender(replace(asked, sender=replace(asked.sender, id=ANN)))).is_admin
        before = await other.messages_before(asked, since=None, limit=10)
        assert [each.text for each in before] == ["The roof is green."]
    guild_reads = [each for each in discord.requests if each.kind == "guilds"]
    assert len(guild_reads) == 1
