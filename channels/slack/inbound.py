"""From a payload to a row: read, look up who spoke, hand over, and only then say that it may be acknowledged."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog

from channels.slack.api import SlackApi, SlackRefusal
from channels.slack.buttons import SlackButtons
from channels.slack.chats import SlackChats
from channels.slack.codec import (
    ParsedEvent,
    SlackBotIdentity,
    SlackProfile,
    build_message,
    changed_user,
    chat_of,
    event_of,
    mentions,
    origin_of,
    parse_event,
    parse_membership,
    raw_of,
    user_of,
)
from channels.slack.followed_threads import SlackFollowedThreads
from channels.slack.members import SlackMembers
from channels.slack.reactions import SlackReactions
from channels.slack.read_cursors import SlackReadCursors
from channels.slack.users import SlackUsers
from gateway.errors import SendFailed, StoreUnavailable
from gateway.events import ChatKind, InboundKind, InboundMessage
from gateway.ports import ChannelContext, IntakeResult, IntakeVerdict, PlatformEvent

log = structlog.get_logger(__name__)

_ASKERS = 1_000  # messages of which we remember who wrote them


@dataclass(frozen=True, slots=True)
class _PendingLookup:
    """A look-up that is under way."""

    user: str
    person: asyncio.Task[SlackProfile]


class SlackInbound:
    """Turns Slack's payloads into messages of the intake, in order within a chat."""

    def __init__(self, context: ChannelContext, api: SlackApi, errands: SlackReactions, presses: SlackButtons) -> None:
        self._name = context.name
        self._intake = context.intake
        self._errands = errands
        self._presses = presses
        self.people = SlackUsers(api)
        self.stewards = SlackMembers(self.people, SlackChats(api))
        self.threads = SlackFollowedThreads(context.state)
        self.marks = SlackReadCursors(context.state)
        self._manners = context.reply_policy
        entries = getattr(context.settings, "allow_from", ())
        # By these most people are let in: while Slack cannot say who is a guest, it shall rather bring them again.
        self._waits_for_facts = any(entry.startswith(("team:", "chat:")) for entry in entries)
        self._said: set[str] = set()
        self._gates: dict[str, tuple[asyncio.Lock, int]] = {}
        self._turnstile = asyncio.Lock()
        self._askers: OrderedDict[tuple[str, str], tuple[str, str]] = OrderedDict()

    def asker(self, chat: str, ts: str) -> tuple[str, str]:
        """Return who wrote a message of late, and of which workspace; empty when we do not remember."""
        return self._askers.get((chat, ts), ("", ""))

    async def handle_event(self, body: dict[str, Any], me: SlackBotIdentity) -> bool:
        """Take one payload in; False = it is not durable, so Slack shall deliver it again. Never raises.

        Who did it is asked at once: a look-up that hangs delays what others say in that chat by its own limit,
        and not by as many as wait there.
        """
        asking = self._ask(user_of(body), me)
        try:
            async with self.gate(chat_of(body)):
                return await self.accept_event(body, me, asking=asking)
        finally:
            if asking is not None:
                asking.person.cancel()

    def _ask(self, user: str, me: SlackBotIdentity) -> _PendingLookup | None:
        if not user or user == me.user or self._intake.is_cautious:
            return None
        person = asyncio.create_task(self.people.person(user, me.team), name="slack sender")
        person.add_done_callback(lambda done: done.cancelled() or done.exception())  # not everybody's is waited for
        return _PendingLookup(user, person)

    async def accept_event(
        self, body: dict[str, Any], me: SlackBotIdentity, *, is_old: bool = False, asking: _PendingLookup | None = None
    ) -> bool:
        """The same for who holds the chat's gate already: what was read from its history.

        *is_old*: it was taken before, and is read again only because it was edited since. *asking* is the look-up
        of who did it, if it is under way.
        """
        heard: list[ParsedEvent] = []
        is_stranger = False

        async def work() -> None:
            nonlocal is_stranger
            found = await self._read(body, me)
            if found is not None:
                heard.append(found)
                is_stranger = not await self._receive(found, me, is_old=is_old, asking=asking)

        is_taken = await self._handle(body, work)
        if heard and not is_old and not (is_stranger and not self.marks.knows(_place_of(heard[0]))):
            self._mark(heard[0], taken=is_taken)
            await self._store_place()
        return is_taken

    async def replay(self, body: dict[str, Any], me: SlackBotIdentity) -> None:
        """Take in a payload that the quarantine kept; raises what taking it in raises."""
        async with self.gate(chat_of(body)):
            found = await self._read(body, me)
            if found is not None:
                await self._receive(found, me, is_old=False, asking=None)

    async def _read(self, body: dict[str, Any], me: SlackBotIdentity) -> ParsedEvent | None:
        """Return what *body* says; None when it says nothing, or we said it."""
        await self._note_facts(body, me)
        in_threads = self._manners(chat_of(body)).reply_in == "thread"
        found = parse_event(body, me, in_threads=in_threads, now=datetime.now(UTC))
        return found if found is not None and not found.is_self else None

    async def _note_facts(self, body: dict[str, Any], me: SlackBotIdentity) -> None:
        """Tell the house where we were added; and forget who somebody was when Slack says that it changed."""
        self.people.forget(changed_user(body))
        place = parse_membership(body, channel=self._name, me=me)
        if place is not None:
            await self._intake.membership_changed(await self.stewards.with_names(place, me))

    async def _store_place(self) -> None:
        try:
            await self.marks.save_new()
        except StoreUnavailable as error:
            log.info("slack.marks_wait", reason=str(error))  # with the next ones

    async def _handle(self, body: dict[str, Any], work: Callable[[], Awaitable[None]]) -> bool:
        raw = raw_of(body)
        event = PlatformEvent(channel=self._name, id=event_of(body, raw), raw=raw, origin=origin_of(body))
        async with AsyncExitStack() as alone:
            if self._intake.is_cautious:
                await alone.enter_async_context(self._turnstile)
            try:
                await self._intake.handle(event, work)
            except (StoreUnavailable, SendFailed) as error:
                log.warning("slack.not_taken", channel=self._name, chat=chat_of(body), reason=str(error))
                return False
            except Exception:  # the channel boundary: one message's bug costs that message a redelivery
                log.exception("slack.hearing_failed", channel=self._name, chat=chat_of(body))
                return False
        return True

    def _mark(self, heard: ParsedEvent, *, taken: bool) -> None:
        """Move the mark of where the message stands: at the top level, or below another one."""
        if heard.kind is not InboundKind.MESSAGE or heard.is_change:
            return
        note = self.marks.advance if taken else self.marks.hold_back
        note(_place_of(heard), heard.ts)

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

    async def _receive(
        self, heard: ParsedEvent, me: SlackBotIdentity, *, is_old: bool, asking: _PendingLookup | None
    ) -> bool:
        """Hand a message over; say whether its sender is somebody here: strangers leave no trace."""
        person = await self._person(heard, me, asking)
        may_follow = self._follows(heard) and bool(heard.thread) and not heard.calls_others
        is_followed = may_follow and await self._is_ours(heard)
        names = self.people.names(mentions(heard.text))
        message = build_message(heard, self._name, me, person, is_followed=is_followed, names=names)
        self._askers[heard.chat, heard.ts] = (heard.user, message.sender.team)
        while len(self._askers) > _ASKERS:
            self._askers.popitem(last=False)
        accepted = await self._intake.receive(message)
        if heard.press is not None and accepted.verdict is not IntakeVerdict.REJECTED:
            self._presses.hold_press(message, heard.press)
        await self._remember(heard, message, accepted)
        if heard.thread and heard.thread == heard.ts and accepted.verdict is IntakeVerdict.ACCEPTED:
            self.marks.advance(heard.place, heard.ts)  # our answer begins a thread, in which people may go on
        if not is_old:
            self._acknowledge(heard, message, accepted)
        return _is_insider(accepted)

    async def _person(self, heard: ParsedEvent, me: SlackBotIdentity, asking: _PendingLookup | None) -> SlackProfile:
        """Return who spoke. Of whom Slack will not or cannot say who they are, they count as a guest."""
        if heard.is_bot or not heard.user:
            return SlackProfile(is_bot=heard.is_bot)
        try:
            if asking is not None and asking.user == heard.user:
                return await asking.person
            return await self.people.person(heard.user, me.team)
        except SlackRefusal as error:
            if error.code not in self._said:
                self._said.add(error.code)
                log.info("slack.person_unknown", channel=self._name, reason=str(error))
        except SendFailed as error:
            if self._waits_for_facts:
                raise SendFailed(f"users.info: {type(error).__name__}") from error
        return SlackProfile(is_guest=True)

    async def _remember(self, heard: ParsedEvent, message: InboundMessage, accepted: IntakeResult) -> None:
        """Follow a thread we were called into, and leave it when its people turn to somebody else."""
        if not self._follows(heard) or not heard.thread or message.chat_kind is not ChatKind.GROUP:
            return
        if message.kind is not InboundKind.MESSAGE:
            return
        if heard.calls_us and accepted.verdict is not IntakeVerdict.REJECTED:
            await self.threads.follow(heard.place, heard.ts)
        elif heard.calls_others and _is_insider(accepted) and await self._is_ours(heard):
            await self.threads.leave(heard.place)

    def hears_all(self, chat: str) -> bool:
        """Say whether messages in *chat* need no mention of us."""
        return self._manners(chat).group_policy == "open"

    def _follows(self, heard: ParsedEvent) -> bool:
        return self._manners(heard.place).follow_threads

    async def _is_ours(self, heard: ParsedEvent) -> bool:
        return await self.threads.is_followed(heard.place, otherwise=heard.is_below_us)

    def _acknowledge(self, heard: ParsedEvent, message: InboundMessage, accepted: IntakeResult) -> None:
        if accepted.verdict is IntakeVerdict.ACCEPTED and message.kind is InboundKind.MESSAGE and not heard.is_change:
            self._errands.acknowledge(message.key, heard.chat, heard.ts)
        if accepted.line:
            self._errands.send_ephemeral(heard.chat, heard.thread, heard.user, accepted.line, is_direct=heard.is_direct)


def _place_of(heard: ParsedEvent) -> str:
    """Return where a message stands: at a chat's top level, or below another message."""
    return heard.chat if heard.thread in ("", heard.ts) else f"{heard.chat}/{heard.thread}"


def _is_insider(accepted: IntakeResult) -> bool:
    """Say whether the sender may speak here: what strangers say changes nothing."""
    return accepted.verdict is not IntakeVerdict.REJECTED or accepted.reason == "not-addressed"
