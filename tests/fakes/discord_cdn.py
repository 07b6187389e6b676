"""Where the small Discord keeps files: signed addresses that end after a day (docs: "Signed Attachment CDN URLs")."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

from aiohttp import web

if TYPE_CHECKING:
    from tests.fakes.discord_server import DiscordServer

LASTS = timedelta(hours=24)
_PIECE = 1 << 16


class DiscordCdn:
    """The files of one Discord, and the addresses under which they can be had."""

    def __init__(self, discord: DiscordServer) -> None:
        self._discord = discord
        self._serial = count(8001)
        self.files: dict[str, tuple[str, bytes]] = {}  # by attachment id
        self.served: list[str] = []  # attachment ids, in the order of asking
        self.sent = 0  # bytes that left
        self.redirects_to = ""  # where the next download is sent instead
        self.breaks_after = 0  # bytes, once

    def keep(self, name: str, data: bytes, **facts: Any) -> dict[str, Any]:
        """Keep a file and return its attachment object."""
        ident = str(next(self._serial))
        name = name.replace(" ", "_")  # Discord does so
        self.files[ident] = (name, data)
        facts = {"id": ident, "filename": name, "size": len(data), **facts}
        address = self._address(ident, name)
        return facts | {"url": address, "proxy_url": address}

    def sign(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return *message* with fresh addresses, as every answer over REST has."""
        fresh = [
            {**each, "url": self._address(each["id"], each["filename"])} if each["id"] in self.files else each
            for each in message["attachments"]
        ]
        return {**message, "attachments": fresh}

    def _address(self, ident: str, name: str) -> str:
        ends = int((self._discord.now() + LASTS).timestamp())
        return f"http://{self._discord.base}/attachments/1/{ident}/{name}?ex={ends:x}&is=0&hm=canary"

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Send a file, if its address still holds."""
        ident = request.match_info["ident"]
        assert "Authorization" not in request.headers, "the token is nobody's there"
        self.served.append(ident)
        if self.redirects_to:
            raise web.HTTPFound(self.redirects_to)
        ends = datetime.fromtimestamp(int(request.query["ex"], 16), self._discord.now().tzinfo)
        if ident not in self.files or ends < self._discord.now():
            raise web.HTTPNotFound(text="This content is no longer available.")
        name, data = self.files[ident]
        assert name == request.match_info["name"]
        response = web.StreamResponse()
        response.content_length = len(data)
        await response.prepare(request)
        for start in range(0, len(data), _PIECE):
            if self.breaks_after and start >= self.breaks_after:
                self.breaks_after = 0
                assert request.transport is not None
                request.transport.abort()
                return response
            await response.write(data[start : start + _PIECE])
            self.sent += _PIECE
        return response
