"""Access roster: effective access per account and channel, from the settings and from owners' decisions.

Admission asks at every message, so the roster is served from memory and derived once per change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.admission import NO_FACTS, AdmissionFacts, AdmissionGrant, AdmissionPolicy, AllowEntry
from gateway.events import ChatKind, InboundMessage, OutboundMessage, PlatformAccount
from gateway.ports.access import (
    CODE,
    AccessChange,
    AccessEntry,
    AccessListing,
    AccessStatus,
    AuditEntry,
)

if TYPE_CHECKING:
    from gateway.store.access import SqlAccess


_LETS_IN = frozenset({AccessStatus.ALLOWED, AccessStatus.PAIRED})
_NOBODY: frozenset[str] = frozenset()
_NOTHING: frozenset[AllowEntry] = frozenset()


@dataclass(slots=True)
class _RosterIndex:
    """The facts that admission needs, derived from the effective decisions."""

    owners: dict[str, frozenset[str]] = field(default_factory=dict)  # block -> user ids that claimed
    entries: dict[str, frozenset[AllowEntry]] = field(default_factory=dict)  # block -> let in since
    blocked: dict[PlatformAccount, str] = field(default_factory=dict)  # -> "channel:who"
    blocked_places: dict[tuple[str, AllowEntry], str] = field(default_factory=dict)  # (block, place) -> "channel:who"
    owner_accounts: frozenset[PlatformAccount] = frozenset()


class AccessRoster:
    """Effective access per account and channel; `gateway.access.access_control` changes it."""

    def __init__(
        self,
        access: SqlAccess,
        policies: Mapping[str, AdmissionPolicy],
        kinds: Mapping[str, str],
        *,
        named_owners: Sequence[str] = (),
    ) -> None:
        """*policies* are the blocks as the settings have them; *kinds* name each block's platform.

        *named_owners* are those that the settings name, as "channel:user_id": also of a block that is not there now.
        """
        self._absent = [each.partition(":") for each in named_owners if each.partition(":")[0] not in policies]
        self.policies = policies
        self.access = access
        self._kinds = kinds
        self._edition = -1
        self._index = _RosterIndex()

    def account(self, channel: str, user: str) -> PlatformAccount:
        """Return a block's user as an account of the platform."""
        return PlatformAccount(kind=self._kinds.get(channel, channel), id=user)

    def facts(self, message: InboundMessage, accounts: Sequence[PlatformAccount] = ()) -> AdmissionFacts:
        """Return the decisions about the sender of *message*; *accounts* are all of that person.

        All accounts linked to an owner's are owners', and a block of one account holds for all of its person.
        """
        index = self._derived()
        channel, user = message.key.channel, message.sender.id
        is_owner = any(each in index.owner_accounts for each in accounts)
        owners = index.owners.get(channel, _NOBODY)
        entries = index.entries.get(channel, _NOTHING)
        blocked_as = self._blocking(index, message, accounts) if index.blocked or index.blocked_places else ""
        if not (is_owner or owners or entries or blocked_as):
            return NO_FACTS
        return AdmissionFacts(owners=owners | {user} if is_owner else owners, entries=entries, blocked_as=blocked_as)

    def _blocking(self, index: _RosterIndex, message: InboundMessage, accounts: Sequence[PlatformAccount]) -> str:
        channel = message.key.channel
        accounts = (self.account(channel, message.sender.id), *accounts)
        found = next((index.blocked[each] for each in accounts if each in index.blocked), "")
        if found or message.chat_kind is not ChatKind.GROUP:
            return found
        places = [
            AllowEntry(AdmissionGrant.CHAT, message.key.chat),
            AllowEntry(AdmissionGrant.CHAT, message.key.parent.chat),
        ]
        places += [AllowEntry(AdmissionGrant.GUILD, message.guild)] if message.guild else []
        return next(
            (index.blocked_places[channel, each] for each in places if (channel, each) in index.blocked_places), ""
        )

    def blocked_as(self, accounts: Iterable[PlatformAccount]) -> str:
        """Return the "channel:who" of a block on one of these accounts, "" without one."""
        index = self._derived()
        return next((index.blocked[each] for each in accounts if each in index.blocked), "")

    def has_owner(self) -> bool:
        """Return True if there is an owner by the settings or by a code. Local users do not count."""
        return bool(self._absent or self._derived().owner_accounts)

    def is_owner(self, channel: str, user: str) -> bool:
        """Return True if this user is an owner in this channel."""
        policy = self.policies.get(channel)
        return (
            self.is_set_owner(channel, user)
            or user in self._derived().owners.get(channel, _NOBODY)
            or (policy is not None and policy.is_here(user))
        )

    def is_admitted_by_id(self, channel: str, user: str) -> bool:
        """Return True if a setting, a decision or a login of the channel itself admits this user id."""
        policy, entry = self.policies[channel], AllowEntry(AdmissionGrant.USER, user)
        return policy.is_local or entry in policy.entries or entry in self._derived().entries.get(channel, _NOTHING)

    def is_set_owner(self, channel: str, user: str) -> bool:
        """Return True if the settings name this user as an owner."""
        policy = self.policies.get(channel)
        return policy is not None and user in policy.owners

    def is_owner_of(self, accounts: Iterable[PlatformAccount]) -> bool:
        """Return True if one of these accounts is an owner's."""
        owners = self._derived().owner_accounts
        return any(each in owners for each in accounts)

    def owners(self) -> Sequence[AccessListing]:
        """Return every owner, those of the settings first."""
        return [each for each in self.list_access() if each.standing == AccessStatus.OWNER]

    def list_access(self) -> Sequence[AccessListing]:
        """Return accounts and chats with a status, by channel: the settings' entries first, then decisions by time."""
        lines = [
            AccessListing(channel=channel, who=who, standing=AccessStatus.OWNER, came_by="setting")
            for channel, _, who in self._absent
        ]
        lines += [line for name in sorted(self.policies) for line in self._set(self.policies[name])]
        made = sorted(self.access.members().values(), key=lambda each: (each.channel, each.at, each.who))
        return [*lines, *(_listing_of(each) for each in made)]

    @staticmethod
    def _set(policy: AdmissionPolicy) -> Iterator[AccessListing]:
        for owner in sorted(policy.owners):
            yield AccessListing(channel=policy.channel, who=owner, standing=AccessStatus.OWNER, came_by="setting")
        for entry in sorted(map(str, policy.entries)):
            yield AccessListing(channel=policy.channel, who=entry, standing=AccessStatus.ALLOWED, came_by="setting")

    def _derived(self) -> _RosterIndex:
        if self._edition != (edition := self.access.edition()):
            self._index = self._derive(self.access.members().values())
            self._edition = edition
        return self._index

    def _derive(self, members: Iterable[AccessEntry]) -> _RosterIndex:
        index = _RosterIndex()
        accounts = {self.account(name, user) for name, policy in self.policies.items() for user in policy.owners}
        for each in members:
            entry = AllowEntry.parse(each.who)
            if each.standing is AccessStatus.OWNER:
                accounts.add(self.account(each.channel, each.who))
                index.owners[each.channel] = index.owners.get(each.channel, _NOBODY) | {each.who}
            elif each.standing in _LETS_IN:
                index.entries[each.channel] = index.entries.get(each.channel, _NOTHING) | {entry}
            elif entry.grants is AdmissionGrant.USER:
                index.blocked[self.account(each.channel, each.who)] = f"{each.channel}:{each.who}"
            else:
                index.blocked_places[each.channel, entry] = f"{each.channel}:{each.who}"
        index.owner_accounts = frozenset(accounts)
        return index


def entry_change(
    status: AccessStatus,
    name: str,
    line: AuditEntry,
    *,
    spends: tuple[str, str] | None = None,
    notes: Mapping[str, str] | None = None,
    notices: tuple[OutboundMessage, ...] = (),
) -> AccessChange:
    """Return the change that gives the account or chat of *line* a *status*, with its audit entry.

    Each admission, block and ownership is this change: by command, button, code or claim.
    """
    channel, _, who = line.whom.partition(":")
    entry = AccessEntry(channel=channel, who=who, standing=status, by=line.by, at=line.at, name=name)
    return AccessChange(line=line, put=(entry,), spends=spends, notes=notes, notices=notices)


def _listing_of(member: AccessEntry) -> AccessListing:
    return AccessListing(
        channel=member.channel,
        who=member.who,
        standing=member.standing,
        came_by="code" if member.by == CODE else "decision",
        by=member.by,
        at=member.at,
        name=member.name,
    )
