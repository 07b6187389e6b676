"""Commands: one router for all channels, each command one function and one entry-point line."""

from agent.commands.command import Command as Command
from agent.commands.command import CommandContext as CommandContext
from agent.commands.command import CommandReply as CommandReply
from agent.commands.command import command as command
from agent.commands.router import CommandRouter as CommandRouter
from agent.commands.router import ParsedCommand as ParsedCommand
