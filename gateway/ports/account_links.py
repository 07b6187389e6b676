"""Which accounts are one person, and what has to move when that changes. The agent decides, the store remembers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from gateway.events import PlatformAccount, SessionKey


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


class AccountLinkStore(Protocol):
    """Accounts and persons; read from memory, changed in one transaction each."""

    def person(self, account: PlatformAccount) -> str:
        """Return the person to whom *account* belongs: the account's name, unless it was linked."""

    def accounts(self, person: str) -> tuple[LinkedAccount, ...]:
        """Return the accounts of a person with several, the one that names the person first; else ()."""

    def accounts_of_user(self, user: PlatformAccount) -> tuple[LinkedAccount, ...]:
        """Return the accounts of every linked person to whom *user* belongs.

        Without a team, *user* is that user in any team, as in settings and owners' decisions.
        """

    def account_of(self, key: SessionKey) -> PlatformAccount | None:
        """Return the account that a linked person's direct chat belongs to; None if none is stored."""

    async def note_chat(self, key: SessionKey, account: PlatformAccount) -> None:
        """Store which account a linked person's direct chat belongs to."""

    async def notes(self) -> Mapping[str, str]:
        """Return the stored notes by name."""

    async def note(self, name: str, value: str, *, was: str) -> bool:
        """Replace a note (an offer, a count of tries) if its value is still *was* ("" = absent); else return False."""

    async def link(self, move: ScopeMove) -> bool:
        """Make the person *move.source* part of *move.target*: accounts, sessions, jobs, choices. Twice is once.

        Returns False, without effect, while another gateway runs a job of one of them. Turns that run there run again.
        """

    async def unlink(self, move: ScopeMove) -> bool:
        """Make *move.account* a separate person again and start new conversations for both persons. Idempotent.

        Returns False as `link`.
        """

    async def adopt(self, move: ScopeMove) -> None:
        """Give data without a scope to *move.target* and start new conversations there. Idempotent."""

    async def moves(self) -> Sequence[ScopeMove]:
        """Return the moves whose files may not have been moved yet, oldest first."""

    async def mark_moved(self, move: ScopeMove) -> None:
        """Say that the files stand where they belong."""
