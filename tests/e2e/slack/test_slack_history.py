"""Called into a running conversation, it reads what was said before: in the thread, or in the channel, and no more."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from gateway.admission import Admitted, admit, policy_of
from gateway.channel import ChannelHistory, SupportsHistory
from gateway.events import InboundMessage
from tests.fakes.access_scene import FixedJudge
from tests.fakes.slack import RunningSlack, running, slack
from tests.fakes.slack_server import ANN, BOB, BOT_USER, DM, EVE, ROOM, SlackFault, SlackServer, slack_server
from tests.fakes.web_services import FakePageServices

CALL = f"<@{BOT_USER}>"


async def receive_message(up: RunningSlack, place: str, user: str, text: str, **more: Any) -> InboundMessage:
    """Let somebody write and return what arrived."""
    ts = up.server.say(place, user, text, **more)
    await up.server.until(lambda: any(message.message_id == ts for message in up.services.accepted))
    return next(message for message in up.services.accepted if message.message_id == ts)


async def before(up: RunningSlack, message: InboundMessage, **more: Any) -> list[str]:
    """Return the words before *message*."""
    assert isinstance(up.channel, SupportsHistory)
    return [each.text for each in await up.channel.messages_before(message, **{"since": None, "limit": 50, **more})]


async def test_a_thread_is_read_from_its_start_and_the_newest() -> None:
    """Names, times and facts of each; our own words, joins and what came later are not in it."""
    async with slack() as up:
        root = up.server.say(ROOM, BOB, "shall we move the date?", quiet=True)
        for n in range(450):
            up.server.say(ROOM, (ANN, BOB)[n % 2], f"reply {n}", thread=root, quiet=True)
        up.server.say(ROOM, BOT_USER, "ours", thread=root, quiet=True)
        up.server.say(ROOM, EVE, "has joined", thread=root, quiet=True, subtype="channel_join")
        up.server.say(ROOM, EVE, f"<@{ANN}> &amp; <@{BOB}>?", thread=root, quiet=True)
        call = await receive_message(up, ROOM, ANN, f"{CALL} what do you think?", thread=root)
        up.server.say(ROOM, BOB, "too late", thread=root, quiet=True)
        said = await up.channel.messages_before(call, since=None, limit=50)
        assert said[0].text == "shall we move the date?"
        assert [each.text for each in said[1:-1]] == [f"reply {n}" for n in range(401, 450)]
        assert said[-1].text == "@Ann & @Bob?"
        assert {(each.sender.id, each.sender.name) for each in said} == {(ANN, "Ann"), (BOB, "Bob"), (EVE, "Eve")}
        assert {str(each.key) for each in said} == {f"slack:{ROOM}/{root}"}
        assert [each.sent_at for each in said] == sorted(each.sent_at for each in said)


async def test_of_an_endless_thread_the_last_hour_is_read() -> None:
    """A thread that is too long to be read through is not taken for short: its start, and its newest words."""
    async with slack() as up:
        up.server.ago = 7_200
        root = up.server.say(ROOM, BOB, "a long story", quiet=True)
        for n in range(1_100):
            up.server.say(ROOM, BOB, f"old {n}", thread=root, quiet=True)
        up.server.ago = up.server._last = 0
        for n in range(60):
            up.server.say(ROOM, BOB, f"new {n}", thread=root, quiet=True)
        call = await receive_message(up, ROOM, ANN, f"{CALL} what now?", thread=root)
        assert await before(up, call) == ["a long story", *(f"new {n}" for n in range(10, 60))]
        assert len(up.server.called("conversations.replies")) == 6


async def test_a_mention_in_a_channel_reads_the_channel() -> None:
    """Its newest words before the mention; other threads' replies are not among them."""
    async with slack() as up:
        for n in range(70):
            ts = up.server.say(ROOM, BOB, f"word {n}", quiet=True)
        up.server.say(ROOM, BOB, "in a thread", thread=ts, quiet=True)
        call = await receive_message(up, ROOM, ANN, f"{CALL} hello")
        assert await before(up, call) == [f"word {n}" for n in range(20, 70)]
        assert await before(up, call, limit=3) == ["word 67", "word 68", "word 69"]
        since = (await up.channel.messages_before(call, since=None, limit=2))[0].sent_at
        assert await before(up, call, since=since) == ["word 69"]
        assert await before(up, call, since=since + timedelta(hours=1)) == []
    async with slack(reply_in="channel") as up:
        up.server.say(ROOM, BOB, "word", quiet=True)
        call = await receive_message(up, ROOM, ANN, f"{CALL} hello")
        assert await before(up, call) == ["word"]


