"""Hearing Telegram by webhook: it calls us, and is answered when the message is stored.

The secret is compared before a byte of the body is read. Whatever is not answered with 200 Telegram sends again,
so that a journal that is down, or a gateway that is not ready, costs nothing but time.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from telegram import Bot, WebhookInfo

from channels.telegram.polling import KINDS
from channels.telegram.retry import ApiRetrier, RetryDelays
from gateway.errors import StoreUnavailable

log = structlog.get_logger(__name__)

Take = Callable[[Mapping[str, Any]], Awaitable[None]]

_LONGEST = 500_000  # bytes of an update; the longest that Telegram makes are a fifth of it
_HEADER = "x-telegram-bot-api-secret-token"
# One at a time, so that what is said in a chat arrives in the order it was said in.
_CONNECTIONS = 1


class TelegramWebhook:
    """Where Telegram brings updates, and how we know that it does."""

    def __init__(
        self, name: str, bot: Bot, take: Take, patience: ApiRetrier, *, waits: RetryDelays, url: str, secret: str
    ) -> None:
        """Be called at *url* by whoever knows *secret*."""
        self._name = name
        self._bot = bot
        self._take = take
        self._patience = patience
        self._waits = waits
        self._url = url
        self._secret = secret
        self._is_open = False
        self._one_by_one = asyncio.Lock()
        self._told: tuple[str, object] = ("", None)

    def is_receiving(self) -> bool:
        """Say whether Telegram said not long ago that it reaches us."""
        return self._is_open and self._patience.has_heard_within(2 * self._waits.watch + 10)

    async def run(self) -> None:
        """Tell Telegram where to call, and ask now and then whether it works, until cancelled.

        What waits with Telegram is never dropped, and the webhook stays when we end: Telegram keeps calling.
        """
        self._is_open = True
        try:
            await self._patience.call_with_retry(
                lambda: self._bot.set_webhook(
                    self._url,
                    secret_token=self._secret,
                    allowed_updates=KINDS,
                    max_connections=_CONNECTIONS,
                )
            )
            while True:
                self._look(await self._patience.call_with_retry(self._bot.get_webhook_info))
                await asyncio.sleep(self._waits.watch)
        finally:
            self._is_open, self._patience.heard_at = False, None

    async def close(self) -> None:
        """Nothing is held."""

    def _look(self, info: WebhookInfo) -> None:
        """Note whether Telegram reaches us; what it says of a failure is told once."""
        if info.url != self._url:
            self._patience.heard_at = None
            self._tell("telegram.webhook_elsewhere", info.url, "another program set this bot's webhook; stop it")
        elif info.pending_update_count and info.last_error_message:
            self._patience.heard_at = None
            self._tell("telegram.webhook_fails", info.last_error_date, info.last_error_message[:200])
        else:
            self._patience.record_contact()

    def _tell(self, event: str, what: object, reason: str) -> None:
        if self._told != (event, what):
            self._told = (event, what)
            log.error(
                event,
                channel=self._name,
                reason=reason,
                mend="see that webhook_url leads here from the internet, and that web.public_url names its host",
            )

    async def answer(self, request: Request) -> Response:
        """Answer one call of Telegram's."""
        given = request.headers.getlist(_HEADER)
        if len(given) != 1 or not hmac.compare_digest(given[0].encode(), self._secret.encode()):
            return Response(status_code=401, headers={"Connection": "close"})
        if not self._is_open:
            return Response(status_code=503)
        try:
            body = await _read(request)
            if body is None:
                return Response(status_code=413, headers={"Connection": "close"})
            async with self._one_by_one:
                await self._take(_update(body))
        except HTTPException:
            raise  # the server's own: longer than it takes anywhere
        except ClientDisconnect:
            return Response(status_code=400)
        except StoreUnavailable as error:
            log.warning("telegram.waits_for_store", channel=self._name, reason=str(error))
            return Response(status_code=503)
        except Exception:  # the channel boundary: it comes again, and the intake says how often
            log.exception("telegram.update_failed", channel=self._name)
            return Response(status_code=500)
        return Response(status_code=200)


async def _read(request: Request) -> bytes | None:
    """Return the body; None when it is longer than any update."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > _LONGEST:
            return None
    return bytes(body)


def _update(body: bytes) -> Mapping[str, Any]:
    """Return the update; what is none stands for itself, and is set aside as unreadable."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"message": body.decode("utf-8", "replace")}
