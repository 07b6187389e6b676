"""The gateway as one object, for `run`, operators and tests: its arguments and every subsystem."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from agent.base.locks import WorkerSlots
from agent.base.scopes import chat_scope
from agent.commands.command import CommandRouter, CommandServices
from agent.llm.model_abilities import LearnedModels
from agent.mcp.client import McpClient
from agent.mcp.logins import PersonLogins
from agent.mcp.servers import STATE, McpServers
from agent.memory.editing.memory_file_writer import MemoryFileWriter
from agent.memory.jobs.job_runner import JobRunner, RetryJobLater
from agent.memory.jobs.token_budget import TokenBudget
from agent.memory.privacy import PrivacyService
from agent.memory.search.scope_recall import ScopeRecall
from agent.memory.storage.session_file_writer import SessionFileWriter
from agent.memory.update.conversation_updates import RawArchivePrompt
from agent.memory.update.dreamer import Dreamer
from agent.reminders.reminder_jobs import ReminderJobs
from agent.tasks.task import TaskLimits
from agent.tasks.task_access import TaskServices
from agent.tasks.task_jobs import TaskEndJobs
from agent.tools.tool_questions import LapsedQuestions, ToolApprovals
from agent.turns.chat_profiles import ChatProfiles, resolve_overrides
from agent.turns.turn import RunningTurns
from agent.turns.turn_replay import TurnReplayer
from agent.turns.turn_tools import ToolResultPages
from agent.workers.spoken_answers import SpokenAnswers
from agent.workers.task_turns import TaskRunner
from agent.workers.turn_runner import TurnRunner
from agent.workers.turn_services import TurnServices
from agent.workers.worker_pool import WorkerPool
from gateway.access.access_control import AccessControlService, AccessRoster
from gateway.access.pairing_service import OwnerClaims, PairingService
from gateway.access.refusal_log import RefusalLog, SilenceReason
from gateway.access.unknown_senders import ChatApprovals, UnknownSenderHandler
from gateway.access.usage_caps import UsageCapTracker
from gateway.alerts.alert_sources import ModelSource
from gateway.app.access import AdmissionJudge, OwnerChats, policies_of
from gateway.app.alerts import AlertServices, build_alerts
from gateway.app.channels import (
    ConfiguredChannels,
    QuarantineRetrier,
    build_channels,
    find_apis,
    find_pages,
    find_terminals,
    platforms_of,
)
from gateway.app.chat_settings import build_command_prefix, build_context_resolver, build_locales, build_profiles
from gateway.app.console import build_console
from gateway.app.context import ChannelPlatforms, ExtraPlugins, limit_retention
from gateway.app.memory import (
    MemoryServices,
    build_dreamer,
    build_job_runner,
    build_memory,
    build_privacy,
    build_raw_archives,
)
from gateway.app.models import JournalUsageRecorder, ModelServices, build_caps
from gateway.app.recall import build_recall
from gateway.app.turns import (
    build_command_services,
    build_draw_tool,
    build_logins,
    build_replayer,
    build_spoken_answers,
    build_turn_services,
    login_routes,
)
from gateway.backup import BackupProgress, BackupResult, backup
from gateway.channel import Channel
from gateway.chat_locales import ChatLocales
from gateway.control import Operation
from gateway.delivery import DeliveryContext, OutboxDispatcher
from gateway.errors import UserError
from gateway.events import ChatKind, InboundKind, InboundMessage, PlatformAccount, Role, Sender, SessionKey, turn_id
from gateway.health.gateway_checks import readiness
from gateway.home import Home
from gateway.intake import Intake
from gateway.operations import build_operations
from gateway.ports.access import ChatOverride, MessageContext
from gateway.ports.channel import IntakeVerdict, MembershipChange, PlatformTraits
from gateway.ports.journal import Job, SessionRow
from gateway.quarantine import KEEP, Quarantine
from gateway.settings import Settings, secret_values
from gateway.settings.channel_blocks import entry_error
from gateway.settings.chat_settings import ChatOverrides, open_chats
from gateway.store.access import NoteStore
from gateway.store.attachment_store import AttachmentStore
from gateway.store.engine import utc_now
from gateway.store_watcher import StoreWatcher
from gateway.supervisor import Supervisor
from gateway.text.redaction import SecretRedactor
from gateway.web.metrics import OF_STORE, PrometheusRecorder, metrics_route, record_depth
from gateway.web.server import HealthEndpoints, WebServer
from gateway.web_console import WebConsole

if TYPE_CHECKING:
    from channels.api.adapter import ApiChannel
    from channels.web.adapter import WebChannel
    from channels.web.frame_channel import ConsoleChannel
    from gateway.store.sql_store import SqlStore


@dataclass(eq=False, kw_only=True)
class Runtime:
    """A gateway, over an open home and an open store.

    Each subsystem is built when it is first read, from those that it needs: the order of the properties below has no
    meaning. `composition.open_app` reads them all before anything runs.
    """

    settings: Settings
    plugins: ExtraPlugins
    home: Home
    store: SqlStore
    meter: PrometheusRecorder
    unclean_stops: int  # crashes in a row before this start
    has_channels: bool  # False in a process that opens the home for one command
    now: Callable[[], datetime]
    closing: AsyncExitStack  # closes what was opened, the last first
    refusals: RefusalLog = field(default_factory=RefusalLog)
    restart: asyncio.Event | None = None  # set to stop, and to start again; None where the caller cannot start again
    started_at: float = field(default_factory=time.monotonic)
    since: datetime = field(default_factory=utc_now)  # the same by the wall clock, for people

    @cached_property
    def chats(self) -> ChatOverrides:
        """Settings of single chats."""
        return open_chats(self.settings)

    @cached_property
    def overrides_of(self) -> Callable[[SessionKey, str], ChatOverride]:
        """The operator's settings of a chat in a guild, with the profile that was chosen there."""
        return resolve_overrides(self.store.people, self.chats.of)

    @cached_property
    def platforms(self) -> ChannelPlatforms:
        """Platform of every channel."""
        return platforms_of(self.settings, self.plugins)

    @cached_property
    def command_prefix(self) -> Callable[[SessionKey], str]:
        """Prefix of commands as they are typed in a chat."""
        return build_command_prefix(self.settings, self.plugins)

    @cached_property
    def context_of(self) -> Callable[[InboundMessage], MessageContext]:
        """Facts of a message: account, person, memory scope and the chat's settings."""
        return build_context_resolver(self)

    @cached_property
    def locales(self) -> ChatLocales:
        """Language of each chat and time zone of each memory scope."""
        return build_locales(self)

    @cached_property
    def redactor(self) -> SecretRedactor:
        """Removes the settings' secrets from texts."""
        return SecretRedactor(secret_values(self.settings))

    @cached_property
    def roster(self) -> AccessRoster:
        """Effective access per account and channel."""
        policies = policies_of(self.settings, self.plugins)
        named = self.settings.owners
        return AccessRoster(self.store.access, policies, self.platforms, self.store.links, named_owners=named)

    @cached_property
    def judge(self) -> AdmissionJudge:
        """The admission decision."""
        return AdmissionJudge(self)

    @cached_property
    def access_control(self) -> AccessControlService:
        """Owners' decisions about people and chats."""
        blocks = self.settings.channels

        def check_entry(channel: str, entry: str) -> str:
            return entry_error(entry, blocks[channel].entry_shapes) if channel in blocks else ""

        return AccessControlService(self.roster, now=self.now, entry_error=check_entry)

    @cached_property
    def owner_chats(self) -> OwnerChats:
        """Addresses of owners."""
        blocks = self.settings.channels
        enabled = {
            name
            for name in self.platforms
            if (name not in blocks or blocks[name].enabled) and self.platforms.traits(name).shows_notices
        }
        return OwnerChats(self.roster, self.store.records, self.store.links, self.platforms, enabled)

    @cached_property
    def owner_claims(self) -> OwnerClaims:
        """Codes that make their sender an owner."""
        return OwnerClaims(self.roster, now=self.now, locales=self.locales)

    @cached_property
    def access_notes(self) -> NoteStore:
        """Notes about unknown senders and chats."""
        return NoteStore(self.store.access)

    @cached_property
    def pairing(self) -> PairingService:
        """Requests of unknown senders and chats that wait for an owner."""
        return PairingService(self.roster, self.access_notes, now=self.now, locales=self.locales)

    @cached_property
    def unknown_senders(self) -> UnknownSenderHandler:
        """Replies to unknown senders."""
        return UnknownSenderHandler(
            self.roster,
            self.access_notes,
            owner=self.owner_chats,
            meter=self.meter,
            now=self.now,
            locales=self.locales,
        )

    @cached_property
    def chat_approvals(self) -> ChatApprovals:
        """Chats that the bot was added to."""

        def group_policy(change: MembershipChange) -> str | None:
            # A guild has no chat id, so the policy is that of the guild or its channel.
            return self.chats.of(SessionKey(change.channel, change.chat or "?"), change.guild).group_policy

        return ChatApprovals(
            self.roster,
            self.access_notes,
            owner=self.owner_chats,
            now=self.now,
            locales=self.locales,
            group_policy_of=group_policy,
        )

    @cached_property
    def router(self) -> CommandRouter:
        """Commands of the chat."""
        return CommandRouter.load()

    @cached_property
    def quarantine(self) -> Quarantine:
        """Events that could not be parsed or crashed the process."""
        return Quarantine(
            self.home.quarantine,
            unclean_stops=self.unclean_stops,
            meter=self.meter,
            now=self.now,
            keep=limit_retention(self.settings, KEEP),
            on_quarantined=lambda name, reason: self.refusals.note_channel(
                name, SilenceReason.QUARANTINED, reason, self.now()
            ),
        )

    @cached_property
    def intake(self) -> Intake:
        """Admits and stores the events of channels."""

        def classify(message: InboundMessage) -> bool | None:
            command = self.router.parse(message)
            return None if command is None else self.router.is_control(command)

        return Intake(
            self.store.journal,
            context_of=self.context_of,
            admit=self.judge.decide,
            classify=classify,
            quarantine=self.quarantine,
            meter=self.meter,
            language=self.locales.observe_language,
            pre_admission_handlers=(self.owner_claims.intercept, self.unknown_senders.intercept),
            newcomer=self.chat_approvals.handle_membership,
        )

    @cached_property
    def quarantine_retrier(self) -> QuarantineRetrier:
        """Tries quarantined events again, and notifies their senders."""
        return QuarantineRetrier(self)

    @cached_property
    def caps(self) -> UsageCapTracker:
        """Usage caps of people, chats and the installation."""
        return build_caps(self)

    @cached_property
    def token_budget(self) -> TokenBudget:
        """Tokens that background jobs may use in a day."""
        return TokenBudget(
            self.store.usage,
            limit=self.settings.caps.background_tokens_per_day,
            zone=self.settings.timezone,
            now=self.now,
            shared_caps=self.store.shared_caps,
        )

    @cached_property
    def usage_recorder(self) -> JournalUsageRecorder:
        """Stores every model call."""
        return JournalUsageRecorder(self)

    @cached_property
    def session_files(self) -> SessionFileWriter:
        """Writes the transcripts' files."""
        is_mirroring = not self.settings.store.shared
        return SessionFileWriter(self.home.path, self.store.records, self.store.transcripts, is_mirroring=is_mirroring)

    @cached_property
    def memory_files(self) -> MemoryFileWriter:
        """Writes the files of documents and histories, and takes edits of documents over."""
        files = MemoryFileWriter(
            self.home.path,
            self.store.documents,
            self.store.history,
            is_mirroring=not self.settings.store.shared,
            has_git=self.settings.memory.git,
        )
        self.closing.push_async_callback(files.close)
        return files

    @cached_property
    def recall(self) -> ScopeRecall:
        """Search of memory, transcripts and project documents."""
        recall = build_recall(self)
        self.closing.push_async_callback(recall.close)
        return recall

    @cached_property
    def memory(self) -> MemoryServices:
        """Documents, conversations, forgetting and account links."""
        return build_memory(self)

    @cached_property
    def model_health(self) -> ModelSource:
        """Alerts about models that fail."""
        return ModelSource(self.now)

    @cached_property
    def models(self) -> ModelServices:
        """Model clients."""
        models = ModelServices(
            self.settings,
            self.plugins,
            self.usage_recorder,
            self.meter,
            now=self.now,
            facts=LearnedModels(self.store.models, now=self.now),
            observer=self.model_health,
        )
        models.all()  # wrong settings end the start
        self.closing.push_async_callback(models.close)
        return models

    @cached_property
    def profiles(self) -> ChatProfiles:
        """Model, tools and persona of each chat."""
        return build_profiles(self, build_draw_tool(self))

    @cached_property
    def mcp(self) -> McpServers:
        """MCP servers that the operator has pinned."""
        client = McpClient(proxy=self.settings.proxy_address)
        self.closing.push_async_callback(client.close)
        return McpServers(client, self.store.state(STATE), self.logins, self.now)

    @cached_property
    def logins(self) -> PersonLogins:
        """People's logins at MCP servers."""
        logins = build_logins(self)
        self.closing.push_async_callback(logins.close)
        return logins

    @cached_property
    def blobs(self) -> AttachmentStore:
        """Files of messages."""
        return AttachmentStore(self.store.files, self.now)

    @cached_property
    def pages(self) -> ToolResultPages:
        """Later pages of long tool results."""
        return ToolResultPages(self.store.files, self.now)

    @cached_property
    def configured_channels(self) -> ConfiguredChannels:
        """Channels with their routes of the web server; none connects before the supervisor runs."""
        return build_channels(self) if self.has_channels else ConfiguredChannels({})

    @property
    def channels(self) -> Mapping[str, Channel]:
        """Channels by name."""
        return self.configured_channels.channels

    @cached_property
    def chat_pages(self) -> Sequence[WebChannel]:
        """Chat pages, that of the block `web` first."""
        return find_pages(self)

    @cached_property
    def apis(self) -> Sequence[ApiChannel]:
        """APIs for programs, that of the block `api` first."""
        return find_apis(self)

    @cached_property
    def terminals(self) -> Sequence[ConsoleChannel]:
        """Chats of terminals, that of the block `console` first."""
        return find_terminals(self)

    @cached_property
    def approvals(self) -> ToolApprovals:
        """Tool calls that wait for a yes."""
        return ToolApprovals(self.store.jobs, self.store.journal, self.meter)

    @cached_property
    def questions(self) -> LapsedQuestions:
        """Withdraws questions of senders who have lost access."""
        return LapsedQuestions(
            approvals=self.approvals,
            has_lost_access=self.judge.has_lost_access,
            journal=self.store.journal,
            records=self.store.records,
            locales=self.locales,
            now=self.now,
        )

    @cached_property
    def dispatcher(self) -> OutboxDispatcher:
        """Delivers the outbox."""
        return OutboxDispatcher(
            self.channels,
            DeliveryContext(
                outbox=self.store.outbox,
                meter=self.meter,
                now=self.now,
                language=self.locales.language,
                is_strict=self.settings.delivery.once == "strict",
                redactor=self.redactor,
                on_missing_file=self.questions.withdraw,
            ),
        )

    @cached_property
    def privacy(self) -> PrivacyService:
        """Answers /privacy, and exports the data of a person."""
        return build_privacy(self)

    @cached_property
    def slots(self) -> WorkerSlots:
        """Turns and jobs that run at once."""
        return WorkerSlots(self.settings.agent.workers)

    @cached_property
    def dreamer(self) -> Dreamer:
        """Dream's jobs and their schedule."""
        return build_dreamer(self)

    @cached_property
    def raw_archives(self) -> RawArchivePrompt:
        """Summaries of raw archives."""
        return build_raw_archives(self)

    @cached_property
    def reminders(self) -> ReminderJobs:
        """Jobs that fire reminders."""
        return ReminderJobs(
            jobs=self.store.jobs,
            journal=self.store.journal,
            outbox=self.store.outbox,
            records=self.store.records,
            preferences=self.store.people,
            locales=self.locales,
            has_lost_access=self.judge.has_lost_access,
            scope_of=lambda message: self.context_of(message).scope,
            open_chat=self.memory.stored_conversations.open_for_notice,
            now=self.now,
            meter=self.meter,
        )

    @cached_property
    def task_services(self) -> TaskServices:
        """Limits and rows of background tasks."""
        tasks = self.settings.tools.tasks
        limits = TaskLimits(
            person_tasks=tasks.person_tasks,
            duration=timedelta(minutes=tasks.minutes),
            model_calls=tasks.model_calls,
            tokens=tasks.tokens,
            dollars=tasks.usd or 0.0,
        )
        return TaskServices(jobs=self.store.jobs, limits=limits, allowances=self.caps.allowances)

    @cached_property
    def task_runner(self) -> TaskRunner:
        """Runs the steps of background tasks."""
        return TaskRunner(self.turn_services)

    async def run_task(self, job: Job) -> RetryJobLater | None:
        """Run a step of a background task; the runner of jobs is built before turns are."""
        return await self.task_runner.run(job)

    @cached_property
    def spoken_answers(self) -> SpokenAnswers | None:
        """Voice answers; None without a speech model."""
        return build_spoken_answers(self)

    async def run_speech(self, job: Job) -> RetryJobLater | None:
        """Send the sound of an answer; the runner of jobs is built before turns are."""
        return None if self.spoken_answers is None else await self.spoken_answers.run(job)

    def interrupt_task(self, task: str) -> None:
        """End the step that runs here of a background task; commands are built before turns are."""
        self.task_runner.interrupt(task)

    @cached_property
    def task_ends(self) -> TaskEndJobs:
        """Jobs that bring the ends of tasks into their chats."""
        return TaskEndJobs(
            jobs=self.store.jobs,
            journal=self.store.journal,
            records=self.store.records,
            locales=self.locales,
            open_chat=self.memory.stored_conversations.open_for_notice,
            now=self.now,
        )

    @cached_property
    def background(self) -> JobRunner:
        """Runs the jobs that no reply waits for."""
        return build_job_runner(self)

    @cached_property
    def turns(self) -> RunningTurns:
        """Turns in flight."""
        return RunningTurns(self.store.journal)

    @cached_property
    def commands(self) -> CommandServices:
        """Services of the commands of the chat."""
        return build_command_services(self)

    @cached_property
    def turn_services(self) -> TurnServices:
        """Services of turns."""
        return build_turn_services(self)

    @cached_property
    def pool(self) -> WorkerPool:
        """Runs turns."""
        return WorkerPool(
            self.store.journal,
            TurnRunner(self.turn_services, self.task_runner),
            turns=self.turns,
            slots=self.slots,
            meter=self.meter,
            clock=time.monotonic,
        )

    @cached_property
    def replayer(self) -> TurnReplayer:
        """Runs stored turns again, without an effect."""
        return build_replayer(self)

    @cached_property
    def supervisor(self) -> Supervisor:
        """Runs the channels, and restarts those that receive nothing."""
        return Supervisor(
            self.channels,
            meter=self.meter,
            connections=self.store.connections,
            on_refusal=self.model_health.check_now.set,
            on_stall=lambda name: self.refusals.note_channel(name, SilenceReason.DEAF, "", self.now()),
        )

    @cached_property
    def store_watcher(self) -> StoreWatcher:
        """Checks the store, and records its gauges."""

        async def record_gauges() -> None:
            await self.background.record_metrics()
            record_depth(self.meter, await self.store.journal.depth())

        return StoreWatcher(
            self.store.check,
            record_gauges,
            forget_gauges=partial(self.meter.forget, *OF_STORE),
            meter=self.meter,
            now=self.now,
        )

    @cached_property
    def alerts(self) -> AlertServices:
        """Notifies owners of what is wrong."""
        return build_alerts(self)

    @cached_property
    def operations(self) -> Mapping[str, Operation]:
        """Operations of the command line and of the console, by name."""
        return build_operations(self)

    @cached_property
    def console(self) -> WebConsole | None:
        """Console of the page; None where no page is enabled."""
        return build_console(self)

    @cached_property
    def web(self) -> WebServer:
        """Web server: page, console, webhooks, health and metrics."""
        settings = self.settings.web
        token = settings.metrics_token.get_secret_value() if settings.metrics_token else ""
        return WebServer(
            settings.host,
            settings.port,
            [
                *HealthEndpoints(partial(readiness, self)).routes(),
                metrics_route(self.meter, observe=self.supervisor.shard_states, token=token),
                *login_routes(self),
                *(self.console.routes() if self.console is not None else ()),
                *self.configured_channels.routes,
            ],
            published_port=settings.published_port,
            login=settings.login,
            public_url=settings.public_url,
            trusted_proxies=settings.trusted_proxies,
        )

    def platform(self, channel: str) -> str:
        """Return the platform of *channel*; the name itself for a channel that is no longer configured."""
        return self.platforms.get(channel, channel)

    @asynccontextmanager
    async def pause_writes(self) -> AsyncIterator[None]:
        """Write committed turns to their files, then hold jobs and these files, and the bytes of files."""
        await self.memory_files.flush()
        async with (
            self.memory.jobs.writing,
            self.session_files.pause_writes(),
            self.memory_files.pause_history(),
            self.store.files.keep_bytes(),
        ):
            yield

    async def backup(self, target: Path, progress: BackupProgress | None = None) -> BackupResult:
        """Write a backup of the home, and of everything that other gateways of its database have written."""
        await self.memory_files.notice_all()
        return await backup(
            self.home,
            self.store.backup,
            target,
            copy_objects=self.store.files.copy_objects,
            still=self.pause_writes(),
            progress=progress,
        )

    async def submit(self, key: SessionKey, text: str) -> str:
        """Accept *text* as a job in the session *key* and return the id of its turn.

        Raises UserError for an unknown channel, an unknown recipient and a full queue.
        """
        self.platforms.require(key.channel)
        sessions = await self.store.records.sessions()
        chat_kind, sender = resolve_recipient(key, self.platforms.traits(key.channel), sessions)
        message = InboundMessage(
            key=key,
            message_id=f"job:send/{secrets.token_hex(8)}",
            sender=sender,
            text=text,
            sent_at=self.now(),
            kind=InboundKind.JOB,
            chat_kind=chat_kind,
            is_private=is_private(key, sessions),
        )
        accepted = await self.intake.accept(message, Role.OWNER)
        if accepted.verdict is IntakeVerdict.FULL:
            raise UserError(f"too many messages are queued for {key}; try again when some are answered")
        return turn_id(message)


def resolve_recipient(
    key: SessionKey, traits: PlatformTraits, sessions: Sequence[SessionRow]
) -> tuple[ChatKind, Sender]:
    """Return the kind of chat *key* is and its sender, from the scope of its session or of its parent chat.

    Raises UserError when no session exists and the id of the chat does not tell.
    """
    scopes = {row.key: row.scope for row in sessions if row.scope}
    scope = scopes.get(key) or next((scopes[known] for known in scopes if known.parent == key.parent), "")
    area, _, name = scope.partition("/")
    if area == "chats":
        return ChatKind.GROUP, Sender(id=key.chat)
    if area == "people":
        account = PlatformAccount.from_name(name)
        return ChatKind.DIRECT, Sender(id=account.id, team=account.team)
    if traits.chat_is_person and not key.thread and not traits.is_group(key):
        return ChatKind.DIRECT, Sender(id=key.chat)
    raise UserError(f"{key} has no messages yet, so its memory scope is unknown; write there once first")


def is_private(key: SessionKey, sessions: Sequence[SessionRow]) -> bool:
    """Return True if *key* is a private thread: one that has a scope apart from its parent chat's."""
    own = chat_scope(key)
    return bool(key.thread) and any(row.key == key and row.scope == own for row in sessions)
