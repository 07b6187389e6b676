"""What Discord delivers: messages, facts, edits, catch-up, broken connections, and events of another shape."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from gateway.errors import UserError
from gateway.events import ChatKind, InboundKind, InboundMessage
from gateway.ports.channel import IntakeResult, IntakeVerdict, PlatformEvent
from tests.fakes.discord_harness import connected, ready
from tests.fakes.discord_records import ADMIN_ROLE, ANN, BEN, BOT, BOT_ROLE, GENERAL, GUILD, RANDOM, TEAM_ROLE
from tests.fakes.discord_server import DiscordServer
from tests.fakes.web_services import FakePageServices

CALL = f"<@{BOT}>"


STEP = timedelta(seconds=1)


async def wait_messages(services: FakePageServices, number: int) -> InboundMessage:
    """Return the newest message once there are so many."""
    return (await services.wait_deliveries(number))[number - 1]


async def test_a_mention_in_a_server_comes_with_its_facts(discord: DiscordServer, services: FakePageServices) -> None:
    """Key, sender, roles, server and that we are meant; our name instead of our id."""
    discord.members[ANN]["roles"] = [TEAM_ROLE]
    async with connected(services, discord):
        ident = discord.say(GENERAL, ANN, f"{CALL} what is the time, <@{BEN}>?")
        message = await wait_messages(services, 1)
    assert (str(message.key), message.message_id) == (f"discord:{GENERAL}", ident)
    assert message.text == "@Parlour what is the time, @Ben?"
    assert (message.sender.id, message.sender.name, message.sender.roles) == (ANN, "Ann", (TEAM_ROLE,))
    assert (message.guild, message.chat_kind, message.is_addressed) == (GUILD, ChatKind.GROUP, True)
    assert not message.sender.is_admin


async def test_what_addresses_us(discord: DiscordServer, services: FakePageServices) -> None:
    """A mention, our role, a reply to us; not a mention of everyone, nor a reply to somebody else."""
    async with connected(services, discord):
        ours = discord.say(GENERAL, BOT, "an answer")
        discord.say(GENERAL, ANN, "plain")
        discord.say(GENERAL, ANN, f"<@&{BOT_ROLE}> hello")
        discord.say(GENERAL, ANN, "and this?", reply_to=ours)
        discord.say(GENERAL, ANN, "@everyone", mention_everyone=True)
        messages = await services.wait_deliveries(4)
    assert [message.is_addressed for message in messages] == [False, True, True, False]
    assert (messages[2].reply_to, messages[2].quoted) == (ours, "an answer")


async def test_who_is_a_person_and_who_decides(discord: DiscordServer, services: FakePageServices) -> None:
    """Our own words and joins are nobody's; bots and webhooks are facts; who manages the server is an admin."""
    discord.members[BEN]["roles"] = [ADMIN_ROLE]
    async with connected(services, discord):
        discord.say(GENERAL, BOT, "our own")
        discord.say(GENERAL, ANN, "", type=7)
        discord.say(GENERAL, ANN, f"{CALL} beep", author={**discord.users[ANN], "bot": True})
        discord.say(GENERAL, ANN, f"{CALL} hook", webhook_id="77")
        discord.say(GENERAL, BEN, f"{CALL} hello")
        messages = await services.wait_deliveries(3)
    assert [message.sender.is_bot for message in messages] == [True, True, False]
    assert [message.sender.is_admin for message in messages] == [False, False, True]


async def test_threads_are_sessions_and_private_ones_are_private(
    discord: DiscordServer, services: FakePageServices
) -> None:
    """`<parent>/<thread>`; a thread that only the invited read says so."""
    async with connected(services, discord):
        public = discord.open_thread(GENERAL, "plans")
        private = discord.open_thread(GENERAL, "secrets", private=True)
        discord.say(public, ANN, f"{CALL} a")
        first = await wait_messages(services, 1)
        discord.say(private, ANN, f"{CALL} b")
        second = await wait_messages(services, 2)
    assert (str(first.key), first.is_private) == (f"discord:{GENERAL}/{public}", False)
    assert (str(second.key), second.is_private) == (f"discord:{GENERAL}/{private}", True)


