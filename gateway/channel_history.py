"""Messages before a mention: fetched from the channel and filtered by the chat's admission."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime

import structlog

from gateway.errors import ParlourError
from gateway.events import UNKNOWN, InboundMessage, Sender
from gateway.ports import Channel, SupportsHistory

log = structlog.get_logger(__name__)

NEWEST = 50  # messages (docs/admins.md)
_PATIENCE = 5.0  # seconds; history is optional, so turns wait no longer for it


class ChannelHistory:
    """Implements `gateway.ports.Overheard` over the channels that have a history."""

    def __init__(self, channels: Mapping[str, Channel], *, admits: Callable[[InboundMessage], bool]) -> None:
        """Read through *channels*; *admits* judges each message by its sender's facts, and notes nothing."""
        self._channels = channels
        self._admits = admits

    async def messages_before(self, message: InboundMessage, *, since: datetime | None) -> tuple[InboundMessage, ...]:
        """Return the newest words that admitted people said before *message*, oldest first."""
        channel = self._channels.get(message.key.channel)
        if not isinstance(channel, SupportsHistory):
            return ()
        try:
            async with asyncio.timeout(_PATIENCE):
                said = await channel.messages_before(message, since=since, limit=NEWEST)
        except (ParlourError, TimeoutError) as error:
            log.warning("overheard.unanswered", key=str(message.key), reason=str(error) or type(error).__name__)
            return ()
        except Exception:  # the channel boundary: a turn can do without
            log.exception("overheard.failed", key=str(message.key))
            return ()
        return tuple(each for each in said if self._admits(each))

    def admits(self, message: InboundMessage, sender: str) -> bool:
        """Return True if *sender* is admitted by id alone; a sender admitted by a role is not."""
        return sender != UNKNOWN and self._admits(replace(message, sender=Sender(id=sender)))