async def test_only_admitted_people_are_quoted() -> None:
    """Guests, strangers, bots and people of elsewhere carry their facts, and the gateway leaves them out."""
    server = SlackServer()
    server.users[BOB] |= {"is_restricted": True}
    server.users[EVE] |= {"team_id": "T0FAR"}
    policy = policy_of("slack", ["team:T0HOME"], (), "mention")
    async with slack_server(server), running(server, FakePageServices(), allow_from=["team:T0HOME"]) as up:
        server.say(ROOM, ANN, "from a member", quiet=True)
        server.say(ROOM, BOB, "from a guest", quiet=True)
        server.say(ROOM, EVE, "from elsewhere", quiet=True)
        server.say(ROOM, "U0APP", "from an app", quiet=True, bot_id="B0APP")
        call = await receive_message(up, ROOM, ANN, f"{CALL} hello")
        admits = FixedJudge(lambda each: admit(each, policy)).may_be_read
        said = await ChannelHistory({"slack": up.channel}, admits=admits).messages_before(call, since=None)
        assert [each.text for each in said] == ["from a member"]
        assert len(await up.channel.messages_before(call, since=None, limit=50)) == 4


async def test_where_slack_does_not_say_who_it_was_nobody_is_let_in() -> None:
    """An unknown sender counts as a guest: a stranger where membership decides, and nothing else to who is named."""
    for entries in (["team:T0HOME"], [ANN, BOB]):
        async with slack(allow_from=entries) as up:
            up.server.say(ROOM, BOB, "who am I?", quiet=True)
            call = await receive_message(up, ROOM, ANN, f"{CALL} hello")
            up.server.faults["users.info"] = [SlackFault(status=503)]
            (said,) = await up.channel.messages_before(call, since=None, limit=50)
            assert said.sender.is_guest
            decision = admit(replace(said, is_addressed=True), policy_of("slack", entries, (), "mention"))
            assert isinstance(decision, Admitted) is (BOB in entries)


async def test_what_comes_to_us_anyway_costs_no_call() -> None:
    """Direct messages, and threads we follow already; once its people turned away, it is read again."""
    async with slack() as up:
        direct = await receive_message(up, DM, ANN, "hello")
        assert await before(up, direct) == []
        root = up.server.say(ROOM, BOB, "a thread", quiet=True)
        called = await receive_message(up, ROOM, ANN, f"{CALL} hello", thread=root)
        assert await before(up, called) == ["a thread"]
        count = len(up.server.calls)
        follow_up = await receive_message(up, ROOM, BOB, "and a follow-up", thread=root)
        assert await before(up, follow_up, since=called.sent_at) == []
        assert [name for name, _ in up.server.calls[count:] if name.startswith("conversations")] == []
        await receive_message(up, ROOM, BOB, f"<@{ANN}> lunch?", thread=root)
        up.server.say(ROOM, ANN, "yes", thread=root, quiet=True)
        again = await receive_message(up, ROOM, ANN, f"{CALL} back to you", thread=root)
        assert (await before(up, again))[-2:] == ["@Ann lunch?", "yes"]
    async with slack(group_policy="open") as up:
        up.server.say(ROOM, BOB, "word", quiet=True)
        call = await receive_message(up, ROOM, ANN, f"{CALL} hello")
        assert await before(up, call) == []
        assert up.server.called("conversations.history") == []


async def test_without_the_scope_there_is_nothing_and_no_failure() -> None:
    """A turn can do without; a limit or a broken line is an error that the gateway takes for nothing as well."""
    async with slack() as up:
        up.server.say(ROOM, BOB, "word", quiet=True)
        call = await receive_message(up, ROOM, ANN, f"{CALL} hello")
        services = ChannelHistory({"slack": up.channel}, admits=lambda _: True)
        for fault in (SlackFault(status=429, error="ratelimited", retry_after=30), SlackFault(status=503)):
            up.server.faults["conversations.history"] = [fault]
            assert await services.messages_before(call, since=None) == ()
        assert [each.text for each in await services.messages_before(call, since=None)] == ["word"]
        up.server.scopes.discard("channels:history")
        for _ in range(2):
            assert await before(up, call) == []
        assert up.channel._history._logged == {"missing_scope"}
