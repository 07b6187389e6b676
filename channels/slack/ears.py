"""From a payload to a row: read, look up who spoke, hand over, and only then say that it may be acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import structlog

from channels.slack.api import Refused, SlackApi
from channels.slack.codec import Heard, Me, Person, compose, mentions, read
from channels.slack.errands import Errands
from channels.slack.follow import Threads
from channels.slack.marks import Marks
from channels.slack.people import People
from gateway.errors import SendFailed, StoreDown
from gateway.events import ChatKind, InboundKind, InboundMessage
from gateway.ports import Accepted, ChannelContext, Verdict

log = structlog.get_logger(__name__)

_LOOK_UP = 1.5  # seconds; Slack wants its ack within three
_UNREADABLE = (KeyError, TypeError, AttributeError, ValueError)


class Ears:
    """Turns Slack's payloads into messages of the intake, in order within a chat."""

    def __init__(self, context: ChannelContext, api: SlackApi, errands: Errands) -> None:
        self._name = context.name
        self._intake = context.intake
        self._errands = errands
        self._people = People(api)
        self._threads = Threads(context.state)
        self.marks = Marks(context.state)
        self._in_threads = context.settings.reply_in == "thread"
        self._follows = getattr(context.settings, "follow_threads", True)
        entries = getattr(context.settings, "allow_from", ())
        # Only these let people in by where they are, and so a guest or a stranger's workspace matters.
        self._needs_facts = any(entry.startswith(("team:", "chat:")) for entry in entries)
        self._said: set[str] = set()
        self._gates: dict[str, tuple[asyncio.Lock, int]] = {}

    async def hear(self, body: dict[str, Any], me: Me) -> bool:
        """Take one payload in; False = it is not durable, so Slack shall deliver it again. Never raises."""
        heard = self._read(body, me)
        if heard is None:
            return True
        async with self.gate(heard.chat):
            return await self._take(heard, me)

    async def take(self, body: dict[str, Any], me: Me) -> bool:
        """The same for who holds the chat's gate already: what was read from its history."""
        heard = self._read(body, me)
        return heard is None or await self._take(heard, me)

    def _read(self, body: dict[str, Any], me: Me) -> Heard | None:
        try:
            heard = read(body, me, in_threads=self._in_threads, now=datetime.now(UTC))
        except _UNREADABLE as error:
            # Delivered again it would be as unreadable; words of it are in no log.
            log.warning("slack.unreadable", channel=self._name, reason=type(error).__name__)
            return None
        return None if heard is None or heard.is_self else heard

    async def _take(self, heard: Heard, me: Me) -> bool:
        try:
            await self._receive(heard, me)
        except (StoreDown, SendFailed) as error:
            log.warning("slack.not_taken", channel=self._name, chat=heard.chat, reason=str(error))
            self._mark(heard, taken=False)
            return False
        except Exception:  # the channel boundary: one message's bug costs that message a redelivery
            log.exception("slack.hearing_failed", channel=self._name, chat=heard.chat)
            self._mark(heard, taken=False)
            return False
        self._mark(heard, taken=True)
        return True

    def _mark(self, heard: Heard, *, taken: bool) -> None:
        """Move the mark of where the message stands: at the top level, or below another one."""
        if heard.kind is not InboundKind.MESSAGE or heard.revision:
            return
        place = heard.chat if heard.thread in ("", heard.ts) else f"{heard.chat}/{heard.thread}"
        note = self.marks.taken if taken else self.marks.missed
        note(place, heard.ts)

    @asynccontextmanager
    async def gate(self, chat: str) -> AsyncIterator[None]:
        """One at a time in a chat, in the order of coming; a gate nobody stands at is gone."""
        lock, standing = self._gates.get(chat, (asyncio.Lock(), 0))
        self._gates[chat] = (lock, standing + 1)
        try:
            async with lock:
                yield
        finally:
            lock, standing = self._gates[chat]
            if standing == 1:
                del self._gates[chat]
            else:
                self._gates[chat] = (lock, standing - 1)

    async def _receive(self, heard: Heard, me: Me) -> None:
        person = await self._person(heard, me)
        is_followed = self._follows and bool(heard.thread) and not heard.calls_others and await self._is_ours(heard)
        names = self._people.names(mentions(heard.text))
        message = compose(heard, self._name, me, person, is_followed=is_followed, names=names)
        accepted = await self._intake.receive(message)
        await self._remember(heard, message, accepted)
        self._acknowledge(heard, message, accepted)

    async def _person(self, heard: Heard, me: Me) -> Person:
        if heard.is_bot or not heard.user:
            return Person(is_bot=heard.is_bot)
        try:
            async with asyncio.timeout(_LOOK_UP):
                return await self._people.person(heard.user, me.team)
        except Refused as error:
            # Slack will never say: where it matters whether this is a guest, they count as one.
            if error.code not in self._said:
                self._said.add(error.code)
                log.info("slack.person_unknown", channel=self._name, reason=str(error), fails_closed=self._needs_facts)
            return Person(is_guest=self._needs_facts)
        except (SendFailed, TimeoutError) as error:
            if self._needs_facts:
                raise SendFailed(f"users.info: {type(error).__name__}") from error
            return Person()

    async def _remember(self, heard: Heard, message: InboundMessage, accepted: Accepted) -> None:
        """Follow a thread we were called into, and leave it when its people turn to somebody else."""
        if not self._follows or not heard.thread or message.chat_kind is not ChatKind.GROUP:
            return
        if message.kind is not InboundKind.MESSAGE:
            return
        if heard.calls_us and accepted.verdict is not Verdict.REJECTED:
            await self._threads.note(heard.place, follow=True)
        elif heard.calls_others and _is_insider(accepted) and await self._is_ours(heard):
            await self._threads.note(heard.place, follow=False)

    async def _is_ours(self, heard: Heard) -> bool:
        return await self._threads.is_followed(heard.place, otherwise=heard.is_below_us)

    def _acknowledge(self, heard: Heard, message: InboundMessage, accepted: Accepted) -> None:
        if accepted.verdict is Verdict.ACCEPTED and message.kind is InboundKind.MESSAGE and not heard.revision:
            self._errands.react(heard.chat, heard.ts)
        if accepted.line:
            self._errands.tell(heard.chat, heard.thread, heard.user, accepted.line, is_direct=heard.is_direct)


def _is_insider(accepted: Accepted) -> bool:
    """Say whether the sender may speak here: what strangers say changes nothing."""
    return accepted.verdict is not Verdict.REJECTED or accepted.reason == "not-addressed"