async def test_a_thread_we_were_called_into_needs_no_second_mention(
    discord: DiscordServer, services: FakePageServices
) -> None:
    """Until its people address somebody else; over a restart too."""
    async with connected(services, discord):
        thread = discord.open_thread(GENERAL, "plans")
        for number, text in enumerate(("before", f"{CALL} come", "go on"), 1):
            discord.say(thread, ANN, text)
            await wait_messages(services, number)
    async with connected(services, discord):
        for number, text in enumerate(("still here?", f"<@{BEN}> you?", "and now"), 4):
            discord.say(thread, ANN, text)
            await wait_messages(services, number)
    assert [message.is_addressed for message in services.deliveries] == [False, True, True, True, False, False]


async def test_edits_and_deletions(discord: DiscordServer, services: FakePageServices) -> None:
    """An edit repeats the id with another revision; an embed that resolves is none; each deleted message is named."""
    async with connected(services, discord):
        idents = [discord.say(GENERAL, ANN, f"{CALL} one"), discord.say(GENERAL, ANN, f"{CALL} two")]
        discord.resolve_embed(idents[0])
        discord.edit(idents[0], f"{CALL} one!")
        discord.delete(*idents)
        messages = await services.wait_deliveries(5)
    edit, *gone = messages[2:]
    assert (edit.message_id, edit.text, bool(edit.revision)) == (idents[0], "@Parlour one!", True)
    assert [(each.kind, each.message_id) for each in gone] == [(InboundKind.DELETION, ident) for ident in idents]


async def test_files_are_facts(discord: DiscordServer, services: FakePageServices) -> None:
    """Kind, name, size and address; nothing is downloaded."""
    attachments = [
        {"id": "1", "filename": "a.png", "size": 12, "content_type": "image/png", "url": "https://cdn.invalid/a"},
        {"id": "2", "filename": "v.ogg", "size": 34, "content_type": "audio/ogg", "url": "https://cdn.invalid/v"},
        {"id": "3", "filename": "x.pdf", "size": 56, "content_type": "application/pdf", "url": "https://cdn.invalid/x"},
    ]
    async with connected(services, discord):
        discord.say(discord.direct(ANN), ANN, "look", attachments=attachments, flags=1 << 13)
        message = await wait_messages(services, 1)
    assert [(each.kind, each.name, each.size) for each in message.attachments] == [
        ("image", "a.png", 12), ("voice", "v.ogg", 34), ("document", "x.pdf", 56),
    ]  # fmt: skip
    assert message.chat_kind is ChatKind.DIRECT


async def test_what_could_not_be_stored_is_read_again_in_order(
    discord: DiscordServer, services: FakePageServices
) -> None:
    """Discord has no ack: after a failed accept the chat is read from its mark, and what comes live waits behind."""
    async with connected(services, discord):
        discord.say(GENERAL, ANN, f"{CALL} 0")
        await wait_messages(services, 1)
        services.is_down = True
        discord.say(GENERAL, ANN, f"{CALL} 1")
        await wait_messages(services, 2)
        discord.say(GENERAL, ANN, f"{CALL} 2")
        discord.say(RANDOM, BEN, f"{CALL} elsewhere")
        services.is_down = False
        await discord.until(lambda: len(reactions(discord)) >= 4)
        assert any(each.method == "GET" and each.kind == "messages" for each in discord.requests)
    assert [each.text for each in services.accepted if each.key.chat == GENERAL] == [f"@Parlour {n}" for n in range(3)]


def reactions(discord: DiscordServer) -> set[str]:
    """Return the messages that were marked as heard."""
    return {ident for ident, _, on in discord.reactions if on}


@pytest.mark.parametrize("way", ["restart", "invalid session"])
async def test_what_was_said_meanwhile_is_read_back(
    discord: DiscordServer, services: FakePageServices, way: str
) -> None:
    """In servers, in chats never used before, in known direct chats, and with roles as they are now."""
    direct = discord.direct(ANN)

    def said_meanwhile() -> None:
        discord.say(direct, ANN, "meanwhile, directly")
        discord.say(GENERAL, BEN, f"{CALL} meanwhile")
        discord.say(RANDOM, BEN, f"{CALL} somewhere new")
        discord.members[BEN]["roles"] = [TEAM_ROLE]

    if way == "restart":
        async with connected(services, discord) as channel:
            discord.say(direct, ANN, "before")
            discord.say(GENERAL, ANN, f"{CALL} before")
            await services.wait_deliveries(2)
            await channel._shards[0].gateway._cursors.save_account(discord.now())
        discord.members[BEN]["roles"] = []
        said_meanwhile()
        discord.skew += STEP
        async with connected(services, discord):
            await services.wait_deliveries(5)
    else:
        async with connected(services, discord) as channel:
            discord.say(direct, ANN, "before")
            discord.say(GENERAL, ANN, f"{CALL} before")
            await services.wait_deliveries(2)
            await channel._shards[0].gateway._cursors.save_account(discord.now())
            await discord.gateway.invalidate()
            said_meanwhile()
            await services.wait_deliveries(5)
    said = {each.text: each for each in services.accepted}
    assert set(said) == {
        "before", "@Parlour before", "meanwhile, directly", "@Parlour meanwhile", "@Parlour somewhere new",
    }  # fmt: skip
    assert said["@Parlour meanwhile"].sender.roles == (TEAM_ROLE,)


