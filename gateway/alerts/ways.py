"""Where owners can be reached now: their own direct chat, on a channel that hears, and a page that is open."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from gateway.events import SessionKey
from gateway.people.pairing import OwnerAt
from gateway.ports import Channel


class Ways:
    """The addresses of everybody who is an owner."""

    def __init__(
        self,
        *,
        people: Callable[[], Awaitable[Sequence[Sequence[OwnerAt]]]],
        channels: Mapping[str, Channel],
        hears: Callable[[], Mapping[str, bool | None]],
        pages: Sequence[SessionKey] = (),
    ) -> None:
        """*people*: the owners, each with their addresses, the best first; *pages*: the local owner's windows."""
        self._people = people
        self._channels = channels
        self._hears = hears
        self._pages = pages

    async def now(self, *, about: str = "") -> tuple[OwnerAt, ...]:
        """Return one address per owner who can be reached, and every page that is open; each of them once.

        What is *about* a channel goes over another one, where there is another.
        """
        people, hears = await self._people(), self._hears()
        found: list[OwnerAt] = []
        for addresses in people:
            reached = [at for at in addresses if hears.get(at.key.channel) is True]
            found += sorted(reached, key=lambda at: at.key.channel == about)[:1]
        found += [OwnerAt(key) for key in self._pages if self._is_open(key)]
        return tuple(dict.fromkeys(found))

    def _is_open(self, key: SessionKey) -> bool:
        channel = self._channels.get(key.channel)
        return channel is not None and channel.is_watched(key)
