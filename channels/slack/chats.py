"""What Slack says of a channel: its name, and who made it. Kept for five minutes; what is not said grants nothing."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from channels.slack.api import SlackApi, SlackRefusal
from gateway.errors import SendFailed
from gateway.text import sanitize
from gateway.text.display_names import safe_display_name

log = structlog.get_logger(__name__)

_LOOK_UP = 1.5  # seconds
_KEPT_FOR = 300.0  # seconds
_KEPT = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackChat:
    """A channel; empty where Slack does not say."""

    name: str = ""  # for reading
    creator: str = ""  # a user id


class SlackChats:
    """A cache before conversations.info, which takes the scope channels:read (groups:read for private ones)."""

    def __init__(self, api: SlackApi, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._clock = clock
        self.patience = _LOOK_UP
        self._known: OrderedDict[str, tuple[float, SlackChat]] = OrderedDict()

    async def room(self, chat: str) -> SlackChat:
        """Return what is known of a channel; never raises."""
        at, known = self._known.get(chat, (0.0, None))
        if known is not None and self._clock() - at < _KEPT_FOR:
            return known
        try:
            async with asyncio.timeout(self.patience):
                answer = await self._api.get("conversations.info", channel=chat)
        except SlackRefusal as error:  # a scope that is missing is not asked for at every command
            log.info("slack.room_unknown", chat=chat, reason=str(error))
            found = SlackChat()
        except (SendFailed, TimeoutError) as error:
            log.info("slack.room_unknown", chat=chat, reason=type(error).__name__)
            return SlackChat()
        else:
            says = answer.get("channel")
            says = says if isinstance(says, dict) else {}
            found = SlackChat(
                name=safe_display_name(sanitize(str(says.get("name") or ""))), creator=str(says.get("creator") or "")
            )
        self._known[chat] = (self._clock(), found)
        self._known.move_to_end(chat)
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return found
