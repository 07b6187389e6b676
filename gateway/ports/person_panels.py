"""Memory, reminders and locale of a person, for channels that show them in panels; commands change the first two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.events import SessionKey

MOST_LINES = 500  # of a panel; the memory itself is limited to fewer


@dataclass(frozen=True, slots=True)
class LineSource:
    """Source of a remembered line."""

    text: str  # Markdown, in the language of the chat
    change: str  # the version that brought it, as `/memory undo` takes it


@dataclass(frozen=True, slots=True, kw_only=True)
class ReminderEntry:
    """A reminder that is still to come, or is paused."""

    id: str
    key: SessionKey  # the conversation that it was set in
    text: str
    at: str  # local wall time of the next slot, ISO
    when: str  # the same in words, with its time zone
    repeat: str = ""  # its rule
    is_paused: bool = False


@dataclass(frozen=True, slots=True)
class ModelOffer:
    """The model that answers in a chat, and those that `/model` offers there."""

    current: str
    offered: Sequence[str]
    is_offline: bool = False  # no model is configured: the built-in one answers
    chosen_effort: str = ""  # by `/effort` in the chat; "" = as the settings have it


class PersonPanels(Protocol):
    """Reads the memory, the reminders and the models of the person whose direct chat *key* is."""

    async def remembered_lines(self, key: SessionKey) -> Sequence[str]:
        """Return the remembered lines, at most `MOST_LINES`, pending writes included."""

    def search_limitation(self, key: SessionKey) -> str:
        """Return the sentence about a search by words alone, in the chat's language; "" if it is by meaning too."""

    async def line_source(self, key: SessionKey, line: str) -> LineSource | None:
        """Return the source of a remembered line, None for an unknown line."""

    async def reminders(self, key: SessionKey) -> Sequence[ReminderEntry]:
        """Return the reminders, the next one first."""

    def models(self, key: SessionKey) -> ModelOffer:
        """Return the models of the chat."""

    def has_locale(self, key: SessionKey) -> bool:
        """Return True if language and time zone of the person are known."""

    def page_language(self, key: SessionKey, languages: Sequence[str]) -> str:
        """Return the language of the page for a browser that prefers *languages*; a choice or setting wins over it."""

    async def note_locale(self, key: SessionKey, *, languages: Sequence[str], zone: str) -> None:
        """Store what the person's browser says, unless they chose a language or zone. Raises StoreUnavailable."""
