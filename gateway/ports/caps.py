"""Usage caps of people, chats and the installation, the counts stored for a restart, and those that gateways share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol, TypeAlias, TypeVar

from gateway.errors import ParlourError
from gateway.events import InboundMessage, PlatformAccount
from gateway.ports.message_context import NO_CAPS, CapOverrides

T = TypeVar("T")

MICROS = 1_000_000  # micro-dollars of a dollar: sums of integers do not drift
_CENT = 10_000


def micro_dollars(usd: float) -> int:
    """Return US dollars in the unit of caps in money; at least 1 for any amount above 0."""
    return max(round(usd * MICROS), 1 if usd > 0 else 0)


def format_micro_dollars(amount: int) -> str:
    """Return micro-dollars as people read them: at least cents, and from a cent on at most four decimals."""
    amount = max(amount, 0)
    whole, rest = divmod(amount if amount < _CENT else amount // 100 * 100, MICROS)
    return f"${whole:,}.{f'{rest:06}'.rstrip('0'):0<2}"


class CapKind(StrEnum):
    """The caps, as metrics, refusals and the catalogue's keys name them."""

    PERSON_TURNS = "person-turns"  # in ten minutes; all linked accounts of a person count together, over all bots
    CHAT_TURNS = "chat-turns"  # in ten minutes; a chat is a parent chat with all its threads
    OWN_TURNS = "own-turns"  # in ten minutes, of a chat: turns started by jobs
    PERSON_TOKENS = "person-tokens"  # per day in the installation's time zone, like the caps below
    CHAT_TOKENS = "chat-tokens"
    OWN_TOKENS = "own-tokens"
    HOUSE_TOKENS = "house-tokens"
    PERSON_COST = "person-cost"  # micro-dollars per day
    CHAT_COST = "chat-cost"
    HOUSE_COST = "house-cost"

    @property
    def word(self) -> str:
        """Return its name as keys of the catalogue have it."""
        return self.value.replace("-", "_")

    @property
    def is_daily(self) -> bool:
        """True if the cap counts tokens or money and ends at midnight."""
        return self.value.endswith("-tokens") or self.is_cost

    @property
    def is_cost(self) -> bool:
        """True if the cap counts micro-dollars."""
        return self.value.endswith("-cost")

    def format_amount(self, amount: int) -> int | str:
        """Return an amount of what the cap counts as a field of the catalogue's sentences."""
        return format_micro_dollars(amount) if self.is_cost else amount

    @property
    def is_own(self) -> bool:
        """True if the cap limits turns that no user started."""
        return self in (CapKind.OWN_TURNS, CapKind.OWN_TOKENS)

    @property
    def is_personal(self) -> bool:
        """True if other users of the same chat are not affected."""
        return self in (CapKind.PERSON_TURNS, CapKind.PERSON_TOKENS, CapKind.PERSON_COST)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapNotice:
    """A notification that a cap was exceeded; stored with the commit that sends it."""

    name: str  # the cap and its subject
    chat: str  # where the notice was sent
    until: datetime  # when the window ends, and notices may be sent again
    limit: int  # a changed limit starts another window


@dataclass(frozen=True, slots=True, kw_only=True)
class ExceededCap:
    """A cap is reached."""

    cap: CapKind
    limit: int  # turns, tokens or micro-dollars
    until: datetime  # when use is allowed again
    notice: CapNotice | None  # to store with the notification; None = this chat was notified in this window
    is_quota: bool = False  # an owner set it for this person


class CapReached(ParlourError):
    """Raised instead of making a model call that a cap does not allow."""

    def __init__(self, exceeded: ExceededCap) -> None:
        super().__init__(exceeded.cap.value)
        self.exceeded = exceeded


@dataclass(frozen=True, slots=True, kw_only=True)
class CapAllowance:
    """Use and limit of one cap."""

    cap: CapKind
    used: int  # turns, tokens or micro-dollars, reserved ones included
    limit: int
    until: datetime | None  # when use resets (by day) or partly expires (turns); None = unused


Release: TypeAlias = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CappedSender:
    """The facts that caps depend on, as they were derived when the turn was claimed."""

    account: PlatformAccount
    accounts: tuple[PlatformAccount, ...]  # all accounts of the sender's person, the oldest first
    is_named: bool  # an owner, or admitted by their own id: no personal caps unless they are set
    caps: CapOverrides = NO_CAPS  # of the conversation
    chat_caps: CapOverrides = NO_CAPS  # of the chat, which counts all its threads


