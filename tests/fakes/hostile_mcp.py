"""An MCP server of the old protocol that behaves as badly as it is told."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

Answer = Callable[[web.Request, Mapping[str, Any]], Any]


class HostileServer:
    """Answers each method of the protocol as `answers` says: a result, an exception to raise, or a response."""

    def __init__(self) -> None:
        self.url = ""
        self.sessions = 0
        self.calls: list[Mapping[str, Any]] = []
        self.seen: list[web.Request] = []
        self.tools: list[Mapping[str, Any]] = [tool("act")]
        self.is_session_known = True
        self.answers: dict[str, Answer] = {}

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request."""
        self.seen.append(request)
        if request.method != "POST":
            return web.Response(status=405)
        message = await request.json()
        method, number = message.get("method", ""), message.get("id")
        if number is None:
            return web.Response(status=202)
        if method == "server/discover":
            return web.json_response(_error(number, -32601, "no such method"))
        if method != "initialize" and not self.is_session_known:
            return web.Response(status=404)
        if method in self.answers:
            found = self.answers[method](request, message)
            found = await found if asyncio.iscoroutine(found) else found
            if isinstance(found, web.StreamResponse):
                return found
            return web.json_response({"jsonrpc": "2.0", "id": number, "result": found})
        headers = {}
        if method == "initialize":
            self.sessions += 1
            self.is_session_known = True
            headers["Mcp-Session-Id"] = f"s{self.sessions}"
        return web.json_response({"jsonrpc": "2.0", "id": number, "result": self._result(message)}, headers=headers)

    def _result(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        match message["method"]:
            case "initialize":
                return {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "hostile", "version": "1"},
                }
            case "tools/list":
                return {"tools": self.tools}
            case "tools/call":
                self.calls.append(message["params"])
                return {"content": [{"type": "text", "text": "acted"}]}
            case _:
                return {}


def tool(name: str, description: str = "Act.", schema: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """Return a tool as a server lists it."""
    return {"name": name, "description": description, "inputSchema": schema or {"type": "object", "properties": {}}}


def _error(number: object, code: int, text: str) -> Mapping[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": text}}


def packed(request: web.Request, message: Mapping[str, Any]) -> web.Response:
    """Return a small body that unpacks to a large one."""
    body = gzip.compress(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": "x" * 50_000_000}).encode())
    return web.Response(body=body, headers={"Content-Encoding": "gzip", "Content-Type": "application/json"})


@asynccontextmanager
async def hostile_server() -> AsyncIterator[HostileServer]:
    """Run one on this machine."""
    server = HostileServer()
    app = web.Application()
    app.router.add_route("*", "/mcp", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    try:
        yield server
    finally:
        await runner.cleanup()
