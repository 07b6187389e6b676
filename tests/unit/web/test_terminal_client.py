"""The terminal chat: piped lines in, answers out, and nothing a model writes is obeyed by the terminal."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.markdown import Markdown
from rich.text import Text

from channels.console import plugin
from channels.web.frame_channel import ConsoleChannel
from channels.web.terminal import ConsoleFiles, TerminalScreen, _markdown, run_chat
from gateway.events import Attachment, MessagePart, OutboundKind, OutboundMessage, turn_id
from gateway.i18n import translate
from gateway.ports.channel import IntakeResult, IntakeVerdict
from gateway.text.message_text import strip_control_characters
from tests.fakes.clock import VirtualClock
from tests.fakes.web_services import FakePageServices

Frame = Mapping[str, Any]


class SocketPair:
    """A control socket in memory: two queues, and an end."""

    def __init__(self) -> None:
        self.up: asyncio.Queue[Frame | None] = asyncio.Queue()
        self.down: asyncio.Queue[Frame | None] = asyncio.Queue()

    def cut(self) -> None:
        """Kill the gateway's side."""
        self.down.put_nowait(None)


@asynccontextmanager
async def attached(services: FakePageServices) -> AsyncIterator[SocketPair]:
    """Attach a terminal's wire to a running console channel."""
    channel = plugin.open(services.context("console"))
    assert isinstance(channel, ConsoleChannel)
    services.channel = channel
    wire = SocketPair()
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(channel.run()),
            tasks.create_task(channel.attach(wire.up.get, wire.down.put)),
        ]
        yield wire
        for task in running:
            task.cancel()


async def talk(
    services: FakePageServices, typed: str, *, during: Callable[[SocketPair], None] | None = None
) -> tuple[int, str]:
    """Pipe *typed* into the chat; return its exit code and what it printed."""
    printed = io.StringIO()
    screen = TerminalScreen(is_live=False, console=Console(file=printed, width=10_000, markup=False, highlight=False))
    async with attached(services) as wire:
        if during is not None:
            during(wire)
        code = await run_chat(wire.down.get, wire.up.put, stdin=io.StringIO(typed), screen=screen)
    return code, printed.getvalue()


async def test_piped_lines_are_answered_in_order() -> None:
    """Each line is a message, each answer is printed once, and the end of input is the end."""
    services = FakePageServices(answer=lambda text: f"**{text}**, you say")
    assert await talk(services, "one\n\ntwo\n/status\nthree") == (
        0,
        "**one**, you say\n**two**, you say\n**/status**, you say\n**three**, you say\n",
    )
    assert [message.sender.id for message in services.accepted] == ["owner"] * 4


async def test_the_terminals_own_words_are_the_chats(capsys: pytest.CaptureFixture[str]) -> None:
    """Why something was not taken, and that the gateway has stopped, is said in the language of the chat."""
    refusing = FakePageServices(language="de", verdict=IntakeResult(verdict=IntakeVerdict.FULL))
    assert (await talk(refusing, "hello"))[0] == 1
    assert translate("frames.full", "de") in " ".join(capsys.readouterr().err.split())
    leaving = FakePageServices(language="es")
    leaving.go_on.clear()

    def cut_when_heard(wire: SocketPair) -> None:
        leaving.answer = lambda _: wire.cut() or "never"  # type: ignore[func-returns-value]

    assert (await talk(leaving, "hello", during=cut_when_heard))[0] == 1
    assert translate("console.gone", "es") in " ".join(capsys.readouterr().err.split())


async def test_quit_leaves_without_saying_it() -> None:
    """/quit is the terminal's own word."""
    services = FakePageServices(answer=lambda text: text)
    assert await talk(services, "one\n/quit\ntwo\n") == (0, "one\n")
    assert len(services.accepted) == 1


async def test_a_refusal_is_told_apart_from_the_answers(capsys: pytest.CaptureFixture[str]) -> None:
    """On stderr, with an exit code that a script can see."""
    services = FakePageServices(verdict=IntakeResult(verdict=IntakeVerdict.REJECTED, line="Not today."))
    assert await talk(services, "one\n") == (1, "")
    assert "Not today." in capsys.readouterr().err