async def test_an_older_backlog_than_a_day_is_left_alone(discord: DiscordServer, services: FakePageServices) -> None:
    """What was said in the last day is read, what was said before is not."""
    async with connected(services, discord):
        discord.say(GENERAL, ANN, f"{CALL} before")
        await wait_messages(services, 1)
    discord.skew = -timedelta(hours=25)
    old = discord.say(GENERAL, ANN, f"{CALL} old")
    discord.skew = timedelta()
    discord.say(GENERAL, ANN, f"{CALL} new")
    discord.messages[GENERAL].sort(key=lambda message: int(message["id"]))
    async with connected(services, discord):
        await services.wait_deliveries(2)
    assert old not in {each.message_id for each in services.deliveries}


async def test_connections_that_break_cost_nothing(discord: DiscordServer, services: FakePageServices) -> None:
    """A cut, a request to reconnect and a malformed frame: resumed or begun anew, and each message comes once."""
    async with connected(services, discord) as channel:
        for number, trouble in enumerate(("cut", "op 7", "garbage"), 1):
            if trouble == "cut":
                await discord.gateway.drop()
            elif trouble == "op 7":
                await discord.gateway.ask_reconnect()
            else:
                await discord.gateway.send_raw("[]")
            discord.say(GENERAL, ANN, f"{CALL} {trouble}")
            await discord.until(lambda: len(reactions(discord)) >= number)  # noqa: B023 - waited for right here
            await ready(channel)
        assert discord.gateway.resumed == 2
    assert [each.text for each in services.accepted] == ["@Parlour cut", "@Parlour op 7", "@Parlour garbage"]


@pytest.mark.parametrize("what", ["token", "intent"])
async def test_a_refusal_of_discords_ends_with_a_line_that_mends_it(
    discord: DiscordServer, services: FakePageServices, what: str
) -> None:
    """A wrong token and a missing intent are told in words, and not tried again at once."""
    discord.token = "another" if what == "token" else discord.token
    discord.allows_content = what == "token"
    with pytest.raises(UserError, match="Reset Token" if what == "token" else "Message Content Intent"):
        async with connected(services, discord):
            pass
    assert discord.gateway.identified <= 1


@pytest.mark.parametrize("reply_in", ["channel", "thread"])
async def test_a_stranger_costs_nothing_but_the_reading(
    discord: DiscordServer, services: FakePageServices, reply_in: str
) -> None:
    """No reaction, no typing, no word, no thread, no durable mark."""
    services.verdict = IntakeResult(verdict=IntakeVerdict.REJECTED, reason="stranger")
    async with connected(services, discord, reply_in=reply_in):
        discord.say(GENERAL, ANN, f"{CALL} hello")
        discord.say(discord.direct(BEN), BEN, "hello")
        await services.wait_deliveries(2)
    assert {each.method for each in discord.requests} == {"GET"}
    # The server that we are in, the session and how far it was read, and nobody of it.
    assert services.state.notes.keys() <= {"guilds", "session", "account"}
    assert services.state.notes["guilds"] == '["3001"]'


async def test_silence_is_not_connected(discord: DiscordServer, services: FakePageServices) -> None:
    """Connected means heard: when heartbeats go unanswered, the channel says that it is deaf."""
    discord.gateway.heartbeat = 40
    async with connected(services, discord) as channel:
        discord.gateway.is_mute = True
        while channel.is_ready():  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.01)
        discord.gateway.is_mute = False
        await ready(channel)


