"""The small pieces: marks, paces, who somebody is, what doctor says, and the two manifests."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from channels.kit.background import TokenBucket
from channels.kit.chat_facts import FollowedThreads
from channels.slack import SCOPES, SlackSettings, missing, plugin
from channels.slack import manifest as wanted
from channels.slack.inbound import SlackReadCursors, number, parse_user
from channels.slack.outbound import missing_scopes
from tests.fakes.clock import VirtualClock
from tests.fakes.slack_server import ALL_SCOPES, APP_TOKEN, BOT_TOKEN, NEEDS
from tests.fakes.web_services import FakeState

DEPLOY = Path(__file__).parents[3] / "deploy"


def manifest(name: str) -> dict[str, Any]:
    """Return an app manifest."""
    found: dict[str, Any] = yaml.safe_load((DEPLOY / f"slack-{name}.yaml").read_text("utf-8"))
    return found


@pytest.mark.parametrize("name", ["least", "full"])
def test_a_manifest_is_what_init_says_and_each_scope_has_its_reason(name: str) -> None:
    """The file and what `parlour init` shows are the same app; scopes say what for, and events have their scopes."""
    app = manifest(name)
    assert app == wanted(full=name == "full")
    scopes = app["oauth_config"]["scopes"]["bot"]
    assert app["settings"]["socket_mode_enabled"] is True
    needs = {"app_mention": "app_mentions:read", "message.im": "im:history", "message.channels": "channels:history"}
    needs |= {"message.groups": "groups:history", "message.mpim": "mpim:history", "group_left": "groups:read"}
    needs |= dict.fromkeys(("member_joined_channel", "channel_left"), "channels:read")
    assert {needs[event] for event in app["settings"]["event_subscriptions"]["bot_events"]} <= set(scopes)
    lines = (DEPLOY / f"slack-{name}.yaml").read_text("utf-8").splitlines()
    reasons = [line.strip().removeprefix("- ") for line in lines if line.strip().startswith("- ") and " # " in line]
    told = dict(reason.split(" # ") for reason in reasons)
    assert told == {scope.name: scope.use for scope in SCOPES if scope.name in scopes}


def test_the_full_manifest_asks_for_what_slack_demands_and_no_more() -> None:
    """Every method we call has its scope, as the strict server demands it; every scope is of use for something."""
    ours = {method: scope.name for scope in SCOPES for method in scope.methods}
    told = {method: scope for method, scope in NEEDS.items() if method in ours}
    assert {method: ours[method] for method in told} == told
    called: set[str] = set()
    for file in (Path(__file__).parents[3] / "channels" / "slack").rglob("*.py"):
        if file.name != "scopes.py":
            called |= set(re.findall(r'"((?:[a-z]+\.)+[a-zA-Z]+)"', file.read_text("utf-8"))) & NEEDS.keys()
    assert called <= ours.keys()
    assert called >= set(NEEDS)
    assert {scope.name for scope in SCOPES} == ALL_SCOPES
    least = {scope.name for scope in SCOPES if scope.is_least}
    assert [scope.name for scope in missing(least)] == [scope.name for scope in SCOPES if not scope.is_least]
    assert missing(ALL_SCOPES) == []


def test_what_reading_back_needs_is_named() -> None:
    """By the kind of chat; the least manifest lacks it, the full one does not."""
    least, full = (frozenset(manifest(name)["oauth_config"]["scopes"]["bot"]) for name in ("least", "full"))
    assert missing_scopes("C1", least) == ["channels:history", "metadata.message:read"]
    assert missing_scopes("D1", least) == ["metadata.message:read"]
    assert [missing_scopes(chat, full) for chat in ("C1", "D1", "G1")] == [[], [], []]


def test_doctor_says_what_a_block_lacks() -> None:
    """One line that says how to mend it; a whole block has none."""
    whole = SlackSettings.model_validate({"bot_token": BOT_TOKEN, "app_token": APP_TOKEN})
    assert plugin.check(whole, {}) == []
    by_http = SlackSettings.model_validate({"bot_token": BOT_TOKEN, "signing_secret": "0" * 32})
    assert plugin.check(by_http, {}) == []
    assert by_http.by_http
    assert not whole.by_http
    lacking = SlackSettings.model_validate({"bot_token": BOT_TOKEN, "enabled": False})
    (line,) = plugin.check(lacking, {})
    assert "connections:write" in line
    assert "signing_secret" in line


@pytest.mark.parametrize("secret", ["", " " * 32, "0" * 31])
def test_a_weak_signing_secret_is_refused_at_the_start(secret: str) -> None:
    """Attack 15: with an empty secret, or half of one, anybody could sign."""
    with pytest.raises(ValueError, match="signing_secret"):
        SlackSettings.model_validate({"bot_token": BOT_TOKEN, "signing_secret": secret})


def test_the_library_is_loaded_when_a_channel_opens() -> None:
    """Not by the settings, not by doctor: a start without Slack does not pay for it."""
    modules = "channels.slack, channels.slack.parse, channels.slack.render"
    code = f"import sys, {modules}; sys.exit(any(m.startswith('slack_') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0  # noqa: S603 - our own words


PEOPLE = [
    ({"team_id": "T0HOME", "profile": {"display_name": "Ann"}, "is_admin": True}, ("Ann", False, True)),
    ({"team_id": "T0HOME", "profile": {"real_name": "Bob B"}, "is_restricted": True}, ("Bob B", True, False)),
    ({"team_id": "T0HOME", "name": "gus", "is_ultra_restricted": True}, ("gus", True, False)),
    ({"team_id": "T0FAR", "is_admin": True, "is_owner": True}, ("", True, False)),
    ({"is_stranger": True}, ("", True, False)),
    ({}, ("", False, False)),
]


@pytest.mark.parametrize(("user", "facts"), PEOPLE)
def test_a_user_is_read_as_facts(user: dict[str, Any], facts: tuple[str, bool, bool]) -> None:
    """An admin of another workspace is nobody's admin here; guests of both kinds are guests."""
    person = parse_user(user, "T0HOME")
    assert (person.name, person.is_guest, person.is_admin) == facts


