"""What a command is given, and what it leaves: the context, the house around it, and the reply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from agent.command_services import CommandServices
from agent.turn import Turn
from gateway.events import InboundMessage, MessageButton, OutboundMessage, SessionKey
from gateway.ports import Job
from gateway.ports.access import DecisionActor


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
