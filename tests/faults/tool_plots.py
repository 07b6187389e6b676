"""Promises of tools, killed on their way: a call that a person allows, the life of a reminder, and a task."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Mapping
from typing import Any

from tests.fakes.openai_server import ScriptedAnswer, ScriptedToolCall
from tests.faults.access_plots import MAL, AccessPlot, rows_match
from tests.faults.process_order import traces
from tests.faults.process_pool import ChildConnection

_LETTER, _REMIND = "write to bob", "remind me of the stand-up"
_ALLOWED, _SENT, _UNKNOWN = "Allowed: ", "It is done.", "It is not known whether these steps completed"
_LOOK, _LOOKING, _FOUND = "look into the ferries", "I am looking into it.", "The second ferry is the cheapest."
_SET, _FIRED, _SNOOZED, _STOPPED = "It is set.", "⏰ stand-up", "I'll remind you again", "is stopped"
_PRESS = re.compile(r"/tools allow q[a-z2-7]{10}")
_REMINDER = re.compile(r"/reminders snooze (r[a-z2-7]{8}) 10")
_STEP = "[task k"  # what the model of a task reads first
_CALLS = {
    _LETTER: ("send_letter", {"to": "bob"}),
    _REMIND: ("remind", {"what": "stand-up", "in_minutes": 30}),
    _STEP: ("memory_search", {"query": "ferries"}),
    _LOOK: ("task", {"goal": "compare them"}),
}
_ANSWERS = {_LETTER: "I have asked.", _REMIND: _SET, _LOOK: _LOOKING, _STEP: _FOUND}


class ToolPlot(AccessPlot):
    """What the tools of both plots have in common: a model that calls one, and says the same after a kill."""

    async def begin(self, line: ChildConnection) -> None:
        """Nothing comes before."""

    @staticmethod
    def answer(body: Mapping[str, Any], n: int) -> ScriptedAnswer:
        """Call the tool that was asked for, then answer."""
        last = next(each for each in reversed(body["messages"]) if each["role"] in ("user", "tool"))
        said = next(str(each["content"]) for each in reversed(body["messages"]) if each["role"] == "user")
        wish = next((each for each in _CALLS if each in said), "")
        if wish and last["role"] == "user":
            name, arguments = _CALLS[wish]
            return ScriptedAnswer(
                text="", calls=(ScriptedToolCall(name=name, arguments=json.dumps(arguments), id="c"),)
            )
        return ScriptedAnswer(text=_ANSWERS.get(wish, _SENT))

    def shows_each(self, expected: Mapping[str, int]) -> list[str]:
        """Say what is wrong when the chat does not show each of these words so often."""
        texts = [message.text for message in self.relay.chat(MAL)]
        found = {words: sum(words in text for text in texts) for words in expected}
        return [] if found == expected else [f"{MAL} shows {found}, not {dict(expected)}: {texts}"]


class QuestionPlot(ToolPlot):
    """A person asks for a letter, is asked, and says yes, twice."""

    name = "question"

    async def play(self) -> None:
        """Ask, and press."""
        self.write(MAL, _LETTER)
        press = _PRESS.findall(await self.see(MAL, "/tools allow"))[0]
        self.write(MAL, press)
        await self.see(MAL, _SENT)
        self.write(MAL, f"{press} ")
        await self.see(MAL, "has been answered or has expired")
        await self.confirmed()

    def wrong(self, journal: sqlite3.Connection, asked: int) -> list[str]:
        """One letter; or at most one, and the person reads that nobody knows."""
        path = traces(self.root)
        sent = len(path.read_bytes().splitlines()) if path.exists() else 0
        is_unknown = any(_UNKNOWN in message.text for message in self.relay.chat(MAL))
        return [
            *([] if sent == 1 or (is_unknown and not sent) else [f"{sent} letters, unknown: {is_unknown}"]),
            *self.shows_each({_ANSWERS[_LETTER]: 1, _ALLOWED: 1, _SENT: 1, "has been answered or has expired": 1}),
            *rows_match(journal, "SELECT count(*) FROM job WHERE kind = 'tool_question'", [(0,)]),
        ]


class ReminderPlot(ToolPlot):
    """A reminder is promised, fires, is snoozed, fires again and is stopped."""

    name = "reminder"
    hours = 0

    async def play(self) -> None:
        """Say each thing once, and let an hour pass where the reminder is due next."""
        self.write(MAL, _REMIND)
        await self.see(MAL, _SET)
        self._move_to(1)
        found = _REMINDER.search(await self.see(MAL, "/reminders snooze"))
        assert found is not None
        self.write(MAL, found[0])
        await self.see(MAL, _SNOOZED)
        self._move_to(2)
        while self.shows_each({_FIRED: 2}):
            await self.relay.wait_changed()
        self.write(MAL, f"/reminders stop {found[1]}")
        await self.see(MAL, _STOPPED)
        self._move_to(3)
        await self.confirmed()

    def _move_to(self, hours: int) -> None:
        """Move the gateway's clock on to that hour, unless a life before did."""
        if self.hours < hours:
            self.hours = hours
            self.line.tell("later")

    def wrong(self, journal: sqlite3.Connection, asked: int) -> list[str]:
        """Each line once, two firings, and nothing is left of it."""
        return [
            *self.shows_each({_SET: 1, _FIRED: 2, _SNOOZED: 1, _STOPPED: 1}),
            *rows_match(journal, "SELECT count(*) FROM job WHERE kind = 'remind'", [(0,)]),
        ]


class TaskPlot(ToolPlot):
    """A task is promised, looks something up, and its end comes into the chat."""

    name = "task"
    settings = {"tools": {"tasks": {"enabled": True}}}  # noqa: RUF012 - declared with its type above

    async def play(self) -> None:
        """Ask, and wait for the promise and for the end."""
        self.write(MAL, _LOOK)
        await self.see(MAL, _LOOKING)
        await self.see(MAL, _FOUND)
        await self.confirmed()

    def wrong(self, journal: sqlite3.Connection, asked: int) -> list[str]:
        """One promise, one end, and one row that is kept of it; each step is asked for once, or once more."""
        return [
            *self.shows_each({_LOOKING: 1, _FOUND: 1}),
            *rows_match(journal, "SELECT count(*) FROM job WHERE kind = 'task'", [(0,)]),
            *rows_match(journal, "SELECT count(*) FROM job WHERE kind = 'task-end'", [(1,)]),
            *([] if asked <= _MOST_ASKED else [f"the model was asked {asked} times"]),
        ]


_MOST_ASKED = 6  # two for the promise, two for the task; a kill repeats one, and its journal may know of no other
TOOL_PLOTS: Mapping[str, type[AccessPlot]] = {plot.name: plot for plot in (QuestionPlot, ReminderPlot, TaskPlot)}
