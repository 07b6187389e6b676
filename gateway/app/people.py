"""Who may speak and who decides it, built over the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from agent.memory.scopes import quote
from gateway.admission import Admitted, Rejected
from gateway.app.channels import Judge, Plugins, accounts_of, judge_of, kinds_of, policies_of
from gateway.app.owner_chats import OwnerChats
from gateway.events import InboundMessage, SessionKey
from gateway.people.claims import Claims
from gateway.people.decisions import Decisions
from gateway.people.notes import Notes
from gateway.people.pairing import Language, PairingDesk
from gateway.people.places import Places
from gateway.people.roster import PlatformAccount, Roster
from gateway.people.strangers import Strangers
from gateway.ports import Joined, Meter, Store
from gateway.settings import Settings
from gateway.settings.blocks import wrong_entry
from gateway.settings.chats import Chats


@dataclass(frozen=True, slots=True, kw_only=True)
class PeopleDesk:
    """The rooms about people."""

    roster: Roster
    owners_at: OwnerChats
    decisions: Decisions
    claims: Claims
    pairing: PairingDesk
    strangers: Strangers
    places: Places
    judge: Judge


def open_people(
    settings: Settings,
    chats: Chats,
    plugins: Plugins,
    store: Store,
    *,
    language: Language,
    meter: Meter,
    now: Callable[[], datetime],
) -> PeopleDesk:
    """Build them; *language* is that of a chat."""
    kinds = kinds_of(settings, plugins)
    roster = Roster(store.access, policies_of(settings, plugins), kinds, named=settings.owners)

    def linked(channel: str, user: str) -> Sequence[PlatformAccount]:
        return accounts_of(store.links, quote(f"{kinds.get(channel, channel)}:{user}"))

    def has_pairing(channel: str) -> bool:
        block = settings.channels.get(channel)
        wanted = block.pairing if block is not None else None
        return roster.has_owner() if wanted is None else wanted

    def wrong(channel: str, entry: str) -> str:
        block = settings.channels.get(channel)
        return wrong_entry(entry, block.entry_shapes) if block is not None else ""

    def is_blocked(channel: str, user: str) -> bool:
        return bool(roster.blocked_as((roster.account(channel, user), *linked(channel, user))))

    def is_open(channel: str) -> bool:
        block = settings.channels.get(channel)
        return channel in kinds and (block is None or block.enabled)

    notes = Notes(store.access)
    owner = OwnerChats(roster, store.records, store.links, kinds, is_open)

    def decided(place: Joined) -> str | None:
        # A whole server has no chat: what is decided for it, or for its block.
        return chats.of(SessionKey(place.channel, place.chat or "?"), place.guild).group_policy

    places = Places(notes, roster.policies, owner=owner, now=now, language=language, decided=decided)
    judge = judge_of(roster, store.links, kinds, chats)

    def judge_with_places(message: InboundMessage) -> Admitted | Rejected:
        return places.worded(message, judge(message))

    return PeopleDesk(
        roster=roster,
        owners_at=owner,
        decisions=Decisions(roster, linked, now=now, wrong=wrong),
        claims=Claims(roster, now=now, language=language),
        pairing=PairingDesk(notes, now=now, language=language, is_blocked=is_blocked),
        strangers=Strangers(
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
