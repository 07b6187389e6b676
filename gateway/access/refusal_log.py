"""The last refusals, each with the setting that would end it, and their reasons. No text of a message is in it."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import TypeAlias

import structlog

from gateway.admission import Rejected, RejectionReason
from gateway.events import ChatKind, InboundMessage
from gateway.installation import operator_command, with_operator_commands
from gateway.ports.access import CapKind
from gateway.text.message_text import safe_display_name

log = structlog.get_logger(__name__)

LONGEST_NAME = 64  # characters

_Who: TypeAlias = tuple[str, str, str, str]  # channel, chat, sender, reason


class SilenceReason(StrEnum):
    """Reasons for silence before or after admission."""

    EXPIRED = "expired"  # came too long ago, while no gateway ran
    QUARANTINED = "quarantined"  # the event could not be read, or broke us
    DEAF = "deaf"  # the channel did not hear its platform


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherRefusal:
    """A refusal that is not admission's."""

    reason: StrEnum  # of a small fixed set, fit for a metric
    would_admit: str = ""  # the setting or decision that would admit the sender, for the operator


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

    def note(self, message: InboundMessage, refusal: Rejected | OtherRefusal, at: datetime) -> RefusalRecord:
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


WORDS: Mapping[str, str] = {
    RejectionReason.SELF: "the bot's own message",
    RejectionReason.BOT: "a bot wrote it: bots are not heard, or two of them would talk for ever",
    RejectionReason.NOBODY: "the platform named no sender (a post of a whole channel, an anonymous admin)",
    RejectionReason.GROUPS_OFF: "groups are switched off in this channel",
    RejectionReason.GUEST: "a guest, or somebody from another workspace: a stranger unless named",
    RejectionReason.STRANGER: "nobody has let them in",
    RejectionReason.BLOCKED: "an owner shut them out",
    RejectionReason.PLACE_PENDING: "the bot was added to this place, and no owner has approved it yet",
    RejectionReason.NOT_ADDRESSED: "it was not said to the bot, which listens to mentions alone there",
    SilenceReason.EXPIRED: "it came more than a day ago, while no gateway ran; it was not answered any more",
    SilenceReason.QUARANTINED: "an event of the platform could not be read, or broke us, and was set aside",
    SilenceReason.DEAF: "the channel did not hear its platform for five minutes, and was begun anew",
    CapKind.PERSON_TURNS: "they had as many answers in ten minutes as one person may have",
    CapKind.CHAT_TURNS: "the chat had as many answers in ten minutes as one chat may have",
    CapKind.OWN_TURNS: "the bot's own messages in this chat were as many in ten minutes as may be",
    CapKind.PERSON_TOKENS: "they used up the tokens that one person may take in a day",
    CapKind.CHAT_TOKENS: "the chat used up the tokens that one chat may take in a day",
    CapKind.OWN_TOKENS: "the bot's own messages in this chat used up their tokens of the day",
    CapKind.HOUSE_TOKENS: "the tokens of the day are used up for everybody",
    CapKind.PERSON_COST: "they used up the money that one person may cost in a day",
    CapKind.CHAT_COST: "the chat used up the money that one chat may cost in a day",
    CapKind.HOUSE_COST: "the money of the day is used up for everybody",
}

_LOOK_AT: Mapping[str, str] = {
    SilenceReason.QUARANTINED: "quarantine list",
    SilenceReason.DEAF: "doctor",
}


@dataclass(frozen=True, slots=True)
class RefusalExplanation:
    """A refusal as an operator reads it: why, and lines to paste, any of which ends it. None may help."""

    words: str
    paste: tuple[str, ...] = ()


def explain_refusal(refusal: RefusalRecord) -> RefusalExplanation:
    """Explain a refusal, with the setting or decision that would admit the sender."""
    words = WORDS.get(str(refusal.reason), str(refusal.reason))
    if refusal.reason is SilenceReason.QUARANTINED and refusal.would_admit:
        words = f"{words}: {refusal.would_admit}"
    return RefusalExplanation(words, tuple(_mends(refusal)))


def _mends(refusal: RefusalRecord) -> Iterable[str]:
    reason = refusal.reason
    if reason in (RejectionReason.STRANGER, RejectionReason.GUEST):
        yield _allow(refusal, refusal.sender)
    if reason in (RejectionReason.STRANGER, RejectionReason.PLACE_PENDING):
        yield from _allow_place(refusal)
    if reason is RejectionReason.STRANGER and refusal.team:
        yield _allow(refusal, f"team:{refusal.team}")
    if reason in (RejectionReason.NOT_ADDRESSED, RejectionReason.GROUPS_OFF):
        yield _group_policy(refusal)
    if reason is RejectionReason.BLOCKED or isinstance(reason, CapKind):
        yield with_operator_commands(refusal.would_admit).strip("`")
    if reason in _LOOK_AT:
        yield operator_command(_LOOK_AT[reason])


def _allow(refusal: RefusalRecord, who: str) -> str:
    return operator_command(f"people allow {refusal.channel}:{who}")


def _allow_place(refusal: RefusalRecord) -> Iterable[str]:
    if refusal.chat_kind is ChatKind.GROUP:
        yield _allow(refusal, f"chat:{refusal.chat}")
        if refusal.guild:
            yield _allow(refusal, f"guild:{refusal.guild}")


def _group_policy(refusal: RefusalRecord) -> str:
    """Return the setting that opens the chat: an override of the chat is in the file, not in a variable."""
    policy = "open" if refusal.reason is RejectionReason.NOT_ADDRESSED else "mention"
    place = refusal.would_admit.partition("chats.")[2].removesuffix(".group_policy")
    if place:  # stronger than the block's
        return f'in parlour.yaml, below chats and "{place}": group_policy: {policy}'
    return f"PARLOUR_CHANNELS__{refusal.channel.upper().replace('-', '_')}__GROUP_POLICY={policy}"
