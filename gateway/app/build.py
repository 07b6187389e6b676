"""Builds every room from the settings, and closes them in reverse."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import structlog

from agent.agent_loop import AgentLoop
from agent.attachments.image_inliner import ImageInliner
from agent.auto_recall import AutoRecall
from agent.command_services import AgentCommandServices
from agent.commands import CommandRouter
from agent.locks import WorkerSlots
from agent.memory.jobs.token_budget import TokenBudget
from agent.memory.prompt.prompt_snapshot import ScopeMemory
from agent.memory.storage.attachment_blobs import AttachmentBlobStore
from agent.memory.storage.transcript_lead import NEWEST_SESSIONS, describe_leads
from agent.prompt_assembly import PromptAssembler
from agent.retrying_journal import RetryingJournal
from agent.tools.toolbox import Toolbox
from agent.turn_runner import TurnRunner
from agent.turn_services import TurnServices
from agent.worker_pool import WorkerPool
from gateway.access.refusal_log import OtherRefusal, RefusalLog, SilenceReason
from gateway.app.access import open_people
from gateway.app.alerts import open_alerts
from gateway.app.app import GatewayApp
from gateway.app.attachments import build_attachment_loader, build_history_reader, build_outgoing_files
from gateway.app.caps import open_caps
from gateway.app.channels import ConfiguredChannels, ExtraPlugins, logging_judge, open_doors, platforms_of, sign_of
from gateway.app.clock_check import ClockCheck
from gateway.app.dream import open_dreamer, open_dreams
from gateway.app.isolation import settle_scopes
from gateway.app.locales import open_locales
from gateway.app.memory import open_background, open_memory
from gateway.app.model_selection import build_vision_check, configured_models, open_choices, open_manners
from gateway.app.models import open_dream_model, open_models
from gateway.app.privacy import open_rights
from gateway.app.recall import open_recall
from gateway.app.role_resolver import RoleResolver
from gateway.app.second_tries import SecondTries
from gateway.app.settings_view import build_settings_view
from gateway.app.stores import open_store, within_retention
from gateway.app.usage_recorder import JournalUsageRecorder
from gateway.delivery import OutboxDispatcher
from gateway.errors import UserError
from gateway.events import InboundMessage
from gateway.home import Home
from gateway.home_migration import open_home
from gateway.intake import GatewayIntake
from gateway.journal_file import lost_line
from gateway.net.platform_time import time_servers
from gateway.ports import (
    Store,
)
from gateway.ports.entry_points import package_version
from gateway.quarantine import KEEP, Quarantine
from gateway.settings import Settings, secret_values
from gateway.settings.chat_overrides import open_chats
from gateway.store.adoption import read_sessions
from gateway.supervisor import Supervisor
from gateway.text.redaction import SecretRedactor
from gateway.web.health import HealthEndpoints
from gateway.web.metrics import PrometheusRecorder, metrics_route
from gateway.web.server import WebServer

log = structlog.get_logger(__name__)


@asynccontextmanager
async def open_app(
    settings: Settings, *, channels: bool = True, plugins: ExtraPlugins | None = None
) -> AsyncIterator[GatewayApp]:
    """Own the home, open the store and build every room; nothing runs yet but the store's writer.

    Raises UserError (home in use, newer data, wrong settings). On leaving, everything is closed
    in the reverse order.
    """
    plugins = plugins or ExtraPlugins()
    async with AsyncExitStack() as stack:
        home = stack.enter_context(open_home(settings.home))
        if lost := await asyncio.to_thread(lost_turns, home):
            raise UserError(lost)
        store = await open_store(settings)
        stack.push_async_callback(store.close, has_served=channels)
        unclean_stops = (await store.journal.depth())["unclean_stops"]
        app = _build(settings, home, store, plugins, channels=channels, unclean_stops=unclean_stops)
        if app.intake.quarantine.had_event_in_hand:
            await store.journal.acquit()
        stack.push_async_callback(app.models.close)
        stack.push_async_callback(app.recall.close)
        if app.dreamer.model is not app.model:
            stack.push_async_callback(app.dreamer.model.close)
        for channel in app.channels.values():
            stack.push_async_callback(channel.close)
        owners = list(dict.fromkeys([*settings.owners, *(str(each) for each in app.people.roster.owners())]))
        await settle_scopes(settings.memory.isolation, home.path, owners, app.kinds, app.linker)
        await app.house.forgetter.retention.plan()
        await app.caps.warm(store.caps, house_limit=settings.caps.tokens_per_day)
        yield app


def lost_turns(home: Home) -> str:
    """Return the line for a journal that transcripts are ahead of; or "". Blocks."""
    what = describe_leads(home.path, read_sessions(home.journal, NEWEST_SESSIONS))
    return lost_line(home.journal, what) if what else ""


def _now() -> datetime:
    return datetime.now(UTC)


def _build(
    settings: Settings, home: Home, store: Store, plugins: ExtraPlugins, *, channels: bool, unclean_stops: int
) -> GatewayApp:
    meter = PrometheusRecorder()
    chats = open_chats(settings)
    refusals = RefusalLog()
    kinds = platforms_of(settings, plugins)
    sign = sign_of(settings, plugins)
    locales = open_locales(settings, chats, store.people, store.links, kinds, sign)
    people = open_people(settings, chats, plugins, store, language=locales.language, meter=meter, now=_now)
    judge = people.judge
    noted = logging_judge(judge, refusals, _now)
    router = CommandRouter.load()

    def classify(message: InboundMessage) -> bool | None:
        typed = router.parse(message)
        return None if typed is None else router.is_control(typed)

    quarantine = Quarantine(
        home.quarantine, unclean_stops=unclean_stops, meter=meter, now=_now, keep=within_retention(settings, KEEP)
    )
    intake = GatewayIntake(
        store.journal,
        admit=noted,
        classify=classify,
        quarantine=quarantine,
        meter=meter,
        language=locales.observe_language,
        doorkeepers=(people.claims, people.strangers),
        newcomer=people.places.handle_membership,
    )
    quarantine.on_set_aside = lambda name, reason: refusals.note_channel(
        name, SilenceReason.QUARANTINED, reason, _now()
    )
    blobs = AttachmentBlobStore(home.path)
    # The offline model can only answer.
    consolidates = bool(settings.llm.model or plugins.models)
    memory = open_memory(
        settings,
        home,
        store,
        quarantine,
        meter,
        now=_now,
        consolidates=consolidates,
        kind=lambda name: kinds.get(name, name),
    )
    doors = ConfiguredChannels({}, kinds, ())
    if channels:
        doors = open_doors(settings, chats, plugins, intake, memory.sessions, blobs, store, language=locales.language)
    is_strict = settings.delivery.once == "strict"
    redactor = SecretRedactor(secret_values(settings))
    deliverer = OutboxDispatcher(
        store.outbox,
        doors.channels,
        meter=meter,
        now=_now,
        language=locales.language,
        is_strict=is_strict,
        redactor=redactor,
    )
    started = time.monotonic()
    purse = TokenBudget(store.usage, limit=settings.caps.background_tokens_per_day, zone=settings.timezone, now=_now)
    caps = open_caps(settings, chats, judge, store.links, meter=meter, refusals=refusals, now=_now)
    books = JournalUsageRecorder(store, purse, caps, meter, _now)
    model = open_models(settings, books, meter, plugins, _now)
    models = open_choices(settings, model, books, meter, plugins, _now)
    toolbox = Toolbox.load(*plugins.tools, result_chars=settings.agent.max_tool_result_chars, meter=meter)
    manners = open_manners(chats, models, toolbox, store.people)
    rights = open_rights(
        settings,
        home,
        store,
        memory.projector,
        doors,
        models=tuple(each.name for each in plugins.models) or configured_models(settings),
        zone=locales.zone,
        now=_now,
    )

    recall = open_recall(settings, home, zone=locales.zone, flush=memory.projector.flush, books=books)
    memory.forgetter.index.use(recall)
    house = AgentCommandServices(
        recall=recall,
        journal=store.journal,
        outbox=store.outbox,
        records=store.records,
        now=_now,
        sessions=memory.sessions,
        people=store.people,
        sums=store.usage,
        memory=memory.desk,
        forgetter=memory.forgetter,
        staging=memory.staging,
        rights=rights,
        linking=memory.linking,
        access=people.decisions,
        dreams=open_dreams(home, memory),
        pairing=people.pairing,
        locales=locales,
        models=manners.models,
        settings=build_settings_view(settings, chats, manners, locales, store.people),
        caps=caps,
        day_zone=settings.timezone,
        new_waits=settings.memory.new_waits,
        facts=lambda: {
            "version": package_version(),
            "uptime_seconds": time.monotonic() - started,
            "workers": settings.agent.workers,
            "by_words_alone": bool(recall.last_error()),
            "delayed_chats": len(deliverer.delayed()),
        },
    )
    patient = RetryingJournal(store.journal)
    clock = ClockCheck(time_servers(settings.channels.values(), settings.llm.api_base), settings.proxy_address, _now)
    rooms = TurnServices(
        journal=patient,
        previews=deliverer,
        conversations=memory.conversations,
        context=PromptAssembler(
            ScopeMemory(home.path, memory.documents),
            files=build_attachment_loader(
                settings, doors, blobs, build_vision_check(settings, manners), books=books, meter=meter
            ),
            overheard=build_history_reader(doors, judge),
            recalling=AutoRecall(recall) if settings.memory.auto_recall else None,
        ),
        loop=AgentLoop(
            max_calls=settings.agent.max_tool_calls,
            steer=settings.agent.overlap == "steer",
            store=patient,
            redact=redactor.redact,
        ),
        router=router,
        house=house,
        memory_jobs=memory.jobs,
        search=recall,
        pictures=ImageInliner(blobs),
        outgoing=build_outgoing_files(settings, home, doors, blobs),
        admits=RoleResolver(judge, doors.channels, noted=noted).current_role,
        locales=locales,
        manners=manners,
        caps=caps,
        on_expired=lambda message: refusals.note(message, OtherRefusal(reason=SilenceReason.EXPIRED), _now()),
        meter=meter,
        now=_now,
        kinds=lambda channel: kinds.get(channel, channel),
        links=store.links,
        redactor=redactor,
        gate=memory.gate,
        isolation=settings.memory.isolation,
        clock_ahead=clock.ahead,
    )
    slots = WorkerSlots(settings.agent.workers)
    dream_model = open_dream_model(settings, model, books, meter, plugins, _now)
    dreamer = open_dreamer(settings, home, store, memory, dream_model, zone=locales.zone, sign=sign, now=_now)
    background = open_background(
        settings,
        home,
        store,
        memory,
        model=model,
        meter=meter,
        purse=purse,
        dreamer=dreamer,
        exports=rights.exports,
        person=rooms.person,
        zone=locales.zone,
        now=_now,
        slots=slots,
    )
    pool = WorkerPool(store.journal, TurnRunner(rooms), slots=slots, meter=meter, clock=time.monotonic)
    house.pool, house.background = pool, background
    supervisor = Supervisor(doors.channels, meter=meter)
    supervisor.on_deaf = lambda name: refusals.note_channel(name, SilenceReason.DEAF, "", _now())
    alerts = open_alerts(
        settings,
        home,
        store,
        people=people,
        doors=doors,
        supervisor=supervisor,
        deliverer=deliverer,
        caps=caps,
        models=[*models.every(), dream_model],
        locales=locales,
        unclean_stops=unclean_stops,
        meter=meter,
        now=_now,
    )
    health = HealthEndpoints(check=store.check, channels=supervisor.states)

    async def depth() -> Mapping[str, Any]:
        await background.record_metrics()
        return await store.journal.depth()

    token = settings.web.metrics_token.get_secret_value() if settings.web.metrics_token else ""
    routes = [*health.routes(), metrics_route(meter, depth, token=token), *doors.routes]
    web = WebServer(
        settings.web.host,
        settings.web.port,
        routes,
        published_port=settings.web.published_port,
        login=settings.web.login,
        public_url=settings.web.public_url,
        trusted_proxies=settings.web.trusted_proxies,
    )
    return GatewayApp(
        settings=settings,
        home=home,
        store=store,
        meter=meter,
        pool=pool,
        house=house,
        intake=intake,
        sessions=memory.sessions,
        projector=memory.projector,
        recall=recall,
        memory_jobs=memory.jobs,
        linker=memory.linker,
        background=background,
        dreamer=dreamer,
        deliverer=deliverer,
        model=model,
        models=models,
        refusals=refusals,
        caps=caps,
        alerts=alerts,
        people=people,
        channels=doors.channels,
        kinds=kinds,
        supervisor=supervisor,
        second_tries=SecondTries(intake, store, doors.channels, judge=judge, language=locales.language, now=_now),
        web=web,
    )
