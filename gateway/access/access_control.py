"""Effective access per account and channel, and the decisions of owners that change it while the gateway runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import structlog

from gateway.admission import NO_FACTS, AdmissionFacts, AdmissionGrant, AdmissionPolicy, AllowEntry
from gateway.events import ChatKind, InboundMessage, OutboundMessage, PlatformAccount
from gateway.ports.access import (
    CODE,
    NO_QUOTA,
    AccessChange,
    AccessDecision,
    AccessEntry,
    AccessListing,
    AccessStatus,
    DecisionActor,
    DecisionOutcome,
    DecisionRefused,
    PersonAccess,
    PersonQuota,
)
from gateway.ports.journal import AuditEntry
from gateway.store.access import QUOTA, encode_note

if TYPE_CHECKING:
    from gateway.store.access import SqlAccess
    from gateway.store.account_links import SqlAccountLinks


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
    """Effective access per account and channel, from the settings and from owners' decisions.

    Admission asks at every message, so it is served from memory and derived once per change.
    """

    def __init__(
        self,
        access: SqlAccess,
        policies: Mapping[str, AdmissionPolicy],
        kinds: Mapping[str, str],
        links: SqlAccountLinks,
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
        self._links = links
        self._edition = -1
        self._index = _RosterIndex()

    def account(self, channel: str, user: str) -> PlatformAccount:
        """Return a block's user as an account of the platform."""
        return PlatformAccount(kind=self._kinds.get(channel, channel), id=user)

    def linked_accounts(self, user: PlatformAccount) -> Sequence[PlatformAccount]:
        """Return all accounts, without teams, of the persons to whom *user* belongs in any team; () if not linked."""
        return [each.account.user for each in self._links.accounts_of_user(user)]

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

    def is_blocked(self, channel: str, user: str) -> bool:
        """Return True if an owner has blocked the person of this user, under any account."""
        account = self.account(channel, user)
        return bool(self.blocked_as((account, *self.linked_accounts(account))))

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

    def has_pairing(self, channel: str) -> bool:
        """Return True if unknown senders of *channel* get codes: as the settings say, else once there is an owner."""
        policy = self.policies.get(channel)
        setting = policy.has_pairing if policy is not None else None
        return self.has_owner() if setting is None else setting

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


T = TypeVar("T", int, float)


class PersonQuotas:
    """Quotas by person, served from memory.

    Each is a note under the account that it was set for, without its team. All gateways of a database read the notes
    again when one of them changes a note (docs/adr/0080-claims.md).
    """

    def __init__(self, access: SqlAccess) -> None:
        self._access = access

    def of(self, accounts: Iterable[PlatformAccount]) -> PersonQuota:
        """Return the quota of the person with *accounts*. Of several, set before a link, the strictest caps apply."""
        notes = self._access.notes()
        names = dict.fromkeys(_note_of(each) for each in accounts)
        found = [_parse(notes[name])[1] for name in names if name in notes]
        if not found:
            return NO_QUOTA
        return PersonQuota(
            turns=_strictest(q.turns for q in found),
            tokens=_strictest(q.tokens for q in found),
            usd=_strictest(q.usd for q in found),
        )

    def by_name(self) -> Mapping[str, PersonQuota]:
        """Return all quotas by the "channel:user_id" that they were set for."""
        notes = self._access.notes().items()
        return dict(sorted(_parse(text) for name, text in notes if name.startswith(QUOTA)))

    @staticmethod
    def notes_that_set(quota: PersonQuota, whom: str, accounts: Sequence[PlatformAccount]) -> Mapping[str, str]:
        """Return the notes to write for a person, the named account first; an empty *quota* removes all of them."""
        notes = {_note_of(each): "" for each in accounts}
        if quota:
            note = {"whom": whom, "turns": quota.turns, "tokens": quota.tokens, "usd": quota.usd}
            notes[_note_of(accounts[0])] = encode_note(note)
        return notes


def _note_of(account: PlatformAccount) -> str:
    return f"{QUOTA}{account.user}"


def _parse(text: str) -> tuple[str, PersonQuota]:
    note = json.loads(text)
    return note["whom"], PersonQuota(turns=note["turns"], tokens=note["tokens"], usd=note.get("usd"))


def _strictest(limits: Iterable[T | None]) -> T | None:
    given = [each for each in limits if each is not None]
    return min(given, key=lambda limit: limit or float("inf"), default=None)


log = structlog.get_logger(__name__)

# (channel, entry) -> the entry's error on the channel's platform, for the operator; "" = valid
WrongEntry: TypeAlias = Callable[[str, str], str]

_GRANTS = frozenset(each.value for each in AdmissionGrant)
_BLOCK = re.compile(r"[a-z][a-z0-9-]*\Z")  # how blocks are called (gateway/settings/channel_blocks.py)
_MENTION = re.compile(r"<@!?([A-Za-z0-9]+)(?:\|[^<>]*)?>\Z")  # Slack and Discord; a Telegram mention holds no id


