"""The terminal's output: rich text on a terminal, plain text into a pipe."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import signal
import termios
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from gateway.i18n import FALLBACK, translate
from gateway.text import Links, break_addresses, weight
from gateway.text.linked_addresses import break_address, restrict_tokens

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
