"""Start order is the order of the lines in `serve`; stop order is the reverse.

Graceful shutdown: intake closes, running turns get their grace period, replies are delivered, files are flushed.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import structlog

from agent.attachments.process_confinement import probe_confinement
from gateway.app.composition import open_app
from gateway.app.context import ExtraPlugins
from gateway.app.runtime import Runtime
from gateway.control.control_server import ControlServer
from gateway.errors import WorkerReplaced
from gateway.operations.gateway import GatewayOperations
from gateway.settings import Settings
from gateway.store.sql_store import SqlStore
from gateway.supervisor import run_prune_loop, run_stamp_loop
from gateway.web.connections import raise_open_file_limit

log = structlog.get_logger(__name__)

_LAST_DELIVERIES = timedelta(seconds=3)  # for turns committed during the stop; the next start delivers the rest
_LAST_FILES = timedelta(seconds=3)  # for the mirror; the store knows what is stale, and the next start writes the rest


async def run(
    settings: Settings, *, plugins: ExtraPlugins | None = None, ready: Callable[[Runtime], None] | None = None
) -> bool:
    """Run the gateway until SIGTERM, SIGINT or SIGHUP; *ready* is called once the first message can come.

    Return True if an operation has asked for a restart.
    """
    raise_open_file_limit()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    stops = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup: to go on when the terminal closes
        stops.append(signal.SIGHUP)
    for name in stops:
        loop.add_signal_handler(name, stop.set)
    try:
        restart = asyncio.Event()
        async with open_app(settings, plugins=plugins, restart=restart) as app:
            stopping = asyncio.create_task(_stop_after(restart, stop), name="restart")
            try:
                await serve(app, stop, ready=ready)
            finally:
                stopping.cancel()
            return restart.is_set()
    finally:
        for name in stops:
            loop.remove_signal_handler(name)


async def _stop_after(restart: asyncio.Event, stop: asyncio.Event) -> None:
    await restart.wait()
    stop.set()


async def serve(app: Runtime, stop: asyncio.Event, *, ready: Callable[[Runtime], None] | None = None) -> None:
    """Run every service until *stop*, then close intake, drain the turns, deliver, flush."""
    await app.web.bind()
    await app.store_watcher.measure()  # /readyz and the others read a result from their first moment
    control = ControlServer(app.home.socket, app.operations, {"chat attach": GatewayOperations(app).attach})

    async def serve_web() -> None:
        try:
            await app.web.serve()
        finally:
            if app.console is not None:
                await app.console.close()

    async def write_files() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_FILES.total_seconds()):
                await app.session_files.close()
                await app.history_files.flush()

    given_back = 0

    async def drain_turns() -> None:
        nonlocal given_back
        given_back = await app.pool.drain(timedelta(seconds=app.settings.agent.shutdown_grace_seconds))

    async with (
        asyncio.TaskGroup() as group,
        _running(
            group,
            write_files,
            session_files=app.session_files.run,
            document_files=app.document_files.run,
            history_files=app.history_files.run,
            background=app.background.run,
            recall=app.recall.run,
            prune=lambda: run_prune_loop(
                app.store,
                app.quarantine.prune,
                app.memory.workspaces.expire_trash,
                app.pages.prune,
                app.store.files.collect_garbage,
            ),
            stamp=lambda: run_stamp_loop(app.store),
            verify=app.store.verify,
            store_watcher=app.store_watcher.run,
            replaced=lambda: _end_when_replaced(app.store),
        ),
        _running(group, lambda: app.dispatcher.drain(_LAST_DELIVERIES), delivery=app.dispatcher.run),
        _running(group, drain_turns, pool=app.pool.run),
        _running(
            group,
            web=serve_web,
            channels=app.supervisor.run,
            control=control.serve,
            quarantine_retrier=app.quarantine_retrier.run,
        ),
    ):
        await app.web.wait_started()
        await control.wait_listening()
        app.store.note_started()
        log.info(
            "app.ready",
            seconds=round(time.monotonic() - app.started_at, 3),
            url=app.web.url,
        )
        if ready is not None:
            ready(app)
        async with (
            _running(group, alerts=app.alerts.run),
            _running(
                group,
                warm=lambda: _warm(app),
                confinement=_log_confinement,
                dreams=app.dreamer.catch_up,
                raw_archives=app.raw_archives.catch_up,
            ),
        ):
            await stop.wait()
            log.info("app.stopping", turns=len(app.pool.turns))
    log.info("app.stopped", given_back=given_back)


@asynccontextmanager
async def _running(
    group: asyncio.TaskGroup, drain: Callable[[], Awaitable[object]] | None = None, /, **services: Callable[[], Any]
) -> AsyncIterator[None]:
    """Run *services* in *group* while the block is open; then await *drain* and cancel them.

    After an error nothing is drained: the group cancels every service at once.
    """
    tasks = [group.create_task(service(), name=name) for name, service in services.items()]
    yield
    if drain is not None:
        await drain()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def _end_when_replaced(store: SqlStore) -> None:
    """Raise WorkerReplaced when other gateways have taken over the work of this one: its memory must end with it.

    No UserError is raised: a service manager starts the gateway again.
    """
    await store.wait_replaced()
    raise WorkerReplaced(
        "other gateways have taken over the work of this one, which did not answer for a while: start it again"
    )


@functools.cache
def find_confinement() -> str:
    """Return the confinement of child processes (`probe_confinement`); a child is run for it once."""
    return probe_confinement()


async def _log_confinement() -> None:
    """Log what confines the processes that read files or calculate. A child is run for it, when the page is up."""
    try:
        log.info("children.confined", by=await asyncio.to_thread(find_confinement))
    except OSError as error:
        log.warning("children.unknown", error=str(error))


async def _warm(app: Runtime) -> None:
    """Load the model's library after the page is up; the first call reports a failure."""
    try:
        await app.models.default.warm()
    except Exception:  # the service boundary: a gateway without a warm model still answers
        log.exception("model.warm_failed")
    if not gc.isenabled():  # `parlour run` disables it for the imports
        # What they brought stays for good: collections pass it over, or each full one stops the loop for 0.1 s.
        gc.freeze()
        # A turn leaves no reference cycle (a test), and libraries few: a collection every 700 objects finds nothing.
        gc.set_threshold(10_000, 5)
        gc.enable()
