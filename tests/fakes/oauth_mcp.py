"""An MCP server of the SDK's own whose people sign in, and its authorization server, over HTTP in this process."""

from __future__ import annotations

import asyncio
import secrets
import socket
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    RefreshToken,
    TokenError,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, RevocationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl, AnyUrl
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

CLIENT, SECRET = "parlour-at-home", "the secret of the client"


class AuthorizationServer:
    """Signs in whoever opens the link as `user`, and rotates refresh tokens as strictly as it may."""

    def __init__(self) -> None:
        self.url = ""  # of the MCP server
        self.user = "ann@tracker"
        self.iss: str | None = None  # sent with the code; None: none
        self.lifetime = 3_600
        self.redirects: list[str] = []
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.refreshes: dict[str, RefreshToken] = {}
        self.accesses: dict[str, AccessToken] = {}
        self.asked: list[tuple[str, str]] = []  # requests: path, and the body of those for tokens
        self.metadata: dict[str, Any] = {}  # beyond what the SDK says
        self.answers: dict[str, Callable[[], Any]] = {}  # responses in place of the SDK's, by path
        self.seen: list[str] = []  # tokens that the MCP server was sent
        self.is_denied = False

    @property
    def issuer(self) -> str:
        """Its address."""
        return self.url.removesuffix("/mcp")

    def register(self, redirect: str, *, secret: str | None = SECRET, name: str = CLIENT) -> None:
        """Register this gateway, as its operator does in a browser."""
        self.clients[name] = OAuthClientInformationFull(
            client_id=name,
            client_secret=secret,
            redirect_uris=[AnyUrl(redirect)],
            token_endpoint_auth_method="client_secret_post" if secret else "none",
        )

    # -- the SDK's provider ------------------------------------------------------------------------

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        raise NotImplementedError

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        if self.is_denied:
            return construct_redirect_uri(str(params.redirect_uri), error="access_denied", state=params.state)
        code = secrets.token_urlsafe(24)
        self.codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or [],
            expires_at=2**40,
            client_id=client.client_id or "",
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
            subject=self.user,
        )
        extra = {} if self.iss is None else {"iss": self.iss}
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state, **extra)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        return self._give(client, authorization_code.subject or "", authorization_code.resource)

    async def load_refresh_token(self, client: OAuthClientInformationFull, refresh_token: str) -> RefreshToken | None:
        return self.refreshes.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        if refresh_token.token not in self.refreshes:
            raise TokenError("invalid_grant")
        del self.refreshes[refresh_token.token]
        return self._give(client, refresh_token.subject or "", refresh_token.resource)

    async def load_access_token(self, token: str) -> AccessToken | None:
        self.seen.append(token)
        return self.accesses.get(token)

    async def exchange_identity_assertion(self, client: Any, params: Any) -> OAuthToken:
        raise NotImplementedError

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.refreshes.pop(token.token, None)
        for name in [each for each, found in self.accesses.items() if found.subject == token.subject]:
            del self.accesses[name]

    def _give(self, client: OAuthClientInformationFull, user: str, resource: str | None) -> OAuthToken:
        facts: dict[str, Any] = {
            "client_id": client.client_id or "",
            "scopes": [],
            "resource": resource,
            "subject": user,
        }
        access, refresh = f"access-{secrets.token_urlsafe(24)}", f"refresh-{secrets.token_urlsafe(24)}"
        self.accesses[access] = AccessToken(token=access, **facts)
        self.refreshes[refresh] = RefreshToken(token=refresh, **facts)
        return OAuthToken(access_token=access, refresh_token=refresh, expires_in=self.lifetime)


def _build(server: AuthorizationServer, created: list[tuple[str, str]]) -> Any:
    with warnings.catch_warnings(action="ignore"):
        auth = AuthSettings(
            issuer_url=AnyHttpUrl(server.issuer),
            resource_server_url=AnyHttpUrl(server.url),
            revocation_options=RevocationOptions(enabled=True),
            validate_token_resource=True,
        )
    mcp = MCPServer("tracker", log_level="ERROR", auth=auth, auth_server_provider=server)

    def user() -> str:
        token = get_access_token()
        assert token is not None
        return token.subject or ""

    @mcp.tool()
    def my_issues() -> str:
        """List the issues of the person."""
        return f"issues of {user()}"

    @mcp.tool()
    async def create_issue(title: str) -> str:
        """Create an issue."""
        created.append((user(), title))
        return f"created: {title}"

    return mcp.streamable_http_app()


def _watch(server: AuthorizationServer, app: Any) -> Any:
    """Return *app* with the metadata and answers of the test."""

    async def metadata(_: Request) -> Response:
        return JSONResponse(
            {
                "issuer": server.issuer,
                "authorization_endpoint": f"{server.issuer}/authorize",
                "token_endpoint": f"{server.issuer}/token",
                "revocation_endpoint": f"{server.issuer}/revoke",
                "response_types_supported": ["code"],
                "code_challenge_methods_supported": ["S256"],
                "token_endpoint_auth_methods_supported": ["client_secret_post", "none"],
                **server.metadata,
            }
        )

    app.router.routes.insert(0, Route("/.well-known/oauth-authorization-server", metadata))

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        """Note requests, and answer those that a test answers itself."""
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        path, body = scope["path"], b""
        if path == "/token":
            request = Request(scope, receive)
            body = await request.body()

            async def receive_again() -> Any:
                return {"type": "http.request", "body": body, "more_body": False}

            receive = receive_again
        server.asked.append((path, body.decode()))
        if path in server.answers:
            found = server.answers[path]()
            found = await found if asyncio.iscoroutine(found) else found
            if found is not None:
                await found(scope, receive, send)
                return
        await app(scope, receive, send)

    return watched


@asynccontextmanager
async def oauth_mcp_server(
    server: AuthorizationServer | None = None, created: list[tuple[str, str]] | None = None
) -> AsyncIterator[tuple[AuthorizationServer, list[tuple[str, str]]]]:
    """Run both on one port of this machine; yield the authorization server, and what people have created."""
    server, created = server or AuthorizationServer(), [] if created is None else created
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server.url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        config = uvicorn.Config(_watch(server, _build(server, created)), log_level="error", timeout_graceful_shutdown=1)
        running = uvicorn.Server(config)
        running.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        serving = asyncio.create_task(running.serve(sockets=[listener]))
        try:
            yield server, created
        finally:
            running.should_exit = True
            await serving
