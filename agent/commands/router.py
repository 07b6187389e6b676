"""Command router for all channels: recognises commands, checks roles and runs them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from agent.commands.command import Command, CommandContext, CommandReply
from gateway.events import InboundKind, InboundMessage
from gateway.installation import load_entry_points

_COMMAND = re.compile(r"([/!]?)([a-z][a-z0-9_-]{0,31})(?:\s+(.*))?\Z", re.IGNORECASE | re.DOTALL)


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
