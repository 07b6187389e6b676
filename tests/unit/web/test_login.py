"""Login codes and logins: short-lived, once, guarded against guessing, and nothing stored lets anybody in."""

from __future__ import annotations

import asyncio
import hashlib
import json
from datetime import UTC, datetime, timedelta

import pytest

from channels.kit import is_person_name
from channels.web import plugin as web_kind
from channels.web.adapter import WebChannel
from channels.web.logins import (
    ALPHABET,
    CODE_LIFE,
    LOGIN_LIFE,
    MOST_CODES,
    MOST_INVITATIONS,
    MOST_LOGINS,
    WRONG_TRIES,
    WRONG_WINDOW,
    LoginOutcome,
    StoredLogin,
    WebLogins,
)
from gateway.errors import UserError
from tests.fakes.web_services import FakePageServices, FakeState

NAMES = [
    ("ann", True),
    ("ann.b-2_c", True),
    ("a" * 32, True),
    ("a" * 33, False),
    ("Ann", False),
    (".ann", False),
    ("ann\n", False),
    ("an/n", False),
    ("аnn", False),
    ("", False),
]


class AdvancedClock:
    """A clock that is told to move."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 21, 22, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def move(self, span: timedelta) -> None:
        """Let *span* go by."""
        self.now += span


@pytest.fixture
def time() -> AdvancedClock:
    """Give a clock."""
    return AdvancedClock()


@pytest.fixture
def state() -> FakeState:
    """Give a channel's notes."""
    return FakeState()


@pytest.fixture
def logins(state: FakeState, time: AdvancedClock) -> WebLogins:
    """Give logins with nobody in."""
    return WebLogins(state, now=time)


async def test_a_code_lets_one_browser_in_once(logins: WebLogins) -> None:
    """The first to type it is in; the second time it is only wrong."""
    code = await logins.issue_code("owner")
    outcome, token = await logins.enter(code)
    assert outcome is LoginOutcome.WELCOME
    login = await logins.find(token)
    assert login is not None
    assert login.who == "owner"
    assert (await logins.enter(code))[0] is LoginOutcome.WRONG


async def test_a_code_is_read_as_people_type_it(logins: WebLogins) -> None:
    """Case, blanks and dashes do not matter; the letters are those nobody mistakes."""
    code = await logins.issue_code("owner")
    assert len(code.replace("-", "")) == 8
    assert set(code) <= set(ALPHABET) | {"-"}
    assert not set("01OILl") & set(ALPHABET)
    assert (await logins.enter(f" {code.lower().replace('-', ' ')} "))[0] is LoginOutcome.WELCOME


async def test_a_code_ends_after_ten_minutes(logins: WebLogins, time: AdvancedClock) -> None:
    """Good until then, not a moment longer."""
    early, late = await logins.issue_code("owner"), await logins.issue_code("owner")
    time.move(CODE_LIFE - timedelta(seconds=1))
    assert (await logins.enter(early))[0] is LoginOutcome.WELCOME
    time.move(timedelta(seconds=1))
    assert (await logins.enter(late))[0] is LoginOutcome.WRONG


async def test_guessing_is_locked_out_for_a_minute(logins: WebLogins, time: AdvancedClock) -> None:
    """After five wrong tries even the right code waits, and is not used up by waiting."""
    code = await logins.issue_code("owner")
    for _ in range(WRONG_TRIES):
        assert (await logins.enter("AAAAAAAA"))[0] is LoginOutcome.WRONG
    assert (await logins.enter(code))[0] is LoginOutcome.LOCKED
    time.move(WRONG_WINDOW)
    assert (await logins.enter(code))[0] is LoginOutcome.WELCOME


async def test_what_is_stored_lets_nobody_in(logins: WebLogins, state: FakeState) -> None:
    """Neither code nor token stands in the notes; the digest is no token."""
    code = await logins.issue_code("owner")
    _, token = await logins.enter(code)
    await logins.issue_code("owner")
    stored = str(state.notes)
    assert token not in stored
    assert code.replace("-", "") not in stored
    login = await logins.find(token)
    assert login is not None
    assert login.digest in stored
    assert await logins.find(login.digest) is None


