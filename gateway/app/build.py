"""Builds every room from the settings, and closes them in reverse."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import entry_points, version

import structlog

from agent.attachments.pictures import Pictures
from agent.commands import Router
from agent.context import Context
from agent.house import AgentHouse
from agent.llm.client import ModelClient, OnUsage
from agent.llm.port import ChatReply, ChatRequest, ModelConfig
from agent.llm.registry import open_model
from agent.loop import Loop
from agent.memory.background import Background
from agent.memory.consolidation.slice import Keep
from agent.memory.consolidator import Consolidator
from agent.memory.conversations import Conversations
from agent.memory.desk import MemoryDesk
from agent.memory.files.attachments import FileBlobs
from agent.memory.files.disk import Disk
from agent.memory.files.documents import FileDocuments
from agent.memory.files.projector import Projector
from agent.memory.forgetting.forgetter import Forgetter
from agent.memory.jobs import REMEMBER, MemoryJobs
from agent.memory.keeping import Keeper
from agent.memory.reading import Passages
from agent.memory.revising import Reviser
from agent.memory.search.plain import PlainSearch
from agent.memory.session_notes import SessionNotes
from agent.memory.sessions import StoredSessions
from agent.memory.snapshot import ScopeMemory
from agent.memory.versions import Versions
from agent.patient import PatientJournal
from agent.pool import Pool
from agent.rooms import Rooms
from agent.tools.registry import Toolbox
from agent.turn import TurnWork
from gateway.admission import RefusalLog
from gateway.app.addressee import addressee, is_private
from gateway.app.attachments import files_in, files_out, overheard
from gateway.app.channels import Doors, Gate, Plugins, judge_of, kinds_of, noting, open_doors
from gateway.delivery import Deliverer
from gateway.errors import SettingsMistake, UserMistake
from gateway.events import InboundKind, InboundMessage, Role, SessionKey, turn_id
from gateway.home import Home
from gateway.intake import GatewayIntake
from gateway.ports import (
    Channel,
    Limits,
    Store,
    UsageRow,
    Verdict,
)
from gateway.quarantine import Quarantine
from gateway.services import Supervisor
from gateway.settings import Settings
from gateway.upgrade import open_home
from gateway.web.health import Health
from gateway.web.metrics import PrometheusMeter, metrics_route
from gateway.web.server import WebServer

log = structlog.get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class App:
    """Everything that was built, for `run`, for the control socket and for tests."""

    settings: Settings
    home: Home
    store: Store
    meter: PrometheusMeter
    pool: Pool
    house: AgentHouse
    intake: GatewayIntake
    sessions: StoredSessions
    projector: Projector
    memory_jobs: MemoryJobs
    background: Background
    deliverer: Deliverer
    model: ModelClient
    refusals: RefusalLog
    channels: Mapping[str, Channel]
    kinds: Mapping[str, str]  # block name -> platform kind
    supervisor: Supervisor
    web: WebServer
    started_at: float = field(default_factory=time.monotonic)

    def readiness(self) -> Mapping[str, bool | None]:
        """Return the channels' states, for /readyz and operators."""
        return self.supervisor.states()

    @asynccontextmanager
    async def still(self) -> AsyncIterator[None]:
        """Hold while nothing may write files: what was committed is projected first, then jobs and projector wait."""
        async with self.memory_jobs.still(), self.projector.still():
            yield

    async def submit(self, key: SessionKey, text: str) -> str:
        """Accept *text* as a job of ours in the session *key*; return its turn's id. Raises UserMistake."""
        if key.channel not in self.kinds:
            known = ", ".join(sorted(self.kinds))
            raise UserMistake(f"there is no channel called {key.channel}; there are: {known}")
        sessions = await self.store.records.sessions()
        chat_kind, sender = addressee(key, self.kinds[key.channel], sessions)
        message = InboundMessage(
            key=key,
            message_id=f"job:send/{secrets.token_hex(8)}",
            sender=sender,
            text=text,
            sent_at=_now(),
            kind=InboundKind.JOB,
            chat_kind=chat_kind,
            is_private=is_private(key, sessions),
        )
        accepted = await self.intake.accept(message, Role.OWNER)
        if accepted.verdict is Verdict.FULL:
            raise UserMistake(f"{key} has too many messages waiting; try again when some are answered")
        return turn_id(message)