TS = st.builds(lambda s, u: f"{s}.{u:06d}", st.integers(1, 2_000_000_000), st.integers(0, 999_999))


@given(st.lists(TS, min_size=1, max_size=20, unique=True), st.data())
def test_a_mark_never_passes_what_was_missed(times: list[str], data: st.DataObject) -> None:
    """Whatever order things come in: reading on from the mark finds every missed message, and once all came, none."""
    marks = SlackReadCursors(FakeState())
    missed = data.draw(st.sets(st.sampled_from(times)))
    for ts in times:
        (marks.hold_back if ts in missed else marks.advance)("C1", ts)
    ((_, mark),) = marks.places()
    assert all(number(mark) < number(ts) for ts in missed)
    for ts in missed:
        marks.advance("C1", ts)
    ((_, mark),) = marks.places()
    assert mark == max(times, key=number)


async def test_marks_and_threads_survive_a_restart_and_stay_small() -> None:
    """The newest are kept, an older one is forgotten, and nothing is written that did not change."""
    state = FakeState()
    marks, threads = SlackReadCursors(state), FollowedThreads(state, size=500)
    for n in range(1, 600):
        marks.advance(f"C{n}", f"{n}.000001")
        await threads.follow(f"C1/{n}.000001", f"{n}.000002")
    await marks.save()
    again, known = SlackReadCursors(state), FollowedThreads(state, size=500)
    await again.load()
    assert again.places()[0] == ("C599", "599.000001")
    assert len(again.places()) == 300
    assert await known.is_followed("C1/599.000001", otherwise=False)
    assert not await known.is_followed("C1/1.000001", otherwise=False)
    assert await known.is_followed("C2/1.000001", otherwise=True)
    state.notes.clear()
    await again.save()
    await known.follow("C1/599.000001", "700.000001")
    assert await known.since("C1/599.000001") == "599.000002"
    assert state.notes == {}


async def test_a_bucket_lets_a_burst_through_and_then_paces(clock: VirtualClock) -> None:
    """So many at once, then one at a time."""
    bucket = TokenBucket(3, 1.0)
    loop = asyncio.get_running_loop()
    began, waits = loop.time(), []
    for _ in range(5):
        await bucket.acquire()
        waits.append(round(loop.time() - began, 3))
    assert waits == [0.0, 0.0, 0.0, 1.0, 2.0]
    assert bucket.delay() == 1.0
    assert bucket.try_acquire() == 1.0  # counts nothing: it may not go yet
    assert bucket.delay() == 1.0
