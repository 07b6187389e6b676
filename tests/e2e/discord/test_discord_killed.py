"""Killed at every durable or network step, a real process each time: the table in docs/discord.md is what happens.

Each case quotes its row there. The kills at every system call are tests/faults/test_platforms.py.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest

from gateway.i18n import translate
from tests.fakes.discord_process import DiscordForkServer, DiscordProcessOrder, open_nursery
from tests.fakes.discord_records import ANN, BEN, BOT, GENERAL, TEAM_ROLE
from tests.fakes.discord_server import DiscordServer, open_discord

CALL = f"<@{BOT}>"
ROWS = (Path(__file__).parents[3] / "docs" / "discord.md").read_text(encoding="utf-8")
NOW, LATER = timedelta(seconds=1), timedelta(minutes=10)


@pytest.fixture(scope="module")
def nursery() -> Iterator[DiscordForkServer]:
    """Give the process that forks gateways."""
    with open_nursery() as nursery:
        yield nursery


@dataclass
class DiscordScene:
    """One home before one Discord, over several lives."""

    discord: DiscordServer
    nursery: DiscordForkServer
    folder: Path
    pid: int = 0
    seen: dict[tuple[str, str, str], int] = field(default_factory=dict)

    async def live(self, *, ago: timedelta = timedelta(), holds: bool = False, words: int = 0) -> None:
        """Begin a life whose clock stands *ago* in the past, Discord's too; it hears when this returns."""
        self._begin(ago=ago, holds=holds, words=words)
        await self.discord.until(lambda: self.discord.gateway.line is not None)

    async def live_until(self, when: str, method: str, kind: str) -> None:
        """Live, and be killed at a request, which may be the first thing that is done; return when it is dead."""
        struck = self._lie_in_wait(when, method, kind, 1)
        self._begin()
        await struck.wait()
        await self.end()

    def _begin(self, *, ago: timedelta = timedelta(), holds: bool = False, words: int = 0) -> None:
        self.discord.skew = -ago
        order = DiscordProcessOrder(
            home=str(self.folder / "home"),
            base=self.discord.base,
            log=str(self.folder / "log"),
            ago=ago.total_seconds(),
            holds=holds,
            words=words,
        )
        self.pid = self.nursery.begin(order)

    async def end(self) -> None:
        """Kill it, and return when Discord has noticed."""
        self.nursery.kill(self.pid)
        await self.discord.until(lambda: self.discord.gateway.line is None)
        self.discord.on_request = lambda *_: False

    async def killed_at(self, when: str, method: str, kind: str, number: int = 1) -> None:
        """Kill it at a request that is still to come; return when it is dead."""
        await self._lie_in_wait(when, method, kind, number).wait()
        await self.end()

    def _lie_in_wait(self, when: str, method: str, kind: str, number: int) -> asyncio.Event:
        struck = asyncio.Event()
        count = 0

        def strike(*seen: str) -> bool:
            nonlocal count
            if struck.is_set():
                return True
            count += seen == (when, method, kind)
            if count < number:
                return False
            self.nursery.kill(self.pid)
            struck.set()
            return True

        self.discord.on_request = strike
        return struck

    def knows(self, words: str) -> bool:
        """Say whether a message with these words was ever stored."""
        return bool(self.count("SELECT count(*) FROM inbox WHERE instr(payload, ?)", words))

    def count(self, query: str, value: str) -> int:
        """Ask the journal for a number."""
        with closing(sqlite3.connect(self.folder / "home" / "journal.db")) as journal:
            return int(journal.execute(query, (value,)).fetchone()[0])

    async def quiet(self, holds: Callable[[], object]) -> None:
        """Return when *holds* holds and nothing more happens: a last message of another chat is answered."""
        await self.discord.until(holds)
        chat = self.discord.direct(BEN)
        number = len(self.discord.chat(chat))
        self.discord.say(chat, BEN, "and you?")
        await self.discord.until(lambda: len(self.discord.chat(chat)) > number)


