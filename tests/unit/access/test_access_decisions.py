"""What owners decide is in force at the next message, under rules that keep owners in and the blocked out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace

import pytest

from gateway.admission import Rejected, RejectionReason
from gateway.events import ChatKind, PlatformAccount, Role, Sender, SessionKey
from gateway.ports.access import (
    OPERATOR,
    AccessDecision,
    AccessStatus,
    DecisionActor,
    DecisionOutcome,
    DecisionRefused,
    PersonQuota,
)
from tests.fakes.access_roster import RosterScene, direct, scene
from tests.fakes.store import open_inline_store
from tests.fakes.turns import WallClock

_IDS = iter(range(10**6))


def by() -> DecisionActor:
    """Return the operator, with a line of its own."""
    return DecisionActor(by=OPERATOR, where="", id=f"x{next(_IDS)}")


async def ruling_of(decision: Awaitable[AccessDecision]) -> DecisionOutcome:
    """Return how a request ends."""
    try:
        return (await decision).ruling
    except DecisionRefused as refused:
        return refused.ruling


@pytest.fixture
async def at() -> AsyncIterator[RosterScene]:
    """Return admission with an owner by setting (telegram:1), and one workspace that may write."""
    wall = WallClock()
    store = await open_inline_store(clock=wall.now)
    yield scene(store, wall, allow={"slack": ["team:T1", "U7"]}, owners=["telegram:1"])
    await store.close()


def linked_accounts(*texts: str) -> dict[PlatformAccount, list[PlatformAccount]]:
    """Return the links of the first account, to itself and the others."""
    accounts = [PlatformAccount.parse(text) for text in texts]
    return {accounts[0]: accounts}


async def test_allowed_people_are_heard_at_the_next_message(at: RosterScene) -> None:
    """A stranger is refused, an allowed one is heard by their own id, a removed one is a stranger again."""
    assert at.role(direct("42")) is None
    assert await ruling_of(at.decisions.allow("42", by(), here="telegram")) is DecisionOutcome.DONE
    assert at.role(direct("42")) is Role.ADMIN
    assert at.role(direct("42", channel="telegram-work")) is None  # another bot is another door
    assert await ruling_of(at.decisions.allow("telegram:42", by())) is DecisionOutcome.SAME
    assert await ruling_of(at.decisions.remove("telegram:42", by())) is DecisionOutcome.DONE
    assert at.role(direct("42")) is None
    assert [each.what for each in await at.store.access.audit(limit=9)] == ["remove", "allow"]


async def test_an_allowed_place_admits_there_alone(at: RosterScene) -> None:
    """chat:ID at run time does what it does in the settings."""
    await at.decisions.allow("telegram:chat:-100", by())
    there = direct("42", chat_kind=ChatKind.GROUP, is_addressed=True)
    assert at.role(there) is None
    assert at.role(replace(there, key=SessionKey("telegram", "-100"))) is Role.MEMBER


async def test_blocked_people_are_refused_whatever_admits_them(at: RosterScene) -> None:
    """A block is stronger than an id in the settings, and says what would lift it; allowing lifts it."""
    assert at.role(direct("U7", channel="slack")) is Role.ADMIN
    await at.decisions.block("slack:U7", by())
    assert at.judge(direct("U7", channel="slack")) == Rejected(
        reason=RejectionReason.BLOCKED, would_admit="`parlour people allow slack:U7`"
    )
    await at.decisions.allow("slack:U7", by())
    assert at.role(direct("U7", channel="slack")) is Role.ADMIN


async def test_a_block_holds_for_the_person(at: RosterScene) -> None:
    """Who is blocked under one bot is blocked under the other, and under their linked accounts; one line lifts it."""
    await at.decisions.allow("telegram-work:42", by())
    await at.decisions.block("telegram:42", by())
    assert at.role(direct("42", channel="telegram-work")) is None
    at.roster.links = {
        PlatformAccount(kind="slack", id="U9"): [
            PlatformAccount(kind="slack", id="U9"),
            PlatformAccount(kind="telegram", id="42"),
        ]
    }
    await at.decisions.allow("slack:U8", by())
    with pytest.raises(DecisionRefused, match="parlour people allow telegram:42") as refused:
        await at.decisions.allow("slack:U9", by())
    assert (refused.value.ruling, refused.value.other) == (DecisionOutcome.BLOCKED_AS, "telegram:42")
    await at.decisions.remove("telegram:42", by())
    assert at.role(direct("42", channel="telegram-work")) is Role.ADMIN


async def test_no_owner_is_blocked(at: RosterScene) -> None:
    """The settings' owner, a claimed one, and an owner's linked account stay in, and the answer says why."""
    issued = await scene(at.store, at.wall).claims.issue()
    assert issued is not None
    claimant = direct("2", issued.code)
    free = scene(at.store, at.wall)
    await free.claims.intercept(claimant, free.judge(claimant))
    assert await ruling_of(at.decisions.block("telegram:1", by())) is DecisionOutcome.SET_OWNER
    assert await ruling_of(at.decisions.block("telegram:2", by())) is DecisionOutcome.OWNER
    at.roster.links = {
        PlatformAccount(kind="slack", id="U9"): [
            PlatformAccount(kind="slack", id="U9"),
            PlatformAccount(kind="telegram", id="1"),
        ]
    }
    assert await ruling_of(at.decisions.block("slack:U9", by())) is DecisionOutcome.OWNER
    assert at.role(direct("1")) is Role.OWNER
    assert at.role(direct("2")) is Role.OWNER


async def test_ownership_that_was_claimed_is_taken_back_by_its_own_command(at: RosterScene) -> None:
    """`people remove` does not take an owner; `owner remove` does, and not the settings' one."""
    free = scene(at.store, at.wall)
    issued = await free.claims.issue()
    assert issued is not None
    claimant = direct("2", issued.code)
    await free.claims.intercept(claimant, free.judge(claimant))
    assert await ruling_of(at.decisions.remove("telegram:2", by())) is DecisionOutcome.OWNER
    assert await ruling_of(at.decisions.disown("telegram:1", by())) is DecisionOutcome.SET_OWNER
    assert await ruling_of(at.decisions.disown("telegram:2", by())) is DecisionOutcome.DONE
    assert at.role(direct("2")) is None
    assert await ruling_of(at.decisions.disown("telegram:2", by())) is DecisionOutcome.NOT_OWNER


