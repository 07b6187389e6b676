"""What people write in Slack reaches the gateway once, and is acknowledged when it is durable: over a real socket."""

from __future__ import annotations

import asyncio

import pytest

from gateway.errors import ParlourError, RetryLater
from gateway.events import InboundKind
from gateway.ports.channel import IntakeResult, IntakeVerdict
from tests.fakes.conditions import eventually
from tests.fakes.slack import build, running, slack
from tests.fakes.slack_server import ANN, BOB, BOT_USER, DM, EVE, ROOM, SlackFault, SlackServer, slack_server
from tests.fakes.web_services import FakePageServices

CALL = f"<@{BOT_USER}>"


async def test_a_mention_is_one_message() -> None:
    """It comes as `message` and as `app_mention`; both are the same to the journal."""
    async with slack() as up:
        ts = up.server.say(ROOM, BOB, f"{CALL} hello")
        await up.server.until(lambda: len(up.server.acks) == 2)
        first, second = up.services.deliveries
        assert first.logical_key == second.logical_key == f"{ROOM}/{ts}/{ts}"
        assert first.is_addressed
        assert second.is_addressed
        assert len(up.services.accepted) == 1


async def test_two_people_at_once_are_two_threads() -> None:
    """With `reply_in: thread` each message of a channel starts a session of its own; `channel` keeps one."""
    async with slack() as up:
        times = [up.server.say(ROOM, who, f"{CALL} hello") for who in (ANN, BOB)]
        await up.server.until(lambda: len(up.server.acks) == 4)
        assert {heard.key.chat for heard in up.services.accepted} == {f"{ROOM}/{ts}" for ts in times}
    async with slack(reply_in="channel") as up:
        for who in (ANN, BOB):
            up.server.say(ROOM, who, f"{CALL} hello")
        await up.server.until(lambda: len(up.server.acks) == 4)
        assert {heard.key.chat for heard in up.services.accepted} == {ROOM}


async def test_an_edit_and_a_deletion_are_told_an_unfurl_is_not() -> None:
    """The same message with a revision, then a deletion by its id; Slack's own additions are nobody's words."""
    async with slack() as up:
        ts = up.server.say(DM, ANN, "helo")
        await up.server.until(lambda: len(up.server.acks) == 1)
        up.server.unfurl(DM, ts)
        up.server.edit(DM, ts, "hello")
        await up.server.until(lambda: len(up.server.acks) == 3)
        up.server.delete(DM, ts)
        await up.server.until(lambda: len(up.server.acks) == 4)
        first, edited, gone = up.services.deliveries
        assert (edited.text, edited.message_id, first.revision, edited.revision != "") == ("hello", ts, "", True)
        assert (gone.kind, gone.message_id, gone.sender.id) == (InboundKind.DELETION, ts, ANN)


# -- threads that we follow


async def test_a_thread_we_were_called_into_needs_no_second_mention() -> None:
    """Until its people address somebody else; a mention brings us back. It survives a restart."""
    services = FakePageServices()
    async with slack_server() as server:
        async with running(server, services) as up:
            ts = server.say(ROOM, ANN, "shall we?", quiet=True)
            server.say(ROOM, BOB, "hm", thread=ts)
            server.say(ROOM, ANN, f"{CALL} what do you think?", thread=ts)
            await server.until(lambda: len(server.acks) == 3)
            server.say(ROOM, BOB, "and why?", thread=ts)
            await server.until(lambda: len(server.acks) == 4)
            assert up.channel.is_ready()
        async with running(server, services):
            server.say(ROOM, EVE, "still?", thread=ts)
            await server.until(lambda: len(server.acks) == 5)
            server.say(ROOM, BOB, f"<@{ANN}> come to lunch", thread=ts)
            await server.until(lambda: len(server.acks) == 6)
            server.say(ROOM, ANN, "yes", thread=ts)
            await server.until(lambda: len(server.acks) == 7)
            server.say(ROOM, ANN, f"{CALL} sorry, go on", thread=ts)
            await server.until(lambda: len(server.acks) == 9)
            server.say(ROOM, ANN, "please", thread=ts)
            await server.until(lambda: len(server.acks) == 10)
        assert [heard.is_addressed for heard in services.accepted] == [
            False,
            True,
            True,
            True,
            False,
            False,
            True,
            True,
        ]


async def test_threads_can_be_left_alone() -> None:
    """`follow_threads: false` asks for a mention each time."""
    async with slack(follow_threads=False) as up:
        ts = up.server.say(ROOM, ANN, f"{CALL} hi")
        await up.server.until(lambda: len(up.server.acks) == 2)
        up.server.say(ROOM, ANN, "more", thread=ts)
        await up.server.until(lambda: len(up.server.acks) == 3)
        assert not up.services.deliveries[-1].is_addressed


# -- durability


@pytest.mark.parametrize("how", ["refresh_requested", "warning", "cut"])
async def test_a_connection_that_ends_is_followed_by_another(how: str) -> None:
    """Refresh and loss cost no message and no restart of the channel."""
    async with slack() as up:
        up.server.say(DM, ANN, "before")
        await up.server.until(lambda: len(up.server.acks) == 1)
        await (up.server.cut() if how == "cut" else up.server.refresh(how))
        await up.server.until(lambda: up.server.connections == 2)
        up.server.say(DM, ANN, "after")
        await up.server.until(lambda: len(up.server.acks) == 2)
        assert [heard.text for heard in up.services.accepted] == ["before", "after"]
        await eventually(up.channel.is_ready)