@asynccontextmanager
async def open_house(nursery: DiscordForkServer, folder: Path) -> AsyncIterator[DiscordScene]:
    """Serve a Discord; whatever lives at the end is killed."""
    async with open_discord() as discord:
        services = DiscordScene(discord, nursery, folder)
        try:
            yield services
        finally:
            nursery.kill_all()


def row(line: str) -> str:
    """Return what the page promises for *line*; a test without a row there fails."""
    (promise,) = [each.split(" | ")[1].rstrip(" |") for each in ROWS.splitlines() if each.startswith(f"| {line} | ")]
    return promise


def answers(services: DiscordScene, chat: str = GENERAL) -> list[str]:
    """Return what each of our messages answers."""
    return [text.rpartition("] ")[2].split(" word")[0] for text in services.discord.chat(chat)]


CASES = {
    # line of the table -> at which request, with a model that says its first words and no more
    "while the model thinks": ("before", "POST", "typing", True),
    "before the preview was sent": ("before", "POST", "messages", True),
    "after the preview was posted, before the response": ("after", "POST", "messages", True),
}


@pytest.mark.parametrize("later", [NOW, LATER], ids=["at once", "past the nonce"])
@pytest.mark.parametrize("line", CASES)
async def test_killed_in_a_turn(nursery: DiscordForkServer, tmp_path: Path, line: str, later: timedelta) -> None:
    """One answer, unmarked, in the preview's place where there was one."""
    when, method, kind, holds = CASES[line]
    assert row(line).startswith("one answer")
    async with open_house(nursery, tmp_path) as services:
        await services.live(ago=later, holds=holds)
        services.discord.say(GENERAL, ANN, f"{CALL} one")
        await services.killed_at(when, method, kind)
        previews = len(services.discord.chat(GENERAL))
        await services.live()
        await services.quiet(lambda: answers(services) == ["@Parlour one"])  # a preview is there already
        assert answers(services) == ["@Parlour one"]
        edited = [each for each in services.discord.messages[GENERAL] if each.get("was")]
        assert len(edited) == previews


@pytest.mark.parametrize("later", [NOW, LATER], ids=["at once", "past the nonce"])
async def test_killed_around_the_row(nursery: DiscordForkServer, tmp_path: Path, later: timedelta) -> None:
    """Stopped before it reads what Discord sent, and killed before the next mark: each message has one answer."""
    assert row("before the message's row was written") == "one answer"
    assert row("after the row, before the chat's mark") == "one answer"
    async with open_house(nursery, tmp_path) as services:
        await services.live(ago=later)
        services.discord.say(GENERAL, ANN, f"{CALL} zero")
        await services.discord.until(lambda: services.discord.chat(GENERAL))
        os.kill(services.pid, signal.SIGSTOP)
        services.discord.say(GENERAL, ANN, f"{CALL} one")
        await services.end()
        await services.live(ago=later)
        await services.discord.until(lambda: len(services.discord.chat(GENERAL)) == 2)
        services.discord.say(GENERAL, ANN, f"{CALL} two")
        await services.killed_at("before", "PUT", "reactions")
        await services.live()
        await services.quiet(lambda: len(services.discord.chat(GENERAL)) == 3)
        assert answers(services) == ["@Parlour zero", "@Parlour one", "@Parlour two"]


ADOPTION = {
    "before the answer replaced the preview": "before",
    "after the answer replaced the preview, before the response": "after",
}


@pytest.mark.parametrize("line", ["with the preview visible, during the answer", *ADOPTION])
async def test_killed_with_a_preview(nursery: DiscordForkServer, tmp_path: Path, line: str) -> None:
    """The answer takes the preview's place, whenever we are killed, and however often."""
    assert row(line) == "one answer, in the preview's place"
    async with open_house(nursery, tmp_path) as services:
        await services.live(holds=True)
        ident = services.discord.say(GENERAL, ANN, f"{CALL} one")
        await services.discord.until(lambda: services.discord.chat(GENERAL))
        (preview,) = [each for each in services.discord.messages[GENERAL] if each["id"] != ident]
        await services.discord.until(lambda: [each for each in services.discord.requests if each.kind == "typing"])
        await services.end()
        if line in ADOPTION:
            await services.live_until(ADOPTION[line], "PATCH", "messages")
        await services.live()
        await services.quiet(lambda: preview.get("was"))
        assert answers(services) == ["@Parlour one"]


