"""What people, chats and the house may take, and what is kept of it over a restart (PEOPLE.md, Caps)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol, TypeAlias

from gateway.errors import ParlourError
from gateway.events import InboundMessage


class CapKind(StrEnum):
    """The caps, as metrics, refusals and the catalogue's keys name them."""

    PERSON_TURNS = "person-turns"  # in ten minutes; a person is everybody's accounts that are linked, over all bots
    CHAT_TURNS = "chat-turns"  # in ten minutes; a chat is a parent chat with all its threads
    OWN_TURNS = "own-turns"  # in ten minutes, of a chat: turns that nobody typed
    PERSON_TOKENS = "person-tokens"  # a day of the house's time zone, as all that follow
    CHAT_TOKENS = "chat-tokens"
    OWN_TOKENS = "own-tokens"
    HOUSE_TOKENS = "house-tokens"

    @property
    def word(self) -> str:
        """Return its name as keys of the catalogue have it."""
        return self.value.replace("-", "_")

    @property
    def is_daily(self) -> bool:
        """Say whether it counts tokens and ends at midnight."""
        return self.value.endswith("-tokens")

    @property
    def is_own(self) -> bool:
        """Say whether it is about turns that nobody typed."""
        return self in (CapKind.OWN_TURNS, CapKind.OWN_TOKENS)

    @property
    def is_personal(self) -> bool:
        """Say whether others in the same chat may go on."""
        return self in (CapKind.PERSON_TURNS, CapKind.PERSON_TOKENS)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapNotice:
    """Somebody was told that they are past a cap; stored with the commit that tells them."""

    name: str  # the cap and whose it is
    chat: str  # where they were told
    until: datetime  # when the window ends, and with it the silence
    limit: int  # with another limit it is another window


@dataclass(frozen=True, slots=True, kw_only=True)
class ExceededCap:
    """A cap is reached."""

    cap: CapKind
    limit: int  # turns or tokens
    until: datetime  # from then on there is room again
    told: (
        CapNotice | None
    )  # what telling it now leaves; None = it was told here in this window, and nothing more is said


class CapReached(ParlourError):
    """A cap leaves no room for a model call; nothing was asked."""

    def __init__(self, past: ExceededCap) -> None:
        super().__init__(past.cap.value)
        self.past = past


@dataclass(frozen=True, slots=True, kw_only=True)
class CapAllowance:
    """How somebody stands with one cap."""

    cap: CapKind
    used: int  # turns or tokens, what is reserved included
    limit: int
    until: datetime | None  # when all of it is free again (a day), or some (turns); None = none is in use


Release: TypeAlias = Callable[[], None]


class UsageCaps(Protocol):
    """Counts turns and tokens. Everything is answered from memory, at once; what is durable rides with the journal."""

    def admit_turn(self, message: InboundMessage, turn: str, person: str) -> ExceededCap | None:
        """Count *turn*, once however often it is taken up, before anything is done for it; or say which cap forbids it.

        *person* is the account that wrote (agent/memory/scopes.py). A turn that entered must `leave`.
        """
        ...

    def end_turn(self, turn: str) -> None:
        """End what `enter` began; the turn stays counted."""
        ...

    def reserve(self, turn: str, tokens: int) -> Release:
        """Reserve *tokens* for a model call of a turn that entered; the call's end releases them.

        Raises CapReached when they do not fit under a cap of the turn's any more. Calls of no such turn (background
        work has a purse of its own) are not capped.
        """
        ...

    def note_refusal(self, messages: Iterable[InboundMessage], past: ExceededCap) -> None:
        """Note that *messages* end unanswered, so that metrics and `parlour why` can say so."""
        ...

    def allowances(self, message: InboundMessage, person: str) -> tuple[CapAllowance, ...]:
        """Return how the sender of *message* stands with each cap that they are under."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedTurn:
    """A turn that asked a model: when it first did."""

    turn: str
    person: str
    chat: str
    is_own: bool
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentTokens:
    """Tokens, in and out, of one person in one chat."""

    person: str
    chat: str
    is_own: bool
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CapUsage:
    """What the journal knows of the running windows."""

    begun: tuple[StartedTurn, ...]
    spent: tuple[SpentTokens, ...]
    told: tuple[CapNotice, ...]


class CapUsageStore(Protocol):
    """What is left of the caps' counts after a restart: usage rows, and who was told."""

    async def load_usage(self, *, window: datetime, day: datetime, purposes: Iterable[str]) -> CapUsage:
        """Return turns begun since *window*, tokens since *day*, and windows that were told and have not ended.

        Only calls of *purposes* count. Reads what the two windows hold, by an index; meant for the start.
        """
        ...
