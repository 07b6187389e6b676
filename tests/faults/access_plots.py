"""Decisions about people, killed on their way: somebody is let in, becomes the owner, is told of a cap or of a kill.

Each plot is played on the relay by people who only wait for what they see and then say the next thing, once. Wherever
the gateway died, the next life takes it up, and in the end everybody was told everything once and it is stored once.
"""

from __future__ import annotations

import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from gateway.i18n import translate
from tests.fakes.openai_server import ScriptedAnswer
from tests.fakes.relay import RelayServer
from tests.faults.process_pool import ChildConnection

OWNER, MAL = "own", "mal"
HELLO, THANKS = "hello", "thanks"
_ANSWERS = {HELLO: "Good day.", THANKS: "You are welcome."}
_PRESS = re.compile(r"/pair yes [0-9a-f]+")
_DIED = (
    "without a clean shutdown",
    "for the cause",
)  # what owners are told after a kill; on the relay it makes two messages


class AccessPlot(ABC):
    """Who says what, and what has come of it in the end."""

    name: ClassVar[str]
    owner: ClassVar[str] = ""  # of the relay, by the settings; then nobody else is let in
    dies_first: ClassVar[bool] = False  # a life before is killed once it began
    counts_start: ClassVar[bool] = False  # of the first life, too
    has_database: ClassVar[bool] = True  # it is played on PostgreSQL, too
    has_page: ClassVar[bool] = False  # the web channel runs, too
    imports: ClassVar[bool] = False  # the store is lost behind the life before; each life takes the files over first
    settings: ClassVar[Mapping[str, Any]] = {}  # of the gateway, beside the usual
    turns: ClassVar[int] = 0  # PERSON_TURNS_PER_10_MIN
    settles: ClassVar[bool] = False  # its background jobs belong to it, and the files of the mirror
    hours: int | None = None  # that the gateway's clock is ahead, if it can be moved: an hour at each `later`
    line: ChildConnection  # to the life that is led

    def __init__(self, relay: RelayServer, root: Path) -> None:
        self.relay = relay
        self.root = root

    @staticmethod
    def answer(body: Mapping[str, Any], n: int) -> ScriptedAnswer:
        """Answer alike however often a kill has the same thing asked."""
        said = next(str(each["content"]) for each in reversed(body["messages"]) if each["role"] == "user")
        return ScriptedAnswer(text=_ANSWERS[THANKS if THANKS in said else HELLO])

    def prepare(self) -> None:  # noqa: B027 - most have nothing there
        """Put into the home, which is not there yet, what is in it before the first life."""

    @abstractmethod
    async def begin(self, line: ChildConnection) -> None:
        """Play what comes before any fault; not called where the first life's start counts and none came before."""

    @abstractmethod
    async def play(self) -> None:
        """Play from wherever the life before left it; return when people have seen everything."""

    @abstractmethod
    def wrong(self, journal: sqlite3.Connection, asked: int) -> list[str]:
        """Say which promises the last life left broken; the model was *asked* so often."""

    def write(self, chat: str, text: str) -> None:
        """Let whoever a chat is named after write, unless they wrote that before: the platform brings it again."""
        if not any((each["chat"], each["text"]) == (chat, text) for each in self.relay.updates):
            self.relay.say(chat, text, sender=chat)

    async def see(self, chat: str, words: str) -> str:
        """Return the first message in *chat* that holds *words*."""
        while True:
            for message in self.relay.chat(chat):
                if words in message.text:
                    return message.text
            await self.relay.wait_changed()

    async def confirmed(self) -> None:
        """Wait until the platform was told of everything that was said."""
        while self.relay.confirmed < len(self.relay.updates):
            await self.relay.wait_changed()

    def shows(self, chat: str, *expected: str) -> list[str]:
        """Say what is wrong when *chat* does not show exactly these, each in one message, our death at most once."""
        texts = [message.text for message in self.relay.chat(chat)]
        shown = [text for text in texts if not any(words in text for words in _DIED)]
        is_so = len(shown) == len(expected) and all(map(str.__contains__, shown, expected))
        is_so = is_so and all(sum(words in text for text in texts) <= 1 for words in _DIED)
        return [] if is_so else [f"{chat} shows {texts}, not {list(expected)}"]


class PairingPlot(AccessPlot):
    """A stranger knocks; the owner is asked, and says yes."""

    name = "pairing"
    owner = OWNER

    async def begin(self, line: ChildConnection) -> None:
        """The owner is known by where they write."""
        self.write(OWNER, HELLO)
        await self.see(OWNER, _ANSWERS[HELLO])
        await self.confirmed()

    async def play(self) -> None:
        """Knock, press, and write."""
        self.write(MAL, "let me in")
        await self.see(MAL, "Your code is")
        asked = await self.see(OWNER, "/pair yes")
        self.write(OWNER, _PRESS.findall(asked)[0])
        await self.see(MAL, translate("unknown_senders.welcome"))
        await self.see(OWNER, "can now write to me")
        self.write(MAL, THANKS)
        await self.see(MAL, _ANSWERS[THANKS])

    def wrong(self, journal: sqlite3.Connection, asked: int) -> list[str]:
        """One member, one line of the audit, and each sentence once."""
        return [
            *self.shows(OWNER, _ANSWERS[HELLO], "/pair yes", "can now write to me"),
            *self.shows(MAL, "Your code is", translate("unknown_senders.welcome"), _ANSWERS[THANKS]),
            *rows_match(journal, "SELECT who, standing FROM access", [(MAL, "paired")]),
            *rows_match(journal, "SELECT what, whom FROM audit", [("pair yes", f"relay:{MAL}")]),
            *rows_match(journal, "SELECT count(*) FROM access_note WHERE name LIKE 'pair:%'", [(0,)]),
        ]