async def test_killed_with_an_old_preview(nursery: DiscordForkServer, tmp_path: Path) -> None:
    """Ten minutes later nobody looks any more: the answer is a message that rings."""
    assert row("with a preview older than a minute").startswith("one answer; the preview points to it")
    async with open_house(nursery, tmp_path) as services:
        await services.live(ago=LATER, holds=True)
        services.discord.say(GENERAL, ANN, f"{CALL} one")
        await services.discord.until(lambda: len(services.discord.chat(GENERAL)) == 1)
        while not services.count("SELECT count(*) FROM part WHERE state = ?", "sent"):  # noqa: ASYNC110 - another process's disk
            await asyncio.sleep(0.01)
        await services.end()
        await services.live()
        await services.quiet(lambda: len(services.discord.chat(GENERAL)) == 2)
        assert services.discord.chat(GENERAL)[0] == translate("delivery.next_message")
        assert answers(services)[1] == "@Parlour one"


LONG = {
    "before the last part of a long answer was sent": ("before", 3, "every part once"),
    "after the last part of a long answer was posted, before the response": ("after", 3, "every part once"),
}


@pytest.mark.parametrize("later", [NOW, LATER], ids=["at once", "past the nonce"])
@pytest.mark.parametrize("line", LONG)
async def test_killed_in_a_long_answer(nursery: DiscordForkServer, tmp_path: Path, line: str, later: timedelta) -> None:
    """Each part stands once, in order, unmarked."""
    when, number, promise = LONG[line]
    assert row(line) == promise
    async with open_house(nursery, tmp_path) as services:
        direct = services.discord.direct(ANN)
        await services.live(ago=later, words=1_000)
        services.discord.say(direct, ANN, "one")
        await services.killed_at(when, "POST", "messages", number)
        await services.live()
        await services.quiet(lambda: len(services.discord.chat(direct)) == 3)
        shown = " ".join(services.discord.chat(direct))
        assert shown.split().count("word") == 1_000


FILES = {"before a file was sent": "before", "after a file was posted, before the response": "after"}


@pytest.mark.parametrize("line", FILES)
async def test_killed_around_a_file(nursery: DiscordForkServer, tmp_path: Path, line: str) -> None:
    """A long answer in a channel is its beginning and a file, each once."""
    assert row(line) == "one file"
    async with open_house(nursery, tmp_path) as services:
        await services.live(ago=LATER, words=3_000)
        services.discord.say(GENERAL, ANN, f"{CALL} one")
        await services.killed_at(FILES[line], "POST", "messages", 2)
        await services.live()

        def files() -> list[str]:
            return [file["filename"] for each in services.discord.messages[GENERAL] for file in each["attachments"]]

        await services.quiet(files)
        assert files() == ["answer.md"]
        assert len(services.discord.chat(GENERAL)) == 2


async def test_killed_around_a_command(nursery: DiscordForkServer, tmp_path: Path) -> None:
    """Its place is gone or is held: the answer stands there, or in the chat, once."""
    assert row("after a command's row, before it was confirmed") == "one answer, in the chat"
    assert row("after a command was confirmed, before its answer").startswith('one answer, in place of "is thinking"')
    async with open_house(nursery, tmp_path) as services:
        direct = services.discord.direct(ANN)
        await services.live(ago=timedelta(seconds=4))
        await services.discord.until(lambda: services.discord.interactions.registered)
        used = services.discord.interactions.use(direct, ANN, "usage")
        await services.killed_at("before", "POST", "callback")
        await services.live()
        await services.quiet(lambda: services.discord.chat(direct))
        assert not used.acknowledged
        assert len(services.discord.chat(direct)) == 1
        used = services.discord.interactions.use(GENERAL, ANN, "usage")
        await services.killed_at("before", "PATCH", "@original")
        assert used.is_thinking
        await services.live()
        await services.quiet(lambda: used.original)
        assert used.is_ephemeral
        assert services.discord.chat(GENERAL) == []


