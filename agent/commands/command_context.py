"""What a command is given, and what it leaves: the context, the house around it, and the reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from agent.chat_profiles import ChatProfiles, EffectiveSetting
from agent.memory.account_links.link_offers import AccountLinkService
from agent.memory.dream.dream_service import DreamService
from agent.memory.editing.staged_changes import StagedChangeStore
from agent.memory.erasure.erase_service import EraseService
from agent.memory.privacy.privacy_service import PrivacyService
from agent.memory.versioning.memory_service import MemoryService
from agent.turn import RunningTurn, Turn
from gateway.events import InboundMessage, MessageButton, OutboundMessage, Role, SessionKey
from gateway.ports import DisplayedMessage, InboxRow, Job, SearchIndex
from gateway.ports.access import AccessControl, DecisionActor
from gateway.ports.caps import CapAllowance
from gateway.ports.pairing import PairingRequests


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandReply:
    """What a command leaves behind, all of it in its turn's one commit."""

    text: str
    is_private: bool = False  # seen by its sender alone where the chat is shared
    new_transcript: bool = False  # the current transcript is renamed, a fresh one begins
    jobs: tuple[Job, ...] = ()
    choices: tuple[MessageButton, ...] = ()  # buttons below it
    settles: bool = False  # the button that was pressed has done what it is for
    typed: str = ""  # what the transcript shows in place of what was typed
    also: tuple[OutboundMessage, ...] = ()  # what other chats are told with it
    is_secret: bool = False  # holds a code: it is sent, and stands in no transcript
    whom: str = ""  # for the audit: "channel:who" that it is about
    outcome: str = "done"  # for the audit
    audit: str = ""  # what the audit calls it; the router's alone, "" for what is no decision


class CommandServices(Protocol):
    """What commands may ask of the rest of the house."""

    @property
    def memory(self) -> MemoryService:
        """What is remembered, its versions, and taking them back."""
        ...

    @property
    def recall(self) -> SearchIndex:
        """Finds what was said and remembered in a scope."""
        ...

    @property
    def profiles(self) -> ChatProfiles:
        """Which model answers in which chat."""
        ...

    @property
    def access(self) -> AccessControl:
        """Who may write, and deciding it."""
        ...

    def in_force(self, key: SessionKey, guild: str, scope: str) -> Sequence[EffectiveSetting]:
        """Return what is in force in the chat, and who decided it."""
        ...

    @property
    def staging(self) -> StagedChangeStore:
        """What waits for a yes."""
        ...

    @property
    def rights(self) -> PrivacyService:
        """What is kept of somebody, and having it."""
        ...

    @property
    def linking(self) -> AccountLinkService:
        """Accounts that are one person, and offers to be."""
        ...

    @property
    def pairing(self) -> PairingRequests:
        """Who waits to be let in, and deciding it."""
        ...

    @property
    def dreams(self) -> DreamService:
        """What Dream changed, and going back behind it."""
        ...

    @property
    def forgetter(self) -> EraseService:
        """Clears words out of a scope."""
        ...

    async def stop(self, key: SessionKey, *, sender: str) -> tuple[bool, int]:
        """Stop turn and queue; an empty sender means everybody's."""
        ...

    async def stop_in_threads(self, chat: SessionKey, *, sender: str) -> tuple[bool, int]:
        """Stop what *sender* has at work and waiting in the threads of *chat*."""
        ...

    async def waiting_messages(self, key: SessionKey) -> tuple[InboxRow, ...]:
        """Return what waits in the chat, the running turn's rows included."""
        ...

    def running(self, key: SessionKey) -> RunningTurn | None:
        """Return the running turn."""
        ...

    async def archive(self, job: Job) -> bool:
        """Do a `summarise` job now where /new is to wait for it; False when it failed and nothing may be cleared."""
        ...

    async def displayed_messages(self, key: SessionKey, *, limit: int) -> tuple[DisplayedMessage, ...]:
        """Return what people saw."""
        ...

    async def accept(self, message: InboundMessage, role: Role) -> bool:
        """Put a synthetic row (a retry) in the lane; False when the lane is full."""
        ...

    async def usage(self, *, since: datetime, person: str = "", chat: str = "") -> Sequence[Mapping[str, Any]]:
        """Return sums over usage rows."""
        ...

    def allowances(self, row: InboxRow, person: str) -> Sequence[CapAllowance]:
        """Return how the sender of *row* stands with the caps that they are under."""
        ...

    @property
    def day_zone(self) -> str:
        """The IANA zone whose days caps and sums go by."""
        ...

    async def prefer(self, subject: str, name: str, value: str) -> None:
        """Store a choice of a person or chat."""
        ...

    def zone(self, scope: str) -> str:
        """Return the IANA time zone in force in *scope*."""
        ...

    def language(self, key: SessionKey) -> str:
        """Return the language that a chat is spoken to in."""
        ...

    def chosen(self, subject: str) -> Mapping[str, str]:
        """Return the choices of a person or chat."""
        ...

    async def status(self) -> Mapping[str, Any]:
        """Return the facts of /status: version, uptime_seconds, workers, busy, queued, work, budget."""
        ...


class ListedCommand(Protocol):
    """A command, as /help lists it."""

    @property
    def name(self) -> str:
        """What is typed after the slash."""
        ...

    @property
    def help(self) -> str:
        """The catalogue's key of its line."""
        ...

    def is_for(self, context: CommandContext) -> bool:
        """Say whether whoever asks may use it here, in general."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandContext:
    """The turn that a command runs in, its arguments, and the services it may use."""

    turn: Turn
    args: str
    now: datetime
    services: CommandServices
    commands: Sequence[ListedCommand]
    may_all: bool = True  # False: acts on the sender's own messages only (see `CommandNeed.others`)

    @property
    def key(self) -> SessionKey:
        """The chat the command was typed in."""
        return self.turn.key

    @property
    def message(self) -> InboundMessage:
        """The message that holds the command."""
        return self.turn.message

    @property
    def scope(self) -> str:
        """The memory scope of the chat."""
        return self.turn.scope

    @property
    def account(self) -> str:
        """The sender's account."""
        return self.turn.account

    @property
    def language(self) -> str:
        """The language of the chat."""
        return self.turn.language

    @property
    def decider(self) -> DecisionActor:
        """The sender as the actor of a decision; the turn's id names the audit line."""
        return DecisionActor(by=actor_of(self.message), where=str(self.key), id=self.turn.id)


def actor_of(message: InboundMessage) -> str:
    """Return who decides, as the audit has it: ``channel:user_id``."""
    return f"{message.key.channel}:{message.sender.id}"
