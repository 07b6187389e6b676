"""Replies to unknown senders, and questions to owners about chats that the bot was added to.

An unknown sender gets one notice per day at most and, in direct messages, a pairing code for an owner to approve.

Nothing of their message is stored, downloaded or displayed, and no model is called. Only an outbox row and a note of
the reply remain, written in one transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime
from typing import Any

import structlog

from gateway.access.access_control import AccessRoster
from gateway.access.pairing_service import (
    GOOD_FOR,
    MOST_WAITING,
    FindOwner,
    note_of,
    person_label,
    question,
)
from gateway.admission import (
    AdmissionGrant,
    Admitted,
    AllowEntry,
    Decision,
    GroupPolicy,
    Rejected,
    RejectionReason,
)
from gateway.chat_locales import ChatLocales
from gateway.errors import StoreUnavailable
from gateway.events import ChatKind, InboundKind, InboundMessage, OutboundKind, OutboundMessage
from gateway.i18n import translate
from gateway.ports.access import AccessChange
from gateway.ports.channel import IntakeResult, IntakeVerdict, MembershipChange
from gateway.ports.metrics import MetricsRecorder
from gateway.store.access import (
    DAY,
    PERSON,
    PLACE,
    TOLD,
    TOLD_HERE,
    NoteStore,
    derive_notice_id,
    derive_reply_id,
    encode_note,
    format_code,
    format_time,
    new_code,
    parse_time,
)
from gateway.text.message_text import safe_display_name

log = structlog.get_logger(__name__)

MOST_LINES = 100  # a day, to strangers of one channel block; as many again in shared chats
MOST_LINES_HERE = 3  # a day, in one shared chat
_TOLD_REASONS = frozenset({RejectionReason.STRANGER, RejectionReason.GUEST, RejectionReason.PLACE_PENDING})
_SAID = frozenset({InboundKind.MESSAGE, InboundKind.COMMAND, InboundKind.BUTTON})


@dataclass(slots=True)
class _UnknownSenderReply:
    """The reply to one unknown sender, and the notes written with it."""

    text: str = ""
    notes: dict[str, str] = field(default_factory=dict)
    notices: list[OutboundMessage] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class UnknownSenderHandler:
    """Answers who is not let in. `intercept` is a `gateway.intake.PreAdmissionHandler`.

    Unknown senders get no reply before the bot has an owner, who could admit them, or where pairing is off.

    *owner* finds the address of a channel's owner.
    """

    roster: AccessRoster
    notes: NoteStore
    _: KW_ONLY
    owner: FindOwner
    meter: MetricsRecorder
    now: Callable[[], datetime]
    locales: ChatLocales
    unanswered: Counter[str] = field(default_factory=Counter, init=False)  # messages beyond a day's lines, by channel

    async def intercept(self, message: InboundMessage, decision: Decision) -> IntakeResult | None:
        """Reply to an unknown sender. The message itself stays rejected.

        The line goes out as a row of the outbox. It is returned only if it answers a press or a slash command, which
        cannot wait.
        """
        if isinstance(decision, Admitted) or not self._calls_us(message, decision) or self._has_reply(message):
            return None
        try:
            async with self.notes.lock:
                line = "" if self._has_reply(message) else await self._reply(message, decision)
        except StoreUnavailable as error:  # the reply is optional, so no redelivery is requested
            log.warning("strangers.not_told", channel=message.key.channel, reason=str(error))
            return None
        if not line:
            return None
        self.meter.count("rejected", reason=decision.reason)
        return IntakeResult(verdict=IntakeVerdict.REJECTED, reason=decision.reason, line=line)

    def _calls_us(self, message: InboundMessage, rejected: Rejected) -> bool:
        if rejected.reason not in _TOLD_REASONS or message.kind not in _SAID or message.revision:
            return False
        if _is_greeting(message):
            return False
        if not (self.roster.has_owner() or self.roster.has_pairing(message.key.channel)):
            return False
        if self.now() - message.sent_at > DAY:
            return False
        is_direct = message.chat_kind is ChatKind.DIRECT
        return is_direct or message.is_addressed or message.kind is not InboundKind.MESSAGE

    def _has_reply(self, message: InboundMessage) -> bool:
        """Return True if the sender had their line; one in a shared chat may have sent them to a direct message."""
        prefixes = (TOLD,) if message.chat_kind is ChatKind.DIRECT else (TOLD, TOLD_HERE)
        notes = [self.notes.one(f"{prefix}{_who(message)}") for prefix in prefixes]
        return any(note is not None and datetime.fromisoformat(note["until"]) > self.now() for note in notes)

    async def _reply(self, message: InboundMessage, rejected: Rejected) -> str:
        """Write the reply and its notes in one transaction; return the line if it must be sent at once."""
        now, key = self.now(), message.key
        expired = self.notes.outdated(now)
        if not self._fits_budget(message, expired):
            return ""
        answer = await self._answer(message, rejected, now, expired)
        if not answer.text:
            return ""
        is_on_the_spot = not message.message_id
        if not is_on_the_spot:
            answer.notices.insert(0, self._line(message, answer.text, now))
        told = {
            "until": format_time(now + DAY),
            "place": "" if message.chat_kind is ChatKind.DIRECT else key.parent.chat,
        }
        notes = {**expired, **answer.notes, _told_note(message): encode_note(told)}
        await self.notes.access.change(AccessChange(notes=notes, notices=tuple(answer.notices)))
        log.info("strangers.told", channel=key.channel, reason=str(rejected.reason), has_code=bool(answer.notes))
        return answer.text if is_on_the_spot else ""

    def _fits_budget(self, message: InboundMessage, expired: dict[str, str]) -> bool:
        """Return True if another reply fits into today's budget, so that many accounts cannot make the bot flood.

        Direct messages and shared chats have separate budgets.
        """
        channel, here = message.key.channel, message.key.parent.chat
        prefix = f"{_prefix(message)}{channel}:"
        places = [value["place"] for name, value in self.notes.of(prefix) if name not in expired]
        if len(places) >= MOST_LINES:
            self.unanswered[channel] += 1
            log.warning("strangers.no_lines_left", channel=channel, is_direct=message.chat_kind is ChatKind.DIRECT)
            return False
        return message.chat_kind is ChatKind.DIRECT or places.count(here) < MOST_LINES_HERE

    async def _answer(
        self, message: InboundMessage, rejected: Rejected, now: datetime, expired: dict[str, str]
    ) -> _UnknownSenderReply:
        has_pairing, language = self.roster.has_pairing(message.key.channel), self.locales.language(message.key)
        if message.chat_kind is ChatKind.DIRECT:
            if has_pairing:
                return await self._with_code(message, rejected, now, expired)
            return _UnknownSenderReply(translate("unknown_senders.nobody_direct", language))
        if rejected.reason is RejectionReason.PLACE_PENDING:
            return _UnknownSenderReply(translate("unknown_senders.place_waits", language))
        return _UnknownSenderReply(
            translate("unknown_senders.write_to_me" if has_pairing else "unknown_senders.nobody_here", language)
        )

    async def _with_code(
        self, message: InboundMessage, rejected: Rejected, now: datetime, expired: dict[str, str]
    ) -> _UnknownSenderReply:
        """Give a code, and ask an owner who can be reached; nothing while as many wait as may."""
        channel, sender = message.key.channel, message.sender
        members = self.notes.access.members()
        of_block = [
            value for name, value in self.notes.of(PERSON) if name not in expired and value["channel"] == channel
        ]
        if sum((channel, value["who"]) not in members for value in of_block) >= MOST_WAITING:
            return _UnknownSenderReply()
        code = new_code()
        while self.notes.text(note := await note_of(code)):
            code = new_code()
        name = safe_display_name(sender.name)
        waiting = {
            "channel": channel,
            "who": sender.id,
            "name": name,
            "key": str(message.key),
            "at": format_time(now),
            "until": format_time(now + GOOD_FOR),
        }
        text = translate("unknown_senders.code", self.locales.language(message.key), code=format_code(code))
        answer = _UnknownSenderReply(text, {note: encode_note(waiting)})
        at = await self.owner(channel)
        if at is not None:
            language = self.locales.language(at.key)
            who = person_label(sender.id, name, language)
            asked = translate("unknown_senders.ask_person", language, who=who, channel=channel, code=format_code(code))
            if rejected.reason is RejectionReason.GUEST:
                asked = f"{asked} {translate('unknown_senders.ask_guest', language)}"
            answer.notices.append(question(at, note, derive_notice_id(note), asked, language))
        return answer

    def _line(self, message: InboundMessage, text: str, now: datetime) -> OutboundMessage:
        is_shared = message.chat_kind is not ChatKind.DIRECT
        return OutboundMessage(
            id=f"{derive_reply_id(_told_note(message), format_time(now))}.1",
            key=message.key,
            text=text,
            kind=OutboundKind.NOTICE,
            reply_to=message.message_id if is_shared else "",
            visible_to=message.sender.id if is_shared else "",
            chat_kind=message.chat_kind,
        )


def _prefix(message: InboundMessage) -> str:
    return TOLD if message.chat_kind is ChatKind.DIRECT else TOLD_HERE


def _who(message: InboundMessage) -> str:
    return f"{message.key.channel}:{message.sender.id}"


def _told_note(message: InboundMessage) -> str:
    return f"{_prefix(message)}{_who(message)}"


def _is_greeting(message: InboundMessage) -> bool:
    """Return True if *message* has no author: a channel sends it to make the bot greet a chat it was added to."""
    is_shared = message.chat_kind is ChatKind.GROUP
    return is_shared and not message.message_id and message.kind is InboundKind.MESSAGE and message.text == "/start"


MOST_ASKED = 3  # per day and channel: any user can add the bot to a hundred groups
MOST_KEPT = 200  # undecided chats of one channel


@dataclass(slots=True, eq=False)
class ChatApprovals:
    """Chats that the bot was added to: an owner is asked once; until then the bot says nothing there.

    A chat that an entry admits, or whose workspace one does, needs no question.

    *owner* finds the address of a channel's owner; *group_policy_of* returns the policy of one chat,
    if it has its own.
    """

    roster: AccessRoster
    notes: NoteStore
    _: KW_ONLY
    owner: FindOwner
    now: Callable[[], datetime]
    locales: ChatLocales
    group_policy_of: Callable[[MembershipChange], str | None] = lambda _: None

    async def handle_membership(self, place: MembershipChange) -> None:
        """Ask an owner about a place that is new and not let in; forget one we have left. Raises StoreUnavailable."""
        note = f"{PLACE}{place.channel}:{place.entry}"
        async with self.notes.lock:
            value = self.notes.one(note)
            if place.is_gone:
                await self._leave(note, value)
            elif not self._is_open(place):
                await self._enter(note, value, place)

    def question_text(self, message: InboundMessage, decision: Decision) -> Decision:
        """Return *decision*, with the better reason where a stranger was refused because their place waits."""
        if isinstance(decision, Admitted) or decision.reason is not RejectionReason.STRANGER:
            return decision
        if message.chat_kind is not ChatKind.GROUP:
            return decision
        channel = message.key.channel
        entries = [f"chat:{message.key.parent.chat}", *([f"guild:{message.guild}"] if message.guild else [])]
        waiting = next((each for each in entries if self._waits(f"{PLACE}{channel}:{each}")), "")
        return replace(decision, reason=RejectionReason.PLACE_PENDING) if waiting else decision

    def _waits(self, note: str) -> bool:
        value = self.notes.one(note)
        return value is not None and not value.get("no") and not value["gone"]

    def _is_open(self, place: MembershipChange) -> bool:
        """Return True if no approval is needed: its members are admitted, or the group policy is off."""
        policy = self.roster.policies.get(place.channel)
        if policy is None or policy.is_local:
            return True
        if GroupPolicy(self.group_policy_of(place) or policy.group_policy) is GroupPolicy.OFF:
            return True
        grants = {str(AllowEntry(AdmissionGrant.EVERYONE)), place.entry}
        grants |= {f"guild:{place.guild}"} if place.guild else set()
        grants |= {f"team:{place.team}"} if place.team else set()
        members = self.notes.access.members()
        is_decided = any((place.channel, who) in members for who in grants)
        return is_decided or not grants.isdisjoint(map(str, policy.entries))

    async def _leave(self, note: str, value: Mapping[str, Any] | None) -> None:
        if value is None:
            return
        # Kept for the rest of the day, so that removing and adding the bot does not ask again.
        is_fresh = self._asked_lately(value)
        await self.notes.write({note: encode_note({**value, "gone": True}) if is_fresh else ""})

    async def _enter(self, note: str, value: Mapping[str, Any] | None, place: MembershipChange) -> None:
        if value is not None and not value["gone"]:
            return  # the platform says it once more
        if value is not None and self._asked_lately(value):
            await self.notes.write({note: encode_note({**value, "gone": False})})
            return
        now = self.now()
        told = await self._question(note, place, now)
        by = place.by
        new = {
            "channel": place.channel,
            "who": place.entry,
            "name": safe_display_name(place.title),
            "by": by.id if by else "",
            "by_name": safe_display_name(by.name) if by else "",
            "at": format_time(now),
            "asked": format_time(now) if told else "",
            "gone": False,
        }
        await self.notes.access.change(
            AccessChange(notes={**self._too_many(place.channel), note: encode_note(new)}, notices=told)
        )
        log.info("places.waits", channel=place.channel, place=place.entry, asked=bool(told))

    def _asked_lately(self, value: Mapping[str, Any]) -> bool:
        return bool(value["asked"]) and self.now() - parse_time(value["asked"]) < DAY

    def _too_many(self, channel: str) -> dict[str, str]:
        of_block = sorted((value["at"], name) for name, value in self.notes.of(f"{PLACE}{channel}:"))
        return {name: "" for _, name in of_block[: max(0, len(of_block) - MOST_KEPT + 1)]}

    async def _question(self, note: str, place: MembershipChange, now: datetime) -> tuple[OutboundMessage, ...]:
        asked = sum(self._asked_lately(value) for _, value in self.notes.of(f"{PLACE}{place.channel}:"))
        at = await self.owner(place.channel) if asked < MOST_ASKED else None
        if at is None:
            return ()
        language, by = self.locales.language(at.key), place.by
        where = person_label(place.entry, safe_display_name(place.title), language)
        if by is not None:
            who = person_label(by.id, safe_display_name(by.name), language)
            text = translate("unknown_senders.ask_place_by", language, who=who, place=where, channel=place.channel)
        else:
            text = translate("unknown_senders.ask_place", language, place=where, channel=place.channel)
        return (question(at, note, derive_notice_id(note, format_time(now)), text, language),)
