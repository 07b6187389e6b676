"""Files of messages, from Discord's own hosts alone; an address that has ended is asked for once more."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import aiohttp
import structlog
from yarl import URL

from channels.discord.api import DiscordApi
from channels.discord.codec import DiscordFileRef
from gateway.errors import FileUnavailable, SendFailed
from gateway.events import Attachment
from gateway.net.aiohttp_proxy import connector

log = structlog.get_logger(__name__)

_HOSTS = frozenset({"cdn.discordapp.com", "media.discordapp.net"})
_PIECE = 64 * 1024
_SILENCE = 20.0  # seconds without a byte
_ENDED = frozenset({403, 404, 410})  # what a signed address says when its day is over
_GONE = "it is gone from Discord"
_BROKE_OFF = "the download broke off"


class _UrlExpired(Exception):
    """The signed address holds no more; the message knows a new one."""


class DiscordFiles:
    """The files of one block. Requests carry no token; addresses are never logged, since they are keys."""

    def __init__(self, rest: DiscordApi, *, api_url: str, proxy: str) -> None:
        self._rest = rest
        self._proxy = proxy
        address = URL(api_url)
        # A test server, or one in Discord's place, has its files where its API is.
        self._own = None if address.host == "discord.com" else (address.scheme, address.authority)
        self._session: aiohttp.ClientSession | None = None

    async def fetch(self, attachment: Attachment) -> AsyncGenerator[bytes, None]:
        """Yield the file as it comes; see `gateway.ports.SupportsFiles`."""
        try:
            address = DiscordFileRef.read(attachment.url)
        except ValueError:
            raise FileUnavailable("its address is none of Discord's") from None
        for is_second in (False, True):
            url = await self._fresh(address) if is_second else address.url
            try:
                async with aclosing(self._stream(url)) as pieces:
                    async for piece in pieces:
                        yield piece
            except _UrlExpired:
                continue
            return
        raise FileUnavailable(_GONE)

    async def close(self) -> None:
        """Release the connections."""
        if self._session is not None:
            await self._session.close()

    def _is_discords(self, url: URL) -> bool:
        if (url.scheme, url.authority) == self._own:
            return True
        return url.scheme == "https" and url.host in _HOSTS and url.port == 443 and not (url.user or url.password)

    async def _stream(self, address: str) -> AsyncGenerator[bytes, None]:
        try:
            url = URL(address, encoded=True)  # a signature holds for the address as it stands
        except ValueError:
            raise FileUnavailable("its address is none of Discord's") from None
        if not self._is_discords(url):
            raise FileUnavailable("its address is none of Discord's")
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=_SILENCE, sock_read=_SILENCE)
            self._session = aiohttp.ClientSession(connector=connector(self._proxy), timeout=timeout)
        try:
            async with self._session.get(url, allow_redirects=False) as response:
                if response.status in _ENDED:
                    raise _UrlExpired
                if response.status != 200:
                    raise FileUnavailable("Discord does not hand it out")
                async for piece in response.content.iter_chunked(_PIECE):
                    yield piece
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            log.info("discord.download_failed", error=type(error).__name__)
            raise FileUnavailable(_BROKE_OFF) from error

    async def _fresh(self, address: DiscordFileRef) -> str:
        """Return the address that the message shows now."""
        try:
            message = await self._rest.message(address.chat, address.message)
        except SendFailed as error:
            raise FileUnavailable(_GONE) from error
        for each in message.get("attachments") or ():
            if str(each.get("id")) == address.attachment:
                return str(each.get("url") or "")
        raise FileUnavailable(_GONE)
