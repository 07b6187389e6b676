"""From payloads to the intake: receive, parse, look up the sender, accept, then acknowledge.

Facts that an event does not carry are looked up: users, their rights, and the names and creators of channels. A failed
look-up grants nothing.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
from cachetools import FIFOCache

from channels.kit.background import KeyedSlots
from channels.kit.chat_facts import FollowedThreads, LookupCache, is_from_member
from channels.slack.api import SlackApi, SlackRefusal
from channels.slack.interactions import SlackInteractions, SlackReactions
from channels.slack.parse import (
    ParsedEvent,
    SlackBotIdentity,
    SlackProfile,
    build_message,
    changed_user,
    chat_of,
    event_of,
    origin_of,
    parse_event,
    parse_membership,
    raw_of,
    user_of,
)
from channels.slack.render import named_ids
from gateway.channel import ChannelContext
from gateway.errors import OutcomeUnknown, SendFailed, StoreUnavailable
from gateway.events import UNKNOWN, ChatKind, InboundKind, InboundMessage, Sender
from gateway.ports.channel import IntakeResult, IntakeVerdict, MembershipChange, PlatformEvent
from gateway.text import sanitize
from gateway.text.message_text import safe_display_name

if TYPE_CHECKING:
    from gateway.store.records import SqlChannelState


_TIMEOUT = 1.5  # seconds for one look-up; Slack wants its ack within three
_TOTAL_TIMEOUT = 3.0  # seconds for the look-ups of a whole conversation
_CHATS = 1_000
_USERS = 2_000
_MOST_NAMES = 20  # looked up for one message
_DECISIONS = frozenset({InboundKind.COMMAND, InboundKind.BUTTON})


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackChat:
    """A channel; fields are empty if Slack does not return them."""

    name: str = ""  # for display only
    creator: str = ""  # a user id


class SlackMembers:
    """The users, channels and groups of one workspace. Slack demands the scopes channels:read and groups:read.

    Admins are the workspace's admins and owners, and in a channel its creator unless they are a guest.
    """

    def __init__(self, api: SlackApi) -> None:
        self._api = api
        self._home = ""
        self.profiles: LookupCache[str, SlackProfile] = LookupCache(
            "slack user", self._fetch_user, size=_USERS, timeout=_TIMEOUT
        )
        self.chats: LookupCache[str, SlackChat] = LookupCache(
            "slack chat", self._fetch_chat, size=_CHATS, timeout=_TIMEOUT
        )
        self._groups: LookupCache[str, Mapping[str, str]] = LookupCache(
            "slack groups", self._fetch_groups, size=1, timeout=_TIMEOUT
        )

    async def profile(self, user: str, home: str) -> SlackProfile:
        """Return the profile of *user* as the workspace *home* sees it; raise SendFailed if Slack does not answer."""
        self._home = home
        return await self.profiles.get(user)

    async def profiles_of(
        self, users: Iterable[str], home: str, *, within: float = _TOTAL_TIMEOUT
    ) -> Mapping[str, SlackProfile]:
        """Return the profiles of *users* that Slack returns *within* so many seconds."""
        self._home = home
        return await self.profiles.get_many(users, within=within)

    async def names(self, ids: Sequence[str], home: str) -> Mapping[str, str]:
        """Return the names that Slack returns within a moment; the first twenty *ids* are looked up."""
        ids = ids[:_MOST_NAMES]
        profiles, chats, groups = await asyncio.gather(
            self.profiles_of([each for each in ids if each[0] in "UW"], home, within=_TIMEOUT),
            self.chats.get_many([each for each in ids if each[0] in "CG"], within=_TIMEOUT),
            self._groups.get_many([""] if any(each[0] == "S" for each in ids) else [], within=_TIMEOUT),
        )
        known = {user: profile.name for user, profile in profiles.items()}
        return {**known, **{chat: found.name for chat, found in chats.items()}, **groups.get("", {})}

    async def sender(self, message: InboundMessage, bot: SlackBotIdentity) -> Sender:
        """Return the sender of *message* with their current rights; see `SupportsSenderLookup`. Raises SendFailed."""
        sender = message.sender
        profile = await self.profile(sender.id, bot.team)
        is_guest = profile.is_guest or (not profile.team and sender.is_guest)
        is_admin = profile.is_admin
        if not is_admin and not is_guest and message.chat_kind is ChatKind.GROUP and message.kind in _DECISIONS:
            is_admin = (await self._chat(message.key.parent.chat)).creator == sender.id
        return replace(sender, team=profile.team or sender.team, is_guest=is_guest, is_admin=is_admin)

    async def with_names(self, change: MembershipChange, bot: SlackBotIdentity) -> MembershipChange:
        """Return *change* with the names of the channel and of the user who made it, if Slack returns them."""
        chat = await self._chat(change.chat)
        by = change.by
        if by is not None and (profile := (await self.profiles_of([by.id], bot.team)).get(by.id)):
            by = replace(by, name=profile.name, team=profile.team or by.team)
        return replace(change, title=chat.name, by=by)

    async def close(self) -> None:
        """Cancel the look-ups in flight."""
        for lookups in (self.profiles, self.chats, self._groups):
            await lookups.close()

    async def _chat(self, chat: str) -> SlackChat:
        """Return the facts about a channel; never raises."""
        try:
            return await self.chats.get(chat)
        except SendFailed as error:
            log.info("slack.chat_unknown", chat=chat, reason=type(error).__name__)
            return SlackChat()

    async def _fetch_chat(self, chat: str) -> SlackChat:
        try:
            answer = await self._api.get("conversations.info", channel=chat)
        except SlackRefusal as error:  # kept, so that a missing scope does not cost a call at every command
            log.info("slack.chat_unknown", chat=chat, reason=str(error))
            return SlackChat()
        channel = answer.get("channel")
        fields = channel if isinstance(channel, dict) else {}
        name = safe_display_name(sanitize(str(fields.get("name") or "")))
        return SlackChat(name=name, creator=str(fields.get("creator") or ""))

    async def _fetch_user(self, user: str) -> SlackProfile:
        user_object = (await self._api.get("users.info", user=user)).get("user")
        if not isinstance(user_object, dict):
            raise OutcomeUnknown("users.info: no user")
        return parse_user(user_object, self._home)

    async def _fetch_groups(self, _: str) -> Mapping[str, str]:
        try:
            answer = await self._api.get("usergroups.list")
        except SlackRefusal as error:  # kept, so that a missing scope does not cost a call at every mention
            log.info("slack.groups_unknown", reason=str(error))
            return {}
        groups = answer.get("usergroups") or ()
        return {str(each["id"]): safe_display_name(sanitize(str(each.get("handle") or ""))) for each in groups}


def parse_user(user: Mapping[str, Any], home: str) -> SlackProfile:
    """Return the profile of a user object."""
    profile = user.get("profile") or {}
    team = str(user.get("team_id") or "")
    is_foreign = bool(user.get("is_stranger")) or bool(team and team != home)
    name = profile.get("display_name") or profile.get("real_name") or user.get("real_name") or user.get("name") or ""
    return SlackProfile(
        name=sanitize(str(name)),
        team=team,
        # A user who was removed from the workspace is not a member any more.
        is_guest=is_foreign or any(user.get(name) for name in ("is_restricted", "is_ultra_restricted", "deleted")),
        is_admin=not is_foreign and bool(user.get("is_admin") or user.get("is_owner")),
        is_bot=bool(user.get("is_bot")),
        timezone=sanitize(str(user.get("tz") or "")),
    )


log = structlog.get_logger(__name__)

_SENDERS = 1_000  # messages whose senders are remembered
_FOLLOWED_THREADS = 500
_OLD_THREADS_NOTE = "threads"  # all followed threads as JSON, as earlier versions kept them


@dataclass(frozen=True, slots=True)
class _PendingLookup:
    """A look-up in flight."""

    user: str
    profile: asyncio.Task[SlackProfile]


class SlackInbound:
    """Turns payloads into messages of the intake, in order within a chat."""

    def __init__(
        self,
        context: ChannelContext,
        api: SlackApi,
        reactions: SlackReactions,
        interactions: SlackInteractions,
    ) -> None:
        self._name = context.name
        self._intake = context.intake
        self._reactions = reactions
        self._interactions = interactions
        self.members = SlackMembers(api)
        self._pairs = MentionPairs()
        self.threads = FollowedThreads(
            context.state, size=_FOLLOWED_THREADS, old_note=_OLD_THREADS_NOTE, is_shared=context.is_shared
        )
        self.cursors = SlackReadCursors(context.state)
        self._reply_policy = context.reply_policy
        entries = getattr(context.settings, "allow_from", ())
        # These entries admit members but no guests: without a profile the event has to come again.
        self._needs_profiles = any(entry.startswith(("team:", "chat:")) for entry in entries)
        self._logged: set[str] = set()
        self.in_order = KeyedSlots(1)  # the events of a chat, one at a time
        self._cautious_lock = asyncio.Lock()
        self._senders: FIFOCache[tuple[str, str], tuple[str, str]] = FIFOCache(_SENDERS)

    def sender_of(self, chat: str, ts: str) -> tuple[str, str]:
        """Return the user and workspace that sent a recent message; empty if it is forgotten."""
        return self._senders.get((chat, ts), ("", ""))

    async def receive(self, body: dict[str, Any], bot: SlackBotIdentity) -> bool:
        """Take one payload in; return False if it is not durable and Slack must redeliver it. Never raises.

        The sender's profile is fetched at once: a look-up that hangs delays the chat by one timeout, not by one for
        each waiting message.
        """
        lookup = self._start_lookup(user_of(body), bot)
        try:
            if not self._intake.is_cautious:
                await self._pairs.wait_message(body)
            async with self.in_order.hold(chat_of(body)):
                return await self.accept(body, bot, lookup=lookup)
        finally:
            if lookup is not None:
                lookup.profile.cancel()

    async def replay(self, event: PlatformEvent, bot: SlackBotIdentity) -> None:
        """Take in a payload that was quarantined; raises what the intake raises."""
        body = json.loads(event.raw)
        async with self.in_order.hold(chat_of(body)):
            parsed = await self.parse(body, bot)
            if parsed is not None:
                await self._hand_over(parsed, bot, is_old=False, lookup=None)

    async def parse(self, body: dict[str, Any], bot: SlackBotIdentity) -> ParsedEvent | None:
        """Return the event of *body*, or None if it is not for the bot or its own; raise UnreadableEvent."""
        self.members.profiles.forget(changed_user(body))
        change = parse_membership(body, channel=self._name, bot=bot)
        if change is not None:
            await self._intake.membership_changed(await self.members.with_names(change, bot))
        in_threads = self._reply_policy(chat_of(body)).reply_in == "thread"
        event = parse_event(body, bot, in_threads=in_threads, now=datetime.now(UTC))
        return event if event is not None and not event.is_self else None

    async def accept(
        self, body: dict[str, Any], bot: SlackBotIdentity, *, is_old: bool = False, lookup: _PendingLookup | None = None
    ) -> bool:
        """Like `receive`, for a caller that holds the chat's lock; used for messages of the history too.

        *is_old*: the message was accepted before and is read again because it was edited since.
        """
        parsed: ParsedEvent | None = None
        is_member = True

        async def work() -> None:
            nonlocal parsed, is_member
            event = await self.parse(body, bot)
            if event is not None:
                parsed = event
                is_member = await self._hand_over(event, bot, is_old=is_old, lookup=lookup)

        is_durable = await self._handle(body, work)
        if parsed is not None and not is_old and (is_member or self.cursors.has_cursor(_conversation_of(parsed))):
            await self._move_cursor(parsed, is_durable=is_durable)
        return is_durable

    def reads_all(self, chat: str) -> bool:
        """Return True if messages in *chat* need no mention of the bot."""
        return self._reply_policy(chat).group_policy == "open"

    def _start_lookup(self, user: str, bot: SlackBotIdentity) -> _PendingLookup | None:
        if not user or user == bot.user or self._intake.is_cautious:
            return None
        profile = asyncio.create_task(self.members.profile(user, bot.team), name="slack sender")
        profile.add_done_callback(lambda task: task.cancelled() or task.exception())  # some are never awaited
        return _PendingLookup(user, profile)

    async def _handle(self, body: dict[str, Any], work: Callable[[], Awaitable[None]]) -> bool:
        raw = raw_of(body)
        event = PlatformEvent(channel=self._name, id=event_of(body, raw), raw=raw, origin=origin_of(body))
        async with AsyncExitStack() as stack:
            if self._intake.is_cautious:
                await stack.enter_async_context(self._cautious_lock)
            try:
                await self._intake.handle(event, work)
            except (StoreUnavailable, SendFailed) as error:
                log.warning("slack.not_taken", channel=self._name, chat=chat_of(body), reason=str(error))
                return False
            except Exception:  # the channel boundary: one message's bug costs that message a redelivery
                log.exception("slack.event_failed", channel=self._name, chat=chat_of(body))
                return False
        return True

    async def _hand_over(
        self, event: ParsedEvent, bot: SlackBotIdentity, *, is_old: bool, lookup: _PendingLookup | None
    ) -> bool:
        """Hand a message to the intake; return False if its sender is unknown, who leaves no trace."""
        profile = await self._profile(event, bot, lookup)
        may_follow = self._follows(event) and bool(event.thread) and not event.calls_others
        is_followed = may_follow and await self.threads.is_followed(event.place, otherwise=event.is_below_us)
        is_for_us = event.is_direct or event.calls_us or is_followed or self.reads_all(event.chat)
        ids = named_ids(event.whole_text) if is_for_us and event.kind is not InboundKind.BUTTON else []
        names = await self.members.names(ids, bot.team) if ids and ids != [bot.user] else {}
        event = await self._with_known_author(event, bot)
        message = build_message(event, self._name, bot, profile, is_followed=is_followed, names=names)
        self._senders[event.chat, event.ts] = (event.user, message.sender.team)
        result = await self._intake.receive(message)
        if event.calls_us and result.is_repeated:  # another gateway on the same store has its `message` event
            self._pairs.expect_messages(event.chat)
        if event.press is not None and result.verdict is not IntakeVerdict.REJECTED:
            await self._interactions.hold_press(message, event.press)
        if event.response_url and result.verdict is not IntakeVerdict.REJECTED:
            await self._interactions.hold_slash(message, event.response_url)
        await self._update_threads(event, message, result)
        if event.thread and event.thread == event.ts and result.verdict is IntakeVerdict.ACCEPTED:
            self.cursors.advance(event.place, event.ts)  # the answer starts a thread, which may continue
        if not is_old:
            self._show_result(event, message, result)
        return is_from_member(result)

    async def _with_known_author(self, event: ParsedEvent, bot: SlackBotIdentity) -> ParsedEvent:
        """Return *event* without the author of what it shares, unless that is a person of the workspace, or the bot."""
        by = event.shared.by
        if by in ("", UNKNOWN, event.user, bot.user):
            return event
        try:
            profile = await self.members.profile(by, bot.team)
        except SendFailed:  # the message counts, whoever wrote what it shares
            profile = SlackProfile(is_guest=True)
        is_known = not (profile.is_bot or profile.is_guest)
        return event if is_known else replace(event, shared=replace(event.shared, by=UNKNOWN))

    async def _profile(self, event: ParsedEvent, bot: SlackBotIdentity, lookup: _PendingLookup | None) -> SlackProfile:
        """Return the sender's profile; a sender without one counts as a guest."""
        if event.is_bot or not event.user:
            return SlackProfile(is_bot=event.is_bot)
        try:
            if lookup is not None and lookup.user == event.user:
                return await lookup.profile
            return await self.members.profile(event.user, bot.team)
        except SlackRefusal as error:
            if error.code not in self._logged:
                self._logged.add(error.code)
                log.info("slack.person_unknown", channel=self._name, reason=str(error))
        except SendFailed as error:
            if self._needs_profiles:
                raise SendFailed(f"users.info: {type(error).__name__}") from error
        return SlackProfile(is_guest=True)

    def _follows(self, event: ParsedEvent) -> bool:
        return self._reply_policy(event.place).follow_threads

    async def _update_threads(self, event: ParsedEvent, message: InboundMessage, result: IntakeResult) -> None:
        is_group_message = message.kind is InboundKind.MESSAGE and message.chat_kind is ChatKind.GROUP
        if is_group_message and event.thread and self._follows(event):
            await self.threads.update(
                event.place,
                result,
                mentions_us=event.calls_us,
                mentions_others=event.calls_others,
                message_id=event.ts,
                otherwise=event.is_below_us,
            )

    async def _move_cursor(self, event: ParsedEvent, *, is_durable: bool) -> None:
        if event.kind is InboundKind.MESSAGE and not event.is_change:
            move = self.cursors.advance if is_durable else self.cursors.hold_back
            move(_conversation_of(event), event.ts)
        try:
            await self.cursors.save_new()
        except StoreUnavailable as error:
            log.info("slack.marks_wait", reason=str(error))  # saved with the next ones

    def _show_result(self, event: ParsedEvent, message: InboundMessage, result: IntakeResult) -> None:
        is_new = message.kind is InboundKind.MESSAGE and not event.is_change
        if result.verdict is IntakeVerdict.ACCEPTED and is_new:
            self._reactions.acknowledge(message.key, event.chat, event.ts, result)
        if result.line:
            self._reactions.send_ephemeral(
                event.chat,
                event.thread,
                event.user,
                result.line,
                is_direct=event.is_direct,
                otherwise=partial(self._interactions.show, event.response_url) if event.response_url else None,
            )


