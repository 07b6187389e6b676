"""One router for all channels: which text is a command, which one, and who may use it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from agent.commands.declared import Command
from agent.commands.port import CommandContext, Reply
from gateway.events import InboundKind, InboundMessage
from gateway.ports.installed import installed
from gateway.words import say

_SLASH = re.compile(r"[/!]([a-z][a-z0-9_-]{0,31})(?:@(\S+))?(?:\s+(.*))?\Z", re.IGNORECASE | re.DOTALL)
_MENTION = re.compile(r"<?@(\S+)\s+[/!]?([a-z][a-z0-9_-]{0,31})\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Typed:
    """A command as typed: its name may still be unknown."""

    name: str
    args: str


class Router:
    """Knows every command; built once at start."""

    def __init__(self, commands: Sequence[Command]) -> None:
        self._commands = {command.name: command for command in commands}

    @classmethod
    def load(cls) -> Router:
        """Collect the commands that the entry points `parlour.commands` name."""
        return cls([entry.load() for entry in sorted(installed("parlour.commands"), key=lambda e: e.name)])

    @property
    def commands(self) -> Sequence[Command]:
        """All commands, by name."""
        return [self._commands[name] for name in sorted(self._commands)]

    def typed(self, message: InboundMessage) -> Typed | None:
        """Read *message* as a command, or return None.

        `/cmd`, `!cmd` and `/cmd@bot` (when the bot is us) anywhere; `@bot cmd` only when the known
        command is the whole message. Text that begins with a path is no command, and what somebody else wrote and this
        one passed on is none. A button is what it stands for.
        """
        if message.is_forwarded or message.kind not in (InboundKind.MESSAGE, InboundKind.COMMAND, InboundKind.BUTTON):
            return None
        text = message.text.strip()
        mention = _MENTION.match(text)
        if mention and self._is_us(mention[1], message) and mention[2].lower() in self._commands:
            return Typed(mention[2].lower(), "")
        slash = _SLASH.match(text)
        if slash is None or (slash[2] and not self._is_us(slash[2], message)):
            return None
        name = slash[1].lower()
        if text.startswith("!") and name not in self._commands:
            return None  # "!important" is emphasis, not a command
        return Typed(name, (slash[3] or "").strip())

    def is_control(self, typed: Typed) -> bool:
        """Say whether the command must not wait in its lane; an unknown one is answered at once."""
        command = self._commands.get(typed.name)
        return command is None or command.passes(typed.args)

    async def run(self, typed: Typed, context: CommandContext) -> Reply:
        """Run the command, or say why not: unknown (did you mean …?), or not for this role.

        The one place where roles are checked. What was asked for a role says in its reply how the audit calls it.
        """
        command = self._commands.get(typed.name)
        if command is None:
            return Reply(text=self._unknown(typed.name, context.language), is_private=True)
        word, need = command.needs.of(typed.args)
        label = f"{command.name} {word}".strip()
        role = need.role(context)
        if not context.role.covers(role) and not (need.unless is not None and await need.unless(context)):
            text = say(f"commands.only_{role}", context.language, command=label)
            return Reply(text=text, is_private=True, audit="" if need.looks else label, outcome="refused")
        reply = await command.run(replace(context, may_all=need.may_all(context)))
        return replace(reply, audit=label if need.is_decision(context) else "")

    def audited(self, typed: Typed, context: CommandContext) -> str:
        """Return what the audit calls the command, "" for what is no decision of its sender's."""
        command = self._commands.get(typed.name)
        if command is None:
            return ""
        word, need = command.needs.of(typed.args)
        return f"{command.name} {word}".strip() if need.is_decision(context) else ""

    def _unknown(self, name: str, language: str) -> str:
        near = get_close_matches(name, self._commands, n=1)
        if near:
            return say("commands.did_you_mean", language, name=name, near=near[0])
        return say("commands.unknown", language, name=name)

    @staticmethod
    def _is_us(handle: str, message: InboundMessage) -> bool:
        return bool(message.bot) and handle.strip("<@!>").lower() == message.bot.strip("<@!>").lower()