async def test_a_login_outlives_a_restart_but_not_thirty_days(
    logins: WebLogins, state: FakeState, time: AdvancedClock
) -> None:
    """The browser stays in until its time is over."""
    _, token = await logins.enter(await logins.issue_code("owner"))
    restarted = WebLogins(state, now=time)
    assert await restarted.find(token) is not None
    time.move(LOGIN_LIFE)
    assert await restarted.find(token) is None


async def test_leaving_is_for_good(logins: WebLogins, state: FakeState, time: AdvancedClock) -> None:
    """A token that left is nobody's, here and after a restart; leaving twice is leaving once."""
    _, token = await logins.enter(await logins.issue_code("owner"))
    login = await logins.find(token)
    assert login is not None
    assert logins.counts(login)
    await logins.leave(login)
    await logins.leave(login)
    assert not logins.counts(login)
    assert await logins.find(token) is None
    assert await WebLogins(state, now=time).find(token) is None


async def test_codes_and_logins_are_the_stores(logins: WebLogins, state: FakeState, time: AdvancedClock) -> None:
    """A code that one gateway issued lets a browser in at another, once; the login and its end count at both."""
    other = WebLogins(state, now=time)
    code = await logins.issue_code("ann")
    outcomes = await asyncio.gather(other.enter(code), logins.enter(code))
    assert sorted(outcome for outcome, _ in outcomes) == [LoginOutcome.WELCOME, LoginOutcome.WRONG]
    token = max(token for _, token in outcomes)
    login = await logins.find(token)
    assert login is not None
    assert await other.find(token) == login
    assert await logins.end("ann") == [login]
    assert not other.counts(login)
    assert await other.find(token) is None


async def test_logins_of_an_earlier_version_go_on(state: FakeState, time: AdvancedClock) -> None:
    """Browsers that are in when the gateway is upgraded stay in, and can be put out."""
    digest = hashlib.sha256(b"token").hexdigest()
    state.notes["logins"] = json.dumps({digest: ("ann", (time() + timedelta(days=3)).isoformat())})
    logins = WebLogins(state, now=time)
    login = await logins.find("token")
    assert login == StoredLogin(digest, "ann", time() + timedelta(days=3))
    assert "logins" not in state.notes
    assert await WebLogins(state, now=time).end("ann") == [login]
    assert await logins.find("token") is None


async def test_logins_and_codes_are_bounded(logins: WebLogins) -> None:
    """The oldest give way; the newest always works."""
    tokens = [(await logins.enter(await logins.issue_code("owner")))[1] for _ in range(MOST_LOGINS + 3)]
    assert await logins.find(tokens[0]) is None
    assert await logins.find(tokens[-1]) is not None
    codes = [await logins.issue_code("owner") for _ in range(20)]
    assert (await logins.enter(codes[0]))[0] is LoginOutcome.WRONG
    assert (await logins.enter(codes[-1]))[0] is LoginOutcome.WELCOME


async def test_no_token_is_nobody(logins: WebLogins) -> None:
    """An absent or foreign cookie is no login."""
    for token in ("", "x", "ß" * 10_000):
        assert await logins.find(token) is None


async def test_who_guesses_locks_nobody_else_out(logins: WebLogins) -> None:
    """Tries count by address, and by the /64 of IPv6."""
    code = await logins.issue_code("owner")
    for n in range(WRONG_TRIES):
        await logins.enter("AAAAAAAA", f"2001:db8::{n:x}")
    assert (await logins.enter(code, "2001:db8::ffff"))[0] is LoginOutcome.LOCKED
    assert (await logins.enter(code, "2001:db8:0:1::1"))[0] is LoginOutcome.WELCOME


async def test_many_addresses_that_guess_lock_nobody_out(logins: WebLogins) -> None:
    """A thousand addresses, five tries each, and the right code still lets its browser in."""
    code = await logins.issue_code("owner")
    for n in range(1_000):
        for _ in range(WRONG_TRIES):
            await logins.enter("AAAAAAAA", f"198.51.{n // 250}.{n % 250}")
    assert (await logins.enter(code, "203.0.113.9"))[0] is LoginOutcome.WELCOME
    assert logins.wrong == 5_000


