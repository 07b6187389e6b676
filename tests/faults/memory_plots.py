"""What people do to their memory, killed on its way: remembered, corrected, undone, edited by hand, erased, linked.

Each plot is played on SQLite and on PostgreSQL. The kill comes before any call that decides what a restart finds: every
commit, and every write, rename, new and removed file of the mirror. Nothing names these calls, so that a new one is
covered by itself. In the end each promise is kept once: every line is there or gone,
as if nothing had happened, everybody was told once, and no job is left.
"""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import tarfile
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
_GOOD_DAY, _LASTS = "Good day.", "Ann moves to Lisbon"
_OLD, _ASKS = "I have moved to Lisbon, and I work at the harbour", "What did I say?"
_KNOWS_NOTHING = "Nothing, so far."
_CHANGE = re.compile(r"`(\w{8})`")
_APPROVE = re.compile(r"/memory approve f\w+")
_ALIVE = "SELECT text FROM document_line WHERE removed IS NULL AND text LIKE '- %' ORDER BY text"
_LAST = b"and the lights go out"  # the message that the homes of earlier releases left open
_ADOPTED = (
    "SELECT key, transcript, from_index, to_index, body FROM record WHERE at < 1795700000000000",
    "SELECT scope, document, line, added, removed, place, text FROM document_line",
    "SELECT scope, number, id, at, why, author, names, undoes FROM document_change",
    "SELECT scope, cursor, entry, is_raw, body FROM history_entry",
    "SELECT scope, name, owner, body FROM note_file",
    "SELECT scope, kind, name, at, is_untrusted, sha256, size FROM stored_file",
)
_HOMES = Path(__file__).parents[1] / "payloads" / "homes"
_SPACE = re.compile(r"\s+")


def _call(name: str, arguments: Mapping[str, Any]) -> ScriptedAnswer:
    return ScriptedAnswer(text="", calls=(ScriptedToolCall(name=name, arguments=json.dumps(arguments), id="c"),))


class MemoryPlot(AccessPlot):
    """A person with something to remember."""

    settles = True
    expected: ClassVar[tuple[str, ...]] = ()  # the lines that are remembered in the end
    once: ClassVar[tuple[tuple[str, str], ...]] = ()  # chats, and the words that one message of each has

    learns: ClassVar[tuple[str, ...]] = ()  # lines that a summary adds
    dreams: ClassVar[bool] = True  # of hens

    @classmethod
    def answer(cls, body: Mapping[str, Any], n: int) -> ScriptedAnswer:
        """Answer people alike; summarise as a good model does; dream of hens, and say at a flush what lasts."""
        names = [each["function"]["name"] for each in body.get("tools", ())]
        shown = "\n".join(str(each["content"]) for each in body["messages"])
        if "save_memory" in names:
            memory = shown.rpartition("Long-term Memory\n")[2].partition("\n\n## Conversation")[0]
            lines = [*memory.splitlines(), *(f"- {line}" for line in cls.learns if line not in memory)]
            saved = {"history_entry": "[2026-11-29 10:00] They talked.", "memory_update": "\n".join(lines) or "(empty)"}
            return _call("save_memory", saved)
        if "edit_memory" in names and "You have studied what is new" in shown:
            is_known = f"- {HENS}" in shown or not cls.dreams
            add = {"document": "MEMORY.md", "op": "add", "text": f"- {HENS}", "source": 1}
            return _call("edit_memory", {"operations": [] if is_known else [add], "done": True})
        if "create_session_memory" in names:
            return _call("create_session_memory", {"slug": "talk", "summary": "They talked."})
        if "memory extraction agent" in shown:
            return ScriptedAnswer(text=f"- {_LASTS}")
        is_new = str(body["messages"][-1]["content"]).endswith(_ASKS) and _OLD not in shown
        return ScriptedAnswer(text=_KNOWS_NOTHING if is_new else _GOOD_DAY)

    async def begin(self, line: ChildConnection) -> None:
        """One line is remembered."""
        await self.tell(ANN, f"/remember {BEES}", "I will remember")

    async def settle(self, line: ChildConnection) -> None:
        """Return when background jobs are done and the mirror is written."""
        line.tell("settle")
        assert await line.wait("settled")

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

    def _files_with(self, word: str) -> list[str]:
        files = [path for path in (self.root / "home").rglob("*") if path.is_file() and not path.is_symlink()]
        return [f"{path} has the word" for path in files if word.encode() in path.read_bytes()]


