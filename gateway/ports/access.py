"""The records of people: their accounts, rights, caps and pairing, and owners' decisions about them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol, TypeAlias, TypeVar

from gateway.errors import ParlourError, UserError
from gateway.events import OutboundMessage, PlatformAccount
from gateway.ports.journal import AuditEntry, CapNotice


@dataclass(frozen=True, slots=True, kw_only=True)
class CapOverrides:
    """The caps that the operator sets for one chat; None = the global value, 0 = no cap."""

    person_turns_per_10_min: int | None = None
    chat_turns_per_10_min: int | None = None
    person_tokens_per_day: int | None = None
    chat_tokens_per_day: int | None = None
    person_usd_per_day: float | None = None
    chat_usd_per_day: float | None = None


NO_CAPS = CapOverrides()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOverride:
    """The operator's settings for one conversation, from `profiles` and `chats`.

    None = the value of the channel, then the global.
    """

    profile: str | None = None  # the one that applies, by its name; its settings are among those below
    model: str | None = None  # an alias of llm.models, or a model's name
    effort: str | None = None  # how long the model thinks before an answer
    soul: str | None = None  # the text of the persona, which replaces SOUL.md
    group_policy: str | None = None
    reply_in: str | None = None
    follow_threads: bool | None = None
    language: str | None = None
    timezone: str | None = None
    memory_window: int | None = None  # messages in the prompt
    allow: frozenset[str] | None = None  # the only tools to offer; None = all
    deny: frozenset[str] = frozenset()  # tools not to offer, even if allowed
    caps: CapOverrides = NO_CAPS
    said_by: Mapping[str, str] = field(
        default_factory=dict
    )  # setting ("caps.chat_tokens_per_day") -> chat selector or "profiles.NAME"


NO_OVERRIDE = ChatOverride()


def service_of(name: str) -> str:
    """Return the service of the tool *name*, by which `allow` and `deny` may name it: the first two parts of three.

    That is the tool itself unless an MCP server has it (``mcp_<server>_<tool>``).
    """
    return "_".join(name.split("_", 2)[:2]) if name.startswith("mcp_") else name


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageContext:
    """Account, person, memory scope and chat settings of a message.

    Derived when a message arrives, and again when its turn is claimed: links and settings may have changed in between.
    """

    account: PlatformAccount  # the sender
    person: str  # the person the account belongs to: itself unless accounts are linked
    linked: tuple[PlatformAccount, ...] = ()  # all accounts of that person, the oldest first; () if not linked
    scope: str  # memory scope
    overrides: ChatOverride = NO_OVERRIDE  # of the conversation: thread over chat over guild over channel
    parent_overrides: ChatOverride = NO_OVERRIDE  # of the chat itself, also for a thread

    @property
    def accounts(self) -> tuple[PlatformAccount, ...]:
        """All accounts of the person, the sender's among them."""
        return self.linked or (self.account,)


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


def capped_sender(facts: MessageContext, *, is_named: bool) -> CappedSender:
    """Return the facts that caps depend on, of the sender of a message."""
    return CappedSender(
        account=facts.account,
        accounts=facts.accounts,
        is_named=is_named,
        caps=facts.overrides.caps,
        chat_caps=facts.parent_overrides.caps,
    )


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

    def exceeded_tool_cap(self, kind: str, accounts: Sequence[PlatformAccount], *, call: str) -> ToolAllowance | None:
        """Return the cap that a *call* of *kind* would exceed; None if it may run, or was counted before a restart."""

    def note_tool_refusal(self, kind: str) -> None:
        """Count a call of *kind* that its cap refused."""

    async def count_tool_call(
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

    async def tool_allowances(self, accounts: Sequence[PlatformAccount]) -> tuple[ToolAllowance, ...]:
        """Return use and limit of each kind that has a cap."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PairingRequest:
    """An account or chat without an owner's decision. Holds no message text."""

    ref: str  # reference in buttons and on the command line; stable over restarts
    channel: str  # the channel's name
    who: str  # an admission entry: a user id, or chat:ID, guild:ID
    name: str  # display name in one safe line; decides nothing
    at: datetime
    until: datetime | None = None  # expiry of the code; chats wait as long as the bot is in them
    is_place: bool = False
    by: str = ""  # for chats: id of the user who added the bot, if known
    by_name: str = ""


@dataclass(frozen=True, slots=True)
class PairingDecision:
    """It is decided, now or by an earlier attempt of the same turn."""

    waiting: PairingRequest
    is_yes: bool


class PairingRefused(UserError):
    """Nothing is decided: no such request is pending or, with *minutes*, no code is accepted for so long."""

    def __init__(self, text: str, minutes: int = 0) -> None:
        super().__init__(text)
        self.minutes = minutes


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
