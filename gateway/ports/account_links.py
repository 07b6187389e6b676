"""Which accounts are one person, and what has to move when that changes. The agent decides, the store remembers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from gateway.events import PlatformAccount


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedAccount:
    """One account of a person who has several. The person bears the name of their oldest."""

    account: PlatformAccount
    person: str  # the name of the person's oldest account
    at: datetime  # when it was linked


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeMove:
    """Something of a scope that has to stand in another. It stays in the store until its files have moved."""

    id: str
    kind: str  # link, unlink, or adopt (data in the home itself)
    source: str  # the scope that data leaves
    target: str
    at: datetime
    account: PlatformAccount | None = None  # unlink: the account that becomes a person of its own
    since: datetime | None = None  # unlink: since when the two were linked
    keys: tuple[str, ...] = ()  # unlink: the chats of that account
    single: tuple[str, ...] = ()  # link: which of the two persons had one account
    ended: tuple[tuple[str, str], ...] = ()  # (chat, transcript): ended conversations
