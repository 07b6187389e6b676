"""What people do to their memory, killed on its way: remembered, corrected, undone, edited by hand, erased, linked.

Each plot is played on SQLite and on PostgreSQL. The kill comes before any call that decides what a restart finds: every
statement that is sent to the database, every commit, and every write, rename and fsync of the mirror. Nothing names
these calls, so that a new one is covered by itself. In the end each promise is kept once: every line is there or gone,
as if nothing had happened, everybody was told once, and no job is left.
"""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from tests.fakes.account_linking import CODE
from tests.fakes.openai_server import ScriptedAnswer, ScriptedToolCall
from tests.faults.access_plots import HELLO, AccessPlot, rows_match
from tests.faults.process_pool import ChildConnection

ANN, BOB = "ann", "bob"
BEES, GOATS, HENS, WORD = "Ann keeps bees", "Ann keeps goats", "Ann keeps hens", "kanariabcdvogel"
_GOOD_DAY = "Good day."
_CHANGE = re.compile(r"`(\w{8})`")
_APPROVE = re.compile(r"/memory approve f\w+")
_ALIVE = "SELECT text FROM document_line WHERE removed IS NULL AND text LIKE '- %' ORDER BY text"
_SPACE = re.compile(r"\s+")


class MemoryPlot(AccessPlot):
    """A person with something to remember."""

    settles: ClassVar[bool] = True
    expected: ClassVar[tuple[str, ...]] = ()  # the lines that are remembered in the end
    once: ClassVar[tuple[tuple[str, str], ...]] = ()  # chats, and the words that one message of each has

    @staticmethod
    def answer(body: Mapping[str, Any], n: int) -> ScriptedAnswer:
        """Answer people alike; summarise as a good model does, with nothing new to remember."""
        names = [each["function"]["name"] for each in body.get("tools", ())]
        if "save_memory" in names:
            shown = str(body["messages"][-1]["content"])
            memory = shown.partition("Long-term Memory\n")[2].partition("\n\n## Conversation")[0]
            saved = {"history_entry": "[2026-11-29 10:00] They talked.", "memory_update": memory or "(empty)"}
            call = ScriptedToolCall(name="save_memory", arguments=json.dumps(saved), id="c")
            return ScriptedAnswer(text="", calls=(call,))
        return ScriptedAnswer(text=_GOOD_DAY)

    async def begin(self, line: ChildConnection) -> None:
        """One line is remembered."""
        await self.tell(ANN, f"/remember {BEES}", "I will remember")

    async def tell(self, chat: str, text: str, words: str) -> str:
        """Write *text*, and return the answer that has *words*."""
        self.write(chat, text)
        return await self.see(chat, words)

    @abstractmethod
    async def play(self) -> None:
        """Play from wherever the life before left it."""

    def wrong(self, journal: sqlite3.Connection, asked: int) -> list[str]:
        """Each line is there, once, each sentence was said once, and nothing is left to do."""
        lines = [(f"- {line}",) for line in sorted(self.expected)]
        said = []
        for chat, words in self.once:
            texts = [message.text for message in self.relay.chat(chat) if words in message.text]
            said += [] if len(texts) == 1 else [f"{chat} shows {words!r} {len(texts)} times: {texts}"]
        return [
            *said,
            *rows_match(journal, _ALIVE, lines),
            *rows_match(journal, "SELECT count(*) FROM move", [(0,)]),
            *rows_match(journal, "SELECT count(*) FROM inbox WHERE ended_at IS NULL", [(0,)]),
            *self._files_match(),
        ]

    def _files_match(self) -> list[str]:
        """Say what is wrong when the mirror does not have the same lines."""
        found = sorted(
            line
            for file in (self.root / "home").glob("people/*/memory/MEMORY.md")
            for line in file.read_text().splitlines()
            if line.startswith("- ")
        )
        expected = sorted(f"- {line}" for line in self.expected)
        return [] if found == expected else [f"the files have {found}, not {expected}"]


class RememberPlot(MemoryPlot):
    """A turn, and two lines that are remembered."""

    name = "remember"
    expected = (BEES, GOATS)
    once = ((BOB, "I will remember"), (BOB, _GOOD_DAY))

    async def play(self) -> None:
        """Talk, and have a line remembered."""
        await self.tell(BOB, HELLO, _GOOD_DAY)
        await self.tell(BOB, f"/remember {GOATS}", "I will remember")


class CorrectPlot(MemoryPlot):
    """A line is corrected."""

    name = "correct"
    expected = (GOATS,)
    once = ((ANN, "Corrected"),)

    async def play(self) -> None:
        """Correct it."""
        await self.tell(ANN, f"/memory correct {BEES} => {GOATS}", "Corrected")


class UndoPlot(MemoryPlot):
    """A change is undone."""

    name = "undo"
    once = ((ANN, "Undone"),)
    change = ""

    async def begin(self, line: ChildConnection) -> None:
        """Look up what there is to undo."""
        await super().begin(line)
        found = _CHANGE.search(await self.tell(ANN, "/memory log", BEES))
        assert found is not None
        self.change = found[1]

    async def play(self) -> None:
        """Undo it."""
        await self.tell(ANN, f"/memory undo {self.change}", "Undone")


