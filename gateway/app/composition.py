"""Opens a gateway on one exit stack, closed in reverse, and runs it: start order is the order of the lines in `serve`.

Graceful shutdown: intake closes, running turns get their grace period, replies are delivered, files are flushed.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from agent.attachments.process_confinement import probe_confinement
from agent.memory.account_links.account_linker import LINK, AccountLinker
from agent.memory.adoption import adopt_documents, adopt_histories, adopt_transcripts
from agent.memory.file_adoption import (
    adopt_files,
    adopt_workspaces,
    build_filter,
    drop_earlier_files,
    fetch_earlier_files,
)
from gateway.admission import LOCAL_OWNER
from gateway.app.context import LOCAL_ACCOUNTS, ChannelPlatforms, ExtraPlugins, open_recorder, open_store
from gateway.app.lost_turns import describe_loss
from gateway.app.models import load_counts, take_over_model_facts
from gateway.app.runtime import Runtime
from gateway.control.control_server import ControlServer
from gateway.errors import UserError, WorkerReplaced
from gateway.events import PlatformAccount, SessionKey
from gateway.operations.gateway import GatewayOperations
from gateway.ports.journal import Job
from gateway.preflight import open_home
from gateway.settings import Settings
from gateway.settings.channel_blocks import PAGE
from gateway.store.engine import utc_now
from gateway.store.objects import ObjectStore, open_objects
from gateway.supervisor import run_prune_loop, run_stamp_loop
from gateway.web.connections import raise_open_file_limit

if TYPE_CHECKING:
    from gateway.store.sql_store import SqlStore


@asynccontextmanager
async def open_app(
    settings: Settings,
    *,
    channels: bool = True,
    plugins: ExtraPlugins | None = None,
    now: Callable[[], datetime] = utc_now,
    restart: asyncio.Event | None = None,
) -> AsyncIterator[Runtime]:
    """Own the home and build every subsystem; nothing runs yet but the store's writer. Closes all of it on exit.

    *channels* is False in a process that opens the home for one command; *now* is the clock of all subsystems, the
    store's too; where gateways share a database, its server corrects it. Raises UserError for a home that is in use,
    newer data and wrong settings. *restart* is set by operations that ask for a restart; None where the caller
    cannot start again.
    """
    async with AsyncExitStack() as stack:
        home = stack.enter_context(open_home(settings.home))
        if lost := await asyncio.to_thread(describe_loss, home, settings.store.address):
            raise UserError(lost)
        objects = None
        if settings.store.objects.url and settings.store.address:
            objects = open_objects(settings.store.objects, settings.proxy_address)
        opening = open_store(settings, has_served=channels, now=now, objects=objects)
        store = await stack.enter_async_context(opening)
        meter = await stack.enter_async_context(open_recorder(settings))
        app = Runtime(
            settings=settings,
            plugins=plugins or ExtraPlugins(),
            home=home,
            store=store,
            meter=meter,
            unclean_stops=(await store.journal.depth())["unclean_stops"],
            has_channels=channels,
            now=store.journal.now,
            closing=stack,
            restart=restart,
        )
        if channels:
            app.logins.vault.check()
        _build_all(app)
        await app.profiles.skills.reload()
        await take_over_model_facts(app.models, home.path)
        if app.quarantine.had_event_in_hand:
            await store.journal.acquit()
        owners = list(dict.fromkeys([*settings.owners, *(str(each) for each in app.roster.owners())]))
        await _adopt_earlier_files(app, store, objects)
        # Files that are not this store's go first: after a kill, the next start still knows that they are not.
        is_outdated = await app.session_files.is_outdated(is_shared=store.earlier_files is not None)
        await app.memory_files.begin(is_outdated=is_outdated)
        await app.session_files.begin(is_shared=store.earlier_files is not None)
        await settle_scopes(settings.memory.isolation, home.path, owners, app.platforms, app.memory.linker)
        if settings.memory.isolation != "shared":
            await join_local_accounts(store, app.memory.linker, app.now())
        await app.memory.erasure.retention.plan()
        await load_counts(app)
        yield app


def _build_all(app: Runtime) -> None:
    """Build what runs, and with it all that it needs: wrong settings end the start, and no turn waits for an import.

    Channels are closed before the model clients, these before the search, because they were built after them.
    """
    _ = (app.recall, app.models, app.channels, app.pool, app.alerts, app.web, app.quarantine_retrier, app.operations)


async def _adopt_earlier_files(app: Runtime, store: SqlStore, objects: ObjectStore | None) -> None:
    """Take over what earlier releases have kept in files, before anything moves or removes them."""
    home, earlier = app.home.path, store.earlier_files
    adopting = (store.transcripts, store.documents, store.proposals, store.history, store.files)
    adopted = [await each.is_adopted() for each in adopting]
    if not all(adopted):
        if earlier is not None:
            has_turns, has_documents, has_proposals, has_history, has_files = adopted
            is_wanted = build_filter(
                documents=not has_documents,
                conversations=not has_turns,
                history=not (has_history and has_proposals),
                files=not has_files,
            )
            is_one = app.settings.memory.isolation == "shared"
            await fetch_earlier_files(home, earlier, objects, is_wanted=is_wanted, is_one=is_one)
        if not await store.documents.is_adopted():
            await adopt_documents(home, store.documents, app.now)
            await store.documents.mark_adopted()
        await adopt_transcripts(home, store.transcripts, await store.records.sessions())
        moves = await store.links.moves()
        if not await store.proposals.is_adopted():
            await app.memory.staging.adopt_files(moves)
        await adopt_histories(home, store.history, moves)
        if not await store.files.is_adopted():
            await adopt_files(home, store.files)
            await adopt_workspaces(home, store.files)
        await store.files.mark_adopted()
        await store.proposals.mark_adopted()
    if earlier is not None:
        await drop_earlier_files(home, earlier)
    if not app.settings.store.shared:  # files that an operator has put there
        await adopt_workspaces(home, store.files)


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
            memory_files=app.memory_files.run,
            background=app.background.run,
            recall=app.recall.run,
            prune=lambda: run_prune_loop(
                app.store,
                app.quarantine.prune,
                app.memory.workspaces.expire_trash,
                app.pages.prune,
                app.logins.prune,
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


_ADOPT = "adopt"
_MEMORIES = ("MEMORY.md", "history.jsonl", "HISTORY.md")


async def settle_scopes(
    isolation: str, home: Path, owners: Sequence[str], platforms: ChannelPlatforms, linker: AccountLinker
) -> None:
    """Complete interrupted moves, then move the home's shared memory to the owner's scope unless isolation is "shared".

    Raises UserError when the disk refuses; the gateway must not start then.
    """
    try:
        await linker.resume()
        if isolation == "shared":
            unread = list(unread_scopes(home))
            if unread:
                log.warning("memory.not_read", isolation="shared", scopes=len(unread), first=unread[0])
        elif has_memory(home):
            await _adopt(owners, home, platforms, linker)
    except OSError as error:
        raise UserError(
            f"the memory could not be moved within {home} ({error.strerror or error}); free some space and start again"
        ) from None


async def join_local_accounts(store: SqlStore, linker: AccountLinker, now: datetime) -> None:
    """Make the owner at this machine's page and terminal one person, as `/link` would; later starts change nothing.

    The older scope remains, with the memory and the conversations of both. Where other gateways may be at work, or the
    transcripts are behind, a job does it. Raises UserError when the disk refuses.
    """
    accounts = [each.name for each in LOCAL_ACCOUNTS]
    if len({store.links.person(each) for each in LOCAL_ACCOUNTS}) == 1:
        return
    job = Job(id="link:local", kind=LINK, scope="", payload={"accounts": accounts}, due_at=now)
    if store.connections is not None or await linker.link(job) is not None:
        await store.jobs.put(job)


async def _adopt(owners: Sequence[str], home: Path, platforms: ChannelPlatforms, linker: AccountLinker) -> None:
    target = owners_scope(owners, home, platforms)
    if not target:
        log.warning(
            "memory.without_owner",
            folder=str(home / "memory"),
            hint="this memory is not used; set PARLOUR_OWNERS to the person it belongs to, and start again",
        )
        return
    await linker.adopt(target, f"{_ADOPT}:{_number(home, target)}")
    log.info("memory.adopted", scope=target, was=str(home / "memory"))


def _number(home: Path, target: str) -> int:
    """Return a number that no earlier adoption of this scope has had."""
    mark = home / target / "memory" / ".move"
    before = mark.read_text("utf-8") if mark.is_file() else ""
    name, _, number = before.partition(":")
    return int(number) + 1 if name == _ADOPT and number.isdigit() else 1


def has_memory(home: Path) -> bool:
    """Return True if the home itself holds a memory, as with `memory.isolation: shared`."""
    there = any((home / "memory" / name).exists() for name in _MEMORIES) or (home / "USER.md").exists()
    return there or any((home / "sessions").glob("*.jsonl"))


def unread_scopes(home: Path) -> Iterator[str]:
    """Yield the scopes that are not read while `memory.isolation` is "shared"."""
    for area in ("people", "chats"):
        for folder in sorted((home / area).glob("*")):
            if folder.is_dir():
                yield f"{area}/{folder.name}"


def owners_scope(owners: Sequence[str], home: Path, platforms: ChannelPlatforms) -> str:
    """Return the scope of the first owner whose account can be derived; without owners that of the local user.

    Returns "" when there are owners and none can be derived.
    """
    for owner in owners:
        key = SessionKey.parse(owner)
        account = PlatformAccount(kind=platforms.get(key.channel, key.channel), id=key.chat)
        if not platforms.has_teams(account.kind):
            return f"people/{account.name}"
        # The team is part of the account, and no setting names it.
        names = [path.name for path in sorted((home / "people").glob("*"))]
        written = [name for name in names if PlatformAccount.from_name(name).user == account]
        if len(written) == 1:
            return f"people/{written[0]}"
    return "" if owners else f"people/{PlatformAccount(kind=PAGE, id=LOCAL_OWNER).name}"
