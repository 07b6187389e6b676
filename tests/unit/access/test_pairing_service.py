"""Approving: a code is good once, for an hour, and not for whoever guesses; a crash repeats and loses nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from gateway.access.pairing_service import PairingService
from gateway.ports.access import (
    OPERATOR,
    AccessChange,
    AccessEntry,
    AccessStatus,
    DecisionActor,
    PairingDecision,
    PairingRefused,
)
from tests.fakes.access_scene import AccessScene
from tests.fakes.clock import VirtualClock
from tests.fakes.store import open_inline_store


async def decide(
    pairing: PairingService, request: str, by: DecisionActor, *, is_yes: bool = True
) -> PairingDecision | int:
    """Return the decision, or for how many minutes no code is accepted (0: the request is not pending)."""
    try:
        return await pairing.decide(request, by, is_yes=is_yes)
    except PairingRefused as refused:
        return refused.minutes


@pytest.fixture
async def scene(clock: VirtualClock) -> AsyncIterator[AccessScene]:
    """Return admission with a pending pairing request."""
    store = await open_inline_store(clock=clock.now)
    scene = AccessScene(store, clock.now)
    await scene.knock("66")
    yield scene
    await store.close()


async def test_a_code_lets_its_owner_in(scene: AccessScene, clock: VirtualClock) -> None:
    """The right code, however it is typed: in the roster as paired, told in one line, one line in the audit."""
    code = await scene.code_of("66")
    done = await decide(scene.pairing, f" {code.lower().replace('-', ' ')} ", scene.by("t1"))
    assert isinstance(done, PairingDecision)
    assert (done.waiting.who, done.is_yes) == ("66", True)
    member = scene.store.access.members()["telegram", "66"]
    assert (member.standing, member.by) == (AccessStatus.PAIRED, "telegram:42")
    assert (await scene.said_to("66"))[1:] == ["Your access was approved. You can write to me now."]
    (line,) = await scene.store.access.audit(limit=9)
    assert (line.what, line.whom, line.by) == ("pair yes", "telegram:66", "telegram:42")
    assert not scene.pairing.pending_requests()


async def test_a_repeated_turn_is_the_same_decision(scene: AccessScene) -> None:
    """A crash between decision and answer: the turn runs again and says the same; one audit line, one welcome."""
    code = await scene.code_of("66")
    first = await decide(scene.pairing, code, scene.by("t1"))
    again = await decide(scene.pairing, code, scene.by("t1"))
    assert isinstance(first, PairingDecision)
    assert isinstance(again, PairingDecision)
    assert (again.waiting.who, again.is_yes) == (first.waiting.who, first.is_yes)
    assert len(await scene.store.access.audit(limit=9)) == 1
    assert len(await scene.said_to("66")) == 2


async def test_a_code_ends_with_its_hour(scene: AccessScene, clock: VirtualClock) -> None:
    """After an hour nobody waits under it."""
    code = await scene.code_of("66")
    clock.set_wall(timedelta(minutes=60))
    assert await decide(scene.pairing, code, scene.by("t1")) == 0
    assert not scene.store.access.members()


async def test_guessing_is_locked_for_an_hour(scene: AccessScene, clock: VirtualClock) -> None:
    """Five wrong codes, and not even the right one counts for an hour; a button is no guess, others are not locked."""
    code = await scene.code_of("66")
    for number in range(5):
        assert await decide(scene.pairing, f"AAAA-AAA{'BCDEF'[number]}", scene.by(f"w{number}")) == 0
    assert await decide(scene.pairing, code, scene.by("t1")) == 60
    assert await decide(scene.pairing, "AAAA-AAAA", scene.by("c", OPERATOR)) == 0
    (waiting,) = scene.pairing.pending_requests()
    clock.set_wall(timedelta(minutes=30))
    assert await decide(scene.pairing, code, scene.by("t2")) == 30
    assert isinstance(await decide(scene.pairing, waiting.ref, scene.by("t3"), is_yes=True), PairingDecision)


async def test_the_lock_survives_a_restart(scene: AccessScene, clock: VirtualClock) -> None:
    """Whoever guesses gains nothing by a crash."""
    code = await scene.code_of("66")
    for number in range(5):
        await decide(scene.pairing, f"AAAA-AAA{'BCDEF'[number]}", scene.by(f"w{number}"))
    again = AccessScene(scene.store, clock.now)
    assert await decide(again.pairing, code, again.by("t1")) == 60


async def test_what_is_no_code_is_no_guess(scene: AccessScene) -> None:
    """A misread word costs no try."""
    for number in range(9):
        assert await decide(scene.pairing, "hello", scene.by(f"w{number}")) == 0
    code = await scene.code_of("66")
    assert isinstance(await decide(scene.pairing, code, scene.by("t1")), PairingDecision)


async def test_a_no_tells_the_stranger_nothing(scene: AccessScene) -> None:
    """Denied: no line, not in the roster, one line in the audit, and not asked again the same day."""
    (waiting,) = scene.pairing.pending_requests()
    denied = await decide(scene.pairing, waiting.ref, scene.by("t1"), is_yes=False)
    assert isinstance(denied, PairingDecision)
    assert not denied.is_yes
    assert not scene.store.access.members()
    assert len(await scene.said_to("66")) == 1
    assert [line.what for line in await scene.store.access.audit(limit=9)] == ["pair no"]
    await scene.knock("66")
    assert not scene.pairing.pending_requests()
    assert await decide(scene.pairing, waiting.ref, scene.by("t2")) == 0


async def test_two_people_never_have_one_code(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chance that gives the same code twice is asked again."""
    drawn = iter(["ABCDEFGH", "ABCDEFGH", "JKMNPQRS"])
    monkeypatch.setattr("gateway.access.unknown_senders.new_code", lambda: next(drawn))
    store = await open_inline_store(clock=clock.now)
    scene = AccessScene(store, clock.now)
    await scene.knock("66")
    await scene.knock("67")
    assert (await scene.code_of("66"), await scene.code_of("67")) == ("ABCD-EFGH", "JKMN-PQRS")
    await store.close()


