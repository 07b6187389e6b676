"""Becoming the owner: a code that is good once, for 15 minutes, in a direct chat, and never where nobody may try."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from gateway.access.pairing_service import LOCKED_FOR, MOST_TRIES, MOST_WRONG, OWNER_CODE_GOOD_FOR
from gateway.events import ChatKind, InboundMessage, Role
from gateway.ports.channel import IntakeResult, IntakeVerdict
from tests.fakes.access_roster import RosterScene, direct, scene
from tests.fakes.store import open_inline_store
from tests.fakes.turns import WallClock

SILENTLY_TAKEN = IntakeResult(verdict=IntakeVerdict.REJECTED, reason="code")


@pytest.fixture
async def closed() -> AsyncIterator[RosterScene]:
    """Return admission without owner and without entries."""
    wall = WallClock()
    store = await open_inline_store(clock=wall.now)
    yield scene(store, wall)
    await store.close()


async def _code(at: RosterScene) -> str:
    issued = await at.claims.issue()
    assert issued is not None
    return issued.code


async def _meet(at: RosterScene, message: InboundMessage) -> IntakeResult | None:
    return await at.claims.intercept(message, at.judge(message))


def _wrong(n: int) -> str:
    return f"AAAA-AAA{'BCDEFGHJKMNPQRSTUVWXYZ23456789'[n]}"


async def test_who_sends_the_code_is_the_owner(closed: RosterScene) -> None:
    """A stranger with the code becomes owner, is told so, leaves a line, and the code is in no row of the journal."""
    code = await _code(closed)
    message = direct("42", f" {code.lower()} ", name="Ann")
    assert await _meet(closed, message) == SILENTLY_TAKEN
    assert closed.role(direct("42")) is Role.OWNER
    (line,) = await closed.store.access.audit(limit=9)
    assert (line.what, line.whom, line.by, line.where) == ("owner claim", "telegram:42", "code", "telegram:42")
    delivery = await closed.store.outbox.next(message.key)
    assert delivery is not None
    assert "owner" in delivery.message.text
    assert code.replace("-", "") not in str(dict(closed.store.access.notes())).upper()


async def test_a_second_use_says_nothing(closed: RosterScene) -> None:
    """The same message brought again, and the code in another's mouth, become no row and no owner."""
    code = await _code(closed)
    await _meet(closed, direct("42", code))
    assert await _meet(closed, direct("42", code)) == SILENTLY_TAKEN
    assert await _meet(closed, direct("43", code)) == SILENTLY_TAKEN
    assert closed.role(direct("43")) is None
    assert [each.who for each in closed.roster.owners()] == ["42"]
    delivery = await closed.store.outbox.next(direct("43").key)
    assert delivery is None


