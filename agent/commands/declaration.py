"""Declaration of a command: its name, and the roles that it requires. Only the router checks roles."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field

from agent.commands.command_context import CommandContext, CommandReply
from gateway.events import Role

ANY = "..."  # in place of a word: any arguments at all


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
