"""What a command declares about who may use it: data, which the router alone acts on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.events import ChatKind, Role

if TYPE_CHECKING:
    from agent.commands.port import CommandContext

ANY = "..."  # in place of a word: any arguments at all


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What it takes to use a command, or one word of it.

    In a direct chat everybody is the steward of their own; a shared one is any chat of several people, its threads and
    private threads too. What asks for a role leaves an audit line, done or refused.
    """

    direct: Role = Role.ANYONE
    shared: Role = Role.ANYONE
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
        return self.others is None or not _is_shared(context) or context.role.covers(self.others)

    def is_decision(self, context: CommandContext) -> bool:
        """Say whether it is to be audited: it asks for a role, or acts on what is others'."""
        if self.looks:
            return False
        acts_on_others = self.others is not None and _is_shared(context) and self.may_all(context)
        return self.role(context) is not Role.ANYONE or acts_on_others


def first_word(args: str) -> str:
    """Return the first word of the arguments in lower case."""
    return args.partition(" ")[0].lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a command takes: in general, and for its words."""

    general: Need = Need()
    words: Mapping[str, Need] = field(default_factory=dict)
    word: Callable[[str], str] = first_word  # reads the word out of the arguments

    def of(self, args: str) -> tuple[str, Need]:
        """Return the word that *args* are about, "" for none of its own, and what it takes."""
        word = self.word(args)
        if word in self.words:
            return word, self.words[word]
        if args.strip() and ANY in self.words:
            return "", self.words[ANY]
        return "", self.general


def _is_shared(context: CommandContext) -> bool:
    return context.row.message.chat_kind is ChatKind.GROUP
