"""The terminal chat, `parlour chat`: its client over any pair of receive and send, its screen, and its files."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import signal
import sys
import termios
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from channels.web.frame_codec import safe_file_name
from gateway.i18n import FALLBACK, resolve_language, translate
from gateway.text import Links, break_addresses, weight
from gateway.text.linked_addresses import break_address, restrict_tokens
from gateway.text.message_text import strip_control_characters

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

RECENT = 12  # lines of history shown at the start
# What weighs more is printed as it stands: a sign costs up to 0.1 ms, and the text so far is drawn again and again.
_MOST_PRINTED, _MOST_DRAWN = 2_000, 500


class TerminalScreen:
    """One terminal. Texts are inert already; Markdown is drawn with addresses shown, never hidden."""

    def __init__(self, *, is_live: bool, console: Console | None = None) -> None:
        from rich.console import Console as RichConsole

        self._is_live = is_live
        # Markup, emoji names and highlighting are off: what is printed was written by somebody else.
        self._console = console or RichConsole(markup=False, emoji=False, highlight=False, soft_wrap=not is_live)
        self._errors = RichConsole(stderr=True, markup=False, emoji=False, highlight=False)
        self._live: Live | None = None
        self.language = FALLBACK  # until the gateway says which
        self._tasks: set[asyncio.Task[None]] = set()

    def hello(self, lines: Sequence[str]) -> None:
        """Greet the user of a terminal, and fill the line editor's history with earlier messages."""
        if not self._is_live:
            return
        self._console.print(translate("console.hello", self.language), style="dim")
        with contextlib.suppress(ImportError):  # a Python without readline has no line editor
            readline = importlib.import_module("readline")
            for text in lines:
                readline.add_history(text.replace("\n", " "))

    def history(self, lines: Sequence[tuple[str, str, Links | None]]) -> None:
        """Show the end of the conversation: roles, texts, and the only addresses that may be links."""
        if not self._is_live:
            return
        for role, text, links in lines[-RECENT:]:
            if role == "user":
                self._console.print(f"{translate('console.prompt', self.language)}{text}", style="dim")
            else:
                self._console.print(_markdown(text, links))

    async def read(self, stdin: TextIO, closed: asyncio.Event) -> str | None:
        """Return the next line; None at the end, on Ctrl-C, or when *closed* is set during typing."""
        if not self._is_live:
            return await asyncio.to_thread(stdin.readline) or None
        return await _read_line(stdin, translate("console.prompt", self.language), closed)

    def preview(self, text: str, links: Links | None = None) -> None:
        """Show the text so far; terminals find addresses themselves, so those that are not in *links* are broken."""
        if self._is_live:
            self._draw(text, links)

    def activity(self, status: str | None) -> None:
        """Show what is being done; None = nothing."""
        if self._is_live and self._live is None and status is not None:
            self._draw(f"*{status or translate('console.thinking', self.language)}*")

    def message(self, text: str, note: str, *, is_plain: bool = False, links: Links | None = None) -> None:
        """Print a message for good, in the preview's place; *links* as for `preview`."""
        self._erase()
        if note:
            self._console.print(note, style="dim")
        if self._is_live and not is_plain:
            self._console.print(_markdown(text, links))
        else:
            self._console.print(break_addresses(text, links, is_code=True))

    def line(self, text: str) -> None:
        """Print a line of our own next to an answer."""
        self._erase()
        self._console.print(text, style="dim" if self._is_live else None)

    def settle(self) -> None:
        """Remove the preview: the answer has arrived."""
        self._erase()

    def trouble(self, line: str) -> None:
        """Print a line about something that failed, apart from the answers."""
        self._erase()
        self._errors.print(line, style="red")

    def bye(self) -> None:
        """Say goodbye to the user of a terminal."""
        if self._is_live:
            self._console.print(translate("console.bye", self.language), style="dim")

    @contextlib.asynccontextmanager
    async def interrupts(self, stop: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        """While an answer comes, Ctrl-C asks for its end and does not leave."""
        if not self._is_live:
            yield
            return
        loop = asyncio.get_running_loop()

        def request_stop() -> None:
            task = asyncio.ensure_future(stop())
            self._tasks.add(task)  # the loop itself holds tasks only weakly
            task.add_done_callback(self._tasks.discard)

        loop.add_signal_handler(signal.SIGINT, request_stop)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    def _draw(self, text: str, links: Links | None = None) -> None:
        from rich.live import Live as RichLive

        if self._live is None:
            self._live = RichLive(console=self._console, transient=True, auto_refresh=False)
            self._live.start()
        self._live.update(_markdown(text, links, most=_MOST_DRAWN), refresh=True)

    def _erase(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


async def _read_line(stdin: TextIO, prompt: str, closed: asyncio.Event) -> str | None:
    """Read a line with the line editor, and let go of the terminal when it is no longer wanted."""
    loop = asyncio.get_running_loop()
    line: asyncio.Future[str | None] = loop.create_future()

    def settle(text: str | None) -> None:
        if not line.done():
            line.set_result(text)

    def ask() -> None:
        try:
            text = input(prompt)
        except (EOFError, OSError, UnicodeDecodeError):
            text = None
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, text)

    watching = loop.create_task(closed.wait(), name="terminal end")
    watching.add_done_callback(lambda _: settle(None))
    loop.add_signal_handler(signal.SIGINT, settle, None)
    before = termios.tcgetattr(stdin)
    # A daemon, since nothing can interrupt it: it must not keep the process when we leave without a line.
    threading.Thread(target=ask, name="terminal line", daemon=True).start()
    try:
        return await line
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        watching.cancel()
        # The line editor had switched the echo off, and is not coming back to switch it on.
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


def _markdown(text: str, links: Links | None = None, *, most: int = _MOST_PRINTED) -> Any:
    from rich.markdown import Markdown
    from rich.text import Text

    if weight(text) > most:
        return Text(break_addresses(text, links))
    # Without terminal hyperlinks the address itself is printed, so that a link cannot pose as another.
    drawn = Markdown(text, hyperlinks=False)
    if links is not None:
        restrict_tokens(drawn.parsed, links, break_address)
    return drawn


# -- files -----------------------------------------------------------------------------------------
# Files of an answer: saved in a folder that the user can find.


class ConsoleFiles:
    """One folder. Nothing in it is ever written over, and only its owner reads it."""

    def __init__(self, folder: Path, read: Callable[[str], Awaitable[bytes | None]]) -> None:
        """Save into *folder*, made when it is first needed; *read* gives the bytes behind a reference."""
        self._folder = folder
        self._read = read

    async def save(self, name: str, reference: str, text: str) -> Path | None:
        """Save a file under a name like *name*; None when it is lost or cannot be written."""
        data = await self._read(reference) if reference else text.encode()
        if data is None:
            return None
        try:
            return await asyncio.to_thread(self._write, safe_file_name(name), data)
        except OSError:
            return None

    def _write(self, name: str, data: bytes) -> Path:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        stem, dot, ending = name.rpartition(".")
        for number in count(2):
            path = self._folder / name
            try:
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except FileExistsError:
                if path.is_file() and path.read_bytes() == data:
                    return path  # shown again, not sent again
                name = f"{stem}-{number}.{ending}" if dot else f"{ending}-{number}"
                continue
            with os.fdopen(handle, "wb") as out:
                out.write(data)
            return path
        raise AssertionError("count never ends")


# -- terminal client -------------------------------------------------------------------------------
# With a terminal it streams; with pipes it reads a message per line, prints each answer, and ends when the last one is
# answered.

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