_PAIR_WAIT = 1.0  # seconds; Slack sends both events of a mention at once


class MentionPairs:
    """Waits for the `message` event of a mention, since `app_mention` may come first and lacks files.

    Where an app does not subscribe to the messages of a chat, only its first mention waits in vain.
    """

    def __init__(self) -> None:
        self._received: FIFOCache[tuple[str, str], None] = FIFOCache(_SENDERS)
        self._waiting: dict[tuple[str, str], asyncio.Event] = {}
        self._without_messages: FIFOCache[str, None] = FIFOCache(_SENDERS)

    async def wait_message(self, body: Mapping[str, Any]) -> None:
        """Return when the message of *body*, if that is a mention, has arrived; for other events at once."""
        event = body.get("event")
        if not isinstance(event, Mapping):
            return
        chat, ts = chat_of(body), str(event.get("ts"))
        if event.get("type") == "message":
            self.expect_messages(chat)
            self._received[chat, ts] = None
            if (waiting := self._waiting.get((chat, ts))) is not None:
                waiting.set()
        elif event.get("type") == "app_mention" and not event.get("files") and chat not in self._without_messages:
            await self._wait(chat, ts)

    def expect_messages(self, chat: str) -> None:
        """Wait again at the mentions of *chat*."""
        self._without_messages.pop(chat, None)

    async def _wait(self, chat: str, ts: str) -> None:
        if (chat, ts) in self._received:
            return
        waiting = self._waiting.setdefault((chat, ts), asyncio.Event())
        try:
            async with asyncio.timeout(_PAIR_WAIT):
                await waiting.wait()
        except TimeoutError:
            self._without_messages[chat] = None
        finally:
            self._waiting.pop((chat, ts), None)


