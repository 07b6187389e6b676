"""Places: we say nothing where we are not let in, and ask an owner once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from gateway.events import SessionKey
from gateway.ports.access import AccessStatus, PairingDecision
from tests.fakes.access_scene import OWNER, AccessScene
from tests.fakes.clock import VirtualClock
from tests.fakes.store import open_inline_store

GROUP = SessionKey("telegram", "-100")


@pytest.fixture
async def scene(clock: VirtualClock) -> AsyncIterator[AccessScene]:
    """Return admission with an owner who can be asked."""
    store = await open_inline_store(clock=clock.now)
    yield AccessScene(store, clock.now)
    await store.close()


async def test_a_yes_lets_the_place_in(scene: AccessScene) -> None:
    """Everybody there is admitted from then on, by one decision with its line."""
    await scene.joined()
    (waiting,) = scene.pairing.pending_requests()
    done = await scene.pairing.decide(waiting.ref, scene.by("t1"), is_yes=True)
    assert isinstance(done, PairingDecision)
    assert scene.store.access.members()["telegram", "chat:-100"].standing is AccessStatus.ALLOWED
    assert [line.whom for line in await scene.store.access.audit(limit=9)] == ["telegram:chat:-100"]
    await scene.joined(id="again")
    assert len(await scene.told(OWNER)) == 1


async def test_a_no_leaves_it_silent_and_unasked(scene: AccessScene, clock: VirtualClock) -> None:
    """Denied: not let in, and the platform's saying it again asks nobody again, however much later."""
    await scene.joined()
    (waiting,) = scene.pairing.pending_requests()
    await scene.pairing.decide(waiting.ref, scene.by("t1"), is_yes=False)
    assert not scene.store.access.members()
    clock.set_wall(timedelta(days=3))
    await scene.joined(id="again")
    assert len(await scene.told(OWNER)) == 1
    assert not scene.pairing.pending_requests()


async def test_taken_out_and_in_again_asks_once_a_day(scene: AccessScene, clock: VirtualClock) -> None:
    """Who takes us out and in all day makes us ask once; the next day it may be asked again."""
    for number in range(4):
        await scene.joined(id=f"in{number}")
        await scene.joined(id=f"out{number}", is_gone=True)
    assert len(await scene.told(OWNER)) == 1
    assert not scene.pairing.pending_requests()
    clock.set_wall(timedelta(days=1, minutes=1))
    await scene.joined(id="next day")
    assert len(await scene.told(OWNER)) == 2
    assert len(scene.pairing.pending_requests()) == 1


async def test_a_hundred_groups_ask_three_times_a_day(scene: AccessScene) -> None:
    """Whoever adds us everywhere cannot flood the owner; the others wait where the operator sees them."""
    for number in range(10):
        await scene.joined(f"-20{number}")
    assert len(await scene.told(OWNER)) == 3
    assert len(scene.pairing.pending_requests()) == 10


@pytest.mark.parametrize(
    ("channel", "facts"),
    [
        ("slack", {"team": "T1"}),
        ("quiet", {}),
        ("nowhere", {}),
    ],
    ids=["its workspace is let in", "groups are switched off", "no such block"],
)
async def test_where_there_is_nothing_to_ask(scene: AccessScene, channel: str, facts: dict[str, str]) -> None:
    """No question where people are let in already, or where nobody will be."""
    await scene.joined("C1", channel=channel, **facts)
    assert await scene.told(OWNER) == []
    assert not scene.pairing.pending_requests()


async def test_a_place_with_a_policy_of_its_own_is_asked_about_by_it(scene: AccessScene) -> None:
    """No question where one group is switched off; one where it alone is switched on."""
    await scene.joined("C-off", id="a")
    assert await scene.told(OWNER) == []
    await scene.joined("C-on", channel="quiet", id="b")
    (waiting,) = scene.pairing.pending_requests()
    assert waiting.who == "chat:C-on"


async def test_a_server_is_a_place_as_a_whole(scene: AccessScene) -> None:
    """Discord: the question is about the server, and its yes is a guild entry."""
    await scene.joined("", guild="811", id="g")
    (waiting,) = scene.pairing.pending_requests()
    assert waiting.who == "guild:811"


async def test_strangers_there_hear_that_it_waits(scene: AccessScene) -> None:
    """A mention meanwhile is refused as waiting, with one line to that person; after a no it is a stranger's again."""
    await scene.joined()
    await scene.in_group("70")
    (told,) = await scene.told(GROUP)
    assert "I'm new here" in told.text
    assert told.visible_to == "70"
    (waiting,) = scene.pairing.pending_requests()
    await scene.pairing.decide(waiting.ref, scene.by("t1"), is_yes=False)
    await scene.in_group("71")
    assert "approved users here" in (await scene.told(GROUP))[1].text
