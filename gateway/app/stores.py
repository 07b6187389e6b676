"""The store that the settings name, found by the scheme of its address."""

from __future__ import annotations

from datetime import timedelta

from gateway.errors import SettingsError
from gateway.ports import BLANK_AFTER, Store, StoreLimits
from gateway.ports.entry_points import load_entry_points
from gateway.settings import Settings


async def open_store(settings: Settings) -> Store:
    """Open the store that the settings name. Raises SettingsError."""
    url = str(settings.store.url.get_secret_value()) if settings.store.url else ""
    scheme = url.partition("://")[0] or "sqlite"
    found = {entry.name: entry for entry in load_entry_points("parlour.stores")}
    if scheme not in found:
        raise SettingsError(
            f"store.url begins with {scheme}://, but only these stores are installed: {', '.join(sorted(found))};"
            " leave PARLOUR_STORE__URL empty for the embedded one"
        )
    limits = StoreLimits(
        queued_per_chat=settings.agent.queued_per_chat,
        queued=settings.agent.queued,
        merge=settings.agent.merge,
        blank_after=within_retention(settings, BLANK_AFTER),
        zone=settings.timezone,
    )
    store: Store = await found[scheme].load()(settings.home, url, limits)
    return store


def within_retention(settings: Settings, usual: timedelta) -> timedelta:
    """Return how long texts are kept whose time is *usual*: no longer than what was said."""
    days = settings.memory.retention_days
    return min(usual, timedelta(days=days)) if days else usual