class AccessControlService:
    """Owners' decisions about people and chats, effective at the next message and stored with an audit entry.

    A *text* names an account or chat: an id, chat:ID and so on, or a mention, each optionally after "channel:"; *here*
    is the channel of one without. A request that cannot be fulfilled raises DecisionRefused.
    """

    def __init__(
        self,
        roster: AccessRoster,
        *,
        now: Callable[[], datetime],
        entry_error: WrongEntry = lambda _channel, _entry: "",
    ) -> None:
        """*entry_error* checks ids against a platform's shapes, so that decisions about impossible ones are refused."""
        self._roster = roster
        self._quotas = PersonQuotas(roster.access)
        self._now = now
        self._wrong = entry_error

    def list_access(self) -> Sequence[AccessListing]:
        """Return the accounts and chats with a status."""
        return self._roster.list_access()

    async def allow(self, text: str, decider: DecisionActor, *, here: str = "") -> AccessDecision:
        """Admit an account or chat."""
        channel, entry = self._somebody(text, here)
        whom = f"{channel}:{entry}"
        if self._is_owner(channel, entry):
            return AccessDecision(ruling=DecisionOutcome.SAME, whom=whom)
        if elsewhere := self._blocked_elsewhere(channel, entry):
            raise DecisionRefused(DecisionOutcome.BLOCKED_AS, whom, elsewhere)
        return await self._put(channel, entry, AccessStatus.ALLOWED, decider, "allow")

    async def block(self, text: str, decider: DecisionActor, *, here: str = "") -> AccessDecision:
        """Block an account or chat."""
        channel, entry = self._somebody(text, here)
        if entry.grants not in (AdmissionGrant.USER, AdmissionGrant.CHAT, AdmissionGrant.GUILD):
            raise DecisionRefused(DecisionOutcome.ONLY_LET_IN, f"{channel}:{entry}")
        if entry.grants is AdmissionGrant.USER and self._is_owner(channel, entry):
            is_set = self._roster.is_set_owner(channel, entry.id)
            raise DecisionRefused(DecisionOutcome.SET_OWNER if is_set else DecisionOutcome.OWNER, f"{channel}:{entry}")
        return await self._put(channel, entry, AccessStatus.BLOCKED, decider, "block")

    async def remove(self, text: str, decider: DecisionActor) -> AccessDecision:
        """Revoke a decision, so that the settings apply again. Ownership is not revoked here."""
        channel, entry = self._read(text, "")
        whom = f"{channel}:{entry}"
        member = self._roster.access.members().get((channel, str(entry)))
        if member is None:
            policy = self._roster.policies[channel]
            is_set = entry in policy.entries or str(entry) in policy.owners
            raise DecisionRefused(DecisionOutcome.BY_SETTING if is_set else DecisionOutcome.UNLISTED, whom)
        if member.standing is AccessStatus.OWNER:
            raise DecisionRefused(DecisionOutcome.OWNER, whom)
        return await self.forget(member, decider, "remove")

    def find_person(self, text: str, *, here: str = "") -> PersonAccess:
        """Return the person of an account; raise DecisionRefused if *text* names none."""
        channel, entry = self._somebody(text, here)
        if entry.grants is not AdmissionGrant.USER:
            raise DecisionRefused(DecisionOutcome.NO_PERSON, f"{channel}:{entry}")
        accounts = tuple(dict.fromkeys(self._accounts(channel, entry)))
        is_owner = self._is_owner(channel, entry)
        return PersonAccess(
            whom=f"{channel}:{entry}",
            accounts=accounts,
            is_owner=is_owner,
            is_named=is_owner or self._roster.is_admitted_by_id(channel, entry.id),
            blocked_as=self._roster.blocked_as(accounts),
            quota=self._quotas.of(accounts),
        )

    def list_quotas(self) -> Mapping[str, PersonQuota]:
        """Return the quotas by the "channel:user_id" that they were set for."""
        return self._quotas.by_name()

    async def set_quota(
        self, text: str, quota: PersonQuota, decider: DecisionActor, *, here: str = ""
    ) -> AccessDecision:
        """Set the caps of a person: the decision replaces those under all accounts of the person."""
        person = self.find_person(text, here=here)
        if quota == person.quota:
            return AccessDecision(ruling=DecisionOutcome.SAME, whom=person.whom)
        notes = self._quotas.notes_that_set(quota, person.whom, person.accounts)
        line = decider.to_entry("quota", person.whom, self._now())
        await self._roster.access.change(AccessChange(notes=notes, line=line))
        log.info("people.decided", what="quota", whom=person.whom, by=decider.by)
        return AccessDecision(ruling=DecisionOutcome.DONE, whom=person.whom)

    async def make_owner(self, text: str, decider: DecisionActor) -> AccessDecision:
        """Make a person an owner: the operator's, or another owner's decision."""
        person = self.find_person(text)
        if person.is_owner:
            return AccessDecision(ruling=DecisionOutcome.SAME, whom=person.whom)
        if person.blocked_as:
            raise DecisionRefused(DecisionOutcome.BLOCKED_AS, person.whom, person.blocked_as)
        channel, _, user = person.whom.partition(":")
        return await self._put(channel, AllowEntry.parse(user), AccessStatus.OWNER, decider, "owner add")

    async def disown(self, text: str, decider: DecisionActor) -> AccessDecision:
        """Take back an ownership that was claimed by a code."""
        channel, entry = self._read(text, "")
        member = self._roster.access.members().get((channel, str(entry)))
        if member is None or member.standing is not AccessStatus.OWNER:
            is_set = self._roster.is_set_owner(channel, str(entry))
            ruling = DecisionOutcome.SET_OWNER if is_set else DecisionOutcome.NOT_OWNER
            raise DecisionRefused(ruling, f"{channel}:{entry}")
        return await self.forget(member, decider, "owner remove")

    async def forget(self, member: AccessEntry, decider: DecisionActor, what: str) -> AccessDecision:
        """Remove what was decided about *member*."""
        whom = f"{member.channel}:{member.who}"
        line = decider.to_entry(what, whom, self._now())
        await self._roster.access.change(AccessChange(remove=((member.channel, member.who),), line=line))
        log.info("people.decided", what=what, whom=whom, by=decider.by)
        return AccessDecision(ruling=DecisionOutcome.DONE, whom=whom)

    async def note_forgetting(self, name: str, accounts: Collection[PlatformAccount], decider: DecisionActor) -> None:
        """Audit that a person is to be forgotten, and remove their display names from decisions, which keep the ids."""
        members = self._roster.access.members().values()
        named = [each for each in members if each.name and self._roster.account(each.channel, each.who) in accounts]
        await self._roster.access.change(
            AccessChange(
                put=tuple(replace(each, name="") for each in named), line=decider.to_entry("forget", name, self._now())
            )
        )

    # -- inside ----------------------------------------------------------------------------------------

    def _somebody(self, text: str, here: str) -> tuple[str, AllowEntry]:
        """Parse *text* as `_read` does, and refuse ids that are impossible on the platform."""
        channel, entry = self._read(text, here)
        if error := self._wrong(channel, str(entry)):
            raise DecisionRefused(DecisionOutcome.NOBODY, f"{channel}:{entry}", error)
        return channel, entry

    def _read(self, text: str, here: str) -> tuple[str, AllowEntry]:
        """Read "channel:who", or who alone in the block *here*."""
        wanted = text.strip()
        channel, colon, rest = wanted.partition(":")
        if not (colon and channel in self._roster.policies):
            is_block = colon and _BLOCK.match(channel) and channel not in _GRANTS
            channel, rest = "" if is_block else here, wanted
        if channel not in self._roster.policies:
            raise DecisionRefused(DecisionOutcome.ELSEWHERE, wanted, ", ".join(self._channel_names()))
        mention = _MENTION.match(rest)
        try:
            entry = AllowEntry.parse(mention[1] if mention else rest)
        except ValueError:
            raise DecisionRefused(DecisionOutcome.NOBODY, wanted) from None
        is_handle = rest.startswith("@") and ":" not in rest  # ids of Matrix have a colon: @ann:example.org
        if entry.grants is AdmissionGrant.EVERYONE or is_handle:
            raise DecisionRefused(DecisionOutcome.NOBODY, wanted)
        return channel, entry

    def _channel_names(self) -> list[str]:
        """Return the channels with admission; if none exist, the local ones."""
        policies = self._roster.policies
        return sorted(name for name, policy in policies.items() if not policy.is_local) or sorted(policies)

    def _accounts(self, channel: str, entry: AllowEntry) -> list[PlatformAccount]:
        account = self._roster.account(channel, entry.id)
        return [account, *self._roster.linked_accounts(account)]

    def _is_owner(self, channel: str, entry: AllowEntry) -> bool:
        if entry.grants is not AdmissionGrant.USER:
            return False
        return self._roster.is_owner(channel, entry.id) or self._roster.is_owner_of(self._accounts(channel, entry)[1:])

    def _blocked_elsewhere(self, channel: str, entry: AllowEntry) -> str:
        """Return under which other name the same person is blocked: allowing this one would change nothing."""
        if entry.grants is not AdmissionGrant.USER:
            return ""
        found = self._roster.blocked_as(self._accounts(channel, entry))
        return "" if found == f"{channel}:{entry}" else found

    async def _put(
        self, channel: str, entry: AllowEntry, status: AccessStatus, decider: DecisionActor, what: str
    ) -> AccessDecision:
        whom = f"{channel}:{entry}"
        before = self._roster.access.members().get((channel, str(entry)))
        if before is not None and before.standing is status:
            return AccessDecision(ruling=DecisionOutcome.SAME, whom=whom)
        line = decider.to_entry(what, whom, self._now())
        await self._roster.access.change(entry_change(status, before.name if before else "", line))
        log.info("people.decided", what=what, whom=whom, by=decider.by)
        return AccessDecision(ruling=DecisionOutcome.DONE, whom=whom)