class NewPlot(MemoryPlot):
    """A conversation ends, and is summarised."""

    name = "new"
    expected = (BEES,)
    once = ((ANN, "New session started"),)

    async def begin(self, line: ChildConnection) -> None:
        """Say something worth a summary."""
        await super().begin(line)
        await self.tell(ANN, "I have moved to Lisbon, and I work at the harbour", _GOOD_DAY)

    async def play(self) -> None:
        """End it."""
        await self.tell(ANN, "/new", "New session started")

    def wrong(self, journal: sqlite3.Connection, asked: int) -> list[str]:
        """One summary."""
        entries = rows_match(journal, "SELECT count(*) FROM history_entry", [(1,)])
        return [*super().wrong(journal, asked), *entries]


class ErasePlot(MemoryPlot):
    """A word is erased from every byte."""

    name = "erase"
    expected = (BEES,)
    once = ((ANN, "Done. Erased"),)

    async def begin(self, line: ChildConnection) -> None:
        """Say the word, and have it remembered."""
        await super().begin(line)
        await self.tell(ANN, f"I talk of {WORD}", _GOOD_DAY)
        self.write(ANN, f"/remember Ann likes {WORD}")
        while sum("I will remember" in message.text for message in self.relay.chat(ANN)) < 2:
            await self.relay.wait_changed()

    async def play(self) -> None:
        """Ask for it, and say yes."""
        question = await self.tell(ANN, f"/forget {WORD} --purge", "/memory approve")
        found = _APPROVE.search(_SPACE.sub(" ", question))
        assert found is not None, question
        await self.tell(ANN, found[0], "Done. Erased")

    def wrong(self, journal: sqlite3.Connection, asked: int) -> list[str]:
        """The word is in no file of the home, git's objects too."""
        files = [path for path in (self.root / "home").rglob("*") if path.is_file() and not path.is_symlink()]
        left = [str(path) for path in files if WORD.encode() in path.read_bytes()]
        return [*super().wrong(journal, asked), *(f"{path} has the word" for path in left)]


class LinkPlot(MemoryPlot):
    """Two accounts become one person."""

    name = "link"
    expected = (BEES, GOATS)

    async def begin(self, line: ChildConnection) -> None:
        """Both have something to remember."""
        await super().begin(line)
        await self.tell(BOB, f"/remember {GOATS}", "I will remember")

    async def play(self) -> None:
        """A code, and a yes on both sides."""
        code = CODE.search(_SPACE.sub(" ", await self.tell(ANN, "/link", "/link ")))
        assert code is not None
        await self.tell(BOB, f"/link {code[1]}", "yes")
        self.write(BOB, "/link yes")
        await self.confirmed()
        await self.tell(ANN, "/link yes", "Both accounts confirmed")

    def wrong(self, journal: sqlite3.Connection, asked: int) -> list[str]:
        """One person with two accounts."""
        persons = rows_match(
            journal, "SELECT count(DISTINCT person), count(*) FROM account WHERE identity LIKE '%relay%'", [(1, 2)]
        )
        return [*super().wrong(journal, asked), *persons]


class UnlinkPlot(LinkPlot):
    """Two accounts that were one person come apart."""

    name = "unlink"

    async def begin(self, line: ChildConnection) -> None:
        """Link them."""
        await super().begin(line)
        await super().play()
        line.tell("settle")
        assert await line.wait("settled")

    async def play(self) -> None:
        """Leave."""
        await self.tell(BOB, "/unlink", "will be a separate person")

    def wrong(self, journal: sqlite3.Connection, asked: int) -> list[str]:
        """Each has its own line again."""
        own = "SELECT count(DISTINCT scope) FROM document_line WHERE removed IS NULL AND text LIKE '- %'"
        return [*MemoryPlot.wrong(self, journal, asked), *rows_match(journal, own, [(2,)])]


class HandEditPlot(MemoryPlot):
    """A person adds a line to the file, and one is remembered beside it."""

    name = "hand"
    expected = (BEES, GOATS, HENS)
    has_edited = False

    @property
    def file(self) -> Path:
        """Return where the document is."""
        return self.root / "home/people/relay%3aann/memory/MEMORY.md"

    async def begin(self, line: ChildConnection) -> None:
        """Wait for the file."""
        await super().begin(line)
        line.tell("settle")
        assert await line.wait("settled")

    async def play(self) -> None:
        """Edit by a rename, as editors do, and go on."""
        if not self.has_edited:
            self.has_edited = True
            await asyncio.to_thread(self._edit)
        self.write(ANN, f"/remember {HENS}")
        while sum("I will remember" in message.text for message in self.relay.chat(ANN)) < 2:
            await self.relay.wait_changed()
        await self.tell(ANN, HELLO, _GOOD_DAY)

    def _edit(self) -> None:
        beside = self.root / "edited.tmp"
        beside.write_text(f"{self.file.read_text().rstrip()}\n- {GOATS}\n")
        beside.replace(self.file)


MEMORY_PLOTS: Mapping[str, type[AccessPlot]] = {
    plot.name: plot
    for plot in (
        RememberPlot, CorrectPlot, UndoPlot, NewPlot, ErasePlot, LinkPlot, UnlinkPlot, HandEditPlot,
    )
}  # fmt: skip
