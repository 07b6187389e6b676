"""Every reason of silence in plain words, and what an operator can paste to end it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gateway.admission import Reason
from gateway.events import ChatKind
from gateway.people.refusals import Refused, Silence
from gateway.ports.caps import Cap

WORDS: Mapping[str, str] = {
    Reason.SELF: "the bot's own message",
    Reason.BOT: "a bot wrote it: bots are not heard, or two of them would talk for ever",
    Reason.NOBODY: "the platform named no sender (a post of a whole channel, an anonymous admin)",
    Reason.GROUPS_OFF: "groups are switched off in this channel",
    Reason.GUEST: "a guest, or somebody from another workspace: a stranger unless named",
    Reason.STRANGER: "nobody has let them in",
    Reason.BLOCKED: "an owner shut them out",
    Reason.PLACE_PENDING: "the bot was added to this place, and no owner has said yet whether it may answer there",
    Reason.NOT_ADDRESSED: "it was not said to the bot, which listens to mentions alone there",
    Silence.EXPIRED: "it came more than a day ago, while no gateway ran; it was not answered any more",
    Silence.QUARANTINED: "an event of the platform could not be read, or broke us, and was set aside",
    Silence.DEAF: "the channel did not hear its platform for five minutes, and was begun anew",
    Cap.PERSON_TURNS: "they had as many answers in ten minutes as one person may have",
    Cap.CHAT_TURNS: "the chat had as many answers in ten minutes as one chat may have",
    Cap.OWN_TURNS: "the bot's own messages in this chat were as many in ten minutes as may be",
    Cap.PERSON_TOKENS: "they used up the tokens that one person may take in a day",
    Cap.CHAT_TOKENS: "the chat used up the tokens that one chat may take in a day",
    Cap.OWN_TOKENS: "the bot's own messages in this chat used up their tokens of the day",
    Cap.HOUSE_TOKENS: "the tokens of the day are used up for everybody",
}

_LOOK_AT: Mapping[str, str] = {Silence.QUARANTINED: "parlour quarantine list", Silence.DEAF: "parlour doctor"}


@dataclass(frozen=True, slots=True)
class Explained:
    """A refusal as an operator reads it: why, and lines to paste, any of which ends it. None may help."""

    words: str
    paste: tuple[str, ...] = ()


def explain(refused: Refused) -> Explained:
    """Say why somebody was not heard, and what would let them be."""
    words = WORDS.get(str(refused.reason), str(refused.reason))
    if refused.reason is Silence.QUARANTINED and refused.would_admit:
        words = f"{words}: {refused.would_admit}"
    return Explained(words, tuple(_mends(refused)))


def _mends(refused: Refused) -> Iterable[str]:
    reason = refused.reason
    if reason in (Reason.STRANGER, Reason.GUEST):
        yield _allow(refused, refused.sender)
    if reason in (Reason.STRANGER, Reason.PLACE_PENDING):
        yield from _allow_place(refused)
    if reason is Reason.STRANGER and refused.team:
        yield _allow(refused, f"team:{refused.team}")
    if reason in (Reason.NOT_ADDRESSED, Reason.GROUPS_OFF):
        yield _group_policy(refused)
    if reason is Reason.BLOCKED or isinstance(reason, Cap):
        yield refused.would_admit.strip("`")
    if reason in _LOOK_AT:
        yield _LOOK_AT[reason]


def _allow(refused: Refused, who: str) -> str:
    return f"parlour people allow {refused.channel}:{who}"


def _allow_place(refused: Refused) -> Iterable[str]:
    if refused.chat_kind is ChatKind.GROUP:
        yield _allow(refused, f"chat:{refused.chat}")
        if refused.guild:
            yield _allow(refused, f"guild:{refused.guild}")


def _group_policy(refused: Refused) -> str:
    """Return the setting that would have us listen; one of the chat's own stands in the file, not in a variable."""
    policy = "open" if refused.reason is Reason.NOT_ADDRESSED else "mention"
    place = refused.would_admit.partition("chats.")[2].removesuffix(".group_policy")
    if place:  # stronger than the block's
        return f'in parlour.yaml, below chats and "{place}": group_policy: {policy}'
    return f"PARLOUR_CHANNELS__{refused.channel.upper().replace('-', '_')}__GROUP_POLICY={policy}"
