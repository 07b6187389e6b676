"""Chats in which owners receive notices: the direct chat used last, on the channel concerned where possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gateway.access.access_roster import AccessRoster
from gateway.access.pairing_service import OwnerAddress
from gateway.app.channels import accounts_of_user
from gateway.app.context import ChannelPlatforms
from gateway.events import PlatformAccount, SessionKey
from gateway.ports import AccountLinkStore, SessionRow, TurnRecordStore
from gateway.ports.access import AccessListing


@dataclass(slots=True, eq=False)
class OwnerChats:
    """Finds owners' chats. Its call is `gateway.access.pairing_service.FindOwner`.

    *is_open* returns True for a channel that runs in this process.
    """

    roster: AccessRoster
    records: TurnRecordStore
    links: AccountLinkStore
    platforms: ChannelPlatforms
    is_open: Callable[[str], bool]

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
            kin = {account, *accounts_of_user(self.links, account)}
            person = next((known for known in people if known[0] & kin), None)
            if person is None:
                people.append(person := (set(), {}))
            person[0].update(kin)
            person[1][self._address(each.channel, account, sessions)] = None
        return [tuple(addresses) for _, addresses in people]

    def _is_reachable(self, owner: AccessListing) -> bool:
        return self.is_open(owner.channel) and not self._is_local(SessionKey(owner.channel, owner.who))

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
            if self.is_open(each.channel)
        }
        accounts = set(owners.values())
        for row in sessions:
            if self.is_open(row.key.channel) and self._is_owners(row, accounts):
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
