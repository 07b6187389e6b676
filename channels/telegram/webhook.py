"""Telegram's webhook: a call is answered once its update is durable.

The secret is compared before the body is read. Telegram repeats every update that is not answered with 200, so a
journal that is down only delays it.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Mapping
from typing import Any

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from telegram import Bot, WebhookInfo

from channels.kit.webhook import read_body
from channels.telegram.api import ApiRetrier, RetryDelays
from channels.telegram.polling import KINDS, Receive
from gateway.errors import StoreUnavailable

log = structlog.get_logger(__name__)

_BODY_LIMIT = 500_000  # bytes; Telegram's longest updates are a fifth of it
_HEADER = "x-telegram-bot-api-secret-token"
# One at a time, so that the messages of a chat arrive in order.
_CONNECTIONS = 1


class TelegramWebhook:
    """Receives the calls of one bot, and watches whether Telegram reaches it."""

    def __init__(
        self, name: str, bot: Bot, receive: Receive, retrier: ApiRetrier, *, waits: RetryDelays, url: str, secret: str
    ) -> None:
        """Ask Telegram to call *url* with *secret*."""
        self._name = name
        self._bot = bot
        self._receive = receive
        self._retrier = retrier
        self._waits = waits
        self._url = url
        self._secret = secret
        self._is_open = False
        self._one_by_one = asyncio.Lock()
        self._logged: tuple[str, object] = ("", None)

    def is_receiving(self) -> bool:
        """Return True if Telegram recently said that its calls arrive."""
        return self._is_open and self._retrier.had_contact_within(2 * self._waits.watch + 10)

    async def run(self) -> None:
        """Set the webhook and watch its status until cancelled.

        Pending updates are never dropped, and the webhook stays set afterwards: Telegram keeps calling.
        """
        self._is_open = True
        try:
            await self._retrier.call_with_retry(
                lambda: self._bot.set_webhook(
                    self._url,
                    secret_token=self._secret,
                    allowed_updates=KINDS,
                    max_connections=_CONNECTIONS,
                )
            )
            while True:
                self._check(await self._retrier.call_with_retry(self._bot.get_webhook_info))
                await asyncio.sleep(self._waits.watch)
        finally:
            self._is_open, self._retrier.contact_at = False, None

    async def close(self) -> None:
        """Do nothing: no connection is held."""

    def _check(self, info: WebhookInfo) -> None:
        """Record whether Telegram's calls arrive, and log each failure once."""
        if info.url != self._url:
            self._retrier.contact_at = None
            self._log_once("telegram.webhook_elsewhere", info.url, "another program set this bot's webhook; stop it")
        elif info.pending_update_count and info.last_error_message:
            self._retrier.contact_at = None
            self._log_once("telegram.webhook_fails", info.last_error_date, info.last_error_message[:200])
        else:
            self._retrier.record_contact()

    def _log_once(self, event: str, details: object, reason: str) -> None:
        if self._logged != (event, details):
            self._logged = (event, details)
            log.error(
                event,
                channel=self._name,
                reason=reason,
                mend="see that webhook_url leads here from the internet, and that web.public_url names its host",
            )

    async def answer(self, request: Request) -> Response:
        """Answer one call."""
        secrets = request.headers.getlist(_HEADER)
        if len(secrets) != 1 or not hmac.compare_digest(secrets[0].encode(), self._secret.encode()):
            return Response(status_code=401, headers={"Connection": "close"})
        if not self._is_open:
            return Response(status_code=503)
        try:
            body = await read_body(request, limit=_BODY_LIMIT)
            if body is None:
                return Response(status_code=413, headers={"Connection": "close"})
            async with self._one_by_one:
                await self._receive(_update(body))
        except HTTPException:
            raise  # the server's own body limit
        except ClientDisconnect:
            return Response(status_code=400)
        except StoreUnavailable as error:
            log.warning("telegram.waits_for_store", channel=self._name, reason=str(error))
            return Response(status_code=503)
        except Exception:  # the channel boundary: it comes again, and the intake counts
            log.exception("telegram.update_failed", channel=self._name)
            return Response(status_code=500)
        return Response(status_code=200)


def _update(body: bytes) -> Mapping[str, Any]:
    """Return the update; a body that is not one becomes an update that the intake quarantines."""
    try:
        update = json.loads(body)
    except (ValueError, RecursionError):
        update = None
    return update if isinstance(update, dict) else {"message": body.decode("utf-8", "replace")}
