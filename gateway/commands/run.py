"""Commands under which a gateway runs: `parlour run`, and `parlour chat` where none does."""

from __future__ import annotations

import asyncio
import base64
import gc
import os
import resource
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from gateway.control import ControlConnection, GatewayClient, Line, connect
from gateway.errors import UserError, WorkerReplaced
from gateway.home import Home
from gateway.installation import operator_command
from gateway.logs import configure_logs
from gateway.preflight import require_startable
from gateway.settings import Settings, check_settings, load_settings, secret_values

if TYPE_CHECKING:
    from gateway.app.runtime import Runtime


SWITCH_INTERVAL = 0.001  # seconds
_QUEUED_LINES = 64


def run_gateway() -> None:
    """Run the gateway until SIGTERM or SIGINT; print the page's address once it answers."""
    report = check_settings(os.environ)
    settings = report.require()
    for warning in report.warnings:
        print(f"parlour: {warning}", file=sys.stderr, flush=True)
    # Before the imports below, which take most of the start: errors are reported at once.
    require_startable(settings)
    configure_logs(level=settings.log.level, form=settings.log.format, secrets=secret_values(settings))
    gc.disable()  # until everything is imported: a sixth of the start's time would be spent for nothing
    from gateway.app.composition import run

    gc.collect()  # once, for half a megabyte: what follows has the room
    if _run(run(settings, ready=_announce)):
        # The same process, so that what supervises it notices nothing; Python closes its files and sockets.
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - our own command line


def _announce(app: Runtime) -> None:
    """Print where the page is and, where it asks for a login code, the command that prints one."""
    print(f"Parlour is ready: {app.web.url}", flush=True)
    if not app.web.is_private:
        print(f"The page asks for a login code. To print one, run: {operator_command('web login')}", flush=True)


def run_local_chat() -> int:
    """Chat in this terminal; return the exit code."""
    settings = load_settings(os.environ)
    code: int = _run(_chat(settings))
    return code


def _run(work: Any) -> Any:
    """Run *work*; of several errors at once, raise the first that one line says all of."""
    # Long texts are formatted in a thread: the event loop has its turn after a millisecond of that, not after five.
    sys.setswitchinterval(SWITCH_INTERVAL)
    # A core dump would hold the keys of the settings and what people said.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    try:
        return asyncio.run(work)
    except BaseExceptionGroup as several:
        mistake = _first_mistake(several)
        if mistake is None:
            raise
        raise mistake from None


def _first_mistake(several: BaseExceptionGroup[BaseException]) -> UserError | WorkerReplaced | None:
    for error in several.exceptions:
        found = _first_mistake(error) if isinstance(error, BaseExceptionGroup) else error
        if isinstance(found, UserError | WorkerReplaced):
            return found
    return None


async def _chat(settings: Settings) -> int:
    async with connect(Home(settings.home)) as client:
        if client is not None:
            async with client.converse("chat attach") as conversation:
                return await _converse(conversation, settings, partial(_fetch_file, client))
    require_startable(settings)
    # The terminal belongs to the conversation.
    configure_logs(level="error", form=settings.log.format, secrets=secret_values(settings))
    return await _chat_with_own_gateway(settings)


async def _chat_with_own_gateway(settings: Settings) -> int:
    """Be the gateway for as long as the conversation lasts."""
    from gateway.app.composition import open_app, serve
    from gateway.operations.gateway import GatewayOperations

    stop, ready = asyncio.Event(), asyncio.Event()
    async with open_app(settings) as app, asyncio.TaskGroup() as services:
        services.create_task(serve(app, stop, ready=lambda _: ready.set()), name="gateway")
        await ready.wait()
        to_console, to_terminal = asyncio.Queue[Line | None](_QUEUED_LINES), asyncio.Queue[Line | None](_QUEUED_LINES)
        console = QueueConnection(incoming=to_console, outgoing=to_terminal)
        attached = services.create_task(GatewayOperations(app).attach({}, console), name="terminal")
        try:
            terminal = QueueConnection(incoming=to_terminal, outgoing=to_console)
            return await _converse(terminal, settings, app.blobs.get)
        finally:
            await to_console.put(None)
            await attached
            stop.set()


class QueueConnection:
    """One end of a conversation inside a process: `gateway.control.ControlConnection` over two queues."""

    def __init__(self, *, incoming: asyncio.Queue[Line | None], outgoing: asyncio.Queue[Line | None]) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    async def receive(self) -> Line | None:
        """Return the other end's next line; None once it has closed."""
        return await self._incoming.get()

    async def send(self, line: Line) -> None:
        """Send one line."""
        await self._outgoing.put(line)


async def _fetch_file(client: GatewayClient, reference: str) -> bytes | None:
    """Return the bytes of an attachment; None if they are lost."""
    try:
        pieces = [base64.b64decode(str(line["data"])) async for line in client.call("chat file", {"blob": reference})]
    except UserError:
        return None
    return b"".join(pieces)


async def _converse(
    connection: ControlConnection, settings: Settings, read: Callable[[str], Awaitable[bytes | None]]
) -> int:
    from channels.web.terminal import ConsoleFiles, run_chat

    downloads = ConsoleFiles(Home(settings.home).downloads, read)
    return await run_chat(connection.receive, connection.send, downloads=downloads)
