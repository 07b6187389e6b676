"""The base of the runtime: store, metrics, platforms, plugins of a caller, and every kind of durable job."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from agent.llm.chat_model import ChatModel
from agent.memory.account_links.account_linker import LINK_JOBS
from agent.memory.conversations import DELETION_OF_CONVERSATION_JOBS
from agent.memory.erasure.erase_service import ASK_ERASURE_JOBS, FORGET_JOBS
from agent.memory.erasure.message_deletions import DELETION_JOBS, UNINDEX_JOBS
from agent.memory.erasure.retention import RETENTION_JOBS
from agent.memory.erasure.scope_eraser import SCOPE_ERASURE_JOBS
from agent.memory.erasure.word_eraser import CommitFilter
from agent.memory.jobs.chat_edits import EDIT_JOBS, REMEMBER_JOBS
from agent.memory.jobs.job_runner import JobKind, JobPace, by_name
from agent.memory.privacy import EXPORT_JOBS
from agent.memory.update.conversation_updates import APPLY_JOBS, UPDATE_JOBS
from agent.memory.update.dream_phases import DREAM_JOBS
from agent.reminders.reminder_jobs import REMINDER_JOBS
from agent.tasks.task_jobs import TASK_END_JOBS, TASK_JOBS
from agent.tools.tool import Tool
from agent.tools.tool_questions import DECISION_JOBS, QUESTION_JOBS
from agent.workers.spoken_answers import SPEECH_JOBS
from gateway.admission import LOCAL_OWNER, AdmissionPolicy
from gateway.channel import ChannelPlugin
from gateway.errors import SettingsError, UserError
from gateway.events import PlatformAccount
from gateway.installation import HOW_TO_INSTALL, load_entry_points
from gateway.ports.channel import PlatformTraits
from gateway.ports.journal import PUSH
from gateway.settings import InstalledPlugins, Settings
from gateway.settings.channel_blocks import ALWAYS_THERE
from gateway.store.engine import BLANK_AFTER, StoreLimits, utc_now
from gateway.web.metrics import PrometheusRecorder

if TYPE_CHECKING:
    from gateway.store.objects import ObjectStore
    from gateway.store.sql_store import SqlStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraChannel:
    """A channel without a settings block, as tests add it."""

    name: str
    kind: ChannelPlugin
    settings: Any
    policy: AdmissionPolicy
    traits: PlatformTraits = field(default_factory=PlatformTraits)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraPlugins:
    """Plugins that a caller adds to the installed entry points."""

    channels: Sequence[ExtraChannel] = ()
    tools: Sequence[Tool] = ()
    models: Sequence[ChatModel] = ()  # instead of those that the settings name


class ChannelPlatforms(dict[str, str]):
    """Platform of every channel by the channel's name, and the traits of platforms."""

    def __init__(self, platforms: Mapping[str, str], traits: Mapping[str, PlatformTraits]) -> None:
        """*traits* are by platform. Those of other installed platforms are loaded on demand."""
        super().__init__(platforms)
        self._traits = dict(traits)

    def traits(self, channel: str) -> PlatformTraits:
        """Return the traits of the platform of *channel*. A name without a channel counts as a platform's name."""
        platform = self.get(channel, channel)
        if platform not in self._traits:
            model = InstalledPlugins.installed().model(platform)
            self._traits[platform] = PlatformTraits() if model is None else model.traits
        return self._traits[platform]

    def require(self, channel: str) -> None:
        """Raise UserError if *channel* is none of the channels."""
        if channel not in self:
            raise UserError(f"no channel is called {channel}; channels: {', '.join(sorted(self))}")

    def has_teams(self, platform: str) -> bool:
        """Return True if the user ids of a platform belong to teams."""
        return self.traits(platform).has_teams


# The owner at this machine. On the page and at the terminal they are one person, whom nothing separates.
LOCAL_ACCOUNTS = tuple(PlatformAccount(kind=kind, id=LOCAL_OWNER) for kind in ALWAYS_THERE)
_LAST_EXPORT = timedelta(seconds=5)  # of traces and metrics, at the stop


@asynccontextmanager
async def open_store(
    settings: Settings,
    *,
    has_served: bool,
    now: Callable[[], datetime] = utc_now,
    objects: ObjectStore | None = None,
) -> AsyncIterator[SqlStore]:
    """Open the store that the scheme of `store.url` names, and close it on exit. Raises SettingsError.

    *has_served* is False in a process that opens the home for one command. *objects* gets the bytes of large files,
    where they are not in the home.
    """
    url = settings.store.address
    scheme = url.partition("://")[0] or "sqlite"
    entry_points = {entry.name: entry for entry in load_entry_points("parlour.stores")}
    if scheme not in entry_points:
        installed = ", ".join(sorted(entry_points))
        raise SettingsError(
            f"store.url starts with {scheme}://, but only these stores are installed: {installed};"
            " leave PARLOUR_STORE__URL empty for the embedded one"
        )
    limits = StoreLimits(
        queued_per_chat=settings.agent.queued_per_chat,
        queued=settings.agent.queued,
        merge=settings.agent.merge,
        blank_after=limit_retention(settings, BLANK_AFTER),
        zone=settings.timezone,
        is_shared=settings.store.shared,
        objects=objects,
        erased_words=CommitFilter(JOB_KINDS),
    )
    try:
        open_engine = entry_points[scheme].load()
    except ModuleNotFoundError as missing:
        raise SettingsError(f"store.url needs {missing.name}: {HOW_TO_INSTALL}") from missing
    store: SqlStore = await open_engine(settings.home, url, limits, now)
    try:
        yield store
    finally:
        await store.close(has_served=has_served)


@asynccontextmanager
async def open_recorder(settings: Settings) -> AsyncIterator[PrometheusRecorder]:
    """Open the recorder of metrics and spans; with `otel.enabled` it exports them too. Raises SettingsError."""
    if not settings.otel.enabled:
        yield PrometheusRecorder()
        return
    try:
        from gateway.web.otlp_recorder import OtlpRecorder
    except ModuleNotFoundError as missing:
        raise SettingsError(f"otel.enabled needs {missing.name}: {HOW_TO_INSTALL}") from missing
    recorder = await asyncio.to_thread(OtlpRecorder, has_content=settings.otel.content, proxy=settings.proxy_address)
    try:
        yield recorder
    finally:
        # A receiver that takes requests and never answers must not hold up the stop.
        closing = threading.Thread(target=recorder.close, name="last export", daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, _LAST_EXPORT.total_seconds())


def limit_retention(settings: Settings, default: timedelta) -> timedelta:
    """Return *default*, or `memory.retention_days` where that is shorter."""
    days = settings.memory.retention_days
    return min(default, timedelta(days=days)) if days else default


PUSH_JOBS: Final = JobKind(name=PUSH, pace=JobPace.PUSH, locks_scopes=True)  # has no words, and touches no memory
JOB_KINDS: Final = by_name(
    (
        REMEMBER_JOBS,
        EDIT_JOBS,
        ASK_ERASURE_JOBS,
        QUESTION_JOBS,
        DECISION_JOBS,
        REMINDER_JOBS,
        TASK_JOBS,
        TASK_END_JOBS,
        SPEECH_JOBS,
        PUSH_JOBS,
        UPDATE_JOBS,
        APPLY_JOBS,
        DREAM_JOBS,
        DELETION_JOBS,
        UNINDEX_JOBS,
        DELETION_OF_CONVERSATION_JOBS,
        FORGET_JOBS,
        SCOPE_ERASURE_JOBS,
        RETENTION_JOBS,
        LINK_JOBS,
        EXPORT_JOBS,
    )
)