@asynccontextmanager
async def open_app(settings: Settings, *, channels: bool = True, plugins: Plugins | None = None) -> AsyncIterator[App]:
    """Own the home, open the store and build every room; nothing runs yet but the store's writer.

    Raises UserMistake (home in use, newer data, wrong settings). On leaving, everything is closed
    in the reverse order.
    """
    plugins = plugins or Plugins()
    async with AsyncExitStack() as stack:
        home = stack.enter_context(open_home(settings.home))
        store = await _open_store(settings)
        stack.push_async_callback(store.close, has_served=channels)
        unclean_stops = (await store.journal.depth())["unclean_stops"]
        app = _build(settings, home, store, plugins, channels=channels, unclean_stops=unclean_stops)
        stack.push_async_callback(app.model.close)
        for channel in app.channels.values():
            stack.push_async_callback(channel.close)
        yield app


async def _open_store(settings: Settings) -> Store:
    url = str(settings.store.url.get_secret_value()) if settings.store.url else ""
    scheme = url.partition("://")[0] or "sqlite"
    found = {entry.name: entry for entry in entry_points(group="parlour.stores")}
    if scheme not in found:
        raise SettingsMistake(
            f"store.url begins with {scheme}://, but only these stores are installed: {', '.join(sorted(found))};"
            " leave PARLOUR_STORE__URL empty for the embedded one"
        )
    limits = Limits(
        queued_per_chat=settings.agent.queued_per_chat, queued=settings.agent.queued, merge=settings.agent.merge
    )
    store: Store = await found[scheme].load()(settings.home, url, limits)
    return store


def _now() -> datetime:
    return datetime.now(UTC)


