"""Files that a visitor may download: those they were shown, each under an address that cannot be guessed."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass

from cachetools import LRUCache

from gateway.events import Attachment

MOST = 2_000  # addresses of one person; an older one is given anew when its line is shown again
_MOST_CHARACTERS = 8_000_000  # of one person's texts
_MOST_PEOPLE = 100


@dataclass(frozen=True, slots=True)
class ServedFile:
    """A file for one visitor: the stored bytes, or a text."""

    who: str
    file: Attachment
    text: str


class ServedFiles:
    """The valid addresses. They end with the process; a page that reconnects gets new ones with its history.

    One person's addresses do not evict another's, unless there are very many people.
    """

    def __init__(self) -> None:
        self._people: LRUCache[str, _PersonFiles] = LRUCache(_MOST_PEOPLE)

    def add(self, who: str, file: Attachment, text: str = "") -> str:
        """Return the address of *file* for *who*; the same file keeps its address."""
        person = self._people.get(who)
        if person is None:
            person = self._people[who] = _PersonFiles()
        return person.add(ServedFile(who, file, text))

    def get(self, who: str, token: str) -> ServedFile | None:
        """Return the file that *who* was shown under *token*, or None; another person's tokens are unknown."""
        person = self._people.get(who)
        return person.kept.get(token) if person else None


class _PersonFiles:
    """The addresses of one person."""

    def __init__(self) -> None:
        self.kept: OrderedDict[str, ServedFile] = OrderedDict()
        self._tokens: dict[ServedFile, str] = {}
        self._characters = 0

    def add(self, file: ServedFile) -> str:
        token = self._tokens.get(file)
        if token is None:
            token = self._tokens[file] = secrets.token_urlsafe(18)
            self.kept[token] = file
            self._characters += len(file.text)
            while len(self.kept) > 1 and (len(self.kept) > MOST or self._characters > _MOST_CHARACTERS):
                oldest = self.kept.popitem(last=False)[1]
                self._characters -= len(oldest.text)
                del self._tokens[oldest]
        self.kept.move_to_end(token)
        return token
