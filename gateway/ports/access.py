"""Access decisions that owners make at run time, and the audit log of decisions about people."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from gateway.errors import UserError
from gateway.events import OutboundMessage, PlatformAccount


class AccessStatus(StrEnum):
    """Status that a run-time decision gives an account or a chat in one channel."""

    OWNER = "owner"  # by a claim code
    ALLOWED = "allowed"  # by an owner
    PAIRED = "paired"  # asked, and an owner approved
    BLOCKED = "blocked"  # by an owner; stronger than every entry


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessEntry:
    """One effective decision. A later decision about the same *who* of a channel replaces it."""

    channel: str  # the channel's name
    who: str  # an admission entry: a user id, or chat:ID, guild:ID, team:ID, role:ID
    standing: AccessStatus
    by: str  # whose decision: "channel:user_id", or one of the names below
    at: datetime
    name: str = ""  # display name at that time; decides nothing


OPERATOR = "operator"  # a user of the machine who runs `parlour` commands
CODE = "code"  # the holder of a code


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One decision about people or a shared chat: no word of what was said is in it."""

    id: str  # the turn's, where a turn decided; the same id is written once
    at: datetime
    by: str  # "channel:user_id", OPERATOR or CODE
    where: str  # session key, or "" for the command line
    what: str  # the command and its declared word ("memory undo"), a tool's name, never an argument
    whom: str = ""  # "channel:who", for decisions about an account or chat
    outcome: str = "done"  # done, refused, or how the turn ended instead


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessChange:
    """The writes of one decision, made in one transaction."""

    line: AuditEntry | None = None
    put: tuple[AccessEntry, ...] = ()
    remove: tuple[tuple[str, str], ...] = ()  # (channel, who)
    spends: tuple[str, str] | None = None  # (note, value): the note must still have this value, and is removed
    notes: Mapping[str, str] | None = None  # notes to write; an empty value removes one
    notices: tuple[OutboundMessage, ...] = ()  # sent with the change; ids "<d and 16 base32>.<row>"


class DecisionOutcome(StrEnum):
    """Outcome of a request about an account or chat."""

    DONE = "done"
    SAME = "same"  # nothing to change
    SET_OWNER = "set-owner"  # an owner by the settings, which alone can change it
    OWNER = "owner"  # an owner by a code: run `parlour owner remove` first
    BLOCKED_AS = "blocked-as"  # blocked under another account or channel; lift it there
    NOBODY = "nobody"  # the text is no id
    ONLY_LET_IN = "only-let-in"  # roles and workspaces can be admitted and removed, not blocked
    ELSEWHERE = "elsewhere"  # no channel has this name
    UNLISTED = "unlisted"  # no run-time decision to revoke
    NOT_OWNER = "not-owner"  # no ownership to revoke
    BY_SETTING = "by-setting"  # admitted by the settings
    NO_PERSON = "no-person"  # a chat, guild, team or role, where only a person can be meant


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessDecision:
    """A request that was fulfilled, or had nothing to change, and the account or chat that it is about."""

    whom: str
    ruling: DecisionOutcome  # DONE or SAME


_HINTS: Mapping[DecisionOutcome, str] = {
    DecisionOutcome.SET_OWNER: "{whom} is listed in PARLOUR_OWNERS: remove it there first, and restart",
    DecisionOutcome.OWNER: "{whom} is an owner: run `parlour owner remove {whom}` first",
    DecisionOutcome.BLOCKED_AS: "{whom} is the same person as {other}, who is blocked: `parlour people allow {other}`",
    DecisionOutcome.NOBODY: (
        "{whom!r} is not an id; write channel:user_id, or channel:chat:ID, guild:ID, team:ID, role:ID"
    ),
    DecisionOutcome.ONLY_LET_IN: "only people, chats and guilds can be blocked; for a role or team, remove its entry",
    DecisionOutcome.ELSEWHERE: (
        "{whom!r} does not name a channel that admits people; write channel:user_id, one of: {other}"
    ),
    DecisionOutcome.UNLISTED: "no decision about {whom} exists; `parlour people list` shows who may write",
    DecisionOutcome.NOT_OWNER: "{whom} is not an owner; `parlour owner list` shows the owners",
    DecisionOutcome.NO_PERSON: "{whom} is no person; the caps of a chat are settings, see docs/caps.md",
    DecisionOutcome.BY_SETTING: "{whom} is in the settings (PARLOUR_OWNERS, allow_from): remove it there, or block it",
}


class DecisionRefused(UserError):
    """A request cannot be fulfilled: why, whom it is about, and the "channel:who" that prevents it, if any.

    The text is for the command line, with what to do instead.
    """

    def __init__(self, ruling: DecisionOutcome, whom: str, other: str = "") -> None:
        is_explained = ruling is DecisionOutcome.NOBODY and other
        super().__init__(f"{whom}: {other}" if is_explained else _HINTS[ruling].format(whom=whom, other=other))
        self.ruling, self.whom, self.other = ruling, whom, other


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionActor:
    """The person who decides, the chat, and the id of the resulting audit entry."""

    by: str  # "channel:user_id", OPERATOR or CODE
    where: str  # session key, or "" for the command line
    id: str

    def to_entry(self, what: str, whom: str, at: datetime) -> AuditEntry:
        """Return the audit entry of the decision *what* about *whom*."""
        return AuditEntry(id=self.id, at=at, by=self.by, where=self.where, what=what, whom=whom)


def actor_outside(by: str) -> DecisionActor:
    """Return *by* as the actor of one decision that no turn makes."""
    return DecisionActor(by=by, where="", id=f"o{secrets.token_hex(8)}")


# Who calls the running operation, from the page's console or from a chat; None = the operator at the machine.
ACTING: ContextVar[DecisionActor | None] = ContextVar("ACTING", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessListing:
    """One line of who may write, and who may not."""

    channel: str
    who: str  # a user id, or chat:ID and so on
    standing: AccessStatus
    came_by: str  # setting, code or decision
    by: str = ""
    at: datetime | None = None
    name: str = ""

    def __str__(self) -> str:
        """Return it as people write it: ``channel:who``."""
        return f"{self.channel}:{self.who}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonQuota:
    """Caps that an owner set for one person, over those of the chat and of the installation."""

    turns: int | None = None  # in ten minutes; 0 = no cap, None = that of the chat or the installation
    tokens: int | None = None  # per day; the same
    usd: float | None = None  # per day; the same

    def __bool__(self) -> bool:
        """Return True if it sets a cap."""
        return self != NO_QUOTA


NO_QUOTA = PersonQuota()


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonAccess:
    """The person of an account that an owner named."""

    whom: str  # "channel:user_id"
    accounts: tuple[PlatformAccount, ...]  # all of the person, without teams, the named one first
    is_owner: bool
    is_named: bool  # an owner, or admitted by their own id: no personal caps unless they are set
    blocked_as: str  # "channel:who" of a block on one of the accounts; "" = not blocked
    quota: PersonQuota