def _build(
    settings: Settings, home: Home, store: Store, plugins: Plugins, *, channels: bool, unclean_stops: int
) -> App:
    meter = PrometheusMeter()
    refusals = RefusalLog()
    judge = judge_of(settings, plugins)
    noted = noting(judge, refusals, _now)
    router = Router.load()

    def classify(message: InboundMessage) -> bool | None:
        typed = router.typed(message)
        return None if typed is None else router.is_control(typed)

    quarantine = Quarantine(home.quarantine, unclean_stops=unclean_stops, meter=meter, now=_now)
    intake = GatewayIntake(store.journal, admit=noted, classify=classify, quarantine=quarantine, meter=meter)
    blobs = FileBlobs(home.path)
    versions = Versions(home.path)
    keeper = Keeper(home.path, Disk(), versions, now=_now)
    documents = FileDocuments(home.path, keeper=keeper)
    memory = ScopeMemory(home.path, documents)
    consolidates = bool(settings.llm.model or plugins.models)  # the offline model can only answer
    conversations = Conversations(
        home.path,
        store.records,
        capacity=settings.agent.session_cache,
        window=settings.agents.defaults.memory_window,
        consolidates=consolidates,
        keep=Keep(settings.consolidation.keep),
    )
    sessions = StoredSessions(home.path, store.records, store.journal)
    projector = Projector(home.path, store.records)
    memory_jobs = MemoryJobs(store.jobs, documents, meter=meter)
    kinds = kinds_of(settings, plugins)
    doors = open_doors(settings, plugins, intake, sessions, blobs, store) if channels else Doors({}, kinds, ())
    is_strict = settings.delivery.once == "strict"
    deliverer = Deliverer(store.outbox, doors.channels, meter=meter, now=_now, is_strict=is_strict)
    started = time.monotonic()
    spend = _spending(store)
    model = _open_model(settings, spend, meter, plugins)
    house = AgentHouse(
        journal=store.journal,
        outbox=store.outbox,
        records=store.records,
        now=_now,
        sessions=sessions,
        people=store.people,
        sums=store.usage,
        memory=MemoryDesk(home.path, documents, versions, store.journal, sessions),
        forgetter=Forgetter(
            home.path,
            documents=documents,
            versions=versions,
            transcripts=projector,
            jobs=store.jobs,
            writing=memory_jobs.writing,
            reopen=conversations.forget_scope,
        ),
        default_zone=settings.timezone,
        facts=lambda: {
            "version": version("parlour"),
            "model": model.name,
            "uptime_seconds": time.monotonic() - started,
            "workers": settings.agent.workers,
        },
    )
    toolbox = Toolbox.load(*plugins.tools, result_chars=settings.agent.max_tool_result_chars, meter=meter)
    patient = PatientJournal(store.journal)
    rooms = Rooms(
        journal=patient,
        previews=deliverer,
        conversations=conversations,
        context=Context(
            memory,
            abilities=toolbox.abilities(),
            files=files_in(settings, doors, blobs, model, on_usage=spend, meter=meter),
            overheard=overheard(doors, judge),
        ),
        loop=Loop(
            model,
            toolbox,
            max_calls=settings.agent.max_tool_calls,
            steer=settings.agent.overlap == "steer",
            store=patient,
        ),
        router=router,
        house=house,
        memory_jobs=memory_jobs,
        search=PlainSearch(home.path, documents),
        pictures=Pictures(blobs),
        outgoing=files_out(settings, home, doors, blobs),
        admits=Gate(noted, doors.channels, _now).still_admits,
        zone=house.zone,
        meter=meter,
        now=_now,
        kinds=lambda channel: kinds.get(channel, channel),
        language=settings.language,
    )
    passages = Passages(home.path, store.records, flush=projector.flush)
    consolidator = Consolidator(
        home=home.path,
        jobs=store.jobs,
        passages=passages,
        records=store.records,
        session=store.journal.session,
        adopt=conversations.adopt,
        writing=memory_jobs.writing,
        reviser=Reviser(home.path, documents, now=_now),
        model=model,
        zone=house.zone,
        now=_now,
        notes=settings.tools.session_memory.enabled,
    )
    notes = SessionNotes(
        home=home.path,
        passages=passages,
        model=model,
        zone=house.zone,
        now=_now,
        max_messages=settings.tools.session_memory.max_messages,
        min_user_messages=settings.tools.session_memory.min_user_messages,
    )
    background = Background(
        store.jobs,
        quick={REMEMBER: memory_jobs.apply, **consolidator.quick},
        slow={**consolidator.slow, **notes.slow} if consolidates else {},
        meter=meter,
    )
    pool = Pool(store.journal, TurnWork(rooms), workers=settings.agent.workers, meter=meter, clock=time.monotonic)
    house.pool = pool
    supervisor = Supervisor(doors.channels, meter=meter)
    health = Health(check=store.check, channels=supervisor.states)
    routes = [*health.routes(), metrics_route(meter, store.journal.depth), *doors.routes]
    web = WebServer(
        settings.web.host, settings.web.port, routes, login=settings.web.login, public_url=settings.web.public_url
    )
    return App(
        settings=settings,
        home=home,
        store=store,
        meter=meter,
        pool=pool,
        house=house,
        intake=intake,
        sessions=sessions,
        projector=projector,
        memory_jobs=memory_jobs,
        background=background,
        deliverer=deliverer,
        model=model,
        refusals=refusals,
        channels=doors.channels,
        kinds=kinds,
        supervisor=supervisor,
        web=web,
    )


def _spending(store: Store) -> OnUsage:
    """Return what notes a model call in the journal."""

    def spend(reply: ChatReply, request: ChatRequest) -> None:
        store.journal.spend(
            UsageRow(
                turn=request.turn,
                person=request.person,
                chat=request.chat,
                purpose=request.purpose,
                model=reply.model,
                tokens_in=reply.tokens.input,
                tokens_out=reply.tokens.output,
                tokens_cached=reply.tokens.cached,
                cost=reply.cost,
                at=_now(),
            )
        )

    return spend


def _open_model(settings: Settings, on_usage: OnUsage, meter: PrometheusMeter, plugins: Plugins) -> ModelClient:
    llm = settings.llm
    models = list(plugins.models) or [
        open_model(
            ModelConfig(
                model=name,
                api_base=str(llm.api_base or ""),
                api_key=llm.api_key.get_secret_value() if llm.api_key else "",
                timeout=llm.timeout_seconds,
                stream_silence=llm.stream_silence_seconds,
                context_window=llm.context_window,
                vision=llm.vision,
            )
        )
        for name in (llm.model, *llm.fallbacks)
    ]
    return ModelClient(models, attempts=llm.attempts, on_usage=on_usage, meter=meter, now=_now)