async def test_a_code_ends_after_a_quarter_of_an_hour(closed: RosterScene) -> None:
    """A minute before the end it is good, at its end it is a message like any other."""
    code = await _code(closed)
    closed.wall.advance(minutes=OWNER_CODE_GOOD_FOR // timedelta(minutes=1))
    assert await _meet(closed, direct("42", code)) is None
    assert not closed.roster.has_owner()
    code = await _code(closed)
    closed.wall.advance(minutes=14)
    assert await _meet(closed, direct("42", code)) == SILENTLY_TAKEN
    assert closed.roster.has_owner()


async def test_a_newer_code_takes_the_place_of_an_older_one(closed: RosterScene) -> None:
    """Only the code that was printed last makes an owner."""
    first, second = await _code(closed), await _code(closed)
    assert await _meet(closed, direct("42", first)) is None
    assert await _meet(closed, direct("42", second)) == SILENTLY_TAKEN


async def test_five_wrong_codes_lock_their_sender_out_for_an_hour(closed: RosterScene) -> None:
    """Who guessed five times is not looked at for an hour, under a new code too; somebody else is."""
    code = await _code(closed)
    for n in range(MOST_TRIES):
        assert await _meet(closed, direct("666", _wrong(n))) is None
    assert await _meet(closed, direct("666", code)) is None
    assert not closed.roster.has_owner()
    closed.wall.advance(minutes=50)
    code = await _code(closed)
    assert await _meet(closed, direct("666", code)) is None
    closed.wall.advance(minutes=LOCKED_FOR // timedelta(minutes=1) - 50)
    code = await _code(closed)
    assert await _meet(closed, direct("666", code)) == SILENTLY_TAKEN
    assert closed.role(direct("666")) is Role.OWNER


async def test_wrong_codes_of_many_leave_the_code_good(closed: RosterScene) -> None:
    """However many accounts guess, the operator's own code makes its sender the owner; each account has five tries."""
    code = await _code(closed)
    claims = closed.claims
    for n in range(60):
        await claims.intercept(message := direct(str(n), _wrong(n % 28)), closed.judge(message))
    assert claims.wrong == {"telegram": 60}
    assert await _meet(closed, direct("42", code)) == SILENTLY_TAKEN
    assert closed.role(direct("42")) is Role.OWNER


async def test_very_many_wrong_codes_end_the_code(closed: RosterScene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound of all senders together stays, far beyond what people mistype and far below what would find a code."""
    assert MOST_WRONG >= 10_000
    monkeypatch.setattr("gateway.access.pairing_service.MOST_WRONG", 8)
    code = await _code(closed)
    for n in range(8):
        await _meet(closed, direct(str(n), _wrong(n)))
    assert await _meet(closed, direct("42", code)) is None
    assert not closed.roster.has_owner()


async def test_tries_are_counted_across_a_restart(closed: RosterScene) -> None:
    """What was tried is in the journal: another run of the gateway knows of it."""
    code = await _code(closed)
    for n in range(MOST_TRIES):
        await _meet(closed, direct("666", _wrong(n)))
    again = closed.claims  # a fresh one over the same store
    message = direct("666", code)
    assert await again.intercept(message, closed.judge(message)) is None


async def test_only_the_whole_of_a_direct_message_is_a_code(closed: RosterScene) -> None:
    """In a sentence, or passed on from somebody else it is no claim."""
    code = await _code(closed)
    assert await _meet(closed, direct("42", f"the code is {code}")) is None
    assert await _meet(closed, direct("42", code, is_forwarded=True)) is None
    assert not closed.roster.has_owner()


@pytest.mark.parametrize("is_addressed", [True, False])
async def test_a_code_that_a_group_has_read_makes_nobody_the_owner(closed: RosterScene, is_addressed: bool) -> None:
    """It is in no row, is over for whoever copies it, and its sender is told why; other words there are no tries."""
    code = await _code(closed)
    for n in range(9):
        wrong = direct("42", _wrong(n), id=f"w{n}", chat_kind=ChatKind.GROUP, is_addressed=True)
        assert await _meet(closed, wrong) is None
    shown = direct("42", code, chat_kind=ChatKind.GROUP, is_addressed=is_addressed)
    for _ in range(2):  # the platform brings it twice
        met = await _meet(closed, shown)
        assert met is not None
        assert met.reason == "code"
    assert await _meet(closed, direct("66", code)) is not None
    assert not closed.roster.has_owner()
    delivery = await closed.store.outbox.next(shown.key)
    assert delivery is not None
    assert "has been revoked" in delivery.message.text
    assert delivery.message.visible_to == "42"


async def test_no_code_while_there_is_an_owner(closed: RosterScene) -> None:
    """Neither the settings' owner nor a claimed one leaves room for another code."""
    code = await _code(closed)
    await _meet(closed, direct("42", code))
    assert await closed.claims.issue() is None
    configured = scene(closed.store, closed.wall, owners=["slack:U1"])
    assert await configured.claims.issue() is None


async def test_a_code_from_before_the_settings_named_an_owner_makes_none(closed: RosterScene) -> None:
    """What was printed while nobody owned the bot is void once the settings say who does."""
    code = await _code(closed)
    configured = scene(closed.store, closed.wall, owners=["slack:U1"])
    assert await _meet(configured, direct("42", code)) == SILENTLY_TAKEN
    assert configured.role(direct("42")) is None


async def test_the_page_says_where_the_code_belongs(closed: RosterScene) -> None:
    """Who is the owner by their door is told to send it from the platform, and the code stays good."""
    code = await _code(closed)
    assert await _meet(closed, direct("owner", code, channel="web")) == SILENTLY_TAKEN
    delivery = await closed.store.outbox.next(direct("owner", channel="web").key)
    assert delivery is not None
    assert "platform" in delivery.message.text
    assert await _meet(closed, direct("42", code)) == SILENTLY_TAKEN
    assert closed.role(direct("42")) is Role.OWNER


async def test_words_of_people_who_may_write_pass(closed: RosterScene) -> None:
    """While a code is out, a word of eight letters from somebody admitted is a message like any other."""
    open_door = scene(closed.store, closed.wall, allow={"telegram": ["7"]})
    await _code(open_door)
    assert await _meet(open_door, direct("7", "remember")) is None
