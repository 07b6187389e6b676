"""Webhook to the owner's monitoring: posts each alert as JSON, and a ping every minute."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import structlog

from gateway.alerts.alert_state import WebhookOrigin
from gateway.backoff import exponential_delay
from gateway.errors import StoreUnavailable
from gateway.ports.metrics import MetricsRecorder
from gateway.store.alerts import WebhookPost

if TYPE_CHECKING:
    import aiohttp

    from gateway.store.alerts import SqlAlerts

log = structlog.get_logger(__name__)

PING_EVERY = timedelta(minutes=1)
KEPT = timedelta(days=1)  # what could not be brought for so long is given up
_PAUSES = (timedelta(seconds=5), timedelta(minutes=15))  # the first after a failure, doubled up to the last
_TIMEOUT = 10.0  # seconds for a whole call
_AT_ONCE = 20
_LOOK_EVERY = timedelta(seconds=15)


@dataclass(slots=True, eq=False, repr=False)
class AlertWebhook:
    """Posts to one address, which is a secret and never logged. Nothing waits for it.

    Posts are kept in the journal until the server answers 2xx, in order, one at a time; a repeated post has the same
    `id`. A ping is never repeated, and none is sent while the journal cannot be written, so that the owner's service
    reports it missing.
    """

    url: str
    store: SqlAlerts
    _: KW_ONLY
    origin: WebhookOrigin
    is_writable: Callable[[], bool]  # the store's last measurement
    firing: Callable[[], tuple[str, ...]]
    post_queued: asyncio.Event
    meter: MetricsRecorder
    now: Callable[[], datetime]
    proxy: str = ""
    _urgent: asyncio.Queue[str] = field(default_factory=asyncio.Queue, init=False)  # two for each outage
    _is_failing: bool = field(default=False, init=False)

    async def run(self) -> None:
        """Post and ping until cancelled."""
        import aiohttp  # not on the start-up path of who needs none

        from gateway.net import trusted_certificates
        from gateway.net.connector import connector

        way = connector(self.proxy, ssl=await asyncio.to_thread(trusted_certificates))
        async with aiohttp.ClientSession(connector=way) as client, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._post_for_ever(client), name="alert posts")
            tasks.create_task(self._ping_for_ever(client), name="alert pings")
            tasks.create_task(self._post_urgent(client), name="urgent alert posts")

    def post_now(self, body: str) -> None:
        """Post *body* past the journal: once, and before what is queued there."""
        self._urgent.put_nowait(body)

    async def _post_urgent(self, client: aiohttp.ClientSession) -> None:
        while True:
            await self._send(client, await self._urgent.get())

    async def _post_for_ever(self, client: aiohttp.ClientSession) -> None:
        while True:
            self.post_queued.clear()
            with suppress(StoreUnavailable):
                await self._post_due(client)
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY.total_seconds()):
                    await self.post_queued.wait()

    async def _post_due(self, client: aiohttp.ClientSession) -> None:
        """Bring what is due, in order; the first that fails keeps those behind it waiting."""
        for post in await self.store.posts(due=self.now(), limit=_AT_ONCE):
            trouble = await self._send(client, post.body)
            if not trouble:
                await self.store.mark_posted(post)
            elif self.now() - post.at >= KEPT:
                log.error("alerts.post_given_up", reason=trouble, attempts=post.attempts + 1)
                await self.store.mark_posted(post)
            else:
                await self.store.postpone(post, self.now() + retry_delay(post))
                return

    async def _ping_for_ever(self, client: aiohttp.ClientSession) -> None:
        while True:
            if self.is_writable():
                await self._send(client, self.origin.ping(self.firing(), self.now()))
            else:
                log.warning("alerts.no_ping", reason="the journal cannot be written")
            await asyncio.sleep(PING_EVERY.total_seconds())

    async def _send(self, client: aiohttp.ClientSession, body: str) -> str:
        """Post *body*; return the error, or "". Neither the address nor the response is logged."""
        import aiohttp

        try:
            # The body of the response is not needed, and may be endless.
            async with (
                asyncio.timeout(_TIMEOUT),
                client.post(
                    self.url,
                    data=body.encode(),
                    headers={"Content-Type": "application/json"},
                    allow_redirects=False,
                ) as answer,
            ):
                trouble = "" if 200 <= answer.status < 300 else f"HTTP {answer.status}"
        except (aiohttp.ClientError, OSError, ValueError) as error:  # TimeoutError is an OSError
            trouble = type(error).__name__
        self.meter.count("alert_posts", outcome="failed" if trouble else "arrived")
        if bool(trouble) is not self._is_failing:
            self._is_failing = bool(trouble)
            log.warning("alerts.webhook_fails", reason=trouble) if trouble else log.info("alerts.webhook_works")
        return trouble


def retry_delay(post: WebhookPost) -> timedelta:
    """Return the delay after one more failure."""
    return exponential_delay(post.attempts + 1, *_PAUSES)
