"""Conversations: the sessions of one person on a channel where they have several, like the threads of a chat.

The chat itself, `web:ann`, is the first conversation; the others are `web:ann/<id>`. All share the person's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from gateway.events import SessionKey

MOST_CONVERSATIONS = 1_000  # of one person
LONGEST_TITLE = 80  # characters
RESTORABLE = timedelta(days=1)  # after which a deleted conversation is erased


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationInfo:
    """A conversation as its person sees it in a list."""

    key: SessionKey
    used_at: datetime  # of a message of the person, within an hour
    title: str = ""  # from the first message, by a model, or as the person named it; "" if only commands were sent
    is_draft: bool = False  # the title is the beginning of a message; a model may find a better one
    is_pinned: bool = False
    deleted_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationHit:
    """A message that contains what a person looks for."""

    key: SessionKey
    turn: str
    role: str  # as in DisplayedMessage
    text: str  # an excerpt
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationHits:
    """Hits, by conversation in the order of the list and the newest first."""

    hits: Sequence[ConversationHit]
    is_partial: bool = False  # there was more to read than one search may


class ConversationStore(Protocol):
    """The conversations of each person. Reads are served from memory where they are not async."""

    def is_deleted(self, key: SessionKey) -> bool:
        """Return True while the conversation *key* is deleted and can be restored."""

    def has_room(self, key: SessionKey) -> bool:
        """Return False if *key* would be one conversation too many."""

    async def list_conversations(self, chat: SessionKey) -> Sequence[ConversationInfo]:
        """Return the conversations of *chat*, deleted ones too, the most recently used first."""

    async def note_message(self, key: SessionKey, text: str) -> bool:
        """Note that its person wrote *text* in the conversation *key*; return True if the list has changed."""

    def watch(self, watcher: Callable[[SessionKey], None]) -> None:
        """Call *watcher* with each conversation that gets its title later, from a model."""

    async def rename(self, key: SessionKey, title: str) -> None:
        """Give the conversation a title; "" takes the next message."""

    async def pin(self, key: SessionKey, *, is_pinned: bool) -> None:
        """Put the conversation to the top of the list, or back."""

    async def delete(self, key: SessionKey) -> None:
        """Hide the conversation, and erase it after `RESTORABLE`."""

    async def restore(self, key: SessionKey) -> None:
        """Undo `delete`."""

    async def search(self, chat: SessionKey, query: str, *, limit: int) -> ConversationHits:
        """Return messages of *chat* that contain each word of *query*, in any case; not of deleted conversations."""
