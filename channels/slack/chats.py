"""Names and creators of channels, from conversations.info. A failed look-up grants nothing."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from channels.kit.lookups import LookupCache
from channels.slack.api import SlackApi, SlackRefusal
from gateway.errors import SendFailed
from gateway.text import sanitize
from gateway.text.text_units import safe_display_name

log = structlog.get_logger(__name__)

_TIMEOUT = 1.5  # seconds
_SIZE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackChat:
    """A channel; fields are empty if Slack does not return them."""

    name: str = ""  # for display only
    creator: str = ""  # a user id


class SlackChats:
    """The channels of one workspace. Slack demands the scope channels:read, groups:read for private ones."""

    def __init__(self, api: SlackApi) -> None:
        self._api = api
        self.lookups: LookupCache[str, SlackChat] = LookupCache("slack chat", self._fetch, size=_SIZE, timeout=_TIMEOUT)

    async def chat(self, chat: str) -> SlackChat:
        """Return the facts about a channel; never raises."""
        try:
            return await self.lookups.get(chat)
        except SendFailed as error:
            log.info("slack.chat_unknown", chat=chat, reason=type(error).__name__)
            return SlackChat()

    async def _fetch(self, chat: str) -> SlackChat:
        try:
            answer = await self._api.get("conversations.info", channel=chat)
        except SlackRefusal as error:  # kept, so that a missing scope does not cost a call at every command
            log.info("slack.chat_unknown", chat=chat, reason=str(error))
            return SlackChat()
        channel = answer.get("channel")
        fields = channel if isinstance(channel, dict) else {}
        name = safe_display_name(sanitize(str(fields.get("name") or "")))
        return SlackChat(name=name, creator=str(fields.get("creator") or ""))
