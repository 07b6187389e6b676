"""What the page may fetch: files that a visitor was shown, each under an address that nobody can guess."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass

from gateway.events import Attachment

MOST = 2_000  # addresses; an older one is given anew when its line is shown again


@dataclass(frozen=True, slots=True)
class Kept:
    """A file for one visitor: the stored bytes, or the text where there are none."""

    who: str
    file: Attachment
    text: str


class Shelf:
    """The addresses that are out. They end with the process; a page that comes back gets new ones with its history."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._tokens: dict[Kept, str] = {}

    def put(self, who: str, file: Attachment, text: str = "") -> str:
        """Return the address of *file* for *who*; the same file keeps its address."""
        kept = Kept(who, file, text)
        token = self._tokens.get(kept)
        if token is None:
            token = self._tokens[kept] = secrets.token_urlsafe(18)
            self._kept[token] = kept
            if len(self._kept) > MOST:
                del self._tokens[self._kept.popitem(last=False)[1]]
        self._kept.move_to_end(token)
        return token

    def get(self, who: str, token: str) -> Kept | None:
        """Return what *who* was shown under *token*; what another was shown is not there."""
        kept = self._kept.get(token)
        return kept if kept is not None and kept.who == who else None