async def test_who_was_let_in_otherwise_waits_no_more(scene: AccessScene) -> None:
    """An owner's /allow in between ends the waiting."""
    member = AccessEntry(channel="telegram", who="66", standing=AccessStatus.ALLOWED, by=OPERATOR, at=scene._now())
    await scene.store.access.change(AccessChange(put=(member,)))
    assert not scene.pairing.pending_requests()


async def test_who_was_shut_out_elsewhere_waits_no_more(scene: AccessScene, clock: VirtualClock) -> None:
    """Blocked meanwhile under another bot or account: nobody is asked to let them in, and nobody welcomes them."""
    code = await scene.code_of("66")
    block = AccessEntry(channel="telegram-work", who="66", standing=AccessStatus.BLOCKED, by=OPERATOR, at=clock.now())
    await scene.store.access.change(AccessChange(put=(block,)))
    assert not scene.pairing.pending_requests()
    assert await decide(scene.pairing, code, scene.by("t1")) == 0
    assert len(await scene.said_to("66")) == 1


async def test_who_is_forgotten_has_never_asked(scene: AccessScene, clock: VirtualClock) -> None:
    """Forgotten on this channel: neither the request nor that they were told stays; somebody else's does."""
    await scene.knock("67")
    await scene.pairing.forget([("telegram", "66"), ("slack", "67")])
    assert [each.who for each in scene.pairing.pending_requests()] == ["67"]
    assert [name for name in scene.store.access.notes() if name.startswith("told:")] == ["told:telegram:67"]
    clock.set_wall(timedelta(seconds=1))
    await scene.knock("66")
    assert len(await scene.said_to("66")) == 2
