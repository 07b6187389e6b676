"""Who may speak and who decides it, built over the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from agent.memory.scopes import quote
from gateway.app.channels import Judge, Plugins, accounts_of, judge_of, kinds_of, policies_of
from gateway.people.claims import Claims
from gateway.people.decisions import Decisions
from gateway.people.roster import PlatformAccount, Roster
from gateway.ports import Store
from gateway.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class PeopleDesk:
    """The rooms about people."""

    roster: Roster
    decisions: Decisions
    claims: Claims
    judge: Judge


def open_people(settings: Settings, plugins: Plugins, store: Store, *, now: Callable[[], datetime]) -> PeopleDesk:
    """Build them."""
    kinds = kinds_of(settings, plugins)
    roster = Roster(store.access, policies_of(settings, plugins), kinds)

    def linked(channel: str, user: str) -> Sequence[PlatformAccount]:
        return accounts_of(store.links, quote(f"{kinds.get(channel, channel)}:{user}"))

    return PeopleDesk(
        roster=roster,
        decisions=Decisions(roster, linked, now=now),
        claims=Claims(roster, now=now, language=settings.language),
        judge=judge_of(roster, store.links, kinds),
    )
