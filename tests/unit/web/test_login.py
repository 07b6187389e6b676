"""Login codes and logins: short-lived, once, guarded against guessing, and nothing stored lets anybody in."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from channels.web.login import ALPHABET, CODE_LIFE, LOGIN_LIFE, MOST_LOGINS, WRONG_TRIES, WRONG_WINDOW, Logins, Outcome
from tests.fakes.web import FakeState


class Time:
    """A clock that is told to move."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 21, 22, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def move(self, span: timedelta) -> None:
        """Let *span* go by."""
        self.now += span


@pytest.fixture
def time() -> Time:
    """Give a clock."""
    return Time()


@pytest.fixture
def state() -> FakeState:
    """Give a channel's notes."""
    return FakeState()


@pytest.fixture
def logins(state: FakeState, time: Time) -> Logins:
    """Give logins with nobody in."""
    return Logins(state, now=time)


async def test_a_code_lets_one_browser_in_once(logins: Logins) -> None:
    """The first to type it is in; the second time it is only wrong."""
    code = logins.issue_code("owner")
    outcome, token = await logins.enter(code)
    assert outcome is Outcome.WELCOME
    login = await logins.find(token)
    assert login is not None
    assert login.who == "owner"
    assert (await logins.enter(code))[0] is Outcome.WRONG


async def test_a_code_is_read_as_people_type_it(logins: Logins) -> None:
    """Case, blanks and dashes do not matter; the letters are those nobody mistakes."""
    code = logins.issue_code("owner")
    assert len(code.replace("-", "")) == 8
    assert set(code) <= set(ALPHABET) | {"-"}
    assert not set("01OILl") & set(ALPHABET)
    assert (await logins.enter(f" {code.lower().replace('-', ' ')} "))[0] is Outcome.WELCOME


async def test_a_code_ends_after_ten_minutes(logins: Logins, time: Time) -> None:
    """Good until then, not a moment longer."""
    early, late = logins.issue_code("owner"), logins.issue_code("owner")
    time.move(CODE_LIFE - timedelta(seconds=1))
    assert (await logins.enter(early))[0] is Outcome.WELCOME
    time.move(timedelta(seconds=1))
    assert (await logins.enter(late))[0] is Outcome.WRONG


async def test_guessing_is_locked_out_for_a_minute(logins: Logins, time: Time) -> None:
    """After five wrong tries even the right code waits, and is not used up by waiting."""
    code = logins.issue_code("owner")
    for _ in range(WRONG_TRIES):
        assert (await logins.enter("AAAAAAAA"))[0] is Outcome.WRONG
    assert (await logins.enter(code))[0] is Outcome.LOCKED
    time.move(WRONG_WINDOW)
    assert (await logins.enter(code))[0] is Outcome.WELCOME


async def test_what_is_stored_lets_nobody_in(logins: Logins, state: FakeState) -> None:
    """Neither code nor token stands in the notes; the digest is no token."""
    code = logins.issue_code("owner")
    _, token = await logins.enter(code)
    stored = state.notes["logins"]
    assert token not in stored
    assert code.replace("-", "") not in stored
    login = await logins.find(token)
    assert login is not None
    assert login.digest in stored
    assert await logins.find(login.digest) is None


async def test_a_login_outlives_a_restart_but_not_thirty_days(logins: Logins, state: FakeState, time: Time) -> None:
    """The browser stays in until its time is over."""
    _, token = await logins.enter(logins.issue_code("owner"))
    restarted = Logins(state, now=time)
    assert await restarted.find(token) is not None
    time.move(LOGIN_LIFE)
    assert await restarted.find(token) is None


async def test_leaving_is_for_good(logins: Logins, state: FakeState, time: Time) -> None:
    """A token that left is nobody's, here and after a restart; leaving twice is leaving once."""
    _, token = await logins.enter(logins.issue_code("owner"))
    login = await logins.find(token)
    assert login is not None
    assert logins.counts(login)
    await logins.leave(login)
    await logins.leave(login)
    assert not logins.counts(login)
    assert await logins.find(token) is None
    assert await Logins(state, now=time).find(token) is None


async def test_logins_and_codes_are_bounded(logins: Logins) -> None:
    """The oldest give way; the newest always works."""
    tokens = [(await logins.enter(logins.issue_code("owner")))[1] for _ in range(MOST_LOGINS + 3)]
    assert await logins.find(tokens[0]) is None
    assert await logins.find(tokens[-1]) is not None
    codes = [logins.issue_code("owner") for _ in range(20)]
    assert (await logins.enter(codes[0]))[0] is Outcome.WRONG
    assert (await logins.enter(codes[-1]))[0] is Outcome.WELCOME


async def test_no_token_is_nobody(logins: Logins) -> None:
    """An absent or foreign cookie is no login."""
    for token in ("", "x", "ß" * 10_000):
        assert await logins.find(token) is None
