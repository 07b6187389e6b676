"""A gateway whose page has an owner, two admins of shared chats, and a member; each has a browser that is logged in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp

from channels.web.adapter import WebChannel
from gateway.admission import policy_of
from gateway.channel import Channel, ChannelContext
from gateway.events import InboundMessage, PlatformAccount, Sender
from gateway.ports.access import ScopeMove
from tests.fakes.inprocess_gateway import InProcessChannel, InProcessGateway, InProcessPlugin, InstantModel, gateway

ADMINS = {"room": "ann", "other": "eve"}  # of each shared chat
LOGINS = {"owner": "", "admin of the chat": "ann", "admin of another chat": "eve", "member": "bob", "no login": None}


class AdministeredChannel(InProcessChannel):
    """A platform that says who administers a chat now."""

    def __init__(self, context: ChannelContext) -> None:
        super().__init__(context)
        self.admins = dict(ADMINS)

    async def sender(self, message: InboundMessage) -> Sender:
        """Return the sender as the platform knows them."""
        return replace(message.sender, is_admin=self.admins.get(message.key.parent.chat) == message.sender.id)


class AdministeredPlugin(InProcessPlugin):
    """The kind `pocket`, with admins."""

    def open(self, context: ChannelContext) -> Channel:
        """Build the channel."""
        self.channel = AdministeredChannel(context)
        return self.channel


@dataclass(slots=True)
class ConsolePeople:
    """The gateway, and a client for each role."""

    up: InProcessGateway
    clients: Mapping[str, aiohttp.ClientSession]

    @property
    def url(self) -> str:
        """Where the page is."""
        return self.up.app.web.url

    async def call(self, role: str, name: str, **arguments: Any) -> tuple[int, str]:
        """Call an operation from the console of *role*; return the status and the body."""
        address = f"{self.url}console/v1/{name.replace(' ', '/')}"
        async with self.clients[role].post(address, json=arguments, headers=self.origin) as answer:
            return answer.status, await answer.text()

    @property
    def origin(self) -> dict[str, str]:
        """The header that a browser sends with what the page does."""
        return {"Origin": self.url.rstrip("/")}


@asynccontextmanager
async def console_people(
    home: Path | None = None, *, model: Any = None, environment: Mapping[str, str] | None = None
) -> AsyncIterator[ConsolePeople]:
    """Run the gateway with a message in each chat; Ann and Eve have linked their users of the page."""
    people = ("ann", "eve", "bob", "chat:room", "chat:other")
    policy = policy_of("pocket", people, ("pocket:boss",), "mention")
    settings = {"PARLOUR_WEB__LOGIN": "always", **(environment or {})}
    async with (
        gateway(
            home=home, model=model or InstantModel(), policy=policy, kind=AdministeredPlugin(), environment=settings
        ) as up,
        AsyncExitStack() as stack,
    ):
        for chat, admin in ADMINS.items():
            await up.channel.ask(chat, f"said in the {chat}", sender=admin, group=True, is_addressed=True)
            await up.channel.ask(admin, f"a secret of {admin}", sender=admin)
            source, target = (f"people/{PlatformAccount(kind=kind, id=admin).name}" for kind in ("web", "pocket"))
            move = ScopeMove(id=f"link:{admin}", kind="link", source=source, target=target, at=datetime.now(UTC))
            await up.app.store.links.link(move)
            await up.app.store.links.mark_moved(move)
        await up.idle()
        clients = {}
        for role, name in LOGINS.items():
            jar = aiohttp.CookieJar(unsafe=True)
            clients[role] = await stack.enter_async_context(aiohttp.ClientSession(cookie_jar=jar))
            if name is not None:
                await log_in(up, clients[role], name)
        yield ConsolePeople(up, clients)


async def log_in(up: InProcessGateway, client: aiohttp.ClientSession, name: str) -> None:
    """Log *client* in as the user *name* of the page; "" is the owner."""
    page = up.app.channels["web"]
    assert isinstance(page, WebChannel)
    url = up.app.web.url
    code = await page.issue_code(name)
    async with client.post(f"{url}login", json={"code": code}, headers={"Origin": url.rstrip("/")}) as answer:
        assert answer.status == 204