def _conversation_of(event: ParsedEvent) -> str:
    """Return the conversation of a message: a chat's top level or a thread."""
    return event.chat if event.thread in ("", event.ts) else f"{event.chat}/{event.thread}"


# -- read cursors ----------------------------------------------------------------------------------
# Read cursors: the newest ts received from each conversation, from which a restart catches up.

_NOTE = "marks"
_KEPT = 300  # conversations, the latest ones


def number(ts: str) -> tuple[int, str]:
    """Return a sort key of a ts: floats would round it."""
    seconds, _, rest = ts.partition(".")
    return (int(seconds) if seconds.isdigit() else 0, rest.ljust(6, "0"))


class SlackReadCursors:
    """The newest accepted ts of each conversation; a message that failed holds its cursor back.

    An old cursor only causes a second reading, so `save` may come later than the journal's commit.
    """

    def __init__(self, state: SqlChannelState) -> None:
        self._state = state
        self._marks: FIFOCache[str, str] = FIFOCache(_KEPT)
        self._missed: dict[str, dict[str, float]] = {}  # conversation -> ts -> time of the failure
        self._saved = ""
        self._stored: frozenset[str] = frozenset()

    async def load(self) -> None:
        """Load the cursors of an earlier run, which may have been another worker's, before the first message."""
        self._saved = await self._state.load(_NOTE) or "{}"
        stored = json.loads(self._saved)
        for place, ts in stored.items():
            self._marks[place] = max(self._marks.get(place, ts), ts, key=number)
        self._stored = frozenset(stored)

    def advance(self, place: str, ts: str) -> None:
        """Record that a message is durable."""
        missed = self._missed.get(place)
        if missed is not None:
            missed.pop(ts, None)
            if not missed:
                del self._missed[place]
        known = self._marks.pop(place, "0")
        self._marks[place] = max(known, ts, key=number)

    def hold_back(self, place: str, ts: str) -> None:
        """Record that a message could not be accepted; Slack may or may not redeliver it."""
        self._missed.setdefault(place, {})[ts] = time.monotonic()
        # A conversation without a cursor starts with the missed message.
        self._marks.setdefault(place, _before(ts))

    def has_cursor(self, place: str) -> bool:
        """Return True if *place* has a cursor."""
        return place in self._marks

    def is_overdue(self, seconds: float) -> bool:
        """Return True if a message was missed more than *seconds* ago: Slack will not redeliver it."""
        before = time.monotonic() - seconds
        return any(at < before for missed in self._missed.values() for at in missed.values())

    def places(self) -> list[tuple[str, str]]:
        """Return each conversation and the ts after which to read it, the latest conversation first."""
        return [(place, self._mark(place)) for place in reversed(list(self._marks))]

    def _mark(self, place: str) -> str:
        missed = self._missed.get(place)
        return _before(min([self._marks[place], *missed], key=number)) if missed else self._marks[place]

    async def save(self) -> None:
        """Store the cursors if they changed; raises StoreUnavailable."""
        note = json.dumps({place: self._mark(place) for place in self._marks})
        if note != self._saved:
            places = frozenset(self._marks)
            await self._state.save(_NOTE, note)
            self._saved, self._stored = note, places

    async def save_new(self) -> None:
        """Store the cursors if a conversation has no stored one: after a kill it would not be read."""
        if not self._stored.issuperset(self._marks):
            await self.save()


def _before(ts: str) -> str:
    seconds, rest = number(ts)
    micros = seconds * 1_000_000 + int(rest) - 1
    return f"{micros // 1_000_000}.{micros % 1_000_000:06d}"
