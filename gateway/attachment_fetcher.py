"""Files that came with messages: fetched from their channel when their turn runs, and never beyond the cap."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing

import structlog

from gateway.errors import FileUnavailable
from gateway.events import Attachment, SessionKey
from gateway.ports import Channel, SupportsFiles

log = structlog.get_logger(__name__)

_AT_ONCE = 4  # downloads, so that they hold a bounded part of the memory
_PATIENCE = 60.0  # seconds for one file


class ChannelAttachmentFetcher:
    """Implements `gateway.ports.Files` over the channels that carry files."""

    def __init__(self, channels: Mapping[str, Channel], *, most_mb: int) -> None:
        """Fetch through *channels*, files of at most *most_mb* megabytes."""
        self._channels = channels
        self._most_mb = most_mb
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def fetch(self, key: SessionKey, attachment: Attachment) -> bytes:
        """Return the whole file; raise FileUnavailable in a person's words."""
        channel = self._channels.get(key.channel)
        if not isinstance(channel, SupportsFiles):
            raise FileUnavailable("files cannot be fetched here")
        self._fits(attachment.size)
        async with self._slots:
            try:
                async with asyncio.timeout(_PATIENCE):
                    return await self._read(channel, attachment)
            except TimeoutError:
                raise FileUnavailable("it took too long to download") from None
            except FileUnavailable:
                raise
            except Exception as error:  # the channel boundary: the message is answered without its file
                log.exception("files.fetch_failed", channel=key.channel)
                raise FileUnavailable("it could not be downloaded") from error

    async def _read(self, channel: SupportsFiles, attachment: Attachment) -> bytes:
        data = bytearray()
        # Sizes from the platform may be wrong, so received bytes are counted too.
        async with aclosing(channel.fetch(attachment)) as pieces:
            async for piece in pieces:
                data += piece
                self._fits(len(data))
        return bytes(data)

    def _fits(self, size: int) -> None:
        if size > self._most_mb * 1_000_000:
            raise FileUnavailable(f"larger than {self._most_mb} MB")