async def test_who_is_in_is_shown_and_put_out(logins: WebLogins, state: FakeState, time: AdvancedClock) -> None:
    """By person, with their browsers; ending somebody's logins ends their codes too, and nobody else's, for good."""
    for who in ("ann", "ann", "owner"):
        await logins.enter(await logins.issue_code(who))
    unused = await logins.issue_code("ann")
    assert [(each.who, each.browsers) for each in await logins.users()] == [("ann", 2), ("owner", 1)]
    ended = await logins.end("ann")
    assert len(ended) == 2
    assert not any(logins.counts(login) for login in ended)
    assert (await logins.enter(unused))[0] is LoginOutcome.WRONG
    assert [each.who for each in await WebLogins(state, now=time).users()] == ["owner"]
    assert await logins.end("ann") == []
    time.move(LOGIN_LIFE)
    assert list(await logins.users()) == []


async def test_an_invitation_is_for_days_and_for_one_browser(logins: WebLogins, time: AdvancedClock) -> None:
    """A code of 16 letters, in four groups; login codes do not push it out; it ends with its person's logins."""
    invitation = await logins.invite("ann", timedelta(days=7))
    assert [len(each) for each in invitation.split("-")] == [4, 4, 4, 4]
    for _ in range(MOST_CODES + 1):
        await logins.issue_code("owner")
    time.move(timedelta(days=6))
    (user,) = await logins.users()
    assert (user.who, user.browsers, user.invited_until) == ("ann", 0, time.now + timedelta(days=1))
    assert (await logins.enter(invitation[:9]))[0] is LoginOutcome.WRONG
    assert (await logins.enter(invitation.lower()))[0] is LoginOutcome.WELCOME
    assert (await logins.enter(invitation))[0] is LoginOutcome.WRONG
    late, taken_back = await logins.invite("bob", timedelta(days=1)), await logins.invite("eve", timedelta(days=7))
    await logins.end("eve")
    time.move(timedelta(days=1))
    for code in (late, taken_back):
        assert (await logins.enter(code))[0] is LoginOutcome.WRONG
    assert [each.who for each in await logins.users()] == ["ann"]


async def test_the_oldest_invitation_goes_beyond_a_hundred(logins: WebLogins, time: AdvancedClock) -> None:
    """So the store holds no more of them, however many are made."""
    made = []
    for n in range(MOST_INVITATIONS + 5):
        time.move(timedelta(seconds=1))
        made.append(await logins.invite(f"p{n}", timedelta(days=7)))
    assert len(await logins.users()) == MOST_INVITATIONS
    assert (await logins.enter(made[0]))[0] is LoginOutcome.WRONG
    assert (await logins.enter(made[-1]))[0] is LoginOutcome.WELCOME


async def test_the_last_visit_is_noted_every_five_minutes(
    logins: WebLogins, state: FakeState, time: AdvancedClock
) -> None:
    """It stays when the login has ended, and goes with an erasure of the person, of nobody else."""
    for who in ("ann", "bob"):
        logins.note_seen(who)
    first = time.now
    time.move(timedelta(minutes=4))
    logins.note_seen("ann")
    assert {each.who: each.seen_at for each in await logins.users()} == {"ann": first, "bob": first}
    time.move(timedelta(minutes=1))
    logins.note_seen("ann")
    again = WebLogins(state, now=time)
    assert {each.who: each.seen_at for each in await again.users()} == {"ann": time.now, "bob": first}
    await again.forget_seen({"ann"})
    assert [each.who for each in await again.users()] == ["bob"]
    await again.forget_seen(None)
    assert list(await again.users()) == []


@pytest.mark.parametrize(("text", "expected"), NAMES)
def test_a_name_is_an_id(text: str, expected: bool) -> None:
    """Fit for a session key and a file's name, and never nearly another one."""
    assert is_person_name(text) is expected


async def test_a_code_is_never_issued_for_what_is_no_name() -> None:
    """Neither is the owner's id given away under a name."""
    channel = web_kind.open(FakePageServices().context("web"))
    assert isinstance(channel, WebChannel)
    for name in ("owner", "Ann", "a/b", " ann"):
        with pytest.raises(UserError):
            await channel.issue_code(name)
