"""The composition root: every subsystem is opened on one exit stack, and closed in reverse order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from functools import partial

from agent.attachments.attachment_store import AttachmentStore
from agent.commands import CommandRouter
from agent.llm.model_abilities import LearnedModels
from agent.locks import WorkerSlots
from agent.memory.documents.document_adoption import adopt_documents
from agent.memory.editing.document_file_writer import DocumentFileWriter
from agent.memory.history.history_adoption import adopt_histories
from agent.memory.history.history_file_writer import HistoryFileWriter
from agent.memory.jobs.job_runner import JobRunner
from agent.memory.storage.earlier_files import build_filter, drop_earlier_files, fetch_earlier_files
from agent.memory.storage.file_adoption import adopt_files, adopt_workspaces
from agent.memory.storage.session_file_writer import SessionFileWriter
from agent.memory.storage.transcript_adoption import adopt_transcripts
from agent.reminders.reminder_jobs import ReminderJobs
from agent.tools.lapsed_questions import LapsedQuestions
from agent.tools.result_pages import ToolResultPages
from agent.tools.tool_questions import ToolApprovals
from gateway.access.refusal_log import SilenceReason
from gateway.alerts.alert_sources import ModelSource
from gateway.app.access import AccessServices, build_access
from gateway.app.alerts import build_alerts
from gateway.app.app import GatewayApp
from gateway.app.channels import (
    ConfiguredChannels,
    allowed_commands,
    build_command_prefix,
    open_channels,
    platforms_of,
)
from gateway.app.chat_settings import build_context_resolver, build_locales, build_profiles
from gateway.app.console import build_console, is_console_owner
from gateway.app.context import AppContext, ExtraPlugins, limit_retention, open_recorder, open_store, utc_now
from gateway.app.gateway_operations import GatewayOperations
from gateway.app.isolation import join_local_accounts, settle_scopes
from gateway.app.lost_turns import describe_loss
from gateway.app.machine_operations import MachineOperations
from gateway.app.memory import (
    build_dreamer,
    build_job_runner,
    build_memory,
    build_privacy,
    build_raw_archives,
)
from gateway.app.memory_operations import MemoryOperations
from gateway.app.models import ModelFactory, open_models
from gateway.app.people_operations import PeopleOperations
from gateway.app.person_panels import GatewayPersonPanels
from gateway.app.quarantine_retrier import QuarantineRetrier
from gateway.app.recall import open_recall
from gateway.app.role_resolver import has_lost_access
from gateway.app.setup_operations import SetupOperations
from gateway.app.tool_operations import ToolOperations
from gateway.app.turn_operations import TurnOperations
from gateway.app.turns import GatewaySubsystems, build_pool
from gateway.app.usage import build_usage, load_counts
from gateway.app.usage_operations import UsageOperations
from gateway.control import Operation
from gateway.delivery import DeliveryContext, OutboxDispatcher
from gateway.errors import UserError
from gateway.events import InboundMessage
from gateway.home_migration import open_home
from gateway.intake import GatewayIntake
from gateway.ports.objects import ObjectStore
from gateway.ports.store import Store
from gateway.quarantine import KEEP, Quarantine
from gateway.settings import Settings, secret_values
from gateway.settings.chat_overrides import open_chats
from gateway.store.objects import open_objects
from gateway.store_watcher import StoreWatcher
from gateway.supervisor import Supervisor
from gateway.text.redaction import SecretRedactor
from gateway.web.health import HealthEndpoints
from gateway.web.metrics import OF_STORE, metrics_route, record_depth
from gateway.web.server import WebServer
from gateway.web_console.console_routes import WebConsole


@asynccontextmanager
async def open_app(
    settings: Settings,
    *,
    channels: bool = True,
    plugins: ExtraPlugins | None = None,
    now: Callable[[], datetime] = utc_now,
) -> AsyncIterator[GatewayApp]:
    """Own the home and build every subsystem; nothing runs yet but the store's writer. Closes all of it on exit.

    *channels* is False in a process that opens the home for one command; *now* is the clock of all subsystems, the
    store's too; where gateways share a database, its server corrects it. Raises UserError for a home that is in use,
    newer data and wrong settings.
    """
    async with AsyncExitStack() as stack:
        home = stack.enter_context(open_home(settings.home))
        if lost := await asyncio.to_thread(describe_loss, home, settings.store.address):
            raise UserError(lost)
        store = await stack.enter_async_context(open_store(settings, has_served=channels, now=now))
        now = store.journal.now
        objects = None
        if settings.store.objects.url and store.earlier_files is not None:
            objects = open_objects(settings.store.objects, settings.proxy_address)
            store.files.use_objects(objects)
        meter = await stack.enter_async_context(open_recorder(settings))
        plugins = plugins or ExtraPlugins()
        chats, platforms = open_chats(settings), platforms_of(settings, plugins)
        command_prefix = build_command_prefix(settings, plugins)
        context = AppContext(
            settings=settings,
            plugins=plugins,
            home=home,
            store=store,
            chats=chats,
            platforms=platforms,
            context_of=build_context_resolver(store, chats, platforms, settings.memory.isolation),
            locales=build_locales(settings, store, chats, platforms, command_prefix),
            command_prefix=command_prefix,
            redactor=SecretRedactor(secret_values(settings)),
            unclean_stops=(await store.journal.depth())["unclean_stops"],
            meter=meter,
            now=now,
        )
        app = _build_app(context, await _open_subsystems(context, stack, has_channels=channels))
        if app.intake.quarantine.had_event_in_hand:
            await store.journal.acquit()
        owners = list(dict.fromkeys([*settings.owners, *(str(each) for each in app.access.roster.owners())]))
        await _adopt_earlier_files(app, store, objects, now)
        # Files that are not this store's go first: after a kill, the next start still knows that they are not.
        is_outdated = await app.session_files.is_outdated(is_shared=store.earlier_files is not None)
        await app.document_files.begin(is_outdated=is_outdated)
        await app.history_files.begin(is_outdated=is_outdated)
        await app.session_files.begin(is_shared=store.earlier_files is not None)
        await settle_scopes(settings.memory.isolation, home.path, owners, context.platforms, app.linker)
        if settings.memory.isolation != "shared":
            await join_local_accounts(store, app.linker, now())
        await app.commands.memory.erasure.retention.plan()
        await load_counts(app.usage, store, settings.caps)
        yield app


async def _adopt_earlier_files(
    app: GatewayApp, store: Store, objects: ObjectStore | None, now: Callable[[], datetime]
) -> None:
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
            await adopt_documents(home, store.documents, now)
            await store.documents.mark_adopted()
        await adopt_transcripts(home, store.transcripts, await store.records.sessions())
        moves = await store.links.moves()
        if not await store.proposals.is_adopted():
            await app.commands.memory.staging.adopt_files(moves)
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


def build_operations(app: GatewayApp) -> Mapping[str, Operation]:
    """Return every operation of the command line over *app*."""
    groups = (
        GatewayOperations(app),
        MemoryOperations(app),
        PeopleOperations(app),
        ToolOperations(app),
        UsageOperations(app),
        TurnOperations(app),
        MachineOperations(app),
        SetupOperations(app),
    )
    return {name: operation for group in groups for name, operation in group.by_name().items()}


async def _open_subsystems(context: AppContext, stack: AsyncExitStack, *, has_channels: bool) -> GatewaySubsystems:
    settings, store, now = context.settings, context.store, context.now
    locales = context.locales
    access = build_access(context)
    router = CommandRouter.load()
    intake = _build_intake(context, access, router)

    usage = build_usage(context)
    is_shared = settings.store.shared
    session_files = SessionFileWriter(
        context.home.path,
        store.records,
        store.transcripts,
        is_mirroring=not is_shared,
    )
    document_files = DocumentFileWriter(
        context.home.path, store.documents, is_mirroring=not is_shared, has_git=settings.memory.git
    )
    stack.push_async_callback(document_files.close)
    history_files = HistoryFileWriter(context.home.path, store.history, store.documents, is_mirroring=not is_shared)
    recall = await stack.enter_async_context(open_recall(context, usage.recorder))
    memory = build_memory(context, session_files, document_files, history_files, recall, intake.quarantine)
    model_health = ModelSource(now)
    factory = ModelFactory(
        settings,
        context.plugins,
        usage.recorder,
        context.meter,
        now=now,
        facts=LearnedModels(store.models, now=now),
        observer=model_health,
    )
    models = await stack.enter_async_context(open_models(factory))
    profiles = build_profiles(context, models.catalog)

    blobs = AttachmentStore(store.files, context.now)
    pages = ToolResultPages(store.files, context.now)
    channels = ConfiguredChannels({})

    def is_owner_of_console(channel: str, who: str) -> bool:
        return is_console_owner(context, channels, access, channel, who)

    if has_channels:
        channels = await stack.enter_async_context(
            open_channels(
                context,
                intake,
                memory.sessions,
                memory.stored_conversations,
                GatewayPersonPanels(context, memory, profiles, recall),
                blobs,
                allowed_commands=partial(
                    allowed_commands,
                    access.judge,
                    router.commands,
                    now,
                    has_one_memory=settings.memory.isolation == "shared",
                ),
                is_console_owner=is_owner_of_console,
            )
        )
    approvals = ToolApprovals(store.jobs, store.journal, context.meter)
    lost_access = partial(has_lost_access, access.judge)
    questions = LapsedQuestions(
        approvals=approvals,
        has_lost_access=lost_access,
        journal=store.journal,
        records=store.records,
        language=locales.language,
        now=now,
    )
    delivery = DeliveryContext(
        outbox=store.outbox,
        meter=context.meter,
        now=now,
        language=locales.language,
        is_strict=settings.delivery.once == "strict",
        redactor=context.redactor,
        on_missing_file=questions.withdraw,
    )
    dispatcher = OutboxDispatcher(channels.channels, delivery)
    privacy = build_privacy(context, memory, channels.file_limit)
    slots = WorkerSlots(settings.agent.workers)
    dreamer = build_dreamer(context, memory, models.dream)
    raw_archives = build_raw_archives(context, memory, models.memory)
    reminders = ReminderJobs(
        jobs=store.jobs,
        journal=store.journal,
        records=store.records,
        preferences=store.people,
        language=locales.language,
        has_lost_access=lost_access,
        zone=locales.zone,
        open_chat=memory.stored_conversations.open_for_notice,
        now=now,
        meter=context.meter,
    )
    jobs = build_job_runner(
        context,
        memory,
        handlers={**questions.quick, **(reminders.quick if settings.tools.reminders else {})},
        model=models.memory,
        token_budget=usage.token_budget,
        dreamer=dreamer,
        raw_archives=raw_archives,
        exports=privacy.exports,
        slots=slots,
    )
    return GatewaySubsystems(
        access=access,
        profiles=profiles,
        memory=memory,
        recall=recall,
        privacy=privacy,
        blobs=blobs,
        pages=pages,
        channels=channels,
        dispatcher=dispatcher,
        router=router,
        intake=intake,
        usage=usage,
        models=models,
        model_health=model_health,
        dreamer=dreamer,
        raw_archives=raw_archives,
        jobs=jobs,
        reminders=reminders,
        approvals=approvals,
        slots=slots,
    )


def _build_app(context: AppContext, parts: GatewaySubsystems) -> GatewayApp:
    access, memory, channels = parts.access, parts.memory, parts.channels
    pool, commands, replayer = build_pool(context, parts)
    check_alerts = parts.model_health.check_now
    supervisor = Supervisor(
        channels.channels,
        meter=context.meter,
        connections=context.store.connections,
        on_refusal=check_alerts.set,
        on_stall=lambda name: context.refusals.note_channel(name, SilenceReason.DEAF, "", context.now()),
    )
    retrier = QuarantineRetrier(
        parts.intake,
        context.store,
        channels.channels,
        judge=access.judge,
        language=context.locales.language,
        now=context.now,
    )
    console = build_console(context, channels, access)
    watcher = _build_store_watcher(context, parts.jobs)
    return GatewayApp(
        settings=context.settings,
        home=context.home,
        store=context.store,
        store_watcher=watcher,
        meter=context.meter,
        pool=pool,
        commands=commands,
        replayer=replayer,
        intake=parts.intake,
        sessions=memory.sessions,
        session_files=memory.session_files,
        document_files=memory.document_files,
        history_files=memory.history_files,
        workspaces=memory.workspaces,
        blobs=parts.blobs,
        pages=parts.pages,
        recall=parts.recall,
        memory_jobs=memory.jobs,
        linker=memory.linker,
        background=parts.jobs,
        dreamer=parts.dreamer,
        raw_archives=parts.raw_archives,
        dispatcher=parts.dispatcher,
        model=parts.models.default,
        models=parts.models.catalog,
        refusals=context.refusals,
        usage=parts.usage,
        alerts=build_alerts(context, parts, supervisor, watcher, check_now=check_alerts),
        access=access,
        channels=channels.channels,
        platforms=context.platforms,
        supervisor=supervisor,
        quarantine_retrier=retrier,
        console=console,
        web=_build_web(context, channels, supervisor, watcher, console),
    )


def _build_intake(context: AppContext, access: AccessServices, router: CommandRouter) -> GatewayIntake:
    def classify(message: InboundMessage) -> bool | None:
        command = router.parse(message)
        return None if command is None else router.is_control(command)

    quarantine = Quarantine(
        context.home.quarantine,
        unclean_stops=context.unclean_stops,
        meter=context.meter,
        now=context.now,
        keep=limit_retention(context.settings, KEEP),
        on_quarantined=lambda name, reason: context.refusals.note_channel(
            name, SilenceReason.QUARANTINED, reason, context.now()
        ),
    )
    return GatewayIntake(
        context.store.journal,
        context_of=context.context_of,
        admit=access.judge.decide,
        classify=classify,
        quarantine=quarantine,
        meter=context.meter,
        language=context.locales.observe_language,
        pre_admission_handlers=(access.claims.intercept, access.strangers.intercept),
        newcomer=access.places.handle_membership,
    )


def _build_store_watcher(context: AppContext, jobs: JobRunner) -> StoreWatcher:
    meter, journal = context.meter, context.store.journal

    async def record_gauges() -> None:
        await jobs.record_metrics()
        record_depth(meter, await journal.depth())

    return StoreWatcher(
        context.store.check,
        record_gauges,
        forget_gauges=partial(meter.forget, *OF_STORE),
        meter=meter,
        now=context.now,
    )


def _build_web(
    context: AppContext,
    channels: ConfiguredChannels,
    supervisor: Supervisor,
    watcher: StoreWatcher,
    console: WebConsole | None,
) -> WebServer:
    settings = context.settings.web
    token = settings.metrics_token.get_secret_value() if settings.metrics_token else ""
    health = HealthEndpoints(store=lambda: watcher.state, channels=supervisor.shard_states)
    consoles = console.routes() if console is not None else []
    return WebServer(
        settings.host,
        settings.port,
        [
            *health.routes(),
            metrics_route(context.meter, observe=supervisor.shard_states, token=token),
            *consoles,
            *channels.routes,
        ],
        published_port=settings.published_port,
        login=settings.login,
        public_url=settings.public_url,
        trusted_proxies=settings.trusted_proxies,
    )
