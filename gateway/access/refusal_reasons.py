"""Every reason of silence in plain words, and what an operator can paste to end it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gateway.access.refusal_log import RefusalRecord, SilenceReason
from gateway.admission import RejectionReason
from gateway.events import ChatKind
from gateway.ports.caps import CapKind

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
}

_LOOK_AT: Mapping[str, str] = {
    SilenceReason.QUARANTINED: "parlour quarantine list",
    SilenceReason.DEAF: "parlour doctor",
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
        yield refusal.would_admit.strip("`")
    if reason in _LOOK_AT:
        yield _LOOK_AT[reason]


def _allow(refusal: RefusalRecord, who: str) -> str:
    return f"parlour people allow {refusal.channel}:{who}"


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
