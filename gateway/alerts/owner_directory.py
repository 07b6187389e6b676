"""Where owners can be reached now: their own direct chat, on a channel that hears, and a page that is open."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from gateway.access.pairing_service import OwnerAddress
from gateway.events import SessionKey
from gateway.ports import Channel

_AWAY, _NEVER = 3, 4  # ranks; what a channel lacks is not told over it


class OwnerDirectory:
    """The addresses of everybody who is an owner."""

    def __init__(
        self,
        *,
        people: Callable[[], Awaitable[Sequence[Sequence[OwnerAddress]]]],
        channels: Mapping[str, Channel],
        hears: Callable[[], Mapping[str, bool | None]],
        unheard: Callable[[], Awaitable[Collection[SessionKey]]],
        pages: Sequence[SessionKey] = (),
    ) -> None:
        """*people*: the owners, each with their addresses, the best first; *pages*: the local owner's windows.

        *unheard*: where lately nothing of ours arrived.
        """
        self._people = people
        self._channels = channels
        self._hears = hears
        self._unheard = unheard
        self._pages = pages

    async def reachable_owners(self, *, about: str = "") -> tuple[OwnerAddress, ...]:
        """Return one address per owner, and every page that is open, each once; nothing while nobody can be reached.

        Best is a channel that hears, then one that was not tried yet. What is *about* a channel goes over another one,
        where there is another. Where somebody can be reached, what is for the others waits in the outbox for theirs.
        """
        people, hears, unheard = await self._people(), self._hears(), await self._unheard()

        def rank(at: OwnerAddress) -> int:
            return _NEVER if at.key in unheard else self._rank(at, hears, about)

        best = [min(addresses, key=rank) for addresses in people if addresses]
        ranks = [rank(at) for at in best]
        pages = [OwnerAddress(key) for key in self._pages if self._is_open(key) and key not in unheard]
        if not pages and not any(rank < _AWAY for rank in ranks):
            return ()
        found = [at for at, rank in zip(best, ranks, strict=True) if rank < _NEVER]
        return tuple(dict.fromkeys((*found, *pages)))

    def _rank(self, at: OwnerAddress, hears: Mapping[str, bool | None], about: str) -> int:
        state = hears.get(at.key.channel, False)
        if at.key.channel == about:
            return 2 if state else _NEVER
        return {True: 0, None: 1, False: _AWAY}[state]

    def _is_open(self, key: SessionKey) -> bool:
        channel = self._channels.get(key.channel)
        return channel is not None and channel.is_watched(key)
