"""Dream, built from the settings: its schedule, its model, its limits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from agent.llm.model_client import ModelClient
from agent.memory.documents.version_store import VersionStore
from agent.memory.dream.dream_applier import DreamApplier
from agent.memory.dream.dream_notifier import DreamNotifier
from agent.memory.dream.dream_service import DreamService
from agent.memory.dream.dreamer import Dreamer
from agent.memory.dream.schedule import DreamSchedule
from gateway.app.memory import MemoryServices
from gateway.events import SessionKey
from gateway.home import Home
from gateway.ports import Store
from gateway.settings import Settings


def open_dreams(home: Home, memory: MemoryServices) -> DreamService:
    """Build what the Dream commands ask."""
    return DreamService(memory.documents, VersionStore(home.path), can_run=memory.consolidates)


def open_dreamer(
    settings: Settings,
    home: Home,
    store: Store,
    memory: MemoryServices,
    model: ModelClient,
    *,
    zone: Callable[[str], str],
    sign: Callable[[SessionKey], str],
    now: Callable[[], datetime],
) -> Dreamer:
    """Build who does the jobs of Dream."""
    dream = settings.agents.defaults.dream
    return Dreamer(
        home=home.path,
        jobs=store.jobs,
        model=model,
        applier=DreamApplier(home=home.path, documents=memory.documents, versions=VersionStore(home.path), now=now),
        teller=DreamNotifier(records=store.records, session=store.journal.session, now=now, sign=sign),
        writing=memory.jobs.writing,
        zone=zone,
        now=now,
        schedule=DreamSchedule(interval=timedelta(hours=dream.interval_h), cron=dream.cron or ""),
        is_scheduled=dream.enabled and memory.consolidates,
        is_one=settings.memory.isolation == "shared",
        max_batch_size=dream.max_batch_size,
        max_iterations=dream.max_iterations,
        room=model.room,
    )
