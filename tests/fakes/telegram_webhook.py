"""The small Telegram's webhook: it calls what was set, in order, and again until it hears 200."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import aiohttp

from tests.fakes.telegram_rules import ApiError

if TYPE_CHECKING:
    from tests.fakes.telegram_server import TelegramServer

_AGAIN = 0.02  # seconds; Telegram waits longer each time


class WebhookCalls:
    """The webhook of the bot, and the calls that were made."""

    def __init__(self, server: TelegramServer) -> None:
        self._server = server
        self.url = ""
        self.secret = ""
        self.kinds: list[str] = []
        self.connections = 40
        self.last_error: tuple[int, str] | None = None
        self.answers: list[int] = []  # statuses that were heard, in order
        self.lost = 0  # so many of the next answers are lost, whatever they are
        self.is_self_hosted = True  # a Bot API server of one's own also calls http:// addresses
        self._calling: asyncio.Task[None] | None = None

    async def do_set_webhook(self, fields: Mapping[str, Any]) -> Any:
        """Set it, or by an empty address remove it."""
        url, secret = str(fields.get("url", "")), str(fields.get("secret_token", ""))
        if url and not url.startswith("https://" if not self.is_self_hosted else "http"):
            raise ApiError(400, "Bad Request: bad webhook: An HTTPS URL must be provided for webhook")
        if secret and not re.fullmatch(r"[A-Za-z0-9_-]{1,256}", secret):
            raise ApiError(400, "Bad Request: secret token contains unallowed characters")
        if not 1 <= int(fields.get("max_connections", 40)) <= 100:
            raise ApiError(400, "Bad Request: max_connections is out of range")
        if fields.get("drop_pending_updates"):
            self._server.updates.clear()
        self.url, self.secret = url, secret
        self.kinds, self.connections = list(fields.get("allowed_updates") or []), int(fields.get("max_connections", 40))
        await self.stop()
        if url:
            self._calling = asyncio.create_task(self._call(), name="telegram calls")
        return True

    async def do_delete_webhook(self, fields: Mapping[str, Any]) -> Any:
        """Remove it."""
        return await self.do_set_webhook({"drop_pending_updates": fields.get("drop_pending_updates")})

    async def do_get_webhook_info(self, _: Mapping[str, Any]) -> Any:
        """Say how it goes."""
        info: dict[str, Any] = {"url": self.url, "has_custom_certificate": False}
        info["pending_update_count"] = len(self._server.updates)
        if self.last_error:
            info |= {"last_error_date": self.last_error[0], "last_error_message": self.last_error[1]}
        return info

    async def stop(self) -> None:
        """Call no more."""
        if self._calling is not None:
            self._calling.cancel()
            await asyncio.wait({self._calling})
            self._calling = None

    async def _call(self) -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                ready = self._server.ready({"allowed_updates": self.kinds, "limit": 1})
                if not ready:
                    await self._server.wait_changed()
                elif await self._bring(session, ready[0]):
                    self._server.confirmed.append(int(ready[0]["update_id"]))
                    self._server.updates.remove(ready[0])
                    self._server.changed()
                else:
                    await asyncio.sleep(_AGAIN)

    async def _bring(self, session: aiohttp.ClientSession, update: Mapping[str, Any]) -> bool:
        headers = {"X-Telegram-Bot-Api-Secret-Token": self.secret} if self.secret else {}
        content = {name: value for name, value in update.items() if name != "_at"}
        status = 0
        self._server.on_call("webhook", "before")
        with suppress(aiohttp.ClientError):
            async with session.post(self.url, json=content, headers=headers) as response:
                status = response.status
        self._server.on_call("webhook", "after")
        self.answers.append(status)
        if self.lost:
            self.lost, status = self.lost - 1, 0
        if status != 200:
            said = f"Wrong response from the webhook: {status}" if status else "Connection refused"
            self.last_error = (self._server.now(), said)
        self._server.changed()
        return status == 200
