"""Admission, stage 3: decide whether a message may be processed. Pure over the message, the facts and the policy.

Nothing of a message is stored or shown before it is admitted. Only stable ids decide, compared whole: display names
and texts that look like ids never do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from gateway.events import ChatKind, InboundKind, InboundMessage, Role, Sender


class AdmissionGrant(StrEnum):
    """Subject of an admission entry."""

    USER = "user"
    ROLE = "role"  # Discord; in its guild's chats only
    GUILD = "guild"  # Discord; in its chats only
    TEAM = "team"  # Slack workspace; direct messages too
    CHAT = "chat"  # one chat and its threads
    EVERYONE = "*"


LOCAL_OWNER = "owner"  # user id of the owner on local channels, given to no other user there


class GroupPolicy(StrEnum):
    """Condition for answering in a chat of several people."""

    MENTION = "mention"
    OPEN = "open"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class AllowEntry:
    """One line of an allow-list, read once."""

    grants: AdmissionGrant
    id: str = ""

    @classmethod
    def parse(cls, text: str) -> AllowEntry:
        """Read ``id``, ``role:ID`` and so on; raise ValueError for what could never be an id."""
        if text == "*":
            return cls(AdmissionGrant.EVERYONE)
        place, colon, ident = text.partition(":")
        if colon and place in (AdmissionGrant.ROLE, AdmissionGrant.GUILD, AdmissionGrant.TEAM, AdmissionGrant.CHAT):
            entry = cls(AdmissionGrant(place), ident)
        else:
            entry = cls(AdmissionGrant.USER, text)
        if not is_id(entry.id):
            raise ValueError(f"{text!r} is no admission entry")
        return entry

    def __str__(self) -> str:
        """Return the entry as it is written."""
        if self.grants is AdmissionGrant.EVERYONE:
            return "*"
        return self.id if self.grants is AdmissionGrant.USER else f"{self.grants}:{self.id}"


def is_id(text: str) -> bool:
    """Return True if *text* can be a platform's id: printable ASCII without blanks, commas or `*`."""
    return re.fullmatch(r"[!-)+\--~]+", text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionPolicy:
    """Admission policy of one channel."""

    channel: str
    entries: frozenset[AllowEntry] = frozenset()
    owners: frozenset[str] = frozenset()  # user ids in this channel
    group_policy: GroupPolicy = GroupPolicy.MENTION
    decided_for: str = ""  # the entry of `chats` that sets the group policy; "" = the channel
    is_local: bool = False  # web and console: authenticated users are admitted, LOCAL_OWNER is the owner
    has_pairing: bool | None = None  # unknown senders get codes; None = once there is an owner

    def is_here(self, user: str) -> bool:
        """Return True if the user is the owner at this machine's page or terminal."""
        return self.is_local and user == LOCAL_OWNER


def policy_of(
    channel: str,
    allow_from: Iterable[str],
    owners: Iterable[str],
    group_policy: str,
    *,
    is_local: bool = False,
    has_pairing: bool | None = None,
) -> AdmissionPolicy:
    """Build a block's policy from its settings; *owners* are ``channel:user_id`` of all channels."""
    own = f"{channel}:"
    return AdmissionPolicy(
        channel=channel,
        entries=frozenset(AllowEntry.parse(text) for text in allow_from),
        owners=frozenset(owner.removeprefix(own) for owner in owners if owner.startswith(own)),
        group_policy=GroupPolicy(group_policy),
        is_local=is_local,
        has_pairing=has_pairing,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionFacts:
    """Facts beyond the event. They are looked up, never taken from the message's text."""

    owners: frozenset[str] = frozenset()  # user ids that claimed ownership by a code
    entries: frozenset[AllowEntry] = frozenset()  # whom and which places an owner let in since
    blocked_as: str = ""  # "channel:who" of an owner's block on this sender or chat; overrides every entry


NO_FACTS = AdmissionFacts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """The sender may speak here, and decide as much as *role* says."""

    role: Role
    is_named: bool = False  # an owner, or let in by their own id: no caps of their own unless they are set


class RejectionReason(StrEnum):
    """Reason for a rejection: a small fixed set, fit for a metric."""

    SELF = "self"
    BOT = "bot"
    NOBODY = "nobody"  # no sender id, or none that can be one
    GROUPS_OFF = "groups-off"
    GUEST = "guest"
    STRANGER = "stranger"
    BLOCKED = "blocked"  # by an owner
    PLACE_PENDING = "place-pending"  # an unknown sender in a chat that waits for approval
    NOT_ADDRESSED = "not-addressed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """Nothing of this message is stored. *would_admit* is for the operator's eyes."""

    reason: RejectionReason
    would_admit: str


Decision: TypeAlias = Admitted | Rejected

# These kinds address the bot by themselves; only text in a shared chat needs a mention.
_NEEDS_NO_MENTION = frozenset(InboundKind) - {InboundKind.MESSAGE}


def admit(message: InboundMessage, policy: AdmissionPolicy, facts: AdmissionFacts = NO_FACTS) -> Decision:
    """Decide whether *message* is admitted, on arrival and again at claim."""
    if message.kind is InboundKind.DELETION and not message.sender.id:
        # Discord names no sender. A deletion only affects admitted messages: the journal has no others.
        return Admitted(role=Role.MEMBER)
    sender = message.sender
    refused = _refuse_by_nature(sender)
    if refused:
        return refused
    is_owner = policy.is_here(sender.id) or sender.id in policy.owners or sender.id in facts.owners
    if message.chat_kind is ChatKind.GROUP and policy.group_policy is GroupPolicy.OFF:
        return Rejected(reason=RejectionReason.GROUPS_OFF, would_admit=_group_policy(policy, "mention or open"))
    if facts.blocked_as and not is_owner:
        return Rejected(reason=RejectionReason.BLOCKED, would_admit=f"`parlour people allow {facts.blocked_as}`")
    is_named = is_owner or policy.is_local or _is_listed(AllowEntry(AdmissionGrant.USER, sender.id), policy, facts)
    if not is_named and not _is_invited(message, sender, policy, facts):
        return _stranger(message, sender, policy)
    is_mention_needed = message.chat_kind is ChatKind.GROUP and policy.group_policy is GroupPolicy.MENTION
    if is_mention_needed and not (policy.is_local or message.is_addressed or message.kind in _NEEDS_NO_MENTION):
        mend = f"a mention, or {_group_policy(policy, 'open')}"
        return Rejected(reason=RejectionReason.NOT_ADDRESSED, would_admit=mend)
    decides = message.chat_kind is ChatKind.DIRECT or sender.is_admin
    role = Role.OWNER if is_owner else Role.ADMIN if decides else Role.MEMBER
    return Admitted(role=role, is_named=is_named)


def _refuse_by_nature(sender: Sender) -> Rejected | None:
    if sender.is_self:
        return Rejected(reason=RejectionReason.SELF, would_admit="nothing: it is our own message")
    if sender.is_bot:
        return Rejected(reason=RejectionReason.BOT, would_admit="nothing: bots are not heard")
    if not is_id(sender.id):
        return Rejected(reason=RejectionReason.NOBODY, would_admit="nothing: the platform names no sender")
    return None


def _is_listed(entry: AllowEntry, policy: AdmissionPolicy, facts: AdmissionFacts) -> bool:
    return entry in policy.entries or entry in facts.entries


def _is_invited(message: InboundMessage, sender: Sender, policy: AdmissionPolicy, facts: AdmissionFacts) -> bool:
    if AllowEntry(AdmissionGrant.EVERYONE) in policy.entries:
        return True
    if sender.is_guest:  # admitted only by id
        return False
    if sender.team and _is_listed(AllowEntry(AdmissionGrant.TEAM, sender.team), policy, facts):
        return True
    if message.chat_kind is not ChatKind.GROUP:
        return False
    places = {
        AllowEntry(AdmissionGrant.CHAT, message.key.chat),
        AllowEntry(AdmissionGrant.CHAT, message.key.parent.chat),
    }
    places |= {AllowEntry(AdmissionGrant.ROLE, role) for role in sender.roles}
    if message.guild:
        places.add(AllowEntry(AdmissionGrant.GUILD, message.guild))
    return not (places.isdisjoint(policy.entries) and places.isdisjoint(facts.entries))


def _stranger(message: InboundMessage, sender: Sender, policy: AdmissionPolicy) -> Rejected:
    reason = RejectionReason.GUEST if sender.is_guest else RejectionReason.STRANGER
    ways = [sender.id]
    if not sender.is_guest:
        ways += [f"team:{sender.team}"] if sender.team else []
        if message.chat_kind is ChatKind.GROUP:
            ways.append(f"chat:{message.key.parent.chat}")
            ways += [f"guild:{message.guild}"] if message.guild else []
    return Rejected(reason=reason, would_admit=_setting(policy, "allow_from", " or ".join(ways)))


def _setting(policy: AdmissionPolicy, name: str, value: str) -> str:
    return f"{value} in channels.{policy.channel}.{name}"


def _group_policy(policy: AdmissionPolicy, value: str) -> str:
    if policy.decided_for:
        return f"{value} in chats.{policy.decided_for}.group_policy"
    return _setting(policy, "group_policy", value)
