"""Builds the console of the page, and looks up the owners and admins among the page's users."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Protocol, runtime_checkable

from starlette.requests import HTTPConnection

from agent.chat_profiles import stored_guild
from agent.memory.scopes import chat_scope
from gateway.app.access import AccessServices
from gateway.app.channels import ConfiguredChannels, accounts_of_user
from gateway.app.context import AppContext
from gateway.app.operation_group import CONSOLE_OPERATIONS
from gateway.app.role_resolver import RoleResolver
from gateway.events import ChatKind, InboundKind, InboundMessage, Role, Sender, SessionKey
from gateway.ports import InboxRow
from gateway.ports.access import AccessChange, DecisionActor
from gateway.settings.channel_blocks import PAGE
from gateway.web_console.console_routes import WebConsole

_MOST_CHATS = 200  # in which one person's rights are looked up
_LOOKUPS = 8  # at once


class PageVisitor(Protocol):
    """The user of a page."""

    @property
    def who(self) -> str:
        """The user's name."""


@runtime_checkable
class SupportsVisitors(Protocol):
    """A channel whose users come with a browser, and are known by their login."""

    name: str

    async def visitor(self, connection: HTTPConnection) -> PageVisitor | None:
        """Return the user who makes a request; None if they have to log in."""


def build_console(context: AppContext, channels: ConfiguredChannels, access: AccessServices) -> WebConsole | None:
    """Return the console of the page; None where no page is enabled."""
    page = _find_page(channels)
    if page is None:
        return None

    async def visitor(connection: HTTPConnection) -> str | None:
        found = await page.visitor(connection)
        return None if found is None else found.who

    resolver = RoleResolver(access.judge, channels.channels)
    visitors = PageVisitors(page.name, context, access, resolver, now=context.now)
    return WebConsole(visitor, visitors, CONSOLE_OPERATIONS, prefix="" if page.name == PAGE else f"/{page.name}")


def is_console_owner(
    context: AppContext, channels: ConfiguredChannels, access: AccessServices, channel: str, who: str
) -> bool:
    """Return True if the console is at the page *channel*, and its user *who* is an owner, by any of their accounts."""
    page = _find_page(channels)
    return page is not None and page.name == channel and _is_owner(context, access, channel, who)


def _find_page(channels: ConfiguredChannels) -> SupportsVisitors | None:
    """Return the page that has the console: the block named `web`, or else the first one."""
    named = sorted(channels.channels.items(), key=lambda item: item[0] != PAGE)
    return next((channel for _, channel in named if isinstance(channel, SupportsVisitors)), None)


def _is_owner(context: AppContext, access: AccessServices, channel: str, who: str) -> bool:
    roster = access.roster
    return roster.is_owner(channel, who) or roster.is_owner_of(
        accounts_of_user(context.store.links, roster.account(channel, who))
    )


@dataclass(slots=True, eq=False)
class PageVisitors:
    """Implements `gateway.web_console.console_routes.ConsoleVisitors`.

    An admin administers a shared chat by an account of its platform that they linked to their user of the page. With
    one memory for all people (memory.isolation: shared) only owners are admitted, because a chat has no data apart.
    """

    channel: str
    context: AppContext
    access: AccessServices
    resolver: RoleResolver
    _: KW_ONLY
    now: Callable[[], datetime]

    def account(self, who: str) -> str:
        """Return *who* as the audit names them."""
        return f"{self.channel}:{who}"

    def is_owner(self, who: str) -> bool:
        """Return True if the user *who* of the page is an owner, also by another of their accounts."""
        return _is_owner(self.context, self.access, self.channel, who)

    async def is_admin(self, who: str, chat: str) -> bool:
        """Return True if *who* administers the shared chat *chat* now; its platform is asked, as for a command."""
        try:
            key = SessionKey.parse(chat)
        except ValueError:
            return False
        return await self._is_shared_chat(key) and await self._administers(who, key)

    async def list_administered_chats(self, who: str) -> Sequence[str]:
        """Return the shared chats that *who* administers now, the most recently used first."""
        chats = (await self._shared_chats())[:_MOST_CHATS]
        slots = asyncio.Semaphore(_LOOKUPS)

        async def administers(key: SessionKey) -> bool:
            async with slots:
                return await self._administers(who, key)

        found = await asyncio.gather(*map(administers, chats))
        return [str(key) for key, is_theirs in zip(chats, found, strict=True) if is_theirs]

    async def note(self, who: str, what: str, whom: str) -> None:
        """Write an audit entry about a call that is going to run."""
        actor = DecisionActor(by=self.account(who), where="", id=f"o{secrets.token_hex(8)}")
        await self.context.store.access.change(AccessChange(line=actor.to_entry(what, whom, self.now())))

    async def _is_shared_chat(self, key: SessionKey) -> bool:
        """Return True if *key* is a shared chat with sessions, and no thread of one."""
        if self.context.settings.memory.isolation == "shared" or key != key.parent:
            return False
        return await self.context.store.records.has_session(key, chat_scope(key))

    async def _shared_chats(self) -> list[SessionKey]:
        """Return the shared chats that have sessions, the most recently used first."""
        if self.context.settings.memory.isolation == "shared":
            return []
        rows = await self.context.store.records.sessions()
        found = (row.key.parent for row in rows if row.scope == chat_scope(row.key.parent))
        return list(dict.fromkeys(found))

    async def _administers(self, who: str, key: SessionKey) -> bool:
        roster, links = self.access.roster, self.context.store.links
        page = roster.account(self.channel, who)
        kind = self.context.platform(key.channel)
        for each in links.accounts_of_user(page):
            account = each.account
            if account.kind != kind or account == page:
                continue
            message = InboundMessage(
                key=key,
                message_id="rights",
                sender=Sender(id=account.id, team=account.team),
                text="",
                sent_at=self.now(),
                kind=InboundKind.COMMAND,
                chat_kind=ChatKind.GROUP,
                guild=stored_guild(self.context.store.people, key),
                is_addressed=True,
            )
            admitted = await self.resolver.current_admission(InboxRow(seq=0, message=message, accepted_at=self.now()))
            if admitted is not None and admitted.role in (Role.ADMIN, Role.OWNER):
                return True
        return False
