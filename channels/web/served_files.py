"""What the page may fetch: files that a visitor was shown, each under an address that nobody can guess."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass

from gateway.events import Attachment

MOST = 2_000  # addresses of one person; an older one is given anew when its line is shown again
_MOST_CHARACTERS = 8_000_000  # of one person's texts
_MOST_PEOPLE = 100


@dataclass(frozen=True, slots=True)
class ServedFile:
    """A file for one visitor: the stored bytes, or the text where there are none."""

    who: str
    file: Attachment
    text: str


class ServedFiles:
    """The addresses that are out. They end with the process; a page that comes back gets new ones with its history.

    Nobody's addresses push out another person's, unless there are very many people.
    """

    def __init__(self) -> None:
        self._people: OrderedDict[str, _PersonFiles] = OrderedDict()

    def add(self, who: str, file: Attachment, text: str = "") -> str:
        """Return the address of *file* for *who*; the same file keeps its address."""
        person = self._people.setdefault(who, _PersonFiles())
        self._people.move_to_end(who)
        if len(self._people) > _MOST_PEOPLE:
            self._people.popitem(last=False)
        return person.add(ServedFile(who, file, text))

    def get(self, who: str, token: str) -> ServedFile | None:
        """Return what *who* was shown under *token*; what another was shown is not there."""
        person = self._people.get(who)
        return person.kept.get(token) if person else None


class _PersonFiles:
    """The addresses of one person."""

    def __init__(self) -> None:
        self.kept: OrderedDict[str, ServedFile] = OrderedDict()
        self._tokens: dict[ServedFile, str] = {}
        self._characters = 0

    def add(self, kept: ServedFile) -> str:
        token = self._tokens.get(kept)
        if token is None:
            token = self._tokens[kept] = secrets.token_urlsafe(18)
            self.kept[token] = kept
            self._characters += len(kept.text)
            while len(self.kept) > 1 and (len(self.kept) > MOST or self._characters > _MOST_CHARACTERS):
                oldest = self.kept.popitem(last=False)[1]
                self._characters -= len(oldest.text)
                del self._tokens[oldest]
        self.kept.move_to_end(token)
        return token
