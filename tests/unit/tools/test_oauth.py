"""Metadata and tokens of authorization servers that are wrong, hostile, huge or silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from agent.mcp import oauth
from agent.mcp.client import ServerAddress
from agent.mcp.oauth import GrantedTokens, LoginConfig, OAuthClient, OAuthFailed, parse_scopes, sign_in_address
from gateway.net import public_http
from tests.fakes.hostile_mcp import hostile_server


class Metadata:
    """A web server of both metadata and the tokens, as a test sets them."""

    def __init__(self) -> None:
        self.origin = ""
        self.resource: Any = {}
        self.issuer: Any = {}
        self.tokens: Any = {"access_token": "a", "token_type": "Bearer"}
        self.paths: list[str] = []

    @property
    def server(self) -> ServerAddress:
        """The MCP server."""
        return ServerAddress(name="tracker", url=f"{self.origin}/mcp", is_private=True)

    @property
    def config(self) -> LoginConfig:
        """How people sign in to it."""
        return LoginConfig(
            resource=f"{self.origin}/mcp",
            issuer=self.origin,
            authorize=f"{self.origin}/authorize",
            token=f"{self.origin}/token",
            client_id="c",
            is_private=True,
        )

    def reset(self) -> None:
        """Begin with what is right."""
        self.resource = {"resource": f"{self.origin}/mcp", "authorization_servers": [self.origin]}
        self.issuer = {
            "issuer": self.origin,
            "authorization_endpoint": f"{self.origin}/authorize",
            "token_endpoint": f"{self.origin}/token",
            "code_challenge_methods_supported": ["S256"],
        }

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request."""
        self.paths.append(request.path)
        for part, value in (("protected-resource", self.resource), ("-server", self.issuer), ("token", self.tokens)):
            if part in request.path:
                found = await value(request) if callable(value) else value
                return found if isinstance(found, web.StreamResponse) else web.json_response(found)
        return web.Response(status=404)


@asynccontextmanager
async def metadata() -> AsyncIterator[Metadata]:
    """Run one on this machine."""
    server, app = Metadata(), web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.origin = f"http://127.0.0.1:{runner.addresses[0][1]}"
    server.reset()
    try:
        yield server
    finally:
        await runner.cleanup()


async def test_metadata_are_read_without_a_refusal() -> None:
    """The MCP server itself is not asked; the resource is the most exact one."""
    async with metadata() as server:
        found = await OAuthClient(proxy="").read_metadata(server.server)
        assert server.paths == ["/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-authorization-server"]
        assert (found.resource, found.issuer, found.takes_documents) == (f"{server.origin}/mcp", server.origin, False)


@pytest.mark.parametrize(
    ("where", "change", "expected"),
    [
        ("resource", {"resource": "https://other.example/mcp"}, "describes another address"),
        ("resource", {"resource": 7}, "describes another address"),
        ("resource", {"authorization_servers": ["http://127.0.0.1:1/"]}, "not at an https address"),
        ("resource", {"authorization_servers": ["http://["]}, "no web address"),
        ("resource", {"authorization_servers": ["https://user:x@example.com"]}, "user name"),
        ("issuer", {"issuer": "https://other.example"}, "describes another one"),
        ("issuer", {"code_challenge_methods_supported": ["plain"]}, "PKCE"),
        ("issuer", {"token_endpoint": None}, "no token_endpoint"),
        ("issuer", {"token_endpoint": "http://169.254.169.254/token"}, "not at an https address"),
        ("issuer", {"authorization_endpoint": "javascript:alert(1)"}, "only http and https"),
        ("issuer", {"authorization_endpoint": "https://example.com/a#b"}, "#"),
        ("issuer", {"authorization_endpoint": f"https://example.com/{'a' * 3000}"}, "longer than"),
    ],
)
async def test_wrong_metadata_are_refused(where: str, change: dict[str, Any], expected: str) -> None:
    """Each with what is wrong with it."""
    async with metadata() as server:
        getattr(server, where).update(change)
        with pytest.raises(OAuthFailed, match=expected):
            await OAuthClient(proxy="").read_metadata(server.server)


async def test_a_public_server_cannot_name_an_address_within() -> None:
    """By number, by name and by a redirect: nothing there is asked."""
    async with metadata() as inner, metadata() as server:
        inner.paths.clear()
        server.resource = {**server.resource, "authorization_servers": [inner.origin.replace("http:", "https:")]}
        with pytest.raises(OAuthFailed, match="not on the public internet"):
            await OAuthClient(proxy="").read_metadata(server.server)

        async def inward(_: web.Request) -> web.Response:
            return web.Response(status=307, headers={"Location": f"{inner.origin}/.well-known/x"})

        server.reset()
        server.issuer = inward
        with pytest.raises(OAuthFailed, match="redirects"):
            await OAuthClient(proxy="").read_metadata(server.server)
        assert inner.paths == []
        public = ServerAddress(name="tracker", url=f"{server.origin}/mcp")
        server.paths.clear()
        with pytest.raises(OAuthFailed, match="not on the public internet"):
            await OAuthClient(proxy="").read_metadata(public)
        assert server.paths == []


async def test_a_private_issuer_cannot_name_a_token_endpoint_within() -> None:
    """Private is the issuer's own address alone: nothing else there is sent a code or a token."""
    async with metadata() as inner, metadata() as server:
        config = replace(server.config, token=f"{inner.origin}/token", revoke=f"{inner.origin}/token")
        client = OAuthClient(proxy="")
        for request in (
            client.refresh(config, "", "r"),
            client.redeem(config, "", code="c", verifier="v", redirect="https://me.example"),
            client.revoke(config, "", "r"),
        ):
            with pytest.raises(OAuthFailed, match="not on the public internet"):
                await request
        assert inner.paths == []


