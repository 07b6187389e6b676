"""Who may speak and who decides it, built over the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from agent.memory.scopes import quote
from gateway.access.access_control import AccessControlService
from gateway.access.access_roster import AccessRoster, PlatformAccount
from gateway.access.chat_approvals import ChatApprovals
from gateway.access.note_store import NoteStore
from gateway.access.owner_claims import OwnerClaims
from gateway.access.pairing_service import Language, PairingService
from gateway.access.unknown_senders import UnknownSenderHandler
from gateway.admission import Admitted, Rejected
from gateway.app.channels import ExtraPlugins, Judge, accounts_of, build_admission_judge, platforms_of, policies_of
from gateway.app.owner_chats import OwnerChats
from gateway.events import InboundMessage, SessionKey
from gateway.ports import MembershipChange, MetricsRecorder, Store
from gateway.settings import Settings
from gateway.settings.channel_blocks import entry_error
from gateway.settings.chat_overrides import ChatOverrides


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessServices:
    """The rooms about people."""

    roster: AccessRoster
    owners_at: OwnerChats
    decisions: AccessControlService
    claims: OwnerClaims
    pairing: PairingService
    strangers: UnknownSenderHandler
    places: ChatApprovals
    judge: Judge


def open_people(
    settings: Settings,
    chats: ChatOverrides,
    plugins: ExtraPlugins,
    store: Store,
    *,
    language: Language,
    meter: MetricsRecorder,
    now: Callable[[], datetime],
) -> AccessServices:
    """Build them; *language* is that of a chat."""
    kinds = platforms_of(settings, plugins)
    roster = AccessRoster(store.access, policies_of(settings, plugins), kinds, named=settings.owners)

    def linked(channel: str, user: str) -> Sequence[PlatformAccount]:
        return accounts_of(store.links, quote(f"{kinds.get(channel, channel)}:{user}"))

    def has_pairing(channel: str) -> bool:
        block = settings.channels.get(channel)
        wanted = block.pairing if block is not None else None
        return roster.has_owner() if wanted is None else wanted

    def wrong(channel: str, entry: str) -> str:
        block = settings.channels.get(channel)
        return entry_error(entry, block.entry_shapes) if block is not None else ""

    def is_blocked(channel: str, user: str) -> bool:
        return bool(roster.blocked_as((roster.account(channel, user), *linked(channel, user))))

    def is_open(channel: str) -> bool:
        block = settings.channels.get(channel)
        return channel in kinds and (block is None or block.enabled)

    notes = NoteStore(store.access)
    owner = OwnerChats(roster, store.records, store.links, kinds, is_open)

    def decided(place: MembershipChange) -> str | None:
        # A whole server has no chat: what is decided for it, or for its block.
        return chats.of(SessionKey(place.channel, place.chat or "?"), place.guild).group_policy

    places = ChatApprovals(notes, roster.policies, owner=owner, now=now, language=language, decided=decided)
    judge = build_admission_judge(roster, store.links, kinds, chats)

    def judge_with_places(message: InboundMessage) -> Admitted | Rejected:
        return places.question_text(message, judge(message))

    return AccessServices(
        roster=roster,
        owners_at=owner,
        decisions=AccessControlService(roster, linked, now=now, wrong=wrong),
        claims=OwnerClaims(roster, now=now, language=language),
        pairing=PairingService(notes, now=now, language=language, is_blocked=is_blocked),
        strangers=UnknownSenderHandler(
            notes,
            has_owner=roster.has_owner,
            has_pairing=has_pairing,
            owner=owner,
            meter=meter,
            now=now,
            language=language,
        ),
        places=places,
        judge=judge_with_places,
    )