@pytest.mark.parametrize(
    ("text", "here", "ruling"),
    [
        ("*", "telegram", DecisionOutcome.NOBODY),
        ("@ada", "telegram", DecisionOutcome.NOBODY),
        ("two words", "telegram", DecisionOutcome.NOBODY),
        ("", "telegram", DecisionOutcome.NOBODY),
        ("nowhere:42", "", DecisionOutcome.ELSEWHERE),
        ("telegram-wrok:42", "telegram", DecisionOutcome.ELSEWHERE),
        ("<@U42>", "slack", DecisionOutcome.DONE),
        ("<@!42|ada>", "telegram", DecisionOutcome.DONE),
        ("slack:<@U42>", "telegram", DecisionOutcome.DONE),
    ],
)
async def test_what_names_somebody(at: RosterScene, text: str, here: str, ruling: DecisionOutcome) -> None:
    """Ids and mentions that hold one name somebody; names, everybody, and blocks that are not there do not."""
    assert await ruling_of(at.decisions.allow(text, by(), here=here)) is ruling


@pytest.mark.parametrize("text", ["Ada", "501.0", "４２", "chat:General", "guild:1", "telegram-work:<@>", "-100"])
async def test_what_cannot_be_an_id_of_the_platform_is_nobodys(at: RosterScene, text: str) -> None:
    """Let in or shut out, it would meet nobody: neither is said to be done, and the operator reads why."""
    for decide in (at.decisions.allow, at.decisions.block):
        assert await ruling_of(decide(text, by(), here="telegram")) is DecisionOutcome.NOBODY
    assert not at.store.access.members()


async def test_who_is_shut_out_is_somebody_or_a_place(at: RosterScene) -> None:
    """A role or a workspace cannot be blocked: nobody could tell which of two entries of somebody counts."""
    assert await ruling_of(at.decisions.block("slack:team:T1", by())) is DecisionOutcome.ONLY_LET_IN
    assert await ruling_of(at.decisions.block("telegram:chat:-100", by())) is DecisionOutcome.DONE
    base = direct("9", chat_kind=ChatKind.GROUP, is_addressed=True)
    await at.decisions.allow("telegram:9", by())
    shut = replace(base, key=SessionKey("telegram", "-100/7"))
    elsewhere = replace(base, key=SessionKey("telegram", "-200"))
    assert at.judge(shut) == Rejected(
        reason=RejectionReason.BLOCKED, would_admit="`parlour people allow telegram:chat:-100`"
    )
    assert at.role(elsewhere) is Role.MEMBER
    assert at.role(replace(shut, sender=Sender(id="1"))) is Role.OWNER


async def test_what_only_the_settings_say_is_changed_there(at: RosterScene) -> None:
    """Nothing decided at run time can be taken back of an entry in the settings."""
    assert await ruling_of(at.decisions.remove("slack:U7", by())) is DecisionOutcome.BY_SETTING
    assert await ruling_of(at.decisions.remove("slack:team:T1", by())) is DecisionOutcome.BY_SETTING
    assert await ruling_of(at.decisions.remove("slack:U8", by())) is DecisionOutcome.UNLISTED


