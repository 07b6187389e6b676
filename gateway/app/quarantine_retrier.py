"""Quarantined events of a running gateway: a second attempt, and a notice to their senders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from datetime import datetime, timedelta

import structlog

from agent.memory.jobs.job_reports import send_job_report
from gateway.admission import Admitted
from gateway.app.access import AdmissionRule
from gateway.errors import ParlourError, StoreUnavailable
from gateway.events import ChatKind, InboundMessage, Sender, SessionKey
from gateway.i18n import translate
from gateway.intake import GatewayIntake
from gateway.ports import Channel, EventOrigin, Job, Store

log = structlog.get_logger(__name__)

_READY_INTERVAL = timedelta(seconds=1)  # until a channel is connected to its platform
_STORE_RETRY = timedelta(seconds=5)


@dataclass(slots=True, eq=False)
class QuarantineRetrier:
    """Retries struck events once, and notifies the senders of events that were set aside."""

    intake: GatewayIntake
    store: Store
    channels: Mapping[str, Channel]
    _: KW_ONLY
    judge: AdmissionRule
    language: Callable[[SessionKey], str]
    now: Callable[[], datetime]

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tell_senders(), name="quarantine notices")
            for name in self.intake.quarantine.struck_names:
                tasks.create_task(self._try_again(name), name="second try")

    async def _try_again(self, name: str) -> None:
        """Hand a struck event over, unless its platform brought it first."""
        channel = self.channels.get(name.rpartition("-")[0])
        while channel is not None and not channel.is_ready():  # noqa: ASYNC110 - a channel rings no event
            await asyncio.sleep(_READY_INTERVAL.total_seconds())
        try:
            is_done = await self.intake.replay(name, self.channels)
            log.info("quarantine.second_try", name=name, is_done=is_done)
        except ParlourError as error:
            log.warning("quarantine.second_try_failed", name=name, reason=type(error).__name__)
        except Exception as error:  # noqa: BLE001 - the service boundary; its text may quote the event
            log.error("quarantine.second_try_failed", name=name, reason=type(error).__name__)  # noqa: TRY400

    async def _tell_senders(self) -> None:
        quarantine = self.intake.quarantine
        while True:
            await quarantine.news.wait()
            quarantine.news.clear()
            for name, channel, origin in await quarantine.list_untold():
                if origin is not None and channel in self.channels:
                    await self._tell(name, channel, origin)
                with suppress(OSError):
                    await quarantine.mark_told(name)

    async def _tell(self, name: str, channel: str, origin: EventOrigin) -> None:
        key = SessionKey(channel, origin.chat)
        kind = ChatKind.DIRECT if origin.is_direct else ChatKind.GROUP
        # A sender who is not admitted receives no notice.
        unread = InboundMessage(
            key=key,
            message_id=origin.message_id,
            sender=Sender(id=origin.sender),
            text="",
            sent_at=self.now(),
            chat_kind=kind,
            guild=origin.guild,
            is_addressed=True,
        )
        if not isinstance(self.judge(unread), Admitted):
            return
        notice = Job(id=f"quarantine:{name}", kind="", scope="", payload={}, due_at=self.now())
        while True:
            try:
                session = await self.store.journal.session(key)
                await send_job_report(
                    self.store.records,
                    replace(notice, scope=session.scope),
                    session,
                    translate("queue.set_aside", self.language(key)),
                    at=self.now(),
                    reply_to=origin.message_id if kind is ChatKind.GROUP else "",
                    chat_kind=kind,
                )
            except StoreUnavailable:
                await asyncio.sleep(_STORE_RETRY.total_seconds())
            else:
                return
