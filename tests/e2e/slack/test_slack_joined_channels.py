"""A mention while the gateway was down, in a channel where the bot never spoke: read back from the last stop."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from channels.slack import history
from tests.fakes.conditions import eventually
from tests.fakes.slack import running
from tests.fakes.slack_gateway import CALL, open_gateway
from tests.fakes.slack_guarantees import promised
from tests.fakes.slack_server import ANN, BOB, BOT_USER, DM, FakeSlackChat, SlackFault, SlackServer, slack_server
from tests.fakes.web_services import FakePageServices

TEAM = {"PARLOUR_CHANNELS__SLACK__ALLOW_FROM": "team:T0HOME"}
HALL, YARD = "C0HALL", "C0YARD"


def join(server: SlackServer, *chats: str, kind: str = "channel") -> None:
    """Let the bot be a member of more channels, in which nobody has said anything."""
    for chat in chats:
        server.places[chat] = FakeSlackChat(chat, kind, {ANN, BOB, BOT_USER})


def texts(services: FakePageServices) -> list[str]:
    """Return what was taken in, without the mention."""
    return [heard.text.removeprefix("@parlour").strip() for heard in services.accepted]


@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_a_mention_while_down_is_answered_once(tmp_path: Path, how: str) -> None:
    """Killed or stopped: the mention in a channel without a word so far has one answer, over a second start too."""
    assert promised("a mention while down, in a channel where it never spoke") == "one answer"
    async with slack_server() as server:
        join(server, HALL)
        async with open_gateway(server, home=tmp_path / "home", environment=TEAM) as parlour:
            server.say(DM, ANN, "hello")
            await server.until(lambda: len(server.shown(DM)) == 1)
            await parlour.idle()
            home = parlour.kill(tmp_path / "copy")
        home = home if how == "killed" else tmp_path / "home"
        server.say(HALL, BOB, "just talk", quiet=True)
        asked = server.say(HALL, BOB, f"{CALL} anybody there?", quiet=True)
        for _ in range(2):
            async with open_gateway(server, home=home, environment=TEAM) as parlour:
                await server.until(lambda: bool(server.shown(HALL, asked)))
                await parlour.idle()
        assert len(server.shown(HALL, asked)) == 1
        assert server.shown(HALL) == []


async def test_only_what_calls_us_is_handed_over() -> None:
    """Other people's talk costs no look-up of anybody; a mention below a message of that time counts."""
    services = FakePageServices()
    async with slack_server() as server:
        join(server, HALL, YARD)
        join(server, "G0DEN", kind="group")
        async with running(server, services):
            assert server.called("users.conversations") == []  # the very first start: nothing was missed
        root = server.say(HALL, BOB, "a plan", quiet=True)
        server.say(HALL, ANN, f"{CALL} in the thread", thread=root, quiet=True)
        server.say(HALL, BOB, "not for the bot", thread=root, quiet=True)
        server.say(YARD, ANN, f"{CALL} in the yard", quiet=True)
        server.say("G0DEN", ANN, f"{CALL} in private", quiet=True)
        async with running(server, services):
            assert sorted(texts(services)) == ["in private", "in the thread", "in the yard"]
        assert {each["user"] for each in server.called("users.info")} == {ANN}
        assert {heard.key.thread for heard in services.accepted if heard.key.parent.chat == HALL} == {root}


async def test_where_no_mention_is_needed_everything_is_read() -> None:
    """With an open group policy each message is for the bot."""
    services = FakePageServices()
    async with slack_server() as server:
        join(server, HALL)
        async with running(server, services, group_policy="open"):
            pass
        server.say(HALL, BOB, "to whom it concerns", quiet=True)
        async with running(server, services, group_policy="open"):
            assert texts(services) == ["to whom it concerns"]


async def test_a_live_mention_does_not_hide_the_earlier_one() -> None:
    """Somebody writes there while the channels are still being listed: both are taken."""
    services = FakePageServices()
    async with slack_server() as server:
        join(server, HALL)
        async with running(server, services):
            pass
        server.say(HALL, BOB, f"{CALL} while down", quiet=True)

        def speak(method: str, when: str) -> None:
            if (method, when) == ("users.conversations", "before"):
                server.say(HALL, BOB, f"{CALL} live")

        server.on_call = speak
        async with running(server, services):
            await eventually(lambda: len(services.accepted) == 2)
        assert sorted(texts(services)) == ["live", "while down"]


