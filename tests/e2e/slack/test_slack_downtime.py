"""Down for minutes, for hours, for more than a day: the rows of docs/slack.md, quoted and shown."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.i18n import translate
from tests.fakes.held_model import HeldModel
from tests.fakes.slack_gateway import CALL, open_gateway, transcripts
from tests.fakes.slack_guarantees import promised
from tests.fakes.slack_server import ANN, BOB, DM, EVE, ROOM, SlackServer, slack_server

MEMBERS = {"PARLOUR_CHANNELS__SLACK__ALLOW_FROM": "team:T0HOME", "PARLOUR_CHANNELS__SLACK__REACTION": ""}
HOUR = 3_600.0


def age_marks(home: Path, seconds: float) -> None:
    """Let what was heard last have been heard so long ago: nothing that is answered now can be that old."""
    with sqlite3.connect(home / "journal.db") as journal:
        ((kept,),) = journal.execute("SELECT value FROM note WHERE channel = 'slack' AND name = 'marks'")
        older = {place: f"{int(ts.partition('.')[0]) - int(seconds)}.000000" for place, ts in json.loads(kept).items()}
        journal.execute("UPDATE note SET value = ? WHERE channel = 'slack' AND name = 'marks'", (json.dumps(older),))
    journal.close()


@contextmanager
def ago(server: SlackServer, seconds: float) -> Iterator[None]:
    """Let what is written here have been written so long ago."""
    server.ago, before, server._last = seconds, server.ago, 0
    yield
    server.ago = before


async def test_down_for_ten_minutes(tmp_path: Path) -> None:
    """Everything said meanwhile is answered as usual: each message by itself, where it was written."""
    assert promised("down for 10 minutes") == "one answer to each message"
    async with slack_server() as server:
        with ago(server, 700):
            async with open_gateway(server, home=tmp_path / "home", environment=MEMBERS) as parlour:
                server.say(DM, ANN, "first")
                thread = server.say(ROOM, BOB, f"{CALL} hello")
                await server.until(lambda: len(server.shown(DM)) == len(server.shown(ROOM, thread)) == 1)
                await parlour.idle()
                home = parlour.kill(tmp_path / "copy")
        with ago(server, 500):
            server.say(DM, ANN, "one", quiet=True)
            server.say(ROOM, ANN, "a follow-up", thread=thread, quiet=True)
            called = server.say(ROOM, ANN, f"{CALL} anybody?", quiet=True)
        with ago(server, 120):
            server.say(DM, ANN, "two", quiet=True)
        async with open_gateway(server, home=home, environment=MEMBERS) as parlour:
            await server.until(lambda: len(server.shown(DM)) == 3 and bool(server.shown(ROOM, called)))
            await server.until(lambda: len(server.shown(ROOM, thread)) == 2)
            await parlour.idle()
        assert [shown.split()[-1] for shown in server.shown(DM)] == ["first", "one", "two"]
        assert server.shown(ROOM, thread)[1].endswith("a follow-up")


async def test_down_for_a_day_and_an_hour_with_everything_going_on(tmp_path: Path) -> None:
    """An answered message edited and another deleted, a person made a guest, two people writing, old words and new."""
    assert promised("down for hours") == "one answer to all of it"
    assert promised("down for 25 hours") == "the line, and one answer"
    assert promised("an answered message edited while down") == "the answer as it was"
    assert promised("an answered message deleted while down") == "the answer as it was"
    assert promised("a message written and edited while down") == "one answer to the words as edited"
    assert promised("a message written and deleted while down") == "nothing"
    assert promised("a person made a guest or removed while down") == "nothing to them"
    assert promised("two people writing while down") == "two answers"
    model = HeldModel(held=False)
    async with slack_server() as server:
        async with open_gateway(server, home=tmp_path / "home", environment=MEMBERS) as parlour:
            edited = server.say(DM, ANN, "the date is the 5th")
            await server.until(lambda: len(server.shown(DM)) == 1)
            taken_back = server.say(DM, ANN, "and a secret")
            thread = server.say(ROOM, BOB, f"{CALL} hello")
            await server.until(lambda: len(server.shown(DM)) == 2 and bool(server.shown(ROOM, thread)))
            await parlour.idle()
            home = parlour.kill(tmp_path / "copy")
        age_marks(home, 26 * HOUR)
        with ago(server, 25 * HOUR):
            server.say(DM, ANN, "too old", quiet=True)
        with ago(server, 2 * HOUR):
            server.say(DM, ANN, "are you there?", quiet=True)
            server.edit(DM, server.say(DM, ANN, "helo", quiet=True), "hello, hello", quiet=True)
            server.delete(DM, server.say(DM, ANN, "never mind me", quiet=True), quiet=True)
            server.say(ROOM, BOB, "Bob asks in the thread", thread=thread, quiet=True)
            server.say(ROOM, ANN, "Ann asks in the thread", thread=thread, quiet=True)
            guest = server.say(ROOM, EVE, f"{CALL} me too", quiet=True)
            server.users[EVE]["is_restricted"] = True
        server.edit(DM, edited, "the date is the 6th", quiet=True)
        server.delete(DM, taken_back, quiet=True)
        answers = len(server.shown(DM))
        async with open_gateway(server, home=home, model=model, environment=MEMBERS) as parlour:
            await server.until(lambda: len(server.shown(DM)) == answers + 2)
            await server.until(lambda: len(server.shown(ROOM, thread)) == 3)
            await parlour.idle()
            kept = transcripts(parlour.home)
        line, answer = server.shown(DM)[answers:]
        assert line == translate("queue.expired")
        assert answer.endswith("hello, hello")
        (prompt,) = (prompt for prompt in model.prompts if "hello, hello" in prompt)
        assert "never mind me" not in "".join(model.prompts)
        assert len(model.prompts) == 3, prompt
        assert {shown.split()[-5] for shown in server.shown(ROOM, thread)[1:]} == {"Bob", "Ann"}
        assert server.shown(ROOM, guest) == []
        assert "the date is the 6th" in kept
        assert "an earlier message edited to" in kept
        assert "and a secret" in kept  # nobody tells a bot what was deleted while it was away


async def test_the_edit_is_noted_once(tmp_path: Path) -> None:
    """The next start reads the same history again, and knows the edit by when it was made."""
    async with slack_server() as server:
        async with open_gateway(server, home=tmp_path / "a", environment=MEMBERS) as parlour:
            ts = server.say(DM, ANN, "the 5th")
            await server.until(lambda: len(server.shown(DM)) == 1)
            await parlour.idle()
            home = parlour.kill(tmp_path / "b")
        server.edit(DM, ts, "the 6th", quiet=True)
        for number in range(2):
            async with open_gateway(server, home=home, environment=MEMBERS) as parlour:
                server.say(DM, ANN, f"hello {number}")
                await server.until(lambda: len(server.shown(DM)) == 2 + number)  # noqa: B023 - waited for right here
                await parlour.idle()
                kept = transcripts(parlour.home)
        assert kept.count("an earlier message edited to") == 1
        assert server.reactions == set()


async def test_without_history_what_slack_gave_up_is_not_known(tmp_path: Path) -> None:
    """With the least scopes nothing is read after the silence; what Slack still brings is answered."""
    async with slack_server() as server:
        server.scopes -= {"im:history", "channels:history"}
        async with open_gateway(server, home=tmp_path / "a") as parlour:
            server.say(DM, ANN, "first")
            await server.until(lambda: len(server.shown(DM)) == 1)
            await parlour.idle()
            home = parlour.kill(tmp_path / "b")
        server.say(DM, ANN, "nobody hears this", quiet=True)
        server.say(DM, ANN, "but this")
        async with open_gateway(server, home=home) as parlour:
            await server.until(lambda: len(server.shown(DM)) == 2)
            await parlour.idle()
        assert server.shown(DM)[1].endswith("but this")
