"""Places: we say nothing where we are not let in, and ask an owner once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from gateway.events import SessionKey
from gateway.ports.access import AccessStatus
from gateway.ports.pairing import PairingDecision
from tests.fakes.access_scene import OWNER, AccessScene
from tests.fakes.clock import VirtualClock
from tests.fakes.store import open_inline_store

GROUP = SessionKey("telegram", "-100")


@pytest.fixture
async def door(clock: VirtualClock) -> AsyncIterator[AccessScene]:
    """A door whose owner can be asked."""
    store = await open_inline_store(clock=clock.now)
    yield AccessScene(store, clock.now)
    await store.close()


async def test_an_owner_is_asked_and_the_place_hears_nothing(door: AccessScene) -> None:
    """Added to a group: a question with buttons to the owner, who added us and where; nothing is said there."""
    await door.joined()
    (asked,) = await door.told(OWNER)
    assert asked.text.startswith("`Mal` (`66`) added me to `Team x !here` (`chat:-100`) on telegram.")
    assert len(asked.choices) == 2
    assert await door.told(GROUP) == []


async def test_a_yes_lets_the_place_in(door: AccessScene) -> None:
    """Everybody there is admitted from then on, by one decision with its line."""
    await door.joined()
    (waiting,) = door.pairing.pending_requests()
    done = await door.pairing.by_ref(waiting.ref, door.by("t1"), is_yes=True)
    assert isinstance(done, PairingDecision)
    assert door.store.access.members()["telegram", "chat:-100"].standing is AccessStatus.ALLOWED
    assert [line.whom for line in await door.store.access.audit(limit=9)] == ["telegram:chat:-100"]
    await door.joined(id="again")
    assert len(await door.told(OWNER)) == 1


async def test_a_no_leaves_it_silent_and_unasked(door: AccessScene, clock: VirtualClock) -> None:
    """Denied: not let in, and the platform's saying it again asks nobody again, however much later."""
    await door.joined()
    (waiting,) = door.pairing.pending_requests()
    await door.pairing.by_ref(waiting.ref, door.by("t1"), is_yes=False)
    assert not door.store.access.members()
    clock.set_wall(timedelta(days=3))
    await door.joined(id="again")
    assert len(await door.told(OWNER)) == 1
    assert not door.pairing.pending_requests()


async def test_taken_out_and_in_again_asks_once_a_day(door: AccessScene, clock: VirtualClock) -> None:
    """Who takes us out and in all day makes us ask once; the next day it may be asked again."""
    for number in range(4):
        await door.joined(id=f"in{number}")
        await door.joined(id=f"out{number}", is_gone=True)
    assert len(await door.told(OWNER)) == 1
    assert not door.pairing.pending_requests()
    clock.set_wall(timedelta(days=1, minutes=1))
    await door.joined(id="next day")
    assert len(await door.told(OWNER)) == 2
    assert len(door.pairing.pending_requests()) == 1


async def test_a_hundred_groups_ask_three_times_a_day(door: AccessScene) -> None:
    """Whoever adds us everywhere cannot flood the owner; the others wait where the operator sees them."""
    for number in range(10):
        await door.joined(f"-20{number}")
    assert len(await door.told(OWNER)) == 3
    assert len(door.pairing.pending_requests()) == 10


@pytest.mark.parametrize(
    ("channel", "facts"),
    [
        ("slack", {"team": "T1"}),
        ("quiet", {}),
        ("nowhere", {}),
    ],
    ids=["its workspace is let in", "groups are switched off", "no such block"],
)
async def test_where_there_is_nothing_to_ask(door: AccessScene, channel: str, facts: dict[str, str]) -> None:
    """No question where people are let in already, or where nobody will be."""
    await door.joined("C1", channel=channel, **facts)
    assert await door.told(OWNER) == []
    assert not door.pairing.pending_requests()


async def test_a_place_with_a_policy_of_its_own_is_asked_about_by_it(door: AccessScene) -> None:
    """No question where one group is switched off; one where it alone is switched on."""
    await door.joined("C-off", id="a")
    assert await door.told(OWNER) == []
    await door.joined("C-on", channel="quiet", id="b")
    (waiting,) = door.pairing.pending_requests()
    assert waiting.who == "chat:C-on"


async def test_a_server_is_a_place_as_a_whole(door: AccessScene) -> None:
    """Discord: the question is about the server, and its yes is a guild entry."""
    await door.joined("", guild="811", id="g")
    (waiting,) = door.pairing.pending_requests()
    assert waiting.who == "guild:811"


async def test_strangers_there_hear_that_it_waits(door: AccessScene) -> None:
    """A mention meanwhile is refused as waiting, with one line to that person; after a no it is a stranger's again."""
    await door.joined()
    await door.in_group("70")
    (told,) = await door.told(GROUP)
    assert "I'm new here" in told.text
    assert told.visible_to == "70"
    (waiting,) = door.pairing.pending_requests()
    await door.pairing.by_ref(waiting.ref, door.by("t1"), is_yes=False)
    await door.in_group("71")
    assert "approved users here" in (await door.told(GROUP))[1].text
