"""The composition root: every subsystem is opened on one exit stack, and closed in reverse order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime

from agent.memory.documents.document_adoption import adopt_documents
from agent.memory.history.history_adoption import adopt_histories
from agent.memory.storage.earlier_files import build_filter, drop_earlier_files, fetch_earlier_files
from agent.memory.storage.file_adoption import adopt_files, adopt_workspaces
from agent.memory.storage.transcript_adoption import adopt_transcripts
from gateway.app.context import ExtraPlugins, open_recorder, open_store, utc_now
from gateway.app.isolation import join_local_accounts, settle_scopes
from gateway.app.lost_turns import describe_loss
from gateway.app.models import take_over_model_facts
from gateway.app.runtime import Runtime
from gateway.app.usage import load_counts
from gateway.errors import UserError
from gateway.home_migration import open_home
from gateway.ports.objects import ObjectStore
from gateway.settings import Settings
from gateway.store.objects import open_objects
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
        _build_all(app)
        await take_over_model_facts(app.models, home.path)
        if app.quarantine.had_event_in_hand:
            await store.journal.acquit()
        owners = list(dict.fromkeys([*settings.owners, *(str(each) for each in app.access.roster.owners())]))
        await _adopt_earlier_files(app, store, objects)
        # Files that are not this store's go first: after a kill, the next start still knows that they are not.
        is_outdated = await app.session_files.is_outdated(is_shared=store.earlier_files is not None)
        await app.document_files.begin(is_outdated=is_outdated)
        await app.history_files.begin(is_outdated=is_outdated)
        await app.session_files.begin(is_shared=store.earlier_files is not None)
        await settle_scopes(settings.memory.isolation, home.path, owners, app.platforms, app.memory.linker)
        if settings.memory.isolation != "shared":
            await join_local_accounts(store, app.memory.linker, app.now())
        await app.memory.erasure.retention.plan()
        await load_counts(app.usage, store, settings.caps)
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
