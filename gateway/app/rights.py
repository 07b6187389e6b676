"""A person's rights: what is true of this installation, and what makes an export."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from agent.memory.files.projector import Projector
from agent.memory.rights.desk import Facts, RightsDesk
from agent.memory.rights.export import Exports
from gateway.app.channels import Doors
from gateway.home import Home
from gateway.ports import Store
from gateway.settings import Settings


def open_rights(
    settings: Settings,
    home: Home,
    store: Store,
    projector: Projector,
    doors: Doors,
    *,
    models: tuple[str, ...],
    zone: Callable[[str], str],
    now: Callable[[], datetime],
) -> RightsDesk:
    """Build what /privacy and /export ask; *models* are those that are sent conversations."""

    def limit(channel: str) -> int:
        found = doors.channels.get(channel)
        return min(found.capabilities.file_limit, settings.files.max_mb * 1_000_000) if found is not None else 0

    exports = Exports(
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
    facts = Facts(
        models=models,
        listens=settings.llm.transcription_model,
        embeds=settings.tools.vector_memory.embedding_model if settings.tools.vector_memory.enabled else "",
        retention_days=settings.memory.retention_days,
        has_uploads="web" in doors.kinds.values(),
    )
    return RightsDesk(home.path, facts, exports)
