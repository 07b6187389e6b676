"""Who may speak beyond the settings: what owners decided at run time, and the audit of decisions about people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from gateway.events import OutboundMessage


class AccessStatus(StrEnum):
    """How somebody, or a place, stands with a channel block by a decision at run time."""

    OWNER = "owner"  # by a claim code
    ALLOWED = "allowed"  # by an owner
    PAIRED = "paired"  # asked, and an owner approved
    BLOCKED = "blocked"  # by an owner; stronger than every entry


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessEntry:
    """One decision in force. There is one for each *who* of a channel block; a later one takes its place."""

    channel: str  # the block's name
    who: str  # an admission entry: a user id, or chat:ID, guild:ID, team:ID, role:ID
    standing: AccessStatus
    by: str  # whose decision: "channel:user_id", or one of the names below
    at: datetime
    name: str = ""  # as the platform showed it then: for reading, decides nothing


OPERATOR = "operator"  # whoever may run `parlour` on the home
CODE = "code"  # whoever had the code


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One decision about people or a shared chat: no word of what was said is in it."""

    id: str  # the turn's, where a turn decided; the same id is written once
    at: datetime
    by: str  # "channel:user_id", OPERATOR or CODE
    where: str  # session key, or "" for the command line
    what: str  # the command and its declared word ("new", "memory undo", "allow"), never an argument
    whom: str = ""  # "channel:who", where the decision is about somebody
    outcome: str = "done"  # done, refused, or how the turn ended instead


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessChange:
    """What one decision writes, all of it in one transaction."""

    line: AuditEntry | None = None
    put: tuple[AccessEntry, ...] = ()
    remove: tuple[tuple[str, str], ...] = ()  # (channel, who)
    spends: tuple[str, str] | None = None  # a note and its value: it must still stand so, and goes with the change
    notes: Mapping[str, str] | None = None  # notes to write; an empty value removes one
    told: tuple[OutboundMessage, ...] = ()  # what chats are told with it; ids "<d and 16 base32>.<row>"


class AccessStore(Protocol):
    """The durable roster: read from memory, since judging a message waits for nothing; changed before it counts."""

    def members(self) -> Mapping[tuple[str, str], AccessEntry]:
        """Return every decision in force by (channel, who): a view that follows changes."""
        ...

    def notes(self) -> Mapping[str, str]:
        """Return what is kept beside (a hash of a code, a count of tries): a view that follows changes."""
        ...

    def edition(self) -> int:
        """Return a number that grows with every change of `members`, so that what is derived can be kept."""
        ...

    async def change(self, change: AccessChange) -> bool:
        """Write *change* durably, then let it count; False, and nothing is written, when what it spends is gone."""
        ...

    async def audit(self, *, limit: int, about: str = "") -> Sequence[AuditEntry]:
        """Return lines, the newest first; of one "channel:user_id" as decider or as whom it is about, if given."""
        ...


class DecisionOutcome(StrEnum):
    """What became of a wish about somebody."""

    DONE = "done"
    SAME = "same"  # it is so already
    SET_OWNER = "set-owner"  # the settings name them as owner: only there is it changed
    OWNER = "owner"  # they claimed ownership: `parlour owner remove` comes first
    BLOCKED_AS = "blocked-as"  # the same person is blocked under another account or bot, which is lifted there
    NOBODY = "nobody"  # the text is no id
    ONLY_LET_IN = "only-let-in"  # a role or a workspace can be let in and taken back, but not shut out
    ELSEWHERE = "elsewhere"  # no channel block of this name
    UNLISTED = "unlisted"  # no decision at run time is there to be taken back
    BY_SETTING = "by-setting"  # and the settings' own entry stays


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessDecision:
    """What became of a wish: about whom, and the "channel:who" that stands in its way, if one does."""

    ruling: DecisionOutcome
    whom: str = ""
    other: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionActor:
    """Who decides, where, and the id of the audit line it leaves."""

    by: str  # "channel:user_id", or OPERATOR
    where: str  # session key, or "" for the command line
    id: str


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


class AccessControl(Protocol):
    """What owners decide about people and places; in force at the next message, durable with its audit line."""

    async def allow(self, text: str, decider: DecisionActor, *, here: str = "", name: str = "") -> AccessDecision:
        """Let somebody in: an id, chat:ID and so on, a mention, or any of them behind "channel:".

        *here* is the block that a text without a channel is about. Lifts a block.
        """
        ...

    async def block(self, text: str, decider: DecisionActor, *, here: str = "", name: str = "") -> AccessDecision:
        """Shut somebody or a place out, whatever entries say; never an owner."""
        ...

    async def remove(self, text: str, decider: DecisionActor, *, here: str = "") -> AccessDecision:
        """Take a decision back: what the settings say is in force again. Ownership is not taken back here."""
        ...

    def list_access(self) -> Sequence[AccessListing]:
        """Return who may write and who may not, by block: the settings' lines first, then the decisions by time."""
        ...
