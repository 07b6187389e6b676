"""A command as it is declared, with the roles that it requires, what it gets and returns, and the router.

Only the router checks roles. It is one for all channels.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from agent.commands.command_services import CommandServices
from agent.llm.chat_model import ToolCall
from agent.turns.turn import Turn
from gateway.events import (
    InboundKind,
    InboundMessage,
    MessageButton,
    OutboundMessage,
    PlatformAccount,
    Role,
    SessionKey,
)
from gateway.i18n import translate
from gateway.installation import load_entry_points
from gateway.ports.access import DecisionActor
from gateway.ports.journal import Job, JobAdvance

_COMMAND = re.compile(r"([/!]?)([a-z][a-z0-9_-]{0,31})(?:\s+(.*))?\Z", re.IGNORECASE | re.DOTALL)
ANY = "..."  # in place of a word: any arguments at all


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandReply:
    """The result of a command; all of it is part of the turn's one commit."""

    text: str
    is_private: bool = False  # visible to the sender only, in a shared chat
    new_transcript: bool = False  # archive the transcript and start another
    ends: tuple[str, ...] = ()  # jobs whose id starts with one of these are removed
    jobs: tuple[Job, ...] = ()
    advances: tuple[JobAdvance, ...] = ()
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
    begins: ToolCall | None = None  # instead of a reply: the model answers the message, beginning with this call


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandContext:
    """The turn that a command runs in, its arguments, and the services it may use."""

    turn: Turn
    args: str
    now: datetime
    services: CommandServices
    commands: Sequence[Command]
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

    async def call(self, operation: str, arguments: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Run an operation for the sender and return its lines. Raises UserError, also for a role that may not."""
        return await self.services.call_operation(operation, arguments, self.decider, self.turn.role)

    @property
    def decider(self) -> DecisionActor:
        """The sender as the actor of a decision; the turn's id names the audit line."""
        return DecisionActor(by=actor_of(self.message), where=str(self.key), id=self.turn.id)


def actor_of(message: InboundMessage) -> str:
    """Return the actor of a decision as the audit line names it: ``channel:user_id``."""
    return f"{message.key.channel}:{message.sender.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandNeed:
    """Role required for a command, or for one of its words.

    In a direct chat every sender is admin. A shared chat is any chat of several people, threads and private threads
    included. A command that requires a role leaves an audit line, whether it ran or was refused.
    """

    direct: Role = Role.MEMBER
    shared: Role = Role.MEMBER
    others: Role | None = None  # role that acts on all messages of a shared chat; others act on their own (`may_all`)
    single: Role | None = None  # with one memory for the whole installation (memory.isolation: shared)
    unless: Callable[[CommandContext], Awaitable[bool]] | None = None  # lets senders without the role
    looks: bool = False  # decides nothing: no audit line
    is_audited: bool = False  # leaves an audit line although no role is required

    def role(self, context: CommandContext) -> Role:
        """Return the required role."""
        role = self.shared if context.turn.is_shared else self.direct
        if self.single is not None and not context.scope and not role.covers(self.single):
            return self.single
        return role

    def may_all(self, context: CommandContext) -> bool:
        """Return True if the command acts on every sender's messages rather than the sender's own."""
        return self.others is None or not context.turn.is_shared or context.turn.role.covers(self.others)

    def is_decision(self, context: CommandContext) -> bool:
        """Return True if the command is audited: it requires a role, or acts on other senders' messages."""
        if self.looks:
            return False
        acts_on_others = self.others is not None and context.turn.is_shared and self.may_all(context)
        return self.is_audited or self.role(context) is not Role.MEMBER or acts_on_others


def first_word(args: str) -> str:
    """Return the first word of the arguments in lower case."""
    return args.partition(" ")[0].lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandNeeds:
    """Roles required for a command: in general, and for some of its words."""

    general: CommandNeed = CommandNeed()
    words: Mapping[str, CommandNeed] = field(default_factory=dict)
    word: Callable[[str], str] = first_word  # returns the word of the arguments

    def of(self, args: str) -> tuple[str, CommandNeed]:
        """Return the declared word that *args* begin with ("" without one), and the need that applies."""
        word = self.word(args)
        if word in self.words:
            return word, self.words[word]
        if args.strip() and ANY in self.words:
            return "", self.words[ANY]
        return "", self.general


Run = Callable[[CommandContext], Awaitable[CommandReply]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A declared command; `help` is a catalogue key."""

    name: str
    run: Run
    needs: CommandNeeds
    is_control: bool  # runs at once, not in the session queue that it may act on
    help: str
    control_words: frozenset[str] = frozenset()  # arguments that begin with one of these run at once

    def is_for(self, context: CommandContext) -> bool:
        """Return True if the sender has the role that the command requires here."""
        return context.turn.role.covers(self.needs.general.role(context))

    def runs_at_once(self, args: str) -> bool:
        """Return True if the command with *args* bypasses the session queue."""
        return self.is_control or first_word(args) in self.control_words


def command(
    name: str,
    *,
    who: Role = Role.MEMBER,
    who_in_groups: Role | None = None,
    others: Role | None = None,
    single: Role | None = None,
    looks: bool = False,
    words: Mapping[str, CommandNeed] | None = None,
    word: Callable[[str], str] = first_word,
    is_control: bool = False,
    control_words: Collection[str] = (),
) -> Callable[[Run], Command]:
    """Declare an async function as the command */name*; its help line is ``commands.help_<name>``.

    *who* is the role required in a direct chat, *who_in_groups* in a shared one (the same by default); *others*,
    *single* and *looks* are fields of `CommandNeed`. *words* have needs different from the command's; *word* finds
    the word in the arguments. A command never checks roles itself. A button bypasses the session queue if its command
    does: *control_words* are for commands that send buttons.
    """
    shared = who if who_in_groups is None else who_in_groups
    general = CommandNeed(direct=who, shared=shared, others=others, single=single, looks=looks)

    def declare(run: Run) -> Command:
        return Command(
            name=name,
            run=run,
            needs=CommandNeeds(general=general, words=dict(words or {}), word=word),
            is_control=is_control,
            help=f"commands.help_{name}",
            control_words=frozenset(control_words),
        )

    return declare


# -- router -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ParsedCommand:
    """A command as parsed; its name may be unknown."""

    name: str
    args: str


class CommandRouter:
    """All commands; built once at start."""

    def __init__(self, commands: Sequence[Command]) -> None:
        self._commands = {command.name: command for command in commands}

    @classmethod
    def load(cls) -> CommandRouter:
        """Load the commands of the entry points `parlour.commands`."""
        return cls([entry.load() for entry in sorted(load_entry_points("parlour.commands"), key=lambda e: e.name)])

    @property
    def commands(self) -> Sequence[Command]:
        """All commands, by name."""
        return [self._commands[name] for name in sorted(self._commands)]

    def parse(self, message: InboundMessage) -> ParsedCommand | None:
        """Return the command in *message*, or None.

        Only the field `command` is parsed: every word in it is the sender's. `/name` is a command even if the name is
        unknown; `!name` and a bare name after a mention of the bot only if it is known.
        """
        if message.is_forwarded or message.kind not in (InboundKind.MESSAGE, InboundKind.COMMAND, InboundKind.BUTTON):
            return None
        match = _COMMAND.match(message.command)
        if match is None:
            return None
        sign, name, arguments = match[1], match[2].lower(), (match[3] or "").strip()
        if sign != "/" and name not in self._commands:
            return None  # "!important" is emphasis, "@bot hello" a greeting
        return ParsedCommand(name, arguments)

    def is_control(self, parsed: ParsedCommand) -> bool:
        """Return True if the command bypasses the session queue; unknown commands do."""
        command = self._commands.get(parsed.name)
        return command is None or command.runs_at_once(parsed.args)

    async def run(self, parsed: ParsedCommand, context: CommandContext) -> CommandReply:
        """Run the command, or return the reply that it is unknown or requires another role.

        Roles are checked here, except for a decision on a question, which names who may decide (`/tools`). The reply of
        a decision has the label of its audit line.
        """
        command = self._commands.get(parsed.name)
        if command is None:
            return self._unknown(parsed.name, context)
        word, need = command.needs.of(parsed.args)
        label = f"{command.name} {word}".strip()
        role = need.role(context)
        if not context.turn.role.covers(role) and not (need.unless is not None and await need.unless(context)):
            text = context.translate(f"commands.only_{role}", command=label)
            return CommandReply(text=text, is_private=True, audit="" if need.looks else label, outcome="refused")
        reply = await command.run(replace(context, may_all=need.may_all(context)))
        return replace(reply, audit=f"{label} {reply.tool}".strip() if need.is_decision(context) else "")

    def audit_label(self, parsed: ParsedCommand, context: CommandContext) -> str:
        """Return the label of the command's audit line; "" if it is not a decision."""
        command = self._commands.get(parsed.name)
        if command is None:
            return ""
        word, need = command.needs.of(parsed.args)
        return f"{command.name} {word}".strip() if need.is_decision(context) else ""

    def _unknown(self, name: str, context: CommandContext) -> CommandReply:
        if near := get_close_matches(name, self._commands, n=1):
            return context.private_reply("commands.did_you_mean", name=name, near=near[0])
        return context.private_reply("commands.unknown", name=name)
