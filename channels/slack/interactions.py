"""Slash commands: answered at their response address where the app may not write, as in chats that it left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from channels.kit.pending_responses import PendingResponses
from channels.slack.api import SlackApi
from gateway.events import InboundMessage, MessagePart
from gateway.ports import ChannelContext

LIFETIME = timedelta(minutes=29)  # of a response address: of thirty minutes, and five uses
_PREFIX = "slash/"


@dataclass(frozen=True, slots=True)
class _PendingSlash:
    """A slash command and the address at which its sender can be shown an answer."""

    response_url: str


class SlackInteractions:
    """The slash commands of one workspace that wait for their answer, by turn."""

    def __init__(self, context: ChannelContext, api: SlackApi) -> None:
        self._api = api
        self._pending = PendingResponses(context, _PendingSlash, _PREFIX, lifetime=LIFETIME)

    async def hold(self, message: InboundMessage, response_url: str) -> None:
        """Hold the address of *message*, which is durable; raises StoreUnavailable."""
        await self._pending.hold(message, _PendingSlash(response_url))

    async def is_pending(self, part: MessagePart) -> bool:
        """Return True if *part* answers a slash command whose address is still good."""
        return await self._pending.get(part) is not None

    async def respond(self, part: MessagePart, body: Mapping[str, Any]) -> bool:
        """Show *body* to the sender of the command that *part* answers; return False if it answers none.

        Raises SendFailed.
        """
        pending = await self._pending.get(part)
        if pending is None:
            return False
        await self.show(pending.response_url, body)
        return True

    async def show(self, response_url: str, body: Mapping[str, Any]) -> None:
        """Show *body* to the one person to whom *response_url* leads; raises SendFailed."""
        shown = {name: body[name] for name in ("text", "mrkdwn", "blocks") if name in body}
        await self._api.respond(response_url, response_type="ephemeral", replace_original=False, **shown)
