"""Who is an admin, a guest or a member now: as Slack says it over the wire, and denied where it does not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from gateway.channel import SupportsSenderLookup
from gateway.errors import SendFailed
from gateway.events import InboundKind, InboundMessage, Sender
from gateway.ports.channel import MembershipChange
from tests.fakes.conditions import eventually
from tests.fakes.slack import RunningSlack, slack
from tests.fakes.slack_server import ANN, BOB, BOT_USER, DM, EVE, ROOM, SECRET, TEAM, SlackFault


async def decision(up: RunningSlack, user: str, place: str = ROOM) -> InboundMessage:
    """Let somebody say a command; return it as the gateway would judge it at claim."""
    told = len(up.server.acks) + (1 if place == DM else 2)
    ts = up.server.say(place, user, f"<@{BOT_USER}> /new")
    await up.server.until(lambda: len(up.server.acks) == told)
    heard = next(each for each in up.services.accepted if each.message_id == ts)
    return replace(heard, kind=InboundKind.COMMAND)


async def now(up: RunningSlack, message: InboundMessage) -> Sender:
    """Return the sender as the channel knows them now."""
    assert isinstance(up.channel, SupportsSenderLookup)
    return await up.channel.sender(message)


async def test_admins_of_the_workspace_and_who_made_the_channel_decide() -> None:
    """Ann is an admin; Bob made this channel and no other; a guest who made one decides nothing."""
    async with slack() as up:
        up.server.places[ROOM].creator = BOB
        assert (await now(up, await decision(up, ANN))).is_admin
        bob = await decision(up, BOB)
        assert (await now(up, bob)).is_admin
        assert not bob.sender.is_admin  # it was not asked for while the message was taken in
        up.server.places[SECRET].members |= {BOT_USER}
        assert not (await now(up, await decision(up, BOB, SECRET))).is_admin
        assert not (await now(up, await decision(up, EVE))).is_admin
        assert len(up.server.called("conversations.info")) == 2  # each channel once
        told = len(up.server.acks) + 1
        up.server.change_user(BOB, is_restricted=True)
        await up.server.until(lambda: len(up.server.acks) == told)
        guest = await now(up, bob)
        assert (guest.is_admin, guest.is_guest) == (False, True)


async def test_what_nobody_decides_needs_no_look_up_of_the_channel() -> None:
    """Words, and direct messages: nobody asks who made what."""
    async with slack() as up:
        words = await decision(up, BOB)
        assert not (await now(up, replace(words, kind=InboundKind.MESSAGE))).is_admin
        assert not (await now(up, await decision(up, ANN, DM))).is_guest
        assert up.server.called("conversations.info") == []


@pytest.mark.parametrize(
    "fault",
    [
        SlackFault(status=503),
        SlackFault(status=429, error="ratelimited", retry_after=9),
        SlackFault(drops=True),
        "scope",
        "hang",
    ],
    ids=["503", "429", "cut", "scope", "hang"],
)
async def test_who_cannot_be_looked_up_decides_nothing(fault: Any) -> None:
    """Not as an admin, not as who made the channel; and whoever is asked about soon is not waited for longer."""
    async with slack(allow_from=[ANN, BOB]) as up:
        up.server.places[ROOM].creator = BOB
        ann, bob = await decision(up, ANN), await decision(up, BOB)
        inbound = up.channel._inbound
        inbound.members.profiles.timeout = inbound.members.chats.timeout = 0.1
        for method in ("users.info", "conversations.info"):
            if fault == "hang":
                up.server.holds[f"before {method}"] = asyncio.Event()
            elif fault == "scope":
                up.server.scopes -= {"users:read", "channels:read"}
            else:
                up.server.faults[method] = [fault, fault]  # aiohttp asks once more where a line was cut
        assert not (await now(up, bob)).is_admin
        up.channel._inbound.members.profiles.forget(ANN)
        with pytest.raises(SendFailed):
            await now(up, ann)


async def test_a_look_up_that_hangs_keeps_nobody_elses_words_waiting() -> None:
    """Slack knows Bob and not ten others, who wrote before him in the same channel: he waits for one limit."""
    async with slack(allow_from=[f"team:{TEAM}"]) as up:
        await decision(up, BOB)
        people = up.server.hire(10)
        up.channel._inbound.members.profiles.timeout = 0.5
        up.server.ack_within = 60.0
        up.server.holds["before users.info"] = asyncio.Event()
        began = asyncio.get_running_loop().time()
        for user in people:
            up.server.say(ROOM, user, "hello")
        await eventually(lambda: len(up.server.called("users.info")) == 11)
        up.server.say(ROOM, BOB, "and I?")
        await up.server.until(lambda: [each.text for each in up.services.accepted][1:] == ["and I?"])
        assert asyncio.get_running_loop().time() - began < 10 * 0.5
        assert {each.sender.id for each in up.services.deliveries} == {BOB}  # the ten are brought again


async def test_who_is_removed_or_made_a_guest_is_so_at_once_where_slack_says_it() -> None:
    """`user_change` ends what was kept; without it, five minutes do."""
    async with slack(allow_from=[f"team:{TEAM}"]) as up:
        assert not (await decision(up, EVE)).sender.is_guest
        up.server.users[EVE] |= {"deleted": True}
        assert not (await decision(up, EVE)).sender.is_guest
        up.server.change_user(EVE)
        await up.server.until(lambda: len(up.server.acks) == 5)
        assert (await decision(up, EVE)).sender.is_guest
        up.server.users[EVE] |= {"deleted": False}
        up.channel._inbound.members.profiles.expire()
        assert not (await decision(up, EVE)).sender.is_guest


async def test_being_added_and_taken_away_is_told_with_its_name_and_by_whom() -> None:
    """Somebody else who joins is no news; without the scope there is no name."""
    async with slack() as up:
        up.server.places[SECRET].name = "board\n*room*"
        joined = up.server.invite(SECRET, by=BOB)
        await up.services.wait_places(1)
        stranger = {"type": "member_joined_channel", "user": EVE, "channel": ROOM, "team": TEAM, "inviter": BOB}
        up.server.event(stranger)
        up.server.scopes -= {"users:read"}
        up.channel._inbound.members.profiles.forget(BOB)
        gone = up.server.put_out(SECRET, by=BOB)
        await up.services.wait_places(2)
        up.server.say(DM, ANN, "hello")
        await up.services.wait_deliveries(1)
    here = MembershipChange(
        channel="slack",
        id=f"place/{joined}",
        chat=SECRET,
        team=TEAM,
        title="board room",
        by=Sender(id=BOB, name="Bob", team=TEAM),
    )
    left = replace(here, id=f"place/{gone}", is_gone=True, by=Sender(id=BOB, team=TEAM))
    assert up.services.places == [here, left]
    assert here.entry == f"chat:{SECRET}"


async def test_a_place_that_is_not_kept_is_brought_again() -> None:
    """The journal is down: no ack, and Slack delivers it again."""
    async with slack() as up:
        up.server.ack_within = 0.05
        up.services.is_down = True
        event = up.server.invite(SECRET)
        await up.server.until(lambda: up.server.deliveries.count(event) == 2)
        up.services.is_down = False
        (place, *_) = await up.services.wait_places(1)
        assert (place.chat, place.by, place.title) == (SECRET, None, "")
