"""An MCP server over stdin and stdout, as a program: two tools, of which one ends it."""

import os

from mcp.server.mcpserver import MCPServer

server = MCPServer("notes", log_level="ERROR")


@server.tool()
def environment(name: str) -> str:
    """Return a variable of the environment."""
    return os.environ.get(name, "(not set)")


@server.tool()
def end() -> str:
    """End the program."""
    os._exit(1)


if __name__ == "__main__":
    server.run()
