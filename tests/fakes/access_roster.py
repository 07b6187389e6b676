"""People at a door: a roster over a store in memory, and what arrives there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from channels.telegram import TelegramSettings
from gateway.access.access_control import AccessControlService, AccessRoster
from gateway.access.pairing_service import OwnerClaims
from gateway.admission import AdmissionPolicy, Admitted, Decision, admit, policy_of
from gateway.events import InboundMessage, PlatformAccount, Role, Sender, SessionKey
from gateway.settings.channel_blocks import entry_error
from gateway.store.sql_store import SqlStore
from tests.fakes.locales import FixedLocales
from tests.fakes.turns import START, WallClock

KINDS = {"telegram": "telegram", "telegram-work": "telegram", "slack": "slack", "web": "web"}


class LinkedRoster(AccessRoster):
    """A roster of people whose accounts the test links."""

    links: Mapping[PlatformAccount, Sequence[PlatformAccount]] = {}

    def linked_accounts(self, user: PlatformAccount) -> Sequence[PlatformAccount]:
        """Return all accounts of somebody who has several."""
        return self.links.get(user, ())


@dataclass(slots=True, kw_only=True)
class RosterScene:
    """What judges and decides, over one store."""

    store: SqlStore
    wall: WallClock
    roster: LinkedRoster

    @property
    def decisions(self) -> AccessControlService:
        """What owners decide."""
        return AccessControlService(self.roster, now=self.wall.now, entry_error=_wrong)

    @property
    def claims(self) -> OwnerClaims:
        """Codes of owners to be."""
        return OwnerClaims(self.roster, now=self.wall.now, locales=FixedLocales())

    def judge(self, message: InboundMessage) -> Decision:
        """Admit as the gateway does."""
        accounts = self.roster.linked_accounts(self.roster.account(message.key.channel, message.sender.id))
        return admit(message, self.roster.policies[message.key.channel], self.roster.facts(message, accounts))

    def role(self, message: InboundMessage) -> Role | None:
        """Return what a sender may decide, None for who is not heard."""
        decision = self.judge(message)
        return decision.role if isinstance(decision, Admitted) else None


def _wrong(channel: str, entry: str) -> str:
    return entry_error(entry, TelegramSettings.entry_shapes) if KINDS[channel] == "telegram" else ""


def scene(
    store: SqlStore, wall: WallClock, *, allow: Mapping[str, Sequence[str]] | None = None, owners: Sequence[str] = ()
) -> RosterScene:
    """Return a door with two Telegram bots, a Slack workspace and the page."""
    entries = allow or {}
    policies: dict[str, AdmissionPolicy] = {
        name: policy_of(name, entries.get(name, ()), owners, "mention", is_local=kind == "web")
        for name, kind in KINDS.items()
    }
    roster = LinkedRoster(store.access, policies, KINDS, store.links, named_owners=owners)
    return RosterScene(store=store, wall=wall, roster=roster)


def direct(user: str, text: str = "hello", *, channel: str = "telegram", **fields: Any) -> InboundMessage:
    """Return what somebody writes to us alone."""
    sender = Sender(id=user, name=fields.pop("name", ""))
    number = fields.pop("id", "1")
    return InboundMessage(
        key=SessionKey(channel, user), message_id=number, sender=sender, text=text, sent_at=START, **fields
    )
