"""Status texts below a thread while a turn runs ("is thinking…"). Slack refuses them to apps that are not agents."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from channels.slack.api import SlackApi, SlackRefusal
from gateway.errors import SendFailed
from gateway.events import SessionKey
from gateway.i18n import translate
from gateway.ports import ChatActivity

log = structlog.get_logger(__name__)

_INTERVAL = 90.0  # seconds; Slack removes a status after about two minutes
_REFUSED_FOR = 3_600.0  # seconds without a call after a refusal
_LIMIT = 50  # characters
_REFUSALS = frozenset(
    {"missing_scope", "unknown_method", "not_allowed_token_type", "no_permission", "method_deprecated"}
)


class SlackActivity:
    """The statuses of one workspace's threads."""

    def __init__(self, api: SlackApi, language: Callable[[SessionKey], str]) -> None:
        self._api = api
        self._language = language
        self._shown: dict[SessionKey, tuple[float, str]] = {}
        self._refused_until = 0.0

    async def show(self, activity: ChatActivity) -> None:
        """Show or clear a status; never raises."""
        key = activity.key
        if not key.thread:
            return
        if activity.on:
            await self._set(key, (activity.text or translate("slack.thinking", self._language(key)))[:_LIMIT])
        elif self._shown.pop(key, None):
            await self._set(key, "")

    async def run(self) -> None:
        """Repeat statuses before they fade, until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL / 3)
            now = asyncio.get_running_loop().time()
            for key, (at, text) in list(self._shown.items()):
                if now - at >= _INTERVAL and key in self._shown:
                    await self._set(key, text)

    async def _set(self, key: SessionKey, text: str) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._refused_until:
            return
        if text:
            self._shown[key] = (now, text)
        try:
            await self._api.post(
                "assistant.threads.setStatus", channel_id=key.parent.chat, thread_ts=key.thread, status=text
            )
        except SlackRefusal as error:
            self._shown.pop(key, None)
            if error.code in _REFUSALS:
                self._refused_until = now + _REFUSED_FOR
                log.info("slack.no_status", reason=error.code, mend="the scope assistant:write shows that we work")
        except SendFailed as error:
            log.debug("slack.status_failed", reason=str(error))