async def test_a_gateway_that_goes_away_ends_the_chat(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody waits for an answer that cannot come."""
    services = FakePageServices()

    def cut_when_heard(wire: SocketPair) -> None:
        services.answer = lambda _: wire.cut() or "never"  # type: ignore[func-returns-value]

    services.go_on.clear()
    code, _ = await talk(services, "one\ntwo\n", during=cut_when_heard)
    assert code == 1
    assert "gateway has stopped" in capsys.readouterr().err


async def test_a_message_answered_elsewhere_ends_the_wait(clock: VirtualClock) -> None:
    """Merged or stopped: no answer of its own comes, and the history says that it is done."""
    services = FakePageServices()

    def settle(text: str) -> str:
        services.lines[-1] = type(services.lines[-1])(
            id="x/0",
            turn="x",
            role="user",
            text=text,
            at=clock.now(),
            message_id=services.lines[-1].message_id,
            state="done",
        )
        services.answer = None
        return ""

    services.answer = settle
    services.go_on.clear()
    assert await talk(services, "one\n") == (0, "")


async def test_a_message_that_could_not_be_stored_is_said_again(clock: VirtualClock) -> None:
    """The same id after a while, so that it is no second message once the disk has room."""
    services = FakePageServices(answer=lambda text: text, is_down=True)

    async def mend() -> None:
        await services.wait_deliveries(1)
        services.is_down = False

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(mend())
        assert await talk(services, "one\n") == (0, "one\n")
    assert len({message.message_id for message in services.deliveries}) == 1
    assert len(services.accepted) == 1


async def test_nothing_a_model_writes_is_obeyed() -> None:
    """Escape sequences, bells and direction marks never reach the terminal."""
    hostile = "\x1b]52;c;aGk=\x07\x1b[2Jclear\u202egnp\x9b31m\r end"
    code, printed = await talk(FakePageServices(answer=lambda _: hostile), "go\n")
    assert code == 0
    assert not {"\x1b", "\x07", "\u202e", "\x9b", "\r"} & set(printed)
    assert "clear" in printed


def test_inert_text_keeps_lines_and_tabs() -> None:
    """What is ordinary stays as it is."""
    assert strip_control_characters("a\tb\nc ✓ 🛋️") == "a\tb\nc ✓ 🛋️"


async def test_a_live_screen_draws_markdown_and_shows_where_links_go() -> None:
    """Previews are drawn over and leave nothing behind; an address stands beside its text."""
    printed = io.StringIO()
    screen = TerminalScreen(is_live=True, console=Console(file=printed, width=100, force_terminal=False))
    screen.history([("user", "earlier", None), ("assistant", "*then*", None)])
    screen.activity("")
    screen.preview("It is **la")
    screen.message("It is **late**, see [here](https://example.com/x)", "")
    screen.settle()
    shown = printed.getvalue()
    assert "earlier" in shown
    assert shown.count("It is late") == 1
    assert "https://example.com/x" in shown


async def test_an_answer_to_something_else_is_printed_and_does_not_count() -> None:
    """What an earlier /retry brings late is shown, and the line that was just said still gets its own answer."""
    services = FakePageServices()

    def late(text: str) -> str:
        assert services.channel is not None
        other = OutboundMessage(id="tabcdefghijklmnop.1", key=services.accepted[-1].key, text="late")
        (part,) = services.channel.render(other)
        sending.append(asyncio.ensure_future(services.channel.send(part)))
        return f"own {text}"

    sending: list[asyncio.Future[Any]] = []
    services.answer = late
    code, printed = await talk(services, "/help\n")
    assert code == 0
    assert sorted(printed.split("\n")) == ["", "late", "own /help"]


async def test_a_marked_resend_is_printed_with_its_mark() -> None:
    """The terminal cannot take a line back, so a repeat says what it is."""
    services = FakePageServices()
    printed = io.StringIO()
    screen = TerminalScreen(is_live=False, console=Console(file=printed, width=200))
    async with attached(services) as wire:
        talking = asyncio.create_task(run_chat(wire.down.get, wire.up.put, stdin=io.StringIO("hi\n"), screen=screen))
        (message,) = await services.wait_deliveries(1)
        assert services.channel is not None
        text = OutboundMessage(id=f"{turn_id(message)}.1", key=message.key, text="once", kind=OutboundKind.ANSWER)
        (part,) = services.channel.render(text)
        await services.channel.send(part, may_be_duplicate=True)
        assert await talking == 0
    assert printed.getvalue() == f"{translate('delivery.may_repeat')}\nonce\n"


async def with_files(
    services: FakePageServices, downloads: ConsoleFiles | None, *files: Attachment, text: str = "Here."
) -> str:
    """Ask one thing in a pipe, let the answer be *text* and *files*, and return what was printed at the end."""
    printed = io.StringIO()
    screen = TerminalScreen(is_live=False, console=Console(file=printed, width=10_000, markup=False, highlight=False))
    async with attached(services) as wire:
        talking = asyncio.create_task(
            run_chat(wire.down.get, wire.up.put, stdin=io.StringIO("hi\n"), screen=screen, downloads=downloads)
        )
        (message,) = await services.wait_deliveries(1)
        channel = services.channel
        assert channel is not None
        answer = OutboundMessage(id=f"{turn_id(message)}.1", key=message.key, text=text, attachments=files)
        parts = list(channel.render(answer))
        for n, file in enumerate(files, len(parts) + 1):
            parts.append(MessagePart(id=f"{answer.id}.{n}", key=message.key, payload="", plain="", file=file))
        for part in parts:
            assert not talking.done()
            await channel.send(part)
            await asyncio.sleep(0.01)
        assert await talking == 0
    return printed.getvalue()


def download(blob: str, name: str) -> Attachment:
    """Return a file of three bytes."""
    return Attachment(kind="document", name=name, size=3, blob=blob)


async def test_files_are_saved_and_waited_for(tmp_path: Path) -> None:
    """A pipe ends behind the last file, not behind the text; each is said with its place, and only we can read it."""
    services, folder = FakePageServices(), tmp_path / "downloads"
    blob = await services.blobs.put("people/ann", b"one")
    other = await services.blobs.put("people/ann", b"two")
    names = [download(blob, "plan.pdf"), download(other, "plan.pdf"), download(blob, "plan.pdf")]
    printed = await with_files(services, ConsoleFiles(folder, services.blobs.get), *names)
    saved = [
        translate("console.file_saved", name="plan.pdf", size="3", place=folder / name)
        for name in ("plan.pdf", "plan-2.pdf")
    ]
    assert printed.splitlines() == ["Here.", saved[0], saved[1], saved[0]]
    assert (folder / "plan.pdf").read_bytes() == b"one"
    assert (folder / "plan-2.pdf").read_bytes() == b"two"
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700


async def test_a_file_that_cannot_be_saved_is_named(tmp_path: Path) -> None:
    """Where there is no folder, or the bytes are gone from the home, the terminal says what came."""
    services = FakePageServices()
    blob = await services.blobs.put("people/ann", b"one")
    line = translate("console.file", name="plan.pdf", size="3")
    assert await with_files(services, None, download(blob, "plan.pdf")) == f"Here.\n{line}\n"
    (tmp_path / "file").write_text("in the way")
    services = FakePageServices(blobs=services.blobs)
    blocked = ConsoleFiles(tmp_path / "file", services.blobs.get)
    assert await with_files(services, blocked, download(blob, "plan.pdf")) == f"Here.\n{line}\n"


async def test_a_files_name_writes_nowhere_else(tmp_path: Path) -> None:
    """A path, a hidden file or an escape sequence as a name saves one visible file in the folder."""
    services, folder = FakePageServices(), tmp_path / "a" / "downloads"
    blob = await services.blobs.put("people/ann", b"one")
    printed = await with_files(
        services, ConsoleFiles(folder, services.blobs.get), download(blob, "../\x1b[2J.ssh/x\u202egnp")
    )
    assert [path.name for path in folder.iterdir()] == ["[2J.ssh xgnp"]
    assert not {"\x1b", "\u202e"} & set(printed)


async def test_a_line_in_a_files_place_ends_the_answer_too() -> None:
    """Delivery's own line counts as the part it stands for, so that nobody waits for a file that never comes."""
    services = FakePageServices()
    printed = io.StringIO()
    screen = TerminalScreen(is_live=False, console=Console(file=printed, width=200))
    async with attached(services) as wire:
        talking = asyncio.create_task(run_chat(wire.down.get, wire.up.put, stdin=io.StringIO("hi\n"), screen=screen))
        (message,) = await services.wait_deliveries(1)
        assert services.channel is not None
        answer = OutboundMessage(
            id=f"{turn_id(message)}.1", key=message.key, text="once", attachments=(download("people/ann/x", "x"),)
        )
        (part,) = services.channel.render(answer)
        await services.channel.send(part)
        await services.channel.send(replace(part, id=f"{answer.id}.2", payload="", plain="*gone*"))
        assert await talking == 0
    assert printed.getvalue() == "once\n*gone*\n"


@pytest.mark.parametrize("text", ["# a\n" * 4_000, "![" * 8_000], ids=["headings", "pictures"])
def test_what_is_dense_is_printed_as_it_stands(text: str) -> None:
    """Drawing Markdown has a ceiling: beyond it the terminal shows the text itself, previews sooner than answers."""
    printed = io.StringIO()
    screen = TerminalScreen(is_live=True, console=Console(file=printed, width=100, force_terminal=False))
    screen.message(text, "")
    assert printed.getvalue().splitlines()[0].startswith(text[:3])
    assert _markdown("**b** " * 300).__class__ is Markdown
    assert _markdown("**b** " * 300, most=500).__class__ is Text
