"""Access: roles, the admission decision, the owners' chats, and the services over the roster of owners and members."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import structlog

from gateway.access.access_control import AccessRoster
from gateway.access.pairing_service import OwnerAddress
from gateway.admission import (
    AdmissionPolicy,
    Admitted,
    Decision,
    GroupPolicy,
    Rejected,
    RejectionReason,
    admit,
    policy_of,
)
from gateway.app.context import ChannelPlatforms, ExtraPlugins
from gateway.channel import SupportsSenderLookup
from gateway.errors import ParlourError
from gateway.events import ChatKind, InboundKind, InboundMessage, PlatformAccount, Role, Sender, SessionKey
from gateway.ports.access import AccessListing, MessageContext
from gateway.ports.journal import InboxRow, SessionRow, is_set_by_person
from gateway.settings import Settings

if TYPE_CHECKING:
    from gateway.app.runtime import Runtime
    from gateway.store.account_links import SqlAccountLinks
    from gateway.store.records import SqlTurnRecords

log = structlog.get_logger(__name__)

_TIMEOUT = 15.0  # seconds for a look-up; after that it fails closed
_BY_ROLES = frozenset({RejectionReason.STRANGER, RejectionReason.PLACE_PENDING})  # unless a role admits the sender
_DECIDES = frozenset({InboundKind.COMMAND, InboundKind.BUTTON})  # may need the role of an admin


def policies_of(settings: Settings, plugins: ExtraPlugins) -> Mapping[str, AdmissionPolicy]:
    """Return each channel's admission policy from the settings, the caller's extra channels included."""
    return {
        name: policy_of(
            name,
            block.allow_from,
            settings.owners,
            block.group_policy,
            is_local=block.traits.is_local,
            has_pairing=block.pairing,
        )
        for name, block in settings.channels.items()
    } | {extra.name: extra.policy for extra in plugins.channels}


class AdmissionJudge:
    """The admission decision for all channels: the settings' entries and the owners' decisions since."""

    def __init__(self, app: Runtime) -> None:
        self._app = app

    def __call__(self, message: InboundMessage, context: MessageContext | None = None) -> Decision:
        """Return the decision without logging it."""
        context = context or self._app.context_of(message)
        channel, overrides = message.key.channel, context.overrides
        policy = self._app.roster.policies.get(channel) or AdmissionPolicy(channel=channel)
        if overrides.group_policy is not None:
            selector = overrides.said_by["group_policy"]
            policy = replace(policy, group_policy=GroupPolicy(overrides.group_policy), decided_for=selector)
        users = [each.user for each in context.linked]
        decision = admit(message, policy, self._app.roster.facts(message, users))
        return decision if isinstance(decision, Admitted) else self._app.chat_approvals.question_text(message, decision)

    def decide(self, message: InboundMessage, context: MessageContext | None = None) -> Decision:
        """Return the decision, and note a rejection, so that `parlour why` can explain it."""
        decision = self(message, context)
        if isinstance(decision, Rejected):
            self._app.refusals.note(message, decision, self._app.now())
        return decision

    def role(self, message: InboundMessage, context: MessageContext | None = None) -> Role | None:
        """Return the role of the sender; None if they are not admitted."""
        decision = self(message, context)
        return decision.role if isinstance(decision, Admitted) else None

    def may_be_read(self, message: InboundMessage) -> bool:
        """Return True if *message*, which was not addressed to the bot, may be context: its sender is admitted."""
        return isinstance(self(replace(message, is_addressed=True)), Admitted)

    def has_lost_access(self, message: InboundMessage) -> bool:
        """Return True if the sender of *message*, a job that they set, is no longer admitted. Nothing is looked up.

        In a server, a role that only the platform knows may admit them: there, unknown senders have not lost access.
        """
        decision = self(_as_addressed(message))
        return isinstance(decision, Rejected) and not (message.guild and decision.reason in _BY_ROLES)

    # -- at the claim of a turn ------------------------------------------------------------------

    async def current_admission(
        self, row: InboxRow, context: MessageContext | None = None, *, notes_rejection: bool = False
    ) -> Admitted | None:
        """Return the admission of the sender of *row*, by facts at most five minutes old; None if it has ended.

        The channel looks the sender up on its platform (and caches the result for five minutes) only where this
        matters: for senders who are admitted by a role, guild or workspace, and for commands and buttons in a group. A
        failed look-up grants nothing. Each runs in the task of its turn, so no other message waits for it.

        Messages passed the check for being addressed to the bot when they arrived. A job that a person set is admitted
        as their own message, other jobs keep the role of their row. With *notes_rejection*, `parlour why` explains it.
        """
        message = _as_addressed(row.message)
        if message.kind is InboundKind.JOB and not is_set_by_person(message):
            decision = self(message, context)
            return Admitted(role=row.role, is_named=isinstance(decision, Admitted) and decision.is_named)
        channel = self._lookups.get(message.key.channel)
        if channel is not None and self._needs_lookup(message, context):
            message = replace(message, sender=await _look_up_sender(channel, message))
        decision = self.decide(message, context) if notes_rejection else self(message, context)
        return decision if isinstance(decision, Admitted) else None

    @cached_property
    def _lookups(self) -> Mapping[str, SupportsSenderLookup]:
        """Channels that look senders up; found once, since each class is compared with a Protocol."""
        channels = self._app.channels.items()
        return {name: each for name, each in channels if isinstance(each, SupportsSenderLookup)}

    def _needs_lookup(self, message: InboundMessage, context: MessageContext | None) -> bool:
        if message.chat_kind is ChatKind.GROUP and (message.kind in _DECIDES or is_set_by_person(message)):
            return True
        if not _has_facts(message):
            return False
        return isinstance(self(replace(message, sender=_unknown(message)), context), Rejected)


def _as_addressed(message: InboundMessage) -> InboundMessage:
    """Return *message* as one that addresses the bot; in a direct chat nothing depends on it."""
    is_settled = message.is_addressed or message.chat_kind is ChatKind.DIRECT
    return message if is_settled else replace(message, is_addressed=True)


def _has_facts(message: InboundMessage) -> bool:
    """Return True if the sender has facts of the platform that may admit them and may change."""
    return bool(message.sender.roles or message.sender.team or message.guild)


def _unknown(message: InboundMessage) -> Sender:
    """Return the sender with their id alone: not admitted unless listed by id, and no admin."""
    return replace(message.sender, roles=(), is_admin=False, is_guest=message.sender.is_guest or _has_facts(message))


async def _look_up_sender(channel: SupportsSenderLookup, message: InboundMessage) -> Sender:
    try:
        async with asyncio.timeout(_TIMEOUT):
            return await channel.sender(message)
    except (ParlourError, TimeoutError) as error:
        log.warning("sender_lookup.timed_out", key=str(message.key), reason=str(error) or type(error).__name__)
    except Exception:  # the channel boundary: a failed look-up grants nothing
        log.exception("sender_lookup.failed", key=str(message.key))
    return _unknown(message)


@dataclass(slots=True, eq=False)
class OwnerChats:
    """Finds owners' chats. Its call is `gateway.access.pairing_service.FindOwner`.

    *enabled* are the channels that run in this process.
    """

    roster: AccessRoster
    records: SqlTurnRecords
    links: SqlAccountLinks
    platforms: ChannelPlatforms
    enabled: Collection[str]

    async def __call__(self, channel: str) -> OwnerAddress | None:
        """Return the address of an owner who decides about *channel*; None when no owner has an address."""
        sessions = await self.records.sessions()
        # Sorting keeps the order within: the chat that was used last is first.
        found = sorted(self._candidates(sessions), key=lambda at: (self._is_local(at.key), at.key.channel != channel))
        return next(iter(found), None)

    async def everybody(self) -> Sequence[Sequence[OwnerAddress]]:
        """Return where each owner can be reached, person by person, each account by its direct chat used last.

        In the order in which owners are listed, which is the operator's own. Pages and terminals are not among them.
        """
        owners = [each for each in self.roster.owners() if self._is_reachable(each)]
        sessions = await self.records.sessions() if owners else ()
        people: list[tuple[set[PlatformAccount], dict[OwnerAddress, None]]] = []
        for each in owners:
            account = self.roster.account(each.channel, each.who)
            kin = {account, *self.roster.linked_accounts(account)}
            person = next((known for known in people if known[0] & kin), None)
            if person is None:
                people.append(person := (set(), {}))
            person[0].update(kin)
            person[1][self._address(each.channel, account, sessions)] = None
        return [tuple(addresses) for _, addresses in people]

    async def find_direct(self, channel: str, account: PlatformAccount) -> SessionKey | None:
        """Return the direct chat of anybody's *account* in *channel*; None if they have not written there."""
        rows = (each for each in await self.records.sessions() if each.key.channel == channel)
        return next((each.key.parent for each in rows if self._is_owners(each, {account})), None)

    async def find_all_direct(
        self, scope: str, accounts: Collection[PlatformAccount]
    ) -> Sequence[tuple[SessionKey, PlatformAccount]]:
        """Return the direct chats of a person, whose memory is *scope*, with the account of each, the last used first.

        A chat with an unknown account is left out, and so is one of a channel that shows no notices.
        """
        found: dict[SessionKey, PlatformAccount] = {}
        for row in await self.records.sessions(scope) if scope else ():
            key = row.key.parent
            traits = self.platforms.traits(key.channel)
            is_shown = key.channel in self.enabled and traits.shows_notices
            if not is_shown or key in found:
                continue
            here = [each for each in accounts if each.kind == self.platforms.get(key.channel, key.channel)]
            noted = self.links.account_of(key)
            if traits.chat_is_person:
                here = [each for each in here if each.id == key.chat]
            elif noted is not None:
                here = [each for each in here if each.name == noted.name]
            if len(here) == 1:
                found[key] = here[0]
        return list(found.items())

    def _is_reachable(self, owner: AccessListing) -> bool:
        return owner.channel in self.enabled and not self._is_local(SessionKey(owner.channel, owner.who))

    def _address(self, channel: str, account: PlatformAccount, sessions: Sequence[SessionRow]) -> OwnerAddress:
        rows = (row for row in sessions if row.key.channel == channel and self._is_owners(row, {account}))
        row = next(rows, None)
        return OwnerAddress(row.key.parent) if row is not None else self._default_address(channel, account.id)

    def _default_address(self, channel: str, who: str) -> OwnerAddress:
        """Return the address of an owner who has not written yet; the platform may deliver to it nevertheless."""
        traits = self.platforms.traits(channel)
        is_person = traits.chat_is_person and not traits.is_local
        return OwnerAddress(SessionKey(channel, who), "" if is_person else who)

    def _candidates(self, sessions: Sequence[SessionRow]) -> Iterator[OwnerAddress]:
        owners = {
            (each.channel, each.who): self.roster.account(each.channel, each.who)
            for each in self.roster.owners()
            if each.channel in self.enabled
        }
        accounts = set(owners.values())
        for row in sessions:
            if row.key.channel in self.enabled and self._is_owners(row, accounts):
                yield OwnerAddress(row.key.parent)
        for channel, who in owners:
            yield self._default_address(channel, who)

    def _is_owners(self, row: SessionRow, accounts: set[PlatformAccount]) -> bool:
        """Return True if the session is the direct chat of one of *accounts*."""
        area, _, name = row.scope.partition("/")
        if area == "chats":
            return False
        kind = self.platforms.get(row.key.channel, row.key.channel)
        if self._is_local(row.key):
            return area == "people"
        if area != "people":  # one person's home has no scopes: the chat has to tell
            return PlatformAccount(kind=kind, id=row.key.parent.chat) in accounts
        account = self.links.account_of(row.key) or PlatformAccount.from_name(name)
        # A long name is shortened, so that it can only be compared.
        return account.kind == kind and (account.user in accounts or account.name in {each.name for each in accounts})

    def _is_local(self, key: SessionKey) -> bool:
        policy = self.roster.policies.get(key.channel)
        return policy is not None and policy.is_local