# -- who it is


async def test_guests_and_strangers_from_elsewhere_are_known() -> None:
    """Guest, foreign workspace and bot come from users.info, asked once for five minutes."""
    server = SlackServer()
    server.users[BOB] |= {"is_restricted": True}
    server.users[EVE] |= {"team_id": "T0FAR", "is_admin": True}
    async with slack_server(server), running(server, FakePageServices(), allow_from=["team:T0HOME"]) as up:
        for who in (ANN, BOB, EVE, BOB):
            server.say(ROOM, who, f"hello {who}")
        await server.until(lambda: len(server.acks) == 4)
        facts = [(heard.sender.id, heard.sender.is_guest, heard.sender.team) for heard in up.services.deliveries]
        assert facts == [(ANN, False, "T0HOME"), (BOB, True, "T0HOME"), (EVE, True, "T0FAR"), (BOB, True, "T0HOME")]
        assert not up.services.deliveries[2].sender.is_admin
        assert len(server.called("users.info")) == 3


async def test_a_look_up_that_is_refused_fails_closed() -> None:
    """Where a workspace lets people in, somebody of whom Slack says nothing counts as a guest."""
    async with slack(allow_from=["team:T0HOME"]) as up:
        up.server.scopes.discard("users:read")
        up.server.say(DM, ANN, "hi")
        await up.server.until(lambda: len(up.server.acks) == 1)
        assert up.services.deliveries[0].sender.is_guest


async def test_a_look_up_that_breaks_leaves_the_message_with_slack() -> None:
    """Not known now is not refused: no ack, and the next delivery knows."""
    async with slack(allow_from=["team:T0HOME"]) as up:
        up.server.ack_within = 1.0  # more than a machine under load takes to hear the second one
        up.server.faults["users.info"] = [SlackFault(status=503)]
        up.server.say(DM, ANN, "hi")
        await up.server.until(lambda: len(up.server.acks) == 1)
        assert len(up.server.deliveries) == 2
        (heard,) = up.services.deliveries
        assert not heard.sender.is_guest


async def test_where_people_are_named_a_look_up_only_names_them() -> None:
    """Without it a message is taken all the same."""
    async with slack(allow_from=[ANN]) as up:
        up.server.faults["users.info"] = [SlackFault(status=503)]
        up.server.say(DM, ANN, "hi")
        await up.server.until(lambda: len(up.server.acks) == 1)
        assert up.services.deliveries[0].sender.name == ""


async def test_a_line_for_the_sender_reaches_them_alone() -> None:
    """What the gateway says beside a message is ephemeral in a channel."""
    async with slack() as up:
        up.services.verdict = IntakeResult(verdict=IntakeVerdict.REJECTED, reason="capped", line="Come back tomorrow.")
        up.server.say(ROOM, BOB, f"{CALL} hi")
        await up.server.until(lambda: bool(up.server.places[ROOM].whispers))
        assert up.server.places[ROOM].whispers[0]["user"] == BOB
        up.server.say(DM, ANN, "hi")
        await up.server.until(lambda: up.server.shown(DM) == ["Come back tomorrow."])


# -- what ends a channel


@pytest.mark.parametrize("token", ["bot", "app"])
async def test_a_wrong_token_ends_the_channel_with_a_clear_line(token: str) -> None:
    """It is said what is wrong, and Slack is not asked again and again."""
    server = SlackServer()
    if token == "bot":
        server.bot_token = "xoxb-another-one-0000"
    else:
        server.app_token = "xapp-another-one-0000"
    async with slack_server(server):
        channel = build(server, FakePageServices())
        with pytest.raises(ParlourError, match=r"rejects the (app-level )?token: invalid_auth"):
            await channel.run()
        assert not channel.is_ready()
        await channel.close()
        assert len(server.calls) == (1 if token == "bot" else 2)


async def test_socket_mode_switched_off_ends_the_channel() -> None:
    """Nothing that asking again would mend."""
    async with slack_server() as server:
        channel = build(server, FakePageServices())
        running_ = asyncio.create_task(channel.run())
        await eventually(channel.is_ready)
        await server.refresh("link_disabled")
        with pytest.raises(ParlourError, match="Socket Mode is off"):
            await running_
        await channel.close()


async def test_a_deaf_connection_ends_the_channel() -> None:
    """Slack takes the connection and says nothing: not ready, and after a while begun anew by whoever runs us."""
    async with slack_server() as server:
        server.is_mute = True
        channel = build(server, FakePageServices())
        with pytest.raises(RetryLater, match="does not answer"):
            await channel.run()
        assert server.connections >= 1
        assert not channel.is_ready()
        await channel.close()


@pytest.mark.parametrize("how", ["cut", "silent"])
async def test_a_connection_that_goes_deaf_is_given_up(how: str) -> None:
    """Cut, or open without a pong: soon not ready; no reconnection succeeds, so the channel says that it is deaf."""
    async with slack_server() as server:
        channel = build(server, FakePageServices())
        running_ = asyncio.create_task(channel.run())
        await eventually(channel.is_ready)
        server.mute()
        if how == "cut":
            await server.cut()
        await eventually(lambda: not channel.is_ready())
        with pytest.raises(RetryLater, match="no sign of life"):
            await running_
        assert not channel.is_ready()
        await channel.close()
