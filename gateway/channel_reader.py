"""Files of messages, and the messages before a mention, as turns read them from channels."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime

import structlog

from gateway.channel import Channel, SupportsFiles, SupportsHistory
from gateway.errors import FileUnavailable, ParlourError
from gateway.events import UNKNOWN, Attachment, InboundMessage, Sender, SessionKey

log = structlog.get_logger(__name__)

NEWEST = 50  # messages (docs/admins.md)
_HISTORY_PATIENCE = 5.0  # seconds; history is optional, so turns wait no longer for it
_AT_ONCE = 4  # downloads, so that they hold a bounded part of the memory
_PATIENCE = 60.0  # seconds for one file


class ChannelHistory:
    """Messages before a mention, of senders that the chat admits, over the channels that have a history."""

    def __init__(self, channels: Mapping[str, Channel], *, admits: Callable[[InboundMessage], bool]) -> None:
        """Read through *channels*; *admits* judges each message by its sender's facts, and notes nothing."""
        self._channels = channels
        self._admits = admits

    async def messages_before(self, message: InboundMessage, *, since: datetime | None) -> tuple[InboundMessage, ...]:
        """Return messages of admitted people before *message*, oldest first; () without an answer. Never raises.

        The start of its thread comes first, also the bot's own; an author that the chat does not admit is UNKNOWN.
        """
        channel = self._channels.get(message.key.channel)
        if not isinstance(channel, SupportsHistory):
            return ()
        try:
            async with asyncio.timeout(_HISTORY_PATIENCE):
                said = await channel.messages_before(message, since=since, limit=NEWEST)
        except (ParlourError, TimeoutError) as error:
            log.warning("overheard.unanswered", key=str(message.key), reason=str(error) or type(error).__name__)
            return ()
        except Exception:  # the channel boundary: a turn can do without
            log.exception("overheard.failed", key=str(message.key))
            return ()
        found = [each for each in said if not each.sender.is_self and self._admits(each)]
        start = next((each for each in said[:1] if each.message_id and each.message_id == message.key.thread), None)
        if start is None or start in found[:1]:
            return tuple(found)
        if not start.sender.is_self:
            start = replace(start, sender=replace(start.sender, id=UNKNOWN))
        return (start, *found)

    def admits(self, message: InboundMessage, sender: str) -> bool:
        """Return True if the person *sender* is admitted by id alone; a sender admitted by a role is not."""
        return sender != UNKNOWN and self._admits(replace(message, sender=Sender(id=sender)))


class ChannelAttachmentFetcher:
    """Fetches the bytes of attachments of admitted messages, over the channels that carry files."""

    def __init__(self, channels: Mapping[str, Channel], *, most_mb: int) -> None:
        """Fetch through *channels*, files of at most *most_mb* megabytes."""
        self._channels = channels
        self._most_mb = most_mb
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def fetch(self, key: SessionKey, attachment: Attachment) -> bytes:
        """Return the whole file. Raises FileUnavailable with a short phrase for users ("larger than 20 MB")."""
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
