"""The facts of a message's sender and chat that admission, locale, caps and turns depend on, derived once per stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.events import PlatformAccount


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
    """The operator's settings for one conversation, from `chats`; None = the value of the channel, then the global."""

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
    said_by: Mapping[str, str] = field(default_factory=dict)  # setting ("caps.chat_tokens_per_day") -> chat selector


NO_OVERRIDE = ChatOverride()


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
