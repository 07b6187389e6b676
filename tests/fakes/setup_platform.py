"""A small platform with a token and rights, and a kind that can be set up on it; for init and doctor."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiohttp
from aiohttp import web
from pydantic import BaseModel, SecretStr, field_validator

from gateway.ports.setup import Finding, SetupQuestion, fail, ok, warn
from tests.fakes.loopback import serve_app

TOKEN = "parrot-canary-0123456789"
_Held = TypeVar("_Held")


@dataclass(slots=True)
class SetupPlatform:
    """The platform: which tokens it knows, and what a bot may not do there."""

    base: str = ""
    tokens: set[str] = field(default_factory=lambda: {TOKEN})
    missing: str = ""  # a right that nobody granted
    calls: int = 0

    async def whoami(self, request: web.Request) -> web.Response:
        """Say whose token it is."""
        self.calls += 1
        if request.headers.get("Authorization") not in {f"Bot {token}" for token in self.tokens}:
            raise web.HTTPUnauthorized
        return web.json_response({"name": "polly", "missing": self.missing})


@asynccontextmanager
async def open_aviary(aviary: SetupPlatform) -> AsyncIterator[SetupPlatform]:
    """Serve it on loopback."""
    app = web.Application()
    app.router.add_get("/me", aviary.whoami)
    async with serve_app(app) as place:
        aviary.base = f"http://{place}"
        yield aviary


class SetupPlatformSettings(BaseModel):
    """The block of a parrot."""

    token: SecretStr | None = None
    base_url: str = "http://127.0.0.1:9"

    @field_validator("token")
    @classmethod
    def _shape(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None and not token.get_secret_value().startswith("parrot-"):
            raise ValueError("is no parrot's token; it begins with parrot-")
        return token


class SetupPlatformPlugin:
    """Implements `gateway.ports.setup.SupportsSetup`."""

    title = "Parrot"
    steps: Sequence[str] = ("Open the cage.", "Copy the ring's number.")

    def questions(self) -> Sequence[SetupQuestion]:
        """A token, who may write, and nothing else."""
        return (
            SetupQuestion(setting="token", text="Ring", help="It stands on the leg.", is_secret=True),
            SetupQuestion(setting="allow_from", text="Who may write", is_optional=True),
        )

    async def verify(self, settings: Any, environment: Mapping[str, str]) -> Sequence[Finding]:
        """Ask the platform whose token it is, and what is missing."""
        headers = {"Authorization": f"Bot {settings.token.get_secret_value()}"}
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{settings.base_url}/me", headers=headers) as answer,
        ):
            if answer.status == 401:
                return [fail("the ring is not known; read it again", about="token")]
            me = await answer.json()
        if me["missing"]:
            return [warn(f"it cannot {me['missing']}; click Teach", about="rights")]
        return [ok(f"this is {me['name']}", about="token")]


@contextmanager
def in_the_background(held: AbstractAsyncContextManager[_Held]) -> Iterator[_Held]:
    """Hold an async context on a loop of its own thread, for tests of what runs loops itself."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="servers")
    thread.start()
    try:
        value = asyncio.run_coroutine_threadsafe(held.__aenter__(), loop).result(20)
        try:
            yield value
        finally:
            asyncio.run_coroutine_threadsafe(held.__aexit__(None, None, None), loop).result(20)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
