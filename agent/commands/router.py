"""One router for all channels: which text is a command, which one, and who may use it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from agent.commands.command_context import CommandContext, CommandReply
from agent.commands.declaration import Command
from gateway.events import InboundKind, InboundMessage
from gateway.i18n import translate
from gateway.ports.entry_points import load_entry_points

_COMMAND = re.compile(r"([/!]?)([a-z][a-z0-9_-]{0,31})(?:\s+(.*))?\Z", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class ParsedCommand:
    """A command as typed: its name may still be unknown."""

    name: str
    args: str


class CommandRouter:
    """Knows every command; built once at start."""

    def __init__(self, commands: Sequence[Command]) -> None:
        self._commands = {command.name: command for command in commands}

    @classmethod
    def load(cls) -> CommandRouter:
        """Collect the commands that the entry points `parlour.commands` name."""
        return cls([entry.load() for entry in sorted(load_entry_points("parlour.commands"), key=lambda e: e.name)])

    @property
    def commands(self) -> Sequence[Command]:
        """All commands, by name."""
        return [self._commands[name] for name in sorted(self._commands)]

    def parse(self, message: InboundMessage) -> ParsedCommand | None:
        """Return the command that *message* is, None if it is none.

        Only the field `command` is read, which holds no word but the sender's own. `/name` is a command even if nobody
        knows it; `!name` and a bare name behind our mention are commands only if they are known.
        """
        if message.is_forwarded or message.kind not in (InboundKind.MESSAGE, InboundKind.COMMAND, InboundKind.BUTTON):
            return None
        found = _COMMAND.match(message.command)
        if found is None:
            return None
        sign, name, arguments = found[1], found[2].lower(), (found[3] or "").strip()
        if sign != "/" and name not in self._commands:
            return None  # "!important" is emphasis, "@bot hello" a greeting
        return ParsedCommand(name, arguments)

    def is_control(self, typed: ParsedCommand) -> bool:
        """Say whether the command must not wait in its lane; an unknown one is answered at once."""
        command = self._commands.get(typed.name)
        return command is None or command.passes(typed.args)

    async def run(self, typed: ParsedCommand, context: CommandContext) -> CommandReply:
        """Run the command, or say why not: unknown (did you mean …?), or not for this role.

        The one place where roles are checked. What was asked for a role says in its reply how the audit calls it.
        """
        command = self._commands.get(typed.name)
        if command is None:
            return CommandReply(text=self._unknown(typed.name, context.language), is_private=True)
        word, need = command.needs.of(typed.args)
        label = f"{command.name} {word}".strip()
        role = need.role(context)
        if not context.turn.role.covers(role) and not (need.unless is not None and await need.unless(context)):
            text = translate(f"commands.only_{role}", context.language, command=label)
            return CommandReply(text=text, is_private=True, audit="" if need.looks else label, outcome="refused")
        reply = await command.run(replace(context, may_all=need.may_all(context)))
        return replace(reply, audit=label if need.is_decision(context) else "")

    def audited(self, typed: ParsedCommand, context: CommandContext) -> str:
        """Return what the audit calls the command, "" for what is no decision of its sender's."""
        command = self._commands.get(typed.name)
        if command is None:
            return ""
        word, need = command.needs.of(typed.args)
        return f"{command.name} {word}".strip() if need.is_decision(context) else ""

    def _unknown(self, name: str, language: str) -> str:
        near = get_close_matches(name, self._commands, n=1)
        if near:
            return translate("commands.did_you_mean", language, name=name, near=near[0])
        return translate("commands.unknown", language, name=name)
