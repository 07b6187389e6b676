"""Why the bot was silent: the last refusals, each with what would end it. No word of what was said is in it."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Protocol, TypeAlias

import structlog

from gateway.admission import RejectionReason
from gateway.events import ChatKind, InboundMessage
from gateway.text.display_names import safe_display_name

log = structlog.get_logger(__name__)

LONGEST_NAME = 64  # characters

_Who: TypeAlias = tuple[str, str, str, str]  # channel, chat, sender, reason


class SilenceReason(StrEnum):
    """Reasons for silence before or after admission."""

    EXPIRED = "expired"  # came too long ago, while no gateway ran
    QUARANTINED = "quarantined"  # the event could not be read, or broke us
    DEAF = "deaf"  # the channel did not hear its platform


class RefusalInfo(Protocol):
    """Facts about one refusal: admission's `Rejected`, or a value of the same shape."""

    @property
    def reason(self) -> StrEnum:
        """Why; a word of a small fixed set, fit for a metric."""
        ...

    @property
    def would_admit(self) -> str:
        """The setting or decision that would admit the sender, for the operator."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherRefusal:
    """A refusal that is not admission's."""

    reason: StrEnum
    would_admit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalRecord:
    """One explanation of silence; holds no word of what was said."""

    channel: str
    chat: str  # the parent chat of a thread; "" where the whole channel is meant
    sender: str  # a platform's id, "" where there is none
    reason: StrEnum
    would_admit: str
    first_at: datetime
    last_at: datetime
    times: int = 1
    name: str = ""  # as they call themselves, for reading; in memory alone, never in a log
    chat_kind: ChatKind = ChatKind.DIRECT
    team: str = ""  # the sender's Slack workspace
    guild: str = ""  # the Discord server


# Normal rejections: messages not addressed to the bot, other bots, and blocked users.
USUAL = frozenset({RejectionReason.NOT_ADDRESSED, RejectionReason.BOT, RejectionReason.NOBODY, RejectionReason.BLOCKED})


@dataclass(slots=True, kw_only=True)
class ChannelRefusals:
    """Counts and recent refusals of one channel."""

    since: datetime
    reasons: Counter[str] = field(default_factory=Counter)  # messages by reason, the usual ones too
    messages: int = 0  # rejected messages addressed to the bot
    people: set[str] = field(default_factory=set)  # their senders


class RefusalLog:
    """The last refusals, so that silence can be explained. In memory only.

    Repeats of the same refusal are counted, not listed: one busy group must not push the others out.
    """

    def __init__(self, size: int = 200) -> None:
        self._size = size
        self._kept: OrderedDict[_Who, RefusalRecord] = OrderedDict()
        self._newest: dict[_Who, str] = {}  # last counted message, because platforms may deliver twice

    def note(self, message: InboundMessage, refusal: RefusalInfo, at: datetime) -> RefusalRecord:
        """Record and log one refusal, without text. The bot's own messages are ignored."""
        return self._keep(
            RefusalRecord(
                channel=message.key.channel,
                chat=message.key.parent.chat,
                sender=message.sender.id,
                reason=refusal.reason,
                would_admit=refusal.would_admit,
                first_at=at,
                last_at=at,
                name=safe_display_name(message.sender.name, LONGEST_NAME),
                chat_kind=message.chat_kind,
                team=message.sender.team,
                guild=message.guild,
            ),
            message.message_id,
        )

    def note_channel(self, channel: str, reason: StrEnum, would_admit: str, at: datetime) -> RefusalRecord:
        """Record and log an event that affects a whole channel."""
        return self._keep(
            RefusalRecord(
                channel=channel, chat="", sender="", reason=reason, would_admit=would_admit, first_at=at, last_at=at
            )
        )

    def _keep(self, new: RefusalRecord, word: str = "") -> RefusalRecord:
        who = (new.channel, new.chat, new.sender, str(new.reason))
        before = self._kept.pop(who, None)
        is_known = before is not None and bool(word) and self._newest.get(who) == word
        refused = new if before is None else _again(new, before, times=before.times + (not is_known))
        if new.reason is RejectionReason.SELF:
            return refused
        self._kept[who], self._newest[who] = refused, word
        while len(self._kept) > self._size:
            gone, _ = self._kept.popitem(last=False)
            del self._newest[gone]
        if before is None:
            log.info(
                "admission.refused",
                channel=refused.channel,
                chat=refused.chat,
                sender=refused.sender,
                reason=str(refused.reason),
                would_admit=refused.would_admit,
            )
        return refused

    def recent(self, channel: str = "", ident: str = "") -> tuple[RefusalRecord, ...]:
        """Return the recorded refusals, newest first; of one channel and one sender or chat, if given."""
        found = reversed(self._kept.values())
        return tuple(
            refused
            for refused in found
            if (not channel or refused.channel == channel) and (not ident or ident in (refused.sender, refused.chat))
        )

    def summary(self) -> Mapping[str, ChannelRefusals]:
        """Return per channel what is kept, in figures."""
        found: dict[str, ChannelRefusals] = {}
        for refused in self._kept.values():
            unheard = found.setdefault(refused.channel, ChannelRefusals(since=refused.first_at))
            unheard.since = min(unheard.since, refused.first_at)
            unheard.reasons[str(refused.reason)] += refused.times
            if refused.reason not in USUAL and refused.sender:
                unheard.people.add(refused.sender)
                unheard.messages += refused.times
        return found


def _again(new: RefusalRecord, before: RefusalRecord, *, times: int) -> RefusalRecord:
    return replace(new, first_at=before.first_at, times=times, name=new.name or before.name)