# Away.


@pytest.mark.parametrize("ago", [timedelta(minutes=10), timedelta(hours=25)], ids=["10 minutes", "25 hours"])
async def test_away_while_people_went_on(nursery: DiscordForkServer, tmp_path: Path, ago: timedelta) -> None:
    """Two people wrote, an answered message was edited, a role was revoked: as the table has it."""
    name = "10 minutes" if ago < timedelta(hours=1) else "25 hours"
    assert row(f"away for {name}, two people wrote")
    assert "no answer is repeated" in row("an answered message was edited")
    assert "rejected" in row("a role was revoked")
    eva = "2003"
    async with open_house(nursery, tmp_path) as services:
        discord = services.discord
        discord.members[eva]["roles"] = [TEAM_ROLE]
        await services.live(ago=ago)
        answered = discord.say(GENERAL, ANN, f"{CALL} answered")
        await discord.until(lambda: discord.chat(GENERAL))
        discord.say(GENERAL, eva, f"{CALL} of the team")
        await discord.until(lambda: len(discord.chat(GENERAL)) == 2)
        await services.end()
        if ago > timedelta(hours=24):
            discord.skew = -timedelta(hours=24, minutes=30)
            discord.say(GENERAL, BEN, f"{CALL} too old")
        discord.skew = -timedelta(minutes=5)
        for user, text in ((ANN, "first"), (BEN, "second"), (eva, "revoked")):
            discord.say(GENERAL, user, f"{CALL} {text}")
        discord.edit(answered, f"{CALL} edited")
        discord.members[eva]["roles"] = []
        await services.live()
        await services.quiet(lambda: len(discord.chat(GENERAL)) == 4)
        assert answers(services) == ["@Parlour answered", "@Parlour of the team", "@Parlour first", "@Parlour second"]
        assert services.knows("@Parlour edited") is (ago < timedelta(hours=24))
        assert not services.knows("too old")
        assert not services.knows("revoked")


async def test_an_edit_of_what_nobody_answered(nursery: DiscordForkServer, tmp_path: Path) -> None:
    """Written and edited while we were away: the newest words are answered."""
    assert row("an unanswered message was edited") == "the latest text is answered"
    async with open_house(nursery, tmp_path) as services:
        discord = services.discord
        await services.live(ago=LATER)
        discord.say(GENERAL, ANN, f"{CALL} zero")
        await discord.until(lambda: discord.chat(GENERAL))
        await services.end()
        discord.skew = -timedelta(minutes=5)
        ident = discord.say(GENERAL, ANN, f"{CALL} old-words")
        discord.edit(ident, f"{CALL} new-words")
        await services.live()
        await services.quiet(lambda: len(discord.chat(GENERAL)) == 2)
        assert answers(services) == ["@Parlour zero", "@Parlour new-words"]


def standing(discord: DiscordServer) -> set[str]:
    """Return the messages on which a reaction of ours stands."""
    last = {message: is_on for message, _, is_on in discord.reactions}
    return {message for message, is_on in last.items() if is_on}


async def test_no_reaction_stays_after_a_kill(nursery: DiscordForkServer, tmp_path: Path) -> None:
    """Killed between putting it and taking it away: the next life takes it away, the answer delivered or not."""
    assert row("between putting the reaction on a message and taking it away") == "no reaction, shortly after the start"
    async with open_house(nursery, tmp_path) as services:
        await services.live()
        services.discord.say(GENERAL, ANN, f"{CALL} one")
        await services.killed_at("after", "PUT", "reactions")
        await services.live()
        await services.quiet(lambda: services.discord.chat(GENERAL))
        async with asyncio.timeout(60):
            await services.discord.until(lambda: not standing(services.discord))
        assert answers(services) == ["@Parlour one"]


# The reaction on what was heard.
