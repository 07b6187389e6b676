"""A person's rights: what is true of this installation, and what makes an export."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from agent.memory.privacy.export_jobs import ExportJobs
from agent.memory.privacy.privacy_service import PrivacyFacts, PrivacyService
from agent.memory.storage.transcript_projector import TranscriptProjector
from gateway.app.channels import ConfiguredChannels
from gateway.home import Home
from gateway.ports import Store
from gateway.settings import Settings


def open_rights(
    settings: Settings,
    home: Home,
    store: Store,
    projector: TranscriptProjector,
    doors: ConfiguredChannels,
    *,
    models: tuple[str, ...],
    zone: Callable[[str], str],
    now: Callable[[], datetime],
) -> PrivacyService:
    """Build what /privacy and /export ask; *models* are those that are sent conversations."""

    def limit(channel: str) -> int:
        found = doors.channels.get(channel)
        return min(found.capabilities.file_limit, settings.files.max_mb * 1_000_000) if found is not None else 0

    exports = ExportJobs(
        home=home.path,
        jobs=store.jobs,
        records=store.records,
        outbox=store.outbox,
        usage=store.usage,
        session=store.journal.session,
        flush=projector.flush,
        limit=limit,
        zone=zone,
        now=now,
    )
    facts = PrivacyFacts(
        models=models,
        listens=settings.llm.transcription_model,
        embeds=settings.tools.vector_memory.embedding_model if settings.tools.vector_memory.enabled else "",
        retention_days=settings.memory.retention_days,
        has_uploads="web" in doors.kinds.values(),
    )
    return PrivacyService(home.path, facts, exports)