async def test_the_list_says_who_came_in_how(at: RosterScene) -> None:
    """Settings first, then decisions, each with its standing and by whom."""
    await at.decisions.allow("telegram:42", by())
    await at.decisions.block("telegram:666", by())
    told = [(each.channel, each.who, each.standing, each.came_by) for each in at.decisions.list_access()]
    assert told == [
        ("slack", "U7", AccessStatus.ALLOWED, "setting"),
        ("slack", "team:T1", AccessStatus.ALLOWED, "setting"),
        ("telegram", "1", AccessStatus.OWNER, "setting"),
        ("telegram", "42", AccessStatus.ALLOWED, "decision"),
        ("telegram", "666", AccessStatus.BLOCKED, "decision"),
    ]


async def test_a_decision_is_in_force_after_a_restart(at: RosterScene) -> None:
    """Another run of the gateway over the same journal judges as this one did."""
    await at.decisions.block("slack:U7", by())
    again = scene(at.store, at.wall, allow={"slack": ["U7"]})
    assert again.role(direct("U7", channel="slack")) is None


async def test_an_owner_of_a_channel_that_is_gone_is_an_owner() -> None:
    """While the settings name somebody there is no code for anybody else, whether their channel is there or not."""
    wall = WallClock()
    store = await open_inline_store(clock=wall.now)
    gone = scene(store, wall, owners=["discord:5"])
    assert [str(each) for each in gone.roster.owners()] == ["discord:5"]
    assert await gone.claims.issue() is None
    await store.close()


async def test_a_quota_holds_for_the_person(at: RosterScene) -> None:
    """One quota over all bots and linked accounts, with its line; of two from before a link the strictest counts."""
    at.roster.links = linked_accounts("slack:U9", "telegram:42") | linked_accounts("telegram:42", "slack:U9")
    for text, quota in (("slack:U9", PersonQuota(turns=5)), ("telegram-work:42", PersonQuota(turns=0, tokens=9))):
        assert await ruling_of(at.decisions.set_quota(text, quota, by())) is DecisionOutcome.DONE
    assert at.decisions.list_quotas() == {"telegram-work:42": PersonQuota(turns=0, tokens=9)}
    ann = at.decisions.find_person("telegram:42")
    assert (ann.quota, ann.is_owner, ann.is_named) == (PersonQuota(turns=0, tokens=9), False, False)
    assert await ruling_of(at.decisions.set_quota("slack:U9", ann.quota, by())) is DecisionOutcome.SAME
    at.roster.links = {}
    await at.decisions.set_quota("slack:U9", PersonQuota(turns=5), by())
    at.roster.links = linked_accounts("slack:U9", "telegram:42")
    both = at.decisions.find_person("slack:U9")
    assert both.quota == PersonQuota(turns=5, tokens=9)
    await at.decisions.set_quota("slack:U9", PersonQuota(), by())
    assert at.decisions.list_quotas() == {}
    assert [each.what for each in await at.store.access.audit(limit=9)] == ["quota"] * 4


async def test_a_place_has_no_quota(at: RosterScene) -> None:
    """Nor has an id that is none; the answer says which."""
    for text, ruling in (("slack:team:T1", "no-person"), ("telegram:@ann", "nobody"), ("x:1", "elsewhere")):
        assert await ruling_of(at.decisions.set_quota(text, PersonQuota(turns=1), by())) == ruling


async def test_an_owner_is_made_by_a_decision(at: RosterScene) -> None:
    """At the next message, with a line; a blocked person is allowed first, and the ownership can be taken back."""
    await at.decisions.block("telegram:42", by())
    assert await ruling_of(at.decisions.make_owner("telegram:42", by())) is DecisionOutcome.BLOCKED_AS
    await at.decisions.allow("telegram:42", by())
    assert await ruling_of(at.decisions.make_owner("telegram:42", by())) is DecisionOutcome.DONE
    assert at.role(direct("42")) is Role.OWNER
    assert await ruling_of(at.decisions.make_owner("telegram:42", by())) is DecisionOutcome.SAME
    (listed,) = [each for each in at.decisions.list_access() if each.who == "42"]
    assert (listed.standing, listed.came_by) == (AccessStatus.OWNER, "decision")
    assert await ruling_of(at.decisions.disown("telegram:42", by())) is DecisionOutcome.DONE
    assert at.role(direct("42")) is None
    assert (await at.store.access.audit(limit=9))[1].what == "owner add"
