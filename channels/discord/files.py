"""Downloads of attachments, from Discord's own hosts only; an expired address is renewed once."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import aiohttp
import structlog
from yarl import URL

from channels.discord.api import DiscordApi
from channels.discord.codec import DiscordFileRef, snapshots
from gateway.errors import FileUnavailable, SendFailed
from gateway.events import Attachment
from gateway.net.aiohttp_proxy import connector

log = structlog.get_logger(__name__)

_HOSTS = frozenset({"cdn.discordapp.com", "media.discordapp.net"})
_CHUNK = 64 * 1024
_SILENCE_LIMIT = 20.0  # seconds without a byte
_EXPIRED = frozenset({403, 404, 410})  # statuses of an expired address
_GONE = "it is gone from Discord"
_BROKE_OFF = "the download broke off"


class _UrlExpired(Exception):
    """The signed address has expired; the message has a new one."""


class DiscordFiles:
    """The files of one channel. Requests carry no token; addresses are secrets and never logged."""

    def __init__(self, api: DiscordApi, *, api_url: str, proxy: str) -> None:
        self._api = api
        self._proxy = proxy
        address = URL(api_url)
        # A test server, or one that replaces Discord, serves files where its API is.
        self._own = None if address.host == "discord.com" else (address.scheme, address.authority)
        self._session: aiohttp.ClientSession | None = None

    async def fetch(self, attachment: Attachment) -> AsyncGenerator[bytes, None]:
        """Yield the file in chunks; see `SupportsFiles`."""
        try:
            address = DiscordFileRef.read(attachment.url)
        except ValueError:
            raise FileUnavailable("its address is none of Discord's") from None
        for is_second in (False, True):
            url = await self._renew(address) if is_second else address.url
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

    def _is_allowed(self, url: URL) -> bool:
        if (url.scheme, url.authority) == self._own:
            return True
        return url.scheme == "https" and url.host in _HOSTS and url.port == 443 and not (url.user or url.password)

    async def _stream(self, address: str) -> AsyncGenerator[bytes, None]:
        try:
            url = URL(address, encoded=True)  # the signature covers the exact address
        except ValueError:
            raise FileUnavailable("its address is none of Discord's") from None
        if not self._is_allowed(url):
            raise FileUnavailable("its address is none of Discord's")
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=_SILENCE_LIMIT, sock_read=_SILENCE_LIMIT)
            self._session = aiohttp.ClientSession(connector=connector(self._proxy), timeout=timeout)
        try:
            async with self._session.get(url, allow_redirects=False) as response:
                if response.status in _EXPIRED:
                    raise _UrlExpired
                if response.status != 200:
                    raise FileUnavailable("Discord does not hand it out")
                async for piece in response.content.iter_chunked(_CHUNK):
                    yield piece
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            log.info("discord.download_failed", error=type(error).__name__)
            raise FileUnavailable(_BROKE_OFF) from error

    async def _renew(self, address: DiscordFileRef) -> str:
        """Return the current address in the message."""
        try:
            message = await self._api.message(address.chat, address.message)
        except SendFailed as error:
            raise FileUnavailable(_GONE) from error
        forwarded = [each for part in snapshots(message) for each in part.get("attachments") or ()]
        for each in (*(message.get("attachments") or ()), *forwarded):
            if str(each.get("id")) == address.attachment:
                return str(each.get("url") or "")
        raise FileUnavailable(_GONE)