async def test_more_channels_than_calls_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls for one stop are bounded, over all pages of the list; how many channels stay unread is in the log."""
    monkeypatch.setattr(history, "_LISTED", 3)
    monkeypatch.setattr(history, "_CALLS", 9)
    services = FakePageServices()
    chats = [f"C0HALL{n}" for n in range(10)]
    async with slack_server() as server:
        join(server, *chats)
        async with running(server, services):
            pass
        for chat in chats:
            server.say(chat, ANN, f"{CALL} {chat}", quiet=True)
        before = len(server.called("conversations.history"))
        with capture_logs() as logs:
            async with running(server, services):
                pass
        assert len(server.called("users.conversations")) == 4
        assert len(server.called("conversations.history")) - before == 5
        # The room that every workspace of these tests has is the first of eleven.
        assert texts(services) == chats[:4]
        (line,) = [each for each in logs if each["event"] == "slack.channels_unread"]
        assert (line["channels"], line["log_level"]) == (6, "warning")


async def test_more_channels_than_are_listed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list without end is read to its bound."""
    monkeypatch.setattr(history, "_LISTED", 2)
    monkeypatch.setattr(history, "_LISTS", 2)
    services = FakePageServices()
    async with slack_server() as server:
        join(server, *(f"C0HALL{n}" for n in range(10)))
        async with running(server, services):
            pass
        with capture_logs() as logs:
            async with running(server, services):
                pass
        assert len(server.called("users.conversations")) == 2
        assert [each["listed"] for each in logs if each["event"] == "slack.channels_not_listed"] == [4]


async def test_what_was_said_too_long_ago_stays_unread() -> None:
    """Down for ten days: a week is read."""
    services = FakePageServices()
    async with slack_server() as server:
        join(server, HALL)
        async with running(server, services):
            pass
        day = 24 * 3_600
        services.state.notes["heard-until"] = str(int(time.time()) - 10 * day)
        for days, text in ((8, "too old"), (6, "a week")):
            server.ago, server._last = days * day, 0
            server.say(HALL, ANN, f"{CALL} {text}", quiet=True)
        server.ago = 0
        async with running(server, services):
            assert texts(services) == ["a week"]


async def test_without_a_scope_the_log_says_what_is_not_read() -> None:
    """Private channels need groups:read; the public ones are read all the same."""
    services = FakePageServices()
    async with slack_server() as server:
        join(server, HALL)
        join(server, "G0DEN", kind="group")
        server.scopes.discard("groups:read")
        async with running(server, services):
            pass
        for chat in (HALL, "G0DEN"):
            server.say(chat, ANN, f"{CALL} {chat}", quiet=True)
        with capture_logs() as logs:
            async with running(server, services):
                assert texts(services) == [HALL]
        (line,) = [each for each in logs if each["event"] == "slack.channels_not_listed"]
        assert line["needs"] == "groups:read, groups:history"


async def test_a_limit_delays_the_reading_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slack says no twice: tried again later, from where it stood; the stop is remembered until then."""
    monkeypatch.setattr(history, "_LONGEST_WAIT", 0.01)
    monkeypatch.setattr(history, "_AGAIN", 0.01)
    services = FakePageServices()
    async with slack_server() as server:
        join(server, HALL)
        async with running(server, services):
            pass
        stopped = services.state.notes["heard-until"] = str(int(time.time()) - 600)
        server.say(HALL, ANN, f"{CALL} hello", quiet=True)
        for method in ("users.conversations", "conversations.history"):
            server.faults[method] = [SlackFault(status=429, error="ratelimited", retry_after=1)] * 2
        async with running(server, services) as up:
            assert (texts(services), services.state.notes["heard-until"]) == ([], stopped)
            up.channel._catch_up.every = 0.1
            await eventually(lambda: texts(services) == ["hello"])
            await eventually(lambda: services.state.notes["heard-until"] != stopped)
