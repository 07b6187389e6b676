"""Builds people's logins at services, and the pages of the web server that a sign-in needs.

`/oauth/callback/NAME` is where the authorization server of a server sends a browser back to, at any gateway: the
attempt is a row. Its page has no text of another server. `/oauth/client/NAME.json` is the metadata of the client there.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

import structlog
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from agent.mcp.logins import CallbackResult, LoginServer, LoginVault, PersonLogins
from agent.mcp.oauth import OAuthClient
from agent.mcp.servers import STATE
from gateway.errors import StoreUnavailable, UserError
from gateway.events import PlatformAccount
from gateway.i18n import translate

if TYPE_CHECKING:
    from gateway.app.runtime import Runtime

log = structlog.get_logger(__name__)

_LONGEST_PARAMETER = 8_000  # characters
_STATUS = {CallbackResult.DONE: 200, CallbackResult.DENIED: 200}
_PAGE = """<!doctype html>
<html lang="{language}"><head><meta charset="utf-8"><title>Parlour</title>
<meta name="viewport" content="width=device-width, initial-scale=1"></head>
<body><p>{text}</p>{rest}</body></html>
"""


def build_logins(app: Runtime) -> PersonLogins:
    """Build the logins of people at MCP servers."""
    state, links = app.store.state(STATE), app.store.links
    key = app.settings.tools.login_key

    def accounts(account: str) -> list[str]:
        person = links.person(PlatformAccount.from_name(account))
        return [each.account.name for each in links.accounts(person)] or [account]

    def find_server(name: str) -> LoginServer | None:
        return app.mcp.login_server(name)  # which is built from these logins

    return PersonLogins(
        state,
        LoginVault(
            state,
            app.home.secrets,
            key.get_secret_value() if key else "",
            is_shared=app.settings.store.shared,
        ),
        OAuthClient(proxy=app.settings.proxy_address),
        server=find_server,
        accounts=accounts,
        address=lambda: (app.settings.web.public_url or app.web.url).rstrip("/"),
        now=app.now,
    )


def login_routes(app: Runtime) -> list[Route]:
    """Return the routes of a sign-in."""

    async def callback(request: Request) -> Response:
        given = request.query_params
        state, code, error = (given.get(name, "") for name in ("state", "code", "error"))
        if any(len(value) > _LONGEST_PARAMETER for value in given.values()) or not state:
            return _page(CallbackResult.UNKNOWN, app.settings.language)
        try:
            result, language, server, confirmation = await app.logins.take_callback(
                request.path_params["name"], state=state, code=code, issuer=given.get("iss"), error=error
            )
        except (StoreUnavailable, UserError) as wrong:
            log.warning("login.callback_failed", reason=str(wrong))
            return _page(CallbackResult.FAILED, app.settings.language)
        return _page(result, language or app.settings.language, server=server, confirmation=confirmation)

    async def client(request: Request) -> Response:
        logins, name = app.logins, request.path_params["name"]
        if name not in [each.name for each in app.mcp.servers]:
            return JSONResponse({"error": "no server has this name"}, 404)
        return JSONResponse(
            {
                "client_id": logins.document(name),
                "client_name": "Parlour",
                "redirect_uris": [logins.redirect(name)],
                "grant_types": ["authorization_code", "refresh_token"],
                "response_types": ["code"],
                "token_endpoint_auth_method": "none",
            }
        )

    return [
        Route("/oauth/callback/{name}", callback, methods=["GET"]),
        Route("/oauth/client/{name}.json", client, methods=["GET"]),
    ]


def _page(result: CallbackResult, language: str, *, server: str = "", confirmation: str = "") -> Response:
    """Return the page after a sign-in; it has no text of another server."""
    rest = ""
    if result is CallbackResult.DONE:
        warning = html.escape(translate("logins.page_warning", language))
        rest = f"<p><code>/login {html.escape(server)} {html.escape(confirmation)}</code></p><p>{warning}</p>"
    text = html.escape(translate(result, language, server=server or "?"))
    return HTMLResponse(_PAGE.format(language=html.escape(language), text=text, rest=rest), _STATUS.get(result, 400))
