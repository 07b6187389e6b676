"""Operator commands for logins to the page."""

from __future__ import annotations

from collections.abc import AsyncIterator

from gateway.app.gateway_operations import NO_GATEWAY
from gateway.app.operation_group import OperationGroup, operation
from gateway.control import Line
from gateway.errors import UserError
from gateway.ports.channel_support import SupportsLogin
from gateway.settings.channel_blocks import PAGE


class WebOperations(OperationGroup):
    """The operations `web login|logins|logout`."""

    @operation("web login")
    async def login(self, arguments: Line) -> AsyncIterator[Line]:
        """Yield a login code, the page's address and, where it has a public one, a link with the code."""
        page, name = self._page(), str(arguments.get("as", ""))
        code = await page.issue_code(name)
        public = self._app.settings.web.public_url
        below = "" if page.name == PAGE else f"{page.name}/"
        # A fragment stays in the browser: no log of a server or proxy contains it.
        link = f"{public.rstrip('/')}/{below}#code={code}" if public else ""
        address = f"{(public or self._app.web.url).rstrip('/')}/{below}"
        yield {"code": code, "as": name, "link": link, "page": address}

    @operation("web logins")
    async def logins(self, _: Line) -> AsyncIterator[Line]:
        """Yield one line per person who is logged in."""
        for each in await self._page().logged_in():
            yield dict(each)

    @operation("web logout")
    async def logout(self, arguments: Line) -> AsyncIterator[Line]:
        """End every login of one person."""
        who = str(arguments.get("who", ""))
        browsers = await self._page().log_out(who)
        if not browsers:
            raise UserError(
                f"no user {who!r} is logged in or has a valid login code; `parlour web logins` lists all logins"
            )
        yield {"who": who, "browsers": browsers}

    def _page(self) -> SupportsLogin:
        channels = sorted(self._app.channels.items(), key=lambda item: item[0] != PAGE)
        pages = [channel for _, channel in channels if isinstance(channel, SupportsLogin)]
        if not pages:
            switched_off = "the page is disabled; set channels.web.enabled to true"
            raise UserError(switched_off if self._app.channels else NO_GATEWAY)
        return pages[0]
