"""The facts of one turn, derived once at claim and passed to everything downstream."""

from __future__ import annotations

from dataclasses import dataclass

from agent.attachments.transcription import UsageAttribution
from agent.chat_profiles import ChatProfile
from gateway.events import ChatKind, InboundMessage, PlatformAccount, Role, SessionKey
from gateway.ports import InboxRow, TurnLease
from gateway.ports.caps import CappedSender

RETRY_PREFIX = "job:retry/"  # of a message id; then the turn that is answered again, and the row of the command


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The sender, chat, memory scope and settings of a turn.

    A changed setting, choice, role or account link takes effect on the next turn.
    """

    lease: TurnLease
    account: PlatformAccount  # the sender, whichever bot they wrote to; usage is charged to it
    person: str  # the person the account belongs to: itself unless accounts are linked
    accounts: tuple[PlatformAccount, ...]  # all accounts of the person, the oldest first
    scope: str  # memory scope; locked against being moved while the turn runs
    role: Role
    is_admitted: bool  # False: the sender lost the right to write while the message waited
    is_named: bool  # an owner, or admitted by their own id
    language: str  # of the chat, for our own sentences
    zone: str  # IANA time zone of the memory scope
    profile: ChatProfile  # model, tools, persona and window that the chat's settings choose
    capped_sender: CappedSender  # the sender and the chat's caps, for the usage caps

    @property
    def id(self) -> str:
        """The turn's id."""
        return self.lease.turn

    @property
    def key(self) -> SessionKey:
        """The session."""
        return self.lease.key

    @property
    def row(self) -> InboxRow:
        """The first inbox row: its sender is the turn's one principal."""
        return self.lease.rows[0]

    @property
    def message(self) -> InboundMessage:
        """The first message."""
        return self.lease.rows[0].message

    @property
    def is_shared(self) -> bool:
        """True in a chat of several people."""
        return self.message.chat_kind is ChatKind.GROUP

    @property
    def retried(self) -> str:
        """The id of the turn that this one answers again; empty except for /retry."""
        return retried_turn(self.message.message_id)

    @property
    def attribution(self) -> UsageAttribution:
        """The account, chat and turn that model calls are charged to."""
        return UsageAttribution(self.id, self.account.name, str(self.key))


def retried_turn(message_id: str) -> str:
    """Return the turn that a retry's message answers again; empty for any other message."""
    return message_id.removeprefix(RETRY_PREFIX).split("/")[0] if message_id.startswith(RETRY_PREFIX) else ""
