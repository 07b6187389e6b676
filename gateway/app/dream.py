"""Dream, built from the settings: its schedule, its model, its limits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from agent.llm.client import ModelClient
from agent.memory.dream.applying import Applier
from agent.memory.dream.dreamer import Dreamer
from agent.memory.dream.restoring import DreamDesk
from agent.memory.dream.schedule import Schedule
from agent.memory.dream.telling import Teller
from agent.memory.versioning.versions import Versions
from gateway.app.memory import Memory
from gateway.events import SessionKey
from gateway.home import Home
from gateway.ports import Store
from gateway.settings import Settings


def open_dreams(home: Home, memory: Memory) -> DreamDesk:
    """Build what the Dream commands ask."""
    return DreamDesk(memory.documents, Versions(home.path), can_run=memory.consolidates)


def open_dreamer(
    settings: Settings,
    home: Home,
    store: Store,
    memory: Memory,
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
        applier=Applier(home=home.path, documents=memory.documents, versions=Versions(home.path), now=now),
        teller=Teller(records=store.records, session=store.journal.session, now=now, sign=sign),
        writing=memory.jobs.writing,
        zone=zone,
        now=now,
        schedule=Schedule(interval=timedelta(hours=dream.interval_h), cron=dream.cron or ""),
        is_scheduled=dream.enabled and memory.consolidates,
        is_one=settings.memory.isolation == "shared",
        max_batch_size=dream.max_batch_size,
        max_iterations=dream.max_iterations,
        room=model.room,
    )