class RememberPlot(MemoryPlot):
    """A turn, and two lines that are remembered."""

    name = "remember"
    expected: ClassVar[tuple[str, ...]] = (BEES, GOATS)
    once: ClassVar[tuple[tuple[str, str], ...]] = ((BOB, "I will remember"), (BOB, _GOOD_DAY))

    async def play(self) -> None:
        """Talk, and have a line remembered."""
        await self.tell(BOB, HELLO, _GOOD_DAY)
        await self.tell(BOB, f"/remember {GOATS}", "I will remember")


class CorrectPlot(MemoryPlot):
    """A line is corrected."""

    name = "correct"
    expected: ClassVar[tuple[str, ...]] = (GOATS,)
    once: ClassVar[tuple[tuple[str, str], ...]] = ((ANN, "Corrected"),)

    async def play(self) -> None:
        """Correct it."""
        await self.tell(ANN, f"/memory correct {BEES} => {GOATS}", "Corrected")


class UndoPlot(MemoryPlot):
    """A change is undone."""

    name = "undo"
    once: ClassVar[tuple[tuple[str, str], ...]] = ((ANN, "Undone"),)
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
    """A conversation ends, and is summarised (nanobot bug 10: a crash in between lost it)."""

    name = "new"
    expected: ClassVar[tuple[str, ...]] = (BEES,)
    once: ClassVar[tuple[tuple[str, str], ...]] = ((ANN, "New session started"), (ANN, _KNOWS_NOTHING))

    async def begin(self, line: ChildConnection) -> None:
        """Say something worth a summary."""
        await super().begin(line)
        await self.tell(ANN, _OLD, _GOOD_DAY)

    async def play(self) -> None:
        """End it, and ask what it was about."""
        await self.tell(ANN, "/new", "New session started")
        await self.tell(ANN, _ASKS, _KNOWS_NOTHING)

    def wrong(self, journal: sqlite3.Connection, asked: int) -> list[str]:
        """One summary, and one archive with the old words."""
        entries = rows_match(journal, "SELECT count(*) FROM history_entry", [(1,)])
        archives = [path.name for path in self.root.glob("home/people/*/sessions/*.jsonl") if _OLD in path.read_text()]
        is_one = [] if len(archives) == 1 else [f"the old words are in {archives}"]
        return [*super().wrong(journal, asked), *entries, *is_one]


class ErasePlot(MemoryPlot):
    """A word is erased from every byte."""

    name = "erase"
    expected: ClassVar[tuple[str, ...]] = (BEES,)
    once: ClassVar[tuple[tuple[str, str], ...]] = ((ANN, "Done. Erased"),)

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
        return [*super().wrong(journal, asked), *self._files_with(WORD)]


class LinkPlot(MemoryPlot):
    """Two accounts become one person."""

    name = "link"
    expected: ClassVar[tuple[str, ...]] = (BEES, GOATS)

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
        await self.settle(line)

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
    expected: ClassVar[tuple[str, ...]] = (BEES, GOATS, HENS)
    has_edited = False

    @property
    def file(self) -> Path:
        """Return where the document is."""
        return self.root / "home/people/relay%3aann/memory/MEMORY.md"

    async def begin(self, line: ChildConnection) -> None:
        """Wait for the file."""
        await super().begin(line)
        await self.settle(line)

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


