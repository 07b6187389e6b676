"""Commands: one router for all channels, each command one function and one entry-point line."""

from agent.commands.command_context import CommandContext as CommandContext
from agent.commands.command_context import CommandReply as CommandReply
from agent.commands.declaration import Command as Command
from agent.commands.declaration import command as command
from agent.commands.router import CommandRouter as CommandRouter
from agent.commands.router import ParsedCommand as ParsedCommand
