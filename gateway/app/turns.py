"""Turns: the services of the agent and of commands, and the worker pool that runs both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog

from agent.agent_loop import AgentLoop
from agent.attachments.attachment_loader import AttachmentLoader
from agent.attachments.attachment_store import AttachmentStore
from agent.attachments.document_reader import SandboxedReader
from agent.attachments.image_inliner import ImageInliner
from agent.attachments.transcription import LitellmTranscriber
from agent.auto_recall import AutoRecall
from agent.call_review import CallReviewer
from agent.chat_profiles import ChatProfiles
from agent.command_services import (
    ChatCommandServices,
    CommandServices,
    MemoryCommandServices,
    PeopleCommandServices,
    QueueService,
    StatusService,
    UsageService,
)
from agent.commands import CommandRouter
from agent.files.outgoing_files import OutgoingFiles
from agent.files.received_files import ReceivedFiles
from agent.files.turn_files import FileServices
from agent.llm.model_client import UsageRecorder
from agent.locks import WorkerSlots
from agent.memory.consolidation.raw_archive_jobs import RawArchiveJobs
from agent.memory.dream.dreamer import Dreamer
from agent.memory.jobs.job_runner import JobRunner
from agent.memory.privacy.data_inventory import PrivacyService
from agent.memory.prompt.prompt_snapshot import ScopeMemory
from agent.memory.search.scope_recall import ScopeRecall
from agent.prompt_assembly import PromptAssembler
from agent.recorded_turn import UncountedToolCalls, UnrecordedCalls
from agent.reminders.reminder_jobs import ReminderJobs
from agent.tools.result_pages import ToolResultPages
from agent.tools.standing_decisions import StandingDecisions
from agent.tools.tool_questions import ToolApprovals
from agent.turn import RunningTurns
from agent.turn_memory import TurnMemoryTools
from agent.turn_replay import TurnReplayer
from agent.turn_runner import TurnRunner
from agent.turn_services import RetryingJournal, TurnServices
from agent.worker_pool import WorkerPool
from gateway.access.refusal_log import OtherRefusal, SilenceReason
from gateway.admission import Admitted
from gateway.alerts.alert_sources import ModelSource
from gateway.app.access import AccessServices
from gateway.app.channels import ConfiguredChannels, may_be_read
from gateway.app.chat_settings import build_settings_view, build_vision_check
from gateway.app.context import AppContext
from gateway.app.memory import MemoryServices
from gateway.app.models import ModelFactory, ModelServices
from gateway.app.recall import search_limitation
from gateway.app.role_resolver import RoleResolver
from gateway.app.usage import UsageServices
from gateway.channel_reader import ChannelAttachmentFetcher, ChannelHistory
from gateway.delivery import OutboxDispatcher
from gateway.events import InboundMessage, Role, SessionKey
from gateway.intake import GatewayIntake
from gateway.net.platform_time import clock_ahead, clock_line, time_servers
from gateway.ports import MessageContext
from gateway.ports.entry_points import program_version
from gateway.settings import Settings
from gateway.settings.channel_blocks import PAGE
from gateway.web.server import browser_address

log = structlog.get_logger(__name__)

_CLOCK_INTERVAL = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySubsystems:
    """Everything that is open before turns, alerts and the web server are built over it."""

    access: AccessServices
    profiles: ChatProfiles
    memory: MemoryServices
    recall: ScopeRecall
    privacy: PrivacyService
    blobs: AttachmentStore
    pages: ToolResultPages
    channels: ConfiguredChannels
    dispatcher: OutboxDispatcher
    router: CommandRouter
    intake: GatewayIntake
    usage: UsageServices
    models: ModelServices
    model_health: ModelSource
    dreamer: Dreamer
    raw_archives: RawArchiveJobs
    jobs: JobRunner
    reminders: ReminderJobs
    approvals: ToolApprovals
    slots: WorkerSlots


def build_pool(context: AppContext, parts: GatewaySubsystems) -> tuple[WorkerPool, CommandServices, TurnReplayer]:
    """Return the worker pool, the services of the commands that it runs, and what runs stored turns again."""
    journal = context.store.journal
    turns = RunningTurns(journal)
    commands = _build_command_services(context, parts, turns)
    services = _build_turn_services(context, parts, commands)
    pool = WorkerPool(
        journal, TurnRunner(services), turns=turns, slots=parts.slots, meter=context.meter, clock=time.monotonic
    )
    return pool, commands, _build_replayer(context, parts, services.loop)


def _build_replayer(context: AppContext, parts: GatewaySubsystems, loop: AgentLoop) -> TurnReplayer:
    memory, unrecorded = parts.memory, UnrecordedCalls()
    models = ModelFactory(context.settings, context.plugins, unrecorded, unrecorded, now=context.now)

    def role_of(message: InboundMessage, facts: MessageContext) -> Role | None:
        decision = parts.access.judge(message, facts)
        return decision.role if isinstance(decision, Admitted) else None

    return TurnReplayer(
        loop=loop,
        reviewer=CallReviewer(
            outgoing=_build_outgoing(context, parts),
            jobs=context.store.jobs,
            caps=UncountedToolCalls(),
            now=context.now,
        ),
        sessions=memory.sessions,
        memory=ScopeMemory(memory.documents),
        files=context.store.files,
        profiles=parts.profiles,
        context_of=context.context_of,
        role_of=role_of,
        language=context.locales.language,
        zone=context.locales.zone,
        window=context.settings.agents.defaults.memory_window,
        open_model=models.build_single,
    )


def _build_outgoing(context: AppContext, parts: GatewaySubsystems) -> OutgoingFiles:
    return OutgoingFiles(
        parts.memory.workspaces,
        ReceivedFiles(context.store.transcripts),
        parts.blobs,
        most=context.settings.files.max_mb * 1_000_000,
        limit=parts.channels.file_limit,
        redact=context.redactor.redact,
    )


def _build_command_services(context: AppContext, parts: GatewaySubsystems, turns: RunningTurns) -> CommandServices:
    settings, store, memory = context.settings, context.store, parts.memory
    started = time.monotonic()

    def facts() -> Mapping[str, Any]:
        return {
            "version": program_version(),
            "uptime_seconds": time.monotonic() - started,
            "workers": settings.agent.workers,
            "search_limitation": search_limitation(parts.recall, settings.tools.vector_memory),
            "delayed_chats": len(parts.dispatcher.delayed()),
        }

    return CommandServices(
        queue=QueueService(
            journal=store.journal, outbox=store.outbox, records=store.records, turns=turns, now=context.now
        ),
        memory=MemoryCommandServices(
            documents=memory.service,
            editor=memory.editor,
            staging=memory.staging,
            erasure=memory.erasure,
            dreams=memory.dreams,
            privacy=parts.privacy,
            workspaces=memory.workspaces,
            search=parts.recall,
            sessions=memory.sessions,
            jobs=parts.jobs,
            archives_first=settings.memory.new_waits,
            memory_window=settings.agents.defaults.memory_window,
        ),
        people=PeopleCommandServices(access=parts.access.decisions, pairing=parts.access.pairing, links=memory.linking),
        chats=ChatCommandServices(
            profiles=parts.profiles,
            locales=context.locales,
            preferences=store.people,
            list_settings=build_settings_view(context, parts.profiles),
        ),
        usage=UsageService(
            store=store.usage, caps=parts.usage.caps, tool_calls=parts.usage.tool_calls, day_zone=settings.timezone
        ),
        jobs=store.jobs,
        approvals=parts.approvals,
        decisions=StandingDecisions(store.jobs),
        status=StatusService(journal=store.journal, turns=turns, jobs=parts.jobs, facts=facts),
    )


def _build_turn_services(context: AppContext, parts: GatewaySubsystems, commands: CommandServices) -> TurnServices:
    settings, store, memory = context.settings, context.store, parts.memory
    journal = RetryingJournal(store.journal)
    clock = ClockCheck(
        time_servers(settings.channels.values(), settings.llm.api_base), settings.proxy_address, context.now
    )
    attachments = _build_attachment_loader(context, parts)
    assembler = PromptAssembler(
        ScopeMemory(memory.documents),
        files=attachments,
        history=ChannelHistory(
            parts.channels.channels, admits=lambda message: may_be_read(parts.access.judge, message)
        ),
        auto_recall=AutoRecall(parts.recall) if settings.memory.auto_recall else None,
        approvals=parts.approvals,
        outbox=store.outbox,
    )

    async def find_owner(channel: str) -> tuple[SessionKey, str] | None:
        address = await parts.access.owners_at(channel)
        return (address.key, address.visible_to) if address is not None else None

    received = ReceivedFiles(context.store.transcripts)
    outgoing = _build_outgoing(context, parts)
    return TurnServices(
        journal=journal,
        previews=parts.dispatcher,
        conversations=memory.conversations,
        assembler=assembler,
        loop=AgentLoop(
            max_calls=settings.agent.max_tool_calls,
            steer=settings.agent.overlap == "steer",
            merges=settings.agent.merge == "burst",
            store=journal,
            redact=context.redactor.redact,
            assembler=assembler,
            images=ImageInliner(parts.blobs),
            see=attachments.see,
            search=parts.recall,
            files=FileServices(memory.workspaces, received, parts.blobs, SandboxedReader()),
            outgoing=outgoing,
            pages=parts.pages,
            jobs=store.jobs,
            reviewer=CallReviewer(outgoing=outgoing, jobs=store.jobs, caps=parts.usage.tool_calls, now=context.now),
            memory_tools=TurnMemoryTools(context.home.path, memory.editor, memory.erasure, memory.archive),
            now=context.now,
        ),
        router=parts.router,
        commands=commands,
        memory_jobs=memory.jobs,
        search=parts.recall,
        context_of=context.context_of,
        current_admission=RoleResolver(
            parts.access.judge, parts.channels.channels, decide=parts.access.judge.decide
        ).current_admission,
        find_owner=find_owner,
        locales=context.locales,
        profiles=parts.profiles,
        caps=parts.usage.caps,
        tool_calls=parts.usage.tool_calls,
        reminders=parts.reminders,
        on_expired=lambda message: context.refusals.note(
            message, OtherRefusal(reason=SilenceReason.EXPIRED), context.now()
        ),
        meter=context.meter,
        now=context.now,
        links=store.links,
        redactor=context.redactor,
        scope_lock=memory.scope_lock,
        isolation=settings.memory.isolation,
        page_address=_page_address(settings),
        clock_ahead=clock.ahead,
    )


def _page_address(settings: Settings) -> str:
    """Return the address of the page that has the console, the public one if there is one; "" without a page."""
    names = [name for name, block in settings.channels.items() if block.enabled and block.kind == PAGE]
    if not names:
        return ""
    web = settings.web
    base = web.public_url or browser_address(web.host, web.published_port or web.port)
    return f"{base.rstrip('/')}/" if PAGE in names else f"{base.rstrip('/')}/{names[0]}/"


def _build_attachment_loader(context: AppContext, parts: GatewaySubsystems) -> AttachmentLoader:
    files = context.settings.files
    return AttachmentLoader(
        ChannelAttachmentFetcher(parts.channels.channels, most_mb=files.max_mb),
        parts.blobs,
        text_chars=files.text_chars,
        sees=build_vision_check(context, parts.profiles),
        transcriber=_build_transcriber(context, parts.usage.recorder),
    )


def _build_transcriber(context: AppContext, recorder: UsageRecorder) -> LitellmTranscriber | None:
    llm = context.settings.llm
    if not llm.transcription_model:
        return None
    # The chat model's address and key are sent to its own provider alone.
    entry = llm.entry(llm.transcription_model)
    return LitellmTranscriber(
        entry.model,
        api_base=str(entry.api_base or ""),
        api_key=entry.api_key.get_secret_value() if entry.api_key else "",
        proxy=context.settings.proxy_address,
        recorder=recorder,
        meter=context.meter,
    )


class ClockCheck:
    """Compares this machine's clock with a platform's when a message looks a day old, at most every ten minutes."""

    def __init__(self, servers: Sequence[str], proxy: str, now: Callable[[], datetime]) -> None:
        self._servers = servers
        self._proxy = proxy
        self._now = now
        self._lock = asyncio.Lock()
        self._ahead = timedelta(0)
        self._checked_at: float | None = None

    async def ahead(self) -> timedelta:
        """Return by how much this machine's clock is ahead, if that is more than a day; otherwise zero."""
        async with self._lock:
            at = asyncio.get_running_loop().time()
            if self._checked_at is None or at - self._checked_at >= _CLOCK_INTERVAL.total_seconds():
                self._ahead = await clock_ahead(self._servers, self._now(), proxy=self._proxy)
                self._checked_at = at
                if self._ahead:
                    log.error("clock.ahead", mend=clock_line(self._ahead))
        return self._ahead
