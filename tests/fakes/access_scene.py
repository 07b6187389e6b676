"""A door with the real rooms about strangers and places on a store, and what it would send."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from gateway.access.access_control import AccessRoster
from gateway.access.pairing_service import OwnerAddress, PairingService
from gateway.access.unknown_senders import ChatApprovals, UnknownSenderHandler
from gateway.admission import AdmissionPolicy, Decision, Rejected, RejectionReason, policy_of
from gateway.app.access import AdmissionJudge
from gateway.channel import SupportsSenderLookup
from gateway.events import ChatKind, InboundMessage, OutboundMessage, Sender, SessionKey
from gateway.ports.access import DecisionActor, MessageContext
from gateway.ports.channel import MembershipChange
from gateway.store.access import NoteStore
from gateway.store.sql_store import SqlStore
from tests.fakes.locales import FixedLocales
from tests.fakes.meter import FakeMeter

OWNER = SessionKey("telegram", "42")
POLICIES: Mapping[str, AdmissionPolicy] = {
    "telegram": policy_of("telegram", ["42"], ["telegram:42"], "mention"),
    "slack": policy_of("slack", ["U1", "team:T1"], [], "mention"),
    "quiet": policy_of("quiet", [], [], "off"),
}
KINDS = {**{name: name for name in POLICIES}, "telegram-work": "telegram"}
DECIDED = {"chat:C-off": "off", "chat:C-on": "mention"}  # the group policy of places that have one of their own


class FixedJudge(AdmissionJudge):
    """Decides by a function of the message alone; *channels* look senders up if they can."""

    def __init__(
        self, decide: Callable[[InboundMessage], Decision], channels: Mapping[str, object] | None = None
    ) -> None:
        self._decide = decide
        found = (channels or {}).items()
        self._lookups = {name: each for name, each in found if isinstance(each, SupportsSenderLookup)}

    def __call__(self, message: InboundMessage, context: MessageContext | None = None) -> Decision:
        """Return what the function says."""
        return self._decide(message)


class AccessScene:
    """Strangers knock, places take us in, owners decide."""

    def __init__(
        self,
        store: SqlStore,
        now: Callable[[], datetime],
        *,
        pairs: bool = True,
        owner: bool = True,
        owned: bool = True,
    ) -> None:
        """*owner*: one can be asked in a chat; *owned*: there is one at all."""
        self.store = store
        self._now = now
        notes = NoteStore(store.access)
        policies = {name: replace(each, has_pairing=pairs) for name, each in POLICIES.items()}
        if not owned:
            policies = {name: replace(each, owners=frozenset()) for name, each in policies.items()}
        roster = AccessRoster(store.access, policies, KINDS, store.links)

        async def at(_: str) -> OwnerAddress | None:
            return OwnerAddress(OWNER) if owner else None

        self.pairing = PairingService(roster, notes, now=now, locales=FixedLocales())
        self.strangers = UnknownSenderHandler(
            roster,
            notes,
            owner=at,
            meter=FakeMeter(),
            now=now,
            locales=FixedLocales(),
        )
        self.places = ChatApprovals(
            roster,
            notes,
            owner=at,
            now=now,
            locales=FixedLocales(),
            group_policy_of=lambda place: DECIDED.get(place.entry),
        )

    async def knock(self, sender: str, *, reason: RejectionReason = RejectionReason.STRANGER, **facts: Any) -> str:
        """Let a stranger write; return the line that is said on the spot, if one is."""
        base = InboundMessage(
            key=SessionKey("telegram", sender),
            message_id=f"m{sender}",
            sender=Sender(id=sender, name="Mal [x](http://evil.example)\n@all"),
            text="open, it is a secret",
            sent_at=self._now(),
        )
        message = replace(base, **facts)
        decision = self.places.question_text(message, Rejected(reason=reason, would_admit=""))
        met = await self.strangers.intercept(message, decision)
        return "" if met is None else met.line

    async def in_group(self, sender: str, chat: str = "-100", **facts: Any) -> str:
        """Let a stranger call us in a shared chat."""
        shared: dict[str, Any] = {
            "key": SessionKey("telegram", chat),
            "chat_kind": ChatKind.GROUP,
            "is_addressed": True,
        }
        return await self.knock(sender, **(shared | facts))

    async def joined(self, chat: str = "-100", *, channel: str = "telegram", **facts: Any) -> None:
        """Be added to a place, by Mal unless said otherwise."""
        by = Sender(id="66", name="Mal")
        place = MembershipChange(channel=channel, id=chat, chat=chat, title="Team `x` <!here>", by=by)
        await self.places.handle_membership(replace(place, **facts))

    async def told(self, key: SessionKey) -> list[OutboundMessage]:
        """Return what is on its way to a chat, oldest first."""
        return [each.message for each in await self.store.outbox.undelivered(key)]

    async def said_to(self, sender: str) -> list[str]:
        """Return what a person is told in their own chat."""
        return [each.text for each in await self.told(SessionKey("telegram", sender))]

    async def code_of(self, sender: str) -> str:
        """Return the code that somebody was given."""
        (text,) = await self.said_to(sender)
        return text.partition("code is ")[2].partition(";")[0]

    def by(self, turn: str, who: str = "telegram:42") -> DecisionActor:
        """Return an owner who decides in a turn."""
        return DecisionActor(by=who, where=str(OWNER), id=turn)