@dataclass
class QuarantineSkippingServices(FakePageServices):
    """Passes over what is set aside, as the gateway does, and counts how many events it holds at once."""

    passed_over: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0

    async def handle(self, event: PlatformEvent, work: Callable[[], Awaitable[None]]) -> None:
        """Run *work*."""
        self.names.append(event.id)
        if event.id in self.quarantined:
            self.passed_over.append(event.id)
            return
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(0)
            await super().handle(event, work)
        finally:
            self.at_once -= 1


async def test_a_message_of_another_shape_is_set_aside_and_the_chat_goes_on(discord: DiscordServer) -> None:
    """Set aside under its message id; after a restart history brings it again, and it is passed over."""
    services = QuarantineSkippingServices()
    async with connected(services, discord):
        discord.say(GENERAL, ANN, f"{CALL} one")
        await services.wait_deliveries(1)
        discord.say(GENERAL, ANN, f"{CALL} bad", mentions=[{"id": None}, 5])
        discord.say(GENERAL, ANN, f"{CALL} two")
        await services.wait_deliveries(2)
        notes = dict(services.state.notes)
        poison = discord.say(GENERAL, ANN, f"{CALL} poison", mentions=[{"id": None}, 5])
        while len(services.quarantined) < 2:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.005)
    services.state.notes = notes  # as a kill would leave them: marks are saved now and then
    async with connected(services, discord):
        discord.say(GENERAL, ANN, f"{CALL} three")
        await discord.until(lambda: any(each.text == "@Parlour three" for each in services.accepted))
    assert services.passed_over.count(f"message/{poison}") >= 1
    assert [each.text for each in services.accepted] == ["@Parlour one", "@Parlour two", "@Parlour three"]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("CHANNEL_UPDATE", {"id": "x", "guild_id": "3001"}),
        ("THREAD_CREATE", {"id": [], "guild_id": "3001"}),
        ("GUILD_ROLE_UPDATE", {"guild_id": "3001", "role": 7}),
        ("MESSAGE_DELETE", {"id": "no number", "channel_id": GENERAL}),
        ("INTERACTION_CREATE", {"id": "77", "channel_id": GENERAL, "type": 2}),
    ],
)
async def test_an_event_that_the_library_trips_over_does_not_end_it(
    discord: DiscordServer, name: str, data: dict[str, object]
) -> None:
    """discord.py dies on a malformed dispatch; here it is set aside, and the connection stays."""
    services = QuarantineSkippingServices()
    async with connected(services, discord):
        discord.gateway.dispatch(name, dict(data), guild=True)
        discord.say(GENERAL, ANN, f"{CALL} still here")
        await services.wait_deliveries(1)
        while not services.quarantined:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.005)
    assert discord.gateway.identified == 1
    assert len(services.quarantined) == 1


async def test_after_two_kills_events_are_handled_one_at_a_time(discord: DiscordServer) -> None:
    """What kills us is then known: no other event is in anybody's hands."""
    services = QuarantineSkippingServices(is_cautious=True)
    async with connected(services, discord):
        for number in range(4):
            discord.say(GENERAL, ANN, f"{CALL} {number}")
            discord.say(RANDOM, BEN, f"{CALL} {number}")
        await services.wait_deliveries(8)
    assert services.most_at_once == 1
    services = QuarantineSkippingServices()
    async with connected(services, discord):
        for number in range(4):
            discord.say(GENERAL, ANN, f"{CALL} {number}")
            discord.say(RANDOM, BEN, f"{CALL} {number}")
        await services.wait_deliveries(8)
    assert services.most_at_once == 2  # else it says nothing about caution


async def test_an_event_has_one_name_live_and_as_history(discord: DiscordServer, services: FakePageServices) -> None:
    """So that what was set aside live is known when history brings it; an edit has another."""
    careful = QuarantineSkippingServices()
    async with connected(careful, discord) as channel:
        discord.say(GENERAL, ANN, f"{CALL} zero")
        await careful.wait_deliveries(1)
        ident = discord.say(GENERAL, ANN, f"{CALL} one")
        await careful.wait_deliveries(2)
        await channel._shards[0].gateway._cursors.save_account(discord.now())
        await discord.gateway.invalidate()
        discord.edit(ident, f"{CALL} one!")
        discord.say(GENERAL, ANN, f"{CALL} later")
        await discord.until(lambda: any(each.revision for each in careful.deliveries))
    edited = discord.find(ident)[1]["edited_timestamp"]
    assert f"message/{ident}" in careful.names
    assert f"message/{ident}/{edited}" in careful.names
