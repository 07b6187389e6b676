"""Addresses at which owners can be reached now: a direct chat on a connected channel, or an open page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from gateway.access.pairing_service import OwnerAddress
from gateway.events import SessionKey
from gateway.ports import Channel

_AWAY, _NEVER = 3, 4  # ranks; what a channel lacks is not told over it


class OwnerDirectory:
    """The addresses of all owners."""

    def __init__(
        self,
        *,
        people: Callable[[], Awaitable[Sequence[Sequence[OwnerAddress]]]],
        channels: Mapping[str, Channel],
        connection_states: Callable[[], Mapping[str, bool | None]],
        unreachable: Callable[[], Awaitable[Collection[SessionKey]]],
        pages: Sequence[SessionKey] = (),
    ) -> None:
        """*people*: the owners, each with their addresses, the best first; *pages*: the local owner's windows.

        *unreachable*: addresses to which deliveries failed recently.
        """
        self._people = people
        self._channels = channels
        self._connection_states = connection_states
        self._unheard = unreachable
        self._pages = pages

    async def reachable_owners(self, *, about: str = "") -> tuple[OwnerAddress, ...]:
        """Return one address per owner and every open page, each once; empty if no owner can be reached.

        A connected channel is preferred, then one not tried yet; alerts *about* a channel use another one if
        possible. If any owner can be reached, messages for the others wait in the outbox.
        """
        people, connection_states, unheard = await self._people(), self._connection_states(), await self._unheard()

        def rank(at: OwnerAddress) -> int:
            return _NEVER if at.key in unheard else self._rank(at, connection_states, about)

        best = [min(addresses, key=rank) for addresses in people if addresses]
        ranks = [rank(at) for at in best]
        pages = [OwnerAddress(key) for key in self._pages if self._is_open(key) and key not in unheard]
        if not pages and not any(rank < _AWAY for rank in ranks):
            return ()
        found = [at for at, rank in zip(best, ranks, strict=True) if rank < _NEVER]
        return tuple(dict.fromkeys((*found, *pages)))

    def _rank(self, at: OwnerAddress, connection_states: Mapping[str, bool | None], about: str) -> int:
        state = connection_states.get(at.key.channel, False)
        if at.key.channel == about:
            return 2 if state else _NEVER
        return {True: 0, None: 1, False: _AWAY}[state]

    def _is_open(self, key: SessionKey) -> bool:
        channel = self._channels.get(key.channel)
        return channel is not None and channel.is_watched(key)
