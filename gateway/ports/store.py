"""A whole backend: the ports above over one engine."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from gateway.ports.erasure import ErasedWords
from gateway.ports.objects import ObjectStore

BLANK_AFTER = timedelta(days=7)  # texts of ended rows are blanked
EXPIRES = timedelta(hours=24)  # older messages expire, with one notice per chat


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """The settings that a store needs, and what it works with beside its database."""

    queued_per_chat: int = 100
    queued: int = 10_000
    merge: str = "split"  # split, burst or off; a gateway has the setting's
    burst: int = 20  # rows that may merge under `burst`
    split_length: int = 4_000  # a message this long, followed by another within `split_seconds`, is half of a paste
    split_seconds: float = 2.0
    backlog_minutes: float = 10.0  # older messages are answered in one turn per chat and sender
    expires: timedelta = EXPIRES
    blank_after: timedelta = BLANK_AFTER
    zone: str = "UTC"  # IANA; days of this zone sum old usage
    is_shared: bool = False  # with other gateways: the chats are divided among them
    objects: ObjectStore | None = None  # for the bytes of large files, where they are not in the home
    erased_words: ErasedWords | None = None  # which texts pass while they are erased from their scope; None = no memory
