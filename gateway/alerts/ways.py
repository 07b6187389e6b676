"""Where owners can be reached now: their own direct chat, on a channel that hears, and a page that is open."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gateway.events import SessionKey
from gateway.ports import Channel


class Ways:
    """The addresses of everybody who is an owner.

    An address is a key whose chat is the person's own id: every platform's channel brings what is visible to that
    person alone into their direct chat, and opens it where there is none yet.
    """

    def __init__(
        self,
        *,
        people: Callable[[], Sequence[Sequence[SessionKey]]],
        channels: Mapping[str, Channel],
        hears: Callable[[], Mapping[str, bool | None]],
        pages: Sequence[SessionKey] = (),
    ) -> None:
        """*people*: the owners, each with their addresses, the best first; *pages*: the local owner's windows."""
        self._people = people
        self._channels = channels
        self._hears = hears
        self._pages = pages

    def now(self, *, about: str = "") -> tuple[SessionKey, ...]:
        """Return one address per owner who can be reached, and every page that is open; each of them once.

        What is *about* a channel goes over another one, where there is another.
        """
        hears = self._hears()
        found = [
            next((key for key in sorted(keys, key=lambda key: key.channel == about) if self._reaches(key, hears)), None)
            for keys in self._people()
        ]
        open_pages = [key for key in self._pages if self._is_open(key)]
        return tuple(dict.fromkeys(key for key in (*found, *open_pages) if key is not None))

    def _reaches(self, key: SessionKey, hears: Mapping[str, bool | None]) -> bool:
        return self._is_open(key) if key in self._pages else hears.get(key.channel) is True

    def _is_open(self, key: SessionKey) -> bool:
        channel = self._channels.get(key.channel)
        return channel is not None and channel.is_watched(key)