async def test_a_silent_server_takes_no_turn_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ask it, and those that wait for their turn end too."""
    monkeypatch.setattr(oauth, "_WITHIN", 1.0)
    is_asked = asyncio.Event()

    async def hang(_: web.Request) -> web.Response:
        is_asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with metadata() as silent, metadata() as server:
        silent.tokens = hang
        client = OAuthClient(proxy="")
        waiting = [asyncio.create_task(client.refresh(silent.config, "", "r")) for _ in range(24)]
        await is_asked.wait()
        assert (await client.refresh(server.config, "", "r")).access == "a"
        assert len(silent.paths) <= 8
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert {str(each) for each in ended} == {"127.0.0.1: no response within 1 seconds"}


async def test_huge_answers_are_cut_off() -> None:
    """At 64 KB, plain or packed; not an object, and nested too deep."""
    async with metadata() as server:
        server.issuer = {**server.issuer, "x": "y" * 100_000}
        with pytest.raises(OAuthFailed, match="more than 64 KB"):
            await OAuthClient(proxy="").read_metadata(server.server)

        async def deep(_: web.Request) -> web.Response:
            return web.Response(body=b"[" * 60_000)

        server.issuer = deep
        with pytest.raises(OAuthFailed, match="did not answer as"):
            await OAuthClient(proxy="").read_metadata(server.server)


async def test_a_silent_token_endpoint_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """In seconds: ten as a rule, fewer here."""
    monkeypatch.setattr(public_http, "_FIRST_BYTE", 0.2)

    async def hang(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with metadata() as server:
        server.tokens = hang
        with pytest.raises(OAuthFailed, match="no response") as failed:
            await OAuthClient(proxy="").refresh(server.config, "", "r")
        assert not failed.value.is_refused


@pytest.mark.parametrize(
    "answer",
    [
        {"access_token": "a\r\nX: y", "token_type": "Bearer"},
        {"access_token": "", "token_type": "Bearer"},
        {"access_token": "a" * 20_000, "token_type": "Bearer"},
        {"access_token": ["a"], "token_type": "Bearer"},
        {"access_token": "a", "token_type": "mac"},
        {"access_token": "a", "token_type": "Bearer", "refresh_token": 5},
        ["a"],
    ],
)
async def test_tokens_that_cannot_be_sent_are_refused(answer: Any) -> None:
    """A header must not end in one, and none is longer than 16,384 characters."""
    async with metadata() as server:
        server.tokens = answer
        with pytest.raises(OAuthFailed) as failed:
            await OAuthClient(proxy="").refresh(server.config, "", "r")
        assert not failed.value.is_refused


@pytest.mark.parametrize(
    ("body", "status", "is_refused"),
    [
        ({"error": "invalid_grant"}, 400, True),
        ({"error": "bad_refresh_token", "error_description": "x"}, 200, True),
        ({"error": "slow_down", "access_token": "a", "token_type": "Bearer"}, 200, False),
        ({"error": "temporarily_unavailable"}, 503, False),
        ({"error": "<b>" * 99, "error_description": "x"}, 400, False),
        ({}, 500, False),
    ],
)
async def test_only_a_grant_that_is_over_is_over(body: Any, status: int, is_refused: bool) -> None:
    """A server that is down for a while must not cost a login. Its text is not repeated."""

    async def refuse(_: web.Request) -> web.Response:
        return web.json_response(body, status=status)

    async with metadata() as server:
        server.tokens = refuse
        with pytest.raises(OAuthFailed) as failed:
            await OAuthClient(proxy="").refresh(server.config, "", "r")
        assert failed.value.is_refused == is_refused
        assert "<b>" not in str(failed.value)


@pytest.mark.parametrize(
    ("lifetime", "expected"), [(60, 60), ("60", 60), (-1, None), (1e300, None), ("x", None), (None, None), ([], None)]
)
async def test_a_lifetime_is_a_number_or_unknown(lifetime: Any, expected: int | None) -> None:
    """Servers write what they like there."""
    async with metadata() as server:
        server.tokens = {**server.tokens, "expires_in": lifetime}
        found = await OAuthClient(proxy="").refresh(server.config, "", "r")
        assert found == GrantedTokens(access="a", refresh="r", lifetime=expected)


async def test_a_server_without_metadata_is_not_signed_in_to() -> None:
    """It is not asked for a token either."""
    async with hostile_server() as server:
        with pytest.raises(OAuthFailed, match="no metadata for signing in"):
            await OAuthClient(proxy="").read_metadata(ServerAddress(name="h", url=server.url, is_private=True))


def test_scopes_and_the_address_are_escaped() -> None:
    """A scope is a word; what is in the address ends no parameter."""
    with pytest.raises(OAuthFailed):
        parse_scopes('a"b')
    config = LoginConfig(
        resource="https://x.example/mcp",
        issuer="https://x.example",
        authorize="https://x.example/a?tenant=1",
        token="https://x.example/t",
        client_id="a&b=c",
        scopes=("read", "write"),
    )
    url = sign_in_address(config, redirect="https://me.example/oauth/callback", state="s", verifier="v" * 43)
    assert url.startswith("https://x.example/a?tenant=1&response_type=code&client_id=a%26b%3Dc&")
    assert "&scope=read%20write" in url
    assert "code_challenge_method=S256" in url
    assert "resource=https%3A%2F%2Fx.example%2Fmcp" in url or "resource=https%3A//x.example/mcp" in url
