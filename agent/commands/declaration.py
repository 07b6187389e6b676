"""What a command declares, once for all channels: its name, and who may use it, on which the router alone acts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field

from agent.commands.command_context import CommandContext, CommandReply
from gateway.events import Role

ANY = "..."  # in place of a word: any arguments at all


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandNeed:
    """What it takes to use a command, or one word of it.

    In a direct chat everybody is the admin of their own; a shared one is any chat of several people, its threads and
    private threads too. What asks for a role leaves an audit line, done or refused.
    """

    direct: Role = Role.MEMBER
    shared: Role = Role.MEMBER
    others: Role | None = None  # in a shared chat: who is less acts on what is their own, `may_all` is False
    single: Role | None = None  # where one memory serves the whole installation (memory.isolation: shared)
    unless: Callable[[CommandContext], Awaitable[bool]] | None = None  # who is less may when it is about themselves
    looks: bool = False  # decides nothing: it leaves no line

    def role(self, context: CommandContext) -> Role:
        """Return the role that it takes there."""
        role = self.shared if _is_shared(context) else self.direct
        if self.single is not None and not context.scope and not role.covers(self.single):
            return self.single
        return role

    def may_all(self, context: CommandContext) -> bool:
        """Say whether the sender acts on what is everybody's, rather than on their own."""
        return self.others is None or not _is_shared(context) or context.turn.role.covers(self.others)

    def is_decision(self, context: CommandContext) -> bool:
        """Say whether it is to be audited: it asks for a role, or acts on what is others'."""
        if self.looks:
            return False
        acts_on_others = self.others is not None and _is_shared(context) and self.may_all(context)
        return self.role(context) is not Role.MEMBER or acts_on_others


def first_word(args: str) -> str:
    """Return the first word of the arguments in lower case."""
    return args.partition(" ")[0].lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandNeeds:
    """What a command takes: in general, and for its words."""

    general: CommandNeed = CommandNeed()
    words: Mapping[str, CommandNeed] = field(default_factory=dict)
    word: Callable[[str], str] = first_word  # reads the word out of the arguments

    def of(self, args: str) -> tuple[str, CommandNeed]:
        """Return the word that *args* are about, "" for none of its own, and what it takes."""
        word = self.word(args)
        if word in self.words:
            return word, self.words[word]
        if args.strip() and ANY in self.words:
            return "", self.words[ANY]
        return "", self.general


def _is_shared(context: CommandContext) -> bool:
    return context.turn.is_shared


Run = Callable[[CommandContext], Awaitable[CommandReply]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command as the router knows it; `help` is a catalogue key."""

    name: str
    run: Run
    needs: CommandNeeds
    is_control: bool  # does not wait in the lane it may have to act on
    help: str
    control_words: frozenset[str] = frozenset()  # or does not when its arguments begin with one of these

    def is_for(self, context: CommandContext) -> bool:
        """Say whether whoever asks may use it here, in general."""
        return context.turn.role.covers(self.needs.general.role(context))

    def passes(self, args: str) -> bool:
        """Say whether the command with *args* passes the queue."""
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

    *who* may use it in a direct chat, *who_in_groups* in a shared one (the same by default); *others*, *single* and
    *looks* are `Need`'s. *words* say otherwise for arguments that begin with one of them, as *word* reads it out. No
    command asks for a role itself: what it takes is all declared here. A button passes the queue when its command
    does: *control_words* are for commands that have buttons.
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
