"""Commands: one router for all channels, each command one function and one entry-point line."""

from agent.commands.declared import Command as Command
from agent.commands.declared import command as command
from agent.commands.port import CommandContext as CommandContext
from agent.commands.port import House as House
from agent.commands.port import Reply as Reply
from agent.commands.router import Router as Router
from agent.commands.router import Typed as Typed