class DropPlot(MemoryPlot):
    """One line is dropped."""

    name = "drop"
    once: ClassVar[tuple[tuple[str, str], ...]] = ((ANN, "Removed from memory"),)

    async def play(self) -> None:
        """Drop it."""
        await self.tell(ANN, f"/memory drop {BEES}", "Removed from memory")


class ConsolidatePlot(MemoryPlot):
    """A window is full: a line is learned, an entry written, and the pointer moves."""

    name = "consolidate"
    settings: ClassVar[Mapping[str, Any]] = {"agents": {"defaults": {"memory_window": 4}}}
    learns = (GOATS,)
    expected: ClassVar[tuple[str, ...]] = (BEES, GOATS)

    async def play(self) -> None:
        """Fill it."""
        for number in (1, 2):
            self.write(ANN, f"talk {number}")
            while sum(_GOOD_DAY in message.text for message in self.relay.chat(ANN)) < number:
                await self.relay.wait_changed()

    def wrong(self, journal: sqlite3.Connection, asked: int) -> list[str]:
        """One entry, and a pointer behind what it is of."""
        bodies = [bytes(body or b"") for (body,) in journal.execute("SELECT body FROM record")]
        moves = sum(body.count(b'"kind":"pointer"') for body in bodies)
        entries = rows_match(journal, "SELECT count(*) FROM history_entry", [(1,)])
        return [*super().wrong(journal, asked), *entries, *([] if moves == 1 else [f"the pointer moved {moves} times"])]


class FlushPlot(ConsolidatePlot):
    """A window is nearly full: what lasts is noted first, and the window is summarised then."""

    name = "flush"
    settings: ClassVar[Mapping[str, Any]] = {
        "agents": {"defaults": {"memory_window": 4}},
        "llm": {"context_window": 8_000},
        "tools": {"memory_flush": {"threshold_tokens": 1_000_000}},
    }

    def wrong(self, journal: sqlite3.Connection, asked: int) -> list[str]:
        """One section, in the store and in the file."""
        found = [bytes(body).count(_LASTS.encode()) for (body,) in journal.execute("SELECT body FROM note_file")]
        files = [path.read_text().count(_LASTS) for path in (self.root / "home").glob("people/*/memory/20*.md")]
        is_so = sum(found) == 1 == sum(files)
        return [*super().wrong(journal, asked), *([] if is_so else [f"sections: {found} in rows, {files} in files"])]


class DreamPlot(NewPlot):
    """Dream reads a summary and adds a line."""

    name = "dream"
    expected: ClassVar[tuple[str, ...]] = (BEES, HENS)
    once: ClassVar[tuple[tuple[str, str], ...]] = ((ANN, "I reviewed 1 new summary"),)

    async def begin(self, line: ChildConnection) -> None:
        """Have a summary."""
        await super().begin(line)
        await super().play()
        await self.settle(line)

    async def play(self) -> None:
        """Ask for it."""
        await self.tell(ANN, "/dream", "I reviewed 1 new summary")


class RestorePlot(DreamPlot):
    """What Dream did is taken back."""

    name = "restore"
    expected: ClassVar[tuple[str, ...]] = (BEES,)
    once: ClassVar[tuple[tuple[str, str], ...]] = ((ANN, "back to the state before"),)
    change = ""

    async def begin(self, line: ChildConnection) -> None:
        """Dream."""
        await super().begin(line)
        found = _CHANGE.search(await self.tell(ANN, "/dream", "I reviewed 1 new summary"))
        assert found is not None
        self.change = found[1]
        await self.settle(line)

    async def play(self) -> None:
        """Take it back."""
        await self.tell(ANN, f"/dream-restore {self.change}", "back to the state before")


