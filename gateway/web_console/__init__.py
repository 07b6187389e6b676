"""The console: the operator API for a browser, over the logins of the page, with a role check on every call.

An operation that is declared without a rule cannot be reached from a browser, whatever the role. The server has
checked Host and Origin before anything here runs (gateway/web/origin_guard.py): a call is a POST, which browsers send
with the origin of the page that makes it. The caller is the user of the chat page's login.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache, partial
from importlib.resources import files
from typing import TYPE_CHECKING

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from gateway.control import Operation
from gateway.control.control_server import RunningOperation, read_arguments, respond_with
from gateway.control.registry import AuditRule, OperationDeclaration, may_call
from gateway.events import Role
from gateway.installation import operator_command
from gateway.ports.access import ACTING, actor_outside

if TYPE_CHECKING:
    from gateway.app.console import PageVisitors

log = structlog.get_logger(__name__)

_TYPES = {".js": "text/javascript", ".css": "text/css"}
_VIEWS = (
    "chats.js",
    "logs.js",
    "machine.js",
    "overview.js",
    "people.js",
    "replay.js",
    "services.js",
    "setup.js",
    "tasks.js",
    "turns.js",
    "usage.js",
)
_ASSETS = frozenset({"console.css", "console.js", "elements.js", "operations.js", *_VIEWS})
# Nothing from elsewhere, nothing inline, and no text ever becomes markup: no policy for trusted types exists.
_POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_LOG_IN = {"error": "log in first", "exit_code": 2}
_STARTING = {"error": "the gateway is starting; try again in a moment", "exit_code": 2}


class WebConsole:
    """The console of one page."""

    def __init__(
        self,
        visitors: PageVisitors,
        operations: Mapping[str, Operation],
        rules: Mapping[str, OperationDeclaration],
        *,
        prefix: str = "",
    ) -> None:
        """Of *operations*, *rules* has those that a browser may call, by name. *prefix* is the page's own path."""
        self._rules = rules
        self._visitors = visitors
        self._base = f"{prefix}/console"
        self._operations = operations
        self._running: set[RunningOperation] = set()

    async def close(self) -> None:
        """Cancel the operations that still run, and wait for their end."""
        self._operations = {}
        for operation in tuple(self._running):
            await operation.cancel()

    def routes(self) -> list[BaseRoute]:
        """Return the routes: the page and its files without a login, the rest by role."""
        return [
            Route(self._base, _page, methods=["GET"]),
            Route(f"{self._base}/assets/{{name}}", _asset, methods=["GET"]),
            Route(f"{self._base}/session", self._session, methods=["GET"]),
            *(
                Route(f"{self._base}/v1/{name.replace(' ', '/')}", partial(self._call, name, rule), methods=["POST"])
                for name, rule in self._rules.items()
            ),
        ]

    async def _session(self, request: Request) -> Response:
        """Return the visitor's account and role, and the chats that they administer."""
        who = await self._visitors.find(request)
        if who is None:
            return JSONResponse(_LOG_IN, 401)
        if self._visitors.is_owner(who):
            return JSONResponse({"who": self._visitors.account(who), "role": Role.OWNER, "chats": []})
        chats = list(await self._visitors.list_administered_chats(who))
        role, status = (Role.ADMIN.value, 200) if chats else ("nobody", 403)
        return JSONResponse({"who": self._visitors.account(who), "role": role, "chats": chats}, status)

    async def _call(self, name: str, rule: OperationDeclaration, request: Request) -> Response:
        who = await self._visitors.find(request)
        if who is None:
            return JSONResponse(_LOG_IN, 401)
        try:
            arguments = await read_arguments(request)
        except HTTPException as refused:
            return JSONResponse({"error": refused.detail, "exit_code": 2}, refused.status_code)
        subject = str(arguments.get(rule.subject, "")) if rule.subject else ""
        if not await may_call(self._visitors, who, rule, arguments):
            log.warning("console.refused", operation=name, who=self._visitors.account(who))
            return JSONResponse({"error": f"only an owner of this bot may use `{name}` here", "exit_code": 2}, 403)
        if unknown := arguments.keys() - rule.console:
            error = f"{name} has no argument {', '.join(sorted(unknown))} here"
            return JSONResponse({"error": error, "exit_code": 2}, 400)
        run = self._operations.get(name)
        if run is None:
            return JSONResponse(_STARTING, 503)
        if rule.audit is AuditRule.CALL:
            await self._visitors.record_call(who, f"console {name}", subject)
        # The operation runs in a task of its own, which takes this context along.
        token = ACTING.set(actor_outside(self._visitors.account(who)))
        try:
            return await respond_with(name, run(arguments), self._running)
        finally:
            ACTING.reset(token)


async def _page(request: Request) -> Response:
    return _answer(request, "index.html", "text/html", {"Content-Security-Policy": _POLICY})


async def _asset(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _ASSETS:
        return Response(status_code=404)
    return _answer(request, name, _TYPES[name[name.rindex(".") :]], {})


def _answer(request: Request, name: str, media_type: str, headers: dict[str, str]) -> Response:
    body, tag = _file(name)
    headers = {"Cache-Control": "no-cache", "ETag": tag, **headers}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers)


@cache
def _file(name: str) -> tuple[bytes, str]:
    """Return a file of the page and its ETag; the page names the command as it is typed for this installation."""
    body = (files("gateway.web_console") / "page" / name).read_bytes()
    if name == "index.html":
        body = body.replace(b"parlour web login", operator_command("web login").encode())
    return body, f'"{hashlib.sha256(body).hexdigest()[:32]}"'
