"""Tools of MCP servers: pinned by the operator, called through a confined child process."""