class RetentionPlot(MemoryPlot):
    """What was said is deleted by age; what is remembered stays."""

    name = "retention"
    settings: ClassVar[Mapping[str, Any]] = {"memory": {"retention_days": 1}}
    expected: ClassVar[tuple[str, ...]] = (BEES,)
    hours = 0

    async def begin(self, line: ChildConnection) -> None:
        """Say a word."""
        await super().begin(line)
        await self.tell(ANN, f"I talk of {WORD}", _GOOD_DAY)
        await self.settle(line)

    async def play(self) -> None:
        """Let days pass."""
        if not self.hours:
            self.hours = 72
            self.line.tell("days later")

    def wrong(self, journal: sqlite3.Connection, asked: int) -> list[str]:
        """The word is in no turn and in no file; messages that were answered go with the queue's own age."""
        bodies = [bytes(body or b"") for (body,) in journal.execute("SELECT body FROM record")]
        left = [f"a turn has the word: {body!r}" for body in bodies if WORD.encode() in body]
        files = [line for line in self._files_with(WORD) if "/journal.db" not in line]
        return [*super().wrong(journal, asked), *left, *files]


class ImportPlot(NewPlot):
    """The store is lost, and rebuilt from the files."""

    name = "import"
    dies_first = counts_start = imports = True
    once: ClassVar[tuple[tuple[str, str], ...]] = ()

    async def begin(self, line: ChildConnection) -> None:
        """Have a past."""
        await super().begin(line)
        await super().play()
        await self.tell(ANN, "Hello again", _GOOD_DAY)
        await self.settle(line)

    async def play(self) -> None:
        """Say nothing."""

    def wrong(self, journal: sqlite3.Connection, asked: int) -> list[str]:
        """Every turn is there once."""
        turns = rows_match(journal, "SELECT count(*), count(DISTINCT turn) FROM record", [(6, 6)])
        return [*NewPlot.wrong(self, journal, asked), *turns]


class UpgradePlot(MemoryPlot):
    """A home of an earlier release is taken over."""

    counts_start = has_page = True
    dreams = has_database = False
    home: ClassVar[str]
    undisturbed: ClassVar[dict[str, Any]] = {}  # what the first run of each left, which nothing killed

    def prepare(self) -> None:
        """Put it there."""
        with tarfile.open(_HOMES / f"{self.home}.tar.gz") as archive:
            archive.extractall(self.root / "home", filter="data")

    async def begin(self, line: ChildConnection) -> None:
        """It was killed before."""

    async def play(self) -> None:
        """Say nothing."""

    def wrong(self, journal: sqlite3.Connection, asked: int) -> list[str]:
        """What was said is there once, with every version of the documents, and nothing is left to take over."""
        found = {query: sorted(journal.execute(query).fetchall()) for query in _ADOPTED}
        expected = self.undisturbed.setdefault(self.name, found)
        differs = [
            f"{query}: {found[query]}, not {expected[query]}" for query in found if found[query] != expected[query]
        ]
        bodies = [bytes(body or b"") for (body,) in journal.execute("SELECT body FROM record")]
        return [
            *differs,
            *rows_match(journal, "SELECT count(*) FROM inbox WHERE ended_at IS NULL", [(0,)]),
            *([] if sum(_LAST in body for body in bodies) == 1 else [f"the last message is in {bodies}"]),
        ]


class Upgrade11Plot(UpgradePlot):
    """Of journal 11."""

    name, home = "upgrade11", "platforms"


class Upgrade15Plot(UpgradePlot):
    """Of journal 15."""

    name, home = "upgrade15", "reminders"


MEMORY_PLOTS: Mapping[str, type[AccessPlot]] = {
    plot.name: plot
    for plot in (
        RememberPlot, CorrectPlot, UndoPlot, NewPlot, ErasePlot, LinkPlot, UnlinkPlot, HandEditPlot, DropPlot,
        ConsolidatePlot, FlushPlot, DreamPlot, RestorePlot, RetentionPlot, ImportPlot, Upgrade11Plot, Upgrade15Plot,
    )
}  # fmt: skip