class UsageCaps(Protocol):
    """Counts turns, tokens and money; durable counts are stored with the journal's commits.

    A gateway that has the database for itself counts in memory, and no method waits. Of several, each asks the
    database (`SqlSharedCaps`); methods that do raise StoreUnavailable.
    """

    async def admit_turn(self, message: InboundMessage, turn: str, sender: CappedSender) -> ExceededCap | None:
        """Count *turn*, once however often it is taken up, before anything is done for it; or say which cap forbids it.

        A turn that was admitted must `end_turn`.
        """

    def end_turn(self, turn: str) -> None:
        """End what `admit_turn` began; the turn stays counted."""

    async def reserve(self, turn: str, tokens: int, cost: int = 0) -> Release:
        """Reserve *tokens* and micro-dollars for a model call of an admitted turn. The end of the call releases them.

        Raises CapReached if they exceed a cap of the turn. Calls outside such a turn are not capped: background jobs
        have a separate token budget.
        """

    def note_refusal(self, messages: Iterable[InboundMessage], exceeded: ExceededCap) -> None:
        """Note that *messages* end unanswered, so that metrics and `parlour why` can say so."""

    async def allowances(self, message: InboundMessage | None, sender: CappedSender) -> tuple[CapAllowance, ...]:
        """Return use and limit of each cap that applies to the sender of *message*; without one, of their person."""


TOOL_CALLS = "tool-"  # begins the purpose of a usage row that is a tool call; then its kind


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAllowance:
    """Calls of one kind of tools that a person made today, and may make."""

    kind: str  # as `agent.tools.tool.ToolKind` has it
    used: int
    limit: int
    until: datetime  # midnight in the installation's time zone


class ToolCallCaps(Protocol):
    """Counts tool calls per person and day. All linked accounts of a person count together."""

    def exceeded(self, kind: str, accounts: Sequence[PlatformAccount], *, call: str) -> ToolAllowance | None:
        """Return the cap that a *call* of *kind* would exceed; None if it may run, or was counted before a restart."""

    def note_refusal(self, kind: str) -> None:
        """Count a call of *kind* that its cap refused."""

    async def count(
        self,
        kind: str,
        *,
        turn: str,
        call: str,
        accounts: Sequence[PlatformAccount],
        account: PlatformAccount,
        chat: str,
    ) -> ToolAllowance | None:
        """Count a call that runs now; return the cap that forbids it after all: other gateways have used the rest.

        *call* is its key: one that runs again after a kill is not counted again. *account* makes the call, *accounts*
        are all of its person. Raises StoreUnavailable where several gateways count.
        """

    async def allowances(self, accounts: Sequence[PlatformAccount]) -> tuple[ToolAllowance, ...]:
        """Return use and limit of each kind that has a cap."""


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
    """Tokens, in and out, of one person in one chat, and what they cost as far as it is known."""

    person: str
    chat: str
    is_own: bool
    tokens: int
    cost: int = 0  # micro-dollars


@dataclass(frozen=True, slots=True, kw_only=True)
class CapUsage:
    """Stored counts of the current windows."""

    turns: tuple[StartedTurn, ...]
    tokens: tuple[SpentTokens, ...]
    notices: tuple[CapNotice, ...]


@dataclass(frozen=True, slots=True)
class TokenCount:
    """All that one or several gateways have spent under a name on the running day, and what their calls reserve.

    The unit is that of the name: tokens, or micro-dollars (gateway/access/usage_counters.py).
    """

    name: str
    spent: int
    held: int

    @property
    def total(self) -> int:
        """The amount that is not free any more."""
        return self.spent + self.held


@dataclass(frozen=True, slots=True)
class CountedEntry:
    """One turn or tool call that counts under a name, however often it is stored."""

    name: str
    entry: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CapQuery:
    """The shared counts that a decision needs."""

    names: tuple[str, ...]
    day: datetime  # end of the day whose tokens are meant
    since: datetime  # entries after it
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCapCounts:
    """The counts of the names of a query."""

    elsewhere: Mapping[str, TokenCount]  # the sums of the other gateways, by name
    entries: tuple[CountedEntry, ...]  # of all gateways, in order
    notices: tuple[tuple[CapNotice, str], ...]  # each with the turn that sends it


@dataclass(frozen=True, slots=True, kw_only=True)
class CapChange:
    """New counts of a gateway. Its token counts replace those that it stored before."""

    day: datetime  # end of the day of the tokens
    tokens: tuple[TokenCount, ...] = ()
    entries: tuple[CountedEntry, ...] = ()
    notices: tuple[tuple[CapNotice, str], ...] = ()  # each with the turn that sends it
