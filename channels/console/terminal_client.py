"""The client of the terminal chat, `parlour chat`, over any pair of receive and send.

With a terminal it streams; with pipes it reads a message per line, prints each answer, and ends when
the last one is answered.
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TextIO

from channels.console.files import ConsoleFiles
from channels.console.terminal_screen import TerminalScreen
from gateway.i18n import FALLBACK, translate
from gateway.i18n.languages import resolve_language
from gateway.text import Links
from gateway.text.text_units import strip_control_characters

LOOK_AFTER = 5.0  # seconds of silence after which the history is asked whether the answer is there

_MOST_LINES = 1_000  # of the history that are searched for the message that waits

Frame = Mapping[str, Any]
Receive = Callable[[], Awaitable[Frame | None]]
Send = Callable[[Frame], Awaitable[None]]


class TerminalSession:
    """The frames of one attachment, and what they mean for the message that waits for its answer."""

    def __init__(self, receive: Receive, send: Send, screen: TerminalScreen, downloads: ConsoleFiles | None) -> None:
        self._receive = receive
        self._send = send
        self._screen = screen
        self._downloads = downloads
        self._following = 0  # parts that are still to come behind the last text
        self._shown: set[str] = set()  # parts
        self._lines: list[Frame] = []  # of the history, as far back as it was asked for
        self._waiting = ""  # id of the message whose answer is waited for
        self._turn = ""
        self._answered = asyncio.Event()
        self._news = asyncio.Event()
        self.refused = 0
        self.over = asyncio.Event()  # the gateway is gone
        self.said: list[str] = []  # what this person said before, for the line editor

    async def begin(self) -> None:
        """Take the history and show its end."""
        frame = await self._receive()
        if frame is None:
            self.over.set()
            return
        lines = frame.get("lines", [])
        self._speak(frame)
        self.said = [strip_control_characters(str(line["text"])) for line in lines if line["role"] == "user"]
        self._screen.history([(str(line["role"]), *_text_of(line)) for line in lines if line["role"] != "divider"])

    def _speak(self, frame: Frame) -> None:
        """Go on in the language of the chat, as a history says it."""
        self._screen.language = resolve_language(str(frame.get("language", ""))) or FALLBACK

    async def listen(self) -> None:
        """Handle frames until the gateway is gone."""
        while (frame := await self._receive()) is not None:
            self._news.set()
            await self._handle(frame)
        self.over.set()
        self._answered.set()

    async def ask(self, text: str) -> None:
        """Say *text* and return when it is answered, refused, or the gateway is gone."""
        self._waiting, self._turn, self._following = uuid.uuid4().hex, "", 0
        self._answered.clear()
        saying = {"type": "say", "id": self._waiting, "text": text}
        await self._send(saying)
        while not self._answered.is_set():
            self._news.clear()
            try:
                async with asyncio.timeout(LOOK_AFTER):
                    await _either(self._answered, self._news)
            except TimeoutError:
                # Merged, stopped or answered elsewhere: only the history knows. An id that is known changes nothing.
                await self._send(saying if not self._turn else {"type": "look"})
        self._screen.settle()

    async def stop(self) -> None:
        """Stop the answer that is being written."""
        await self._send({"type": "say", "id": uuid.uuid4().hex, "text": "/stop"})

    async def _handle(self, frame: Frame) -> None:
        match frame["type"]:
            case "accepted" if frame["id"] == self._waiting:
                self._turn = str(frame["turn"])
            case "rejected" | "trouble":
                self._refuse(frame)
            case "later":
                self._screen.trouble(strip_control_characters(str(frame["line"])))
            case "preview":
                self._screen.preview(*_text_of(frame))
            case "activity":
                self._screen.activity(strip_control_characters(str(frame["text"])) if frame["on"] else None)
            case "message":
                await self._show(frame)
            case "history" | "earlier":
                await self._look(frame)

    def _refuse(self, frame: Frame) -> None:
        self._screen.trouble(strip_control_characters(str(frame["line"])))
        self.refused += 1
        self._answered.set()

    async def _show(self, frame: Frame) -> None:
        if frame["part"] in self._shown and not frame["marked"]:
            return
        self._shown.add(str(frame["part"]))
        note = translate("delivery.may_repeat", self._screen.language) if frame["marked"] else ""
        if frame["text"] or note:
            text, links = _text_of(frame)
            self._screen.message(text, note, is_plain=bool(frame["is_plain"]), links=links)
        if frame["file"]:
            await self._keep(frame["file"])
        if frame["turn"] == self._turn:
            self._count(frame)

    def _count(self, frame: Frame) -> None:
        """Notice the end of the answer: its last text, or the last of the parts that follow it."""
        if frame["follow"]:
            self._following = int(frame["follow"])
        elif frame["last"] or self._following == 1:
            self._answered.set()
        elif self._following:
            self._following -= 1

    async def _keep(self, file: Frame) -> None:
        """Save a file that came, and say where."""
        name, size = strip_control_characters(str(file["name"])), int(file["size"])
        path = None
        if self._downloads is not None:
            path = await self._downloads.save(name, str(file["blob"]), str(file["text"]))
        sentence = "console.file_saved" if path is not None else "console.file"
        self._screen.line(translate(sentence, self._screen.language, name=name, size=size, place=path))

    async def _look(self, frame: Frame) -> None:
        self._speak(frame)
        self._lines = [*frame["lines"], *(self._lines if frame["type"] == "earlier" else ())]
        mine = [line for line in self._lines if line["message"] == self._waiting]
        if not mine and frame.get("before") and len(self._lines) < _MOST_LINES:
            await self._send({"type": "look", "before": frame["before"]})
        if not mine or any(line["state"] == "waiting" for line in mine):
            return
        turn = mine[0]["turn"]
        if not any(part.startswith(f"{turn}.") for part in self._shown):
            for line in self._lines:
                if line["turn"] == turn and line["message"] == "":
                    text, links = _text_of(line)
                    self._screen.message(text, "", links=links)
                    for file in line["files"]:
                        await self._keep(file)
        self._answered.set()


async def run_chat(
    receive: Receive,
    send: Send,
    *,
    stdin: TextIO = sys.stdin,
    screen: TerminalScreen | None = None,
    downloads: ConsoleFiles | None = None,
) -> int:
    """Hold a conversation until /quit or the end of *stdin*; files go to *downloads*. Return the exit code.

    0 when everything was answered, 1 when the gateway went away or a message was not taken.
    """
    screen = TerminalScreen(is_live=stdin.isatty()) if screen is None else screen
    conversation = TerminalSession(receive, send, screen, downloads)
    await conversation.begin()
    async with asyncio.TaskGroup() as tasks:
        listening = tasks.create_task(conversation.listen(), name="terminal frames")
        await _converse(conversation, screen, stdin)
        listening.cancel()
    if conversation.over.is_set():
        screen.trouble(translate("console.gone", screen.language))
    return 1 if conversation.over.is_set() or conversation.refused else 0


async def _converse(conversation: TerminalSession, screen: TerminalScreen, stdin: TextIO) -> None:
    screen.hello(conversation.said)
    while not conversation.over.is_set():
        text = await screen.read(stdin, conversation.over)
        if text is None or text.strip() == "/quit":
            if not conversation.over.is_set():
                screen.bye()
            return
        if text.strip():
            await _ask(conversation, screen, text.strip())


async def _ask(conversation: TerminalSession, screen: TerminalScreen, text: str) -> None:
    try:
        async with screen.interrupts(conversation.stop):
            await conversation.ask(text)
    except OSError:
        conversation.over.set()


def _text_of(frame: Frame) -> tuple[str, Links | None]:
    """Return the text of a message and the only addresses in it that may be links; None = all may."""
    links = frame.get("links")
    return strip_control_characters(str(frame["text"])), None if links is None else frozenset(map(str, links))


async def _either(first: asyncio.Event, second: asyncio.Event) -> None:
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(event.wait(), name="terminal wait") for event in (first, second)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
