"""Access: the roster of owners and members, pairing, chat approvals, and the admission decision over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.access.access_control import AccessControlService
from gateway.access.access_roster import AccessRoster
from gateway.access.chat_approvals import ChatApprovals
from gateway.access.note_store import NoteStore
from gateway.access.owner_claims import OwnerClaims
from gateway.access.pairing_service import PairingService
from gateway.access.unknown_senders import UnknownSenderHandler
from gateway.app.channels import AdmissionJudge, accounts_of_user, policies_of
from gateway.app.context import AppContext
from gateway.app.owner_chats import OwnerChats
from gateway.events import PlatformAccount, SessionKey
from gateway.ports import MembershipChange
from gateway.settings.channel_blocks import entry_error


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessServices:
    """Access decisions, as intake, commands and operators use them."""

    roster: AccessRoster
    owners_at: OwnerChats
    decisions: AccessControlService
    claims: OwnerClaims
    pairing: PairingService
    strangers: UnknownSenderHandler
    places: ChatApprovals
    judge: AdmissionJudge


def build_access(context: AppContext) -> AccessServices:
    """Build the access services."""
    settings, store, platforms, now = context.settings, context.store, context.platforms, context.now
    roster = AccessRoster(store.access, policies_of(settings, context.plugins), platforms, named_owners=settings.owners)

    def linked_accounts(channel: str, user: str) -> Sequence[PlatformAccount]:
        return accounts_of_user(store.links, roster.account(channel, user))

    def has_pairing(channel: str) -> bool:
        block = settings.channels.get(channel)
        setting = block.pairing if block is not None else None
        return roster.has_owner() if setting is None else setting

    def check_entry(channel: str, entry: str) -> str:
        block = settings.channels.get(channel)
        return entry_error(entry, block.entry_shapes) if block is not None else ""

    def is_blocked(channel: str, user: str) -> bool:
        return bool(roster.blocked_as((roster.account(channel, user), *linked_accounts(channel, user))))

    def is_open(channel: str) -> bool:
        block = settings.channels.get(channel)
        return channel in platforms and (block is None or block.enabled)

    def group_policy(change: MembershipChange) -> str | None:
        # A guild has no chat id, so the policy is that of the guild or its channel.
        return context.chats.of(SessionKey(change.channel, change.chat or "?"), change.guild).group_policy

    notes, language = NoteStore(store.access), context.locales.language
    owner = OwnerChats(roster, store.records, store.links, platforms, is_open)
    places = ChatApprovals(
        notes, roster.policies, owner=owner, now=now, language=language, group_policy_of=group_policy
    )
    return AccessServices(
        roster=roster,
        owners_at=owner,
        decisions=AccessControlService(roster, linked_accounts, now=now, entry_error=check_entry),
        claims=OwnerClaims(roster, now=now, language=language),
        pairing=PairingService(notes, now=now, language=language, is_blocked=is_blocked),
        strangers=UnknownSenderHandler(
            notes,
            has_owner=roster.has_owner,
            has_pairing=has_pairing,
            owner=owner,
            meter=context.meter,
            now=now,
            language=language,
        ),
        places=places,
        judge=AdmissionJudge(roster, places, context.context_of, context.refusals, now),
    )