class OwnerClaimPlot(AccessPlot):
    """Who sends the code is the owner."""

    name = "claim"
    code = ""

    async def begin(self, line: ChildConnection) -> None:
        """The operator has a code printed."""
        line.tell("code")
        self.code = (await line.wait("code"))["code"]

    async def play(self) -> None:
        """Send it, and see that it counts."""
        self.write(OWNER, self.code)
        await self.see(OWNER, translate("people.owner_now")[:40])
        await self.confirmed()

    def wrong(self, journal: sqlite3.Connection, asked: int) -> list[str]:
        """One owner, one line of the audit, one sentence; and the code was nobody's message."""
        return [
            *self.shows(OWNER, translate("people.owner_now")[:40]),
            *rows_match(journal, "SELECT who, standing FROM access", [(OWNER, "owner")]),
            *rows_match(journal, "SELECT what, whom FROM audit", [("owner claim", f"relay:{OWNER}")]),
            *rows_match(journal, "SELECT count(*) FROM inbox", [(0,)]),
        ]


class UsageCapPlot(AccessPlot):
    """One answer, and then the line that says until when that was all."""

    name = "cap"
    turns = 1

    async def begin(self, line: ChildConnection) -> None:
        """Take the one turn."""
        self.write(MAL, HELLO)
        await self.see(MAL, _ANSWERS[HELLO])
        await self.confirmed()

    async def play(self) -> None:
        """Ask twice more."""
        self.write(MAL, "and another")
        await self.see(MAL, "in ten minutes")
        self.write(MAL, "and a third")
        await self.confirmed()

    def wrong(self, journal: sqlite3.Connection, asked: int) -> list[str]:
        """One line, two refusals, and the model was asked no more."""
        return [
            *self.shows(MAL, _ANSWERS[HELLO], "in ten minutes"),
            *rows_match(journal, "SELECT state FROM inbox ORDER BY seq", [("answered",), ("refused",), ("refused",)]),
            *rows_match(journal, "SELECT count(*) FROM cap_told", [(1,)]),
            *([] if asked == 1 else [f"the model was asked {asked} times"]),
        ]


class AlertPlot(AccessPlot):
    """The owner is told that we were killed, by a life that may be killed over it."""

    name = "alert"
    owner = OWNER
    dies_first = counts_start = True

    async def begin(self, line: ChildConnection) -> None:
        """The owner is known by where they write."""
        self.write(OWNER, HELLO)
        await self.see(OWNER, _ANSWERS[HELLO])
        await self.confirmed()

    async def play(self) -> None:
        """Wait for it."""
        await self.see(OWNER, _DIED[-1])

    def wrong(self, journal: sqlite3.Connection, asked: int) -> list[str]:
        """Told once, however often we were killed within the hour."""
        told = [message.text for message in self.relay.chat(OWNER) if _DIED[0] in message.text]
        return [*self.shows(OWNER, _ANSWERS[HELLO]), *([] if told else ["the owner was never told"])]


class ProfilePlot(AccessPlot):
    """A profile is chosen, and answers from then on."""

    name = "profile"
    owner = OWNER
    settings: ClassVar[Mapping[str, Any]] = {"profiles": {"cook": {"soul": "You are a cook."}}}

    @staticmethod
    def answer(body: Mapping[str, Any], n: int) -> ScriptedAnswer:
        """Say whose persona the prompt has."""
        return ScriptedAnswer(text="Soup." if "You are a cook." in str(body["messages"][0]) else "No soup.")

    async def begin(self, line: ChildConnection) -> None:
        """Answer as ever."""
        self.write(OWNER, HELLO)
        await self.see(OWNER, "No soup.")
        await self.confirmed()

    async def play(self) -> None:
        """Choose, and ask."""
        self.write(OWNER, "/as cook")
        await self.see(OWNER, translate("profile.set", profile="cook"))
        self.write(OWNER, THANKS)
        await self.see(OWNER, "Soup.")

    def wrong(self, journal: sqlite3.Connection, asked: int) -> list[str]:
        """One choice, one reply, one answer."""
        return [
            *self.shows(OWNER, "No soup.", translate("profile.set", profile="cook"), "Soup."),
            *rows_match(journal, "SELECT name, value FROM preference WHERE name = 'profile'", [("profile", "cook")]),
        ]


PLOTS: Mapping[str, type[AccessPlot]] = {
    plot.name: plot for plot in (PairingPlot, OwnerClaimPlot, UsageCapPlot, AlertPlot, ProfilePlot)
}


def rows_match(journal: sqlite3.Connection, query: str, expected: Sequence[tuple[Any, ...]]) -> list[str]:
    """Say what is wrong when *query* does not find exactly these rows."""
    found = journal.execute(query).fetchall()
    return [] if found == list(expected) else [f"{query}: {found}, not {list(expected)}"]
