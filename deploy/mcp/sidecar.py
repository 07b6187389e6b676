"""Offers the tools of an MCP server that speaks over stdin and stdout on a port, by Streamable HTTP.

    python -I sidecar.py COMMAND [ARGUMENT…]

It runs in a container of its own (deploy/compose.mcp.yml): the gateway starts no program, and the server sees neither
the gateway's files nor its keys. When the server ends, so does this, and the container starts again.
"""

import asyncio
import os
import sys
from typing import Any

import uvicorn
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.server.lowlevel.server import Server
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams

ALL = "0.0.0.0"  # noqa: S104 - of the container, which has no port of the machine
PORT = int(os.environ.get("PORT", "8000"))
CHECK_EVERY = float(os.environ.get("CHECK_EVERY", "5"))  # seconds between two looks at the server
NOT_PASSED = frozenset({"PORT", "CHECK_EVERY"})  # all else of the environment is for the server
CALL_WITHIN = 60.0  # seconds


async def serve(command: str, arguments: list[str]) -> int:
    """Serve the tools of *command* until it ends (return 1), or this process is to end (return 0)."""
    environment = {name: value for name, value in os.environ.items() if name not in NOT_PASSED}
    program = StdioServerParameters(command=command, args=arguments, env=environment)
    async with Client(program, cache=None, input_required_max_rounds=0, read_timeout_seconds=CALL_WITHIN) as client:

        async def list_tools(_: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
            return await client.list_tools(cursor=params.cursor if params is not None else None)

        async def call_tool(_: Any, params: CallToolRequestParams) -> CallToolResult:
            return await client.call_tool(params.name, params.arguments or {})

        server = Server("sidecar", on_list_tools=list_tools, on_call_tool=call_tool)
        # Only the gateway shares its network, and calls it by any name.
        security = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        app = server.streamable_http_app(stateless_http=True, host=ALL, transport_security=security)
        web = uvicorn.Server(uvicorn.Config(app, host=ALL, port=PORT, log_level="warning"))
        watching = asyncio.create_task(stop_when_silent(client, web))
        try:
            await web.serve()
            return int(watching.done())
        finally:
            watching.cancel()


async def stop_when_silent(client: Client, web: uvicorn.Server) -> None:
    """Stop *web* when the server has ended."""
    try:
        while True:
            await asyncio.sleep(CHECK_EVERY)
            await client.list_tools()
    except Exception as error:  # noqa: BLE001 - whatever it is, the container starts again
        print(f"the server has ended or does not answer ({type(error).__name__})", file=sys.stderr)
        web.should_exit = True


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("name the command of the server")
    sys.exit(asyncio.run(serve(sys.argv[1], sys.argv[2:])))
