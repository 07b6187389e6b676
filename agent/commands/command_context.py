"""Input and output of a command: its context and its reply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from agent.command_services import CommandServices
from agent.turn import Turn
from gateway.events import InboundMessage, MessageButton, OutboundMessage, PlatformAccount, SessionKey
from gateway.i18n import translate
from gateway.ports import Job
from gateway.ports.access import DecisionActor


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandReply:
    """The result of a command; all of it is part of the turn's one commit."""

    text: str
    is_private: bool = False  # visible to the sender only, in a shared chat
    new_transcript: bool = False  # archive the transcript and start another
    ends: tuple[str, ...] = ()  # jobs whose id starts with one of these are removed
    jobs: tuple[Job, ...] = ()
    choices: tuple[MessageButton, ...] = ()  # buttons below the text
    settles: bool = False  # the pressed button has done its work: its message loses its buttons
    transcript_text: str = ""  # what the transcript shows instead of the command as typed
    transcript_reply: str = ""  # what the transcript shows instead of the text
    also: tuple[OutboundMessage, ...] = ()  # messages to other chats
    is_secret: bool = False  # holds a code: sent, but not stored in the transcript
    whom: str = ""  # for the audit line: "channel:id" that the decision is about
    outcome: str = "done"  # for the audit line
    tool: str = ""  # for the audit line: the tool that the decision is about
    audit: str = ""  # label of the audit line, set by the router; "" = not a decision


class ListedCommand(Protocol):
    """A command as /help lists it."""

    @property
    def name(self) -> str:
        """The name after the slash."""
        ...

    @property
    def help(self) -> str:
        """The catalogue key of its help line."""
        ...

    def is_for(self, context: CommandContext) -> bool:
        """Return True if the sender has the role that the command requires here."""
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
    def account(self) -> PlatformAccount:
        """The sender's account."""
        return self.turn.account

    @property
    def language(self) -> str:
        """The language of the chat."""
        return self.turn.language

    def translate(self, key: str, /, **fields: object) -> str:
        """Return the sentence *key* of the message catalogue in the chat's language."""
        return translate(key, self.language, **fields)

    def reply(self, key: str, /, **fields: object) -> CommandReply:
        """Return a reply of one sentence."""
        return CommandReply(text=translate(key, self.language, **fields))

    def private_reply(self, key: str, /, **fields: object) -> CommandReply:
        """Return a reply of one sentence that only the sender sees in a shared chat."""
        return CommandReply(text=translate(key, self.language, **fields), is_private=True)

    @property
    def decider(self) -> DecisionActor:
        """The sender as the actor of a decision; the turn's id names the audit line."""
        return DecisionActor(by=actor_of(self.message), where=str(self.key), id=self.turn.id)


def actor_of(message: InboundMessage) -> str:
    """Return the actor of a decision as the audit line names it: ``channel:user_id``."""
    return f"{message.key.channel}:{message.sender.id}"
