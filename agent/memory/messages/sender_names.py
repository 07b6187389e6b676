"""Display names of the senders in a conversation; senders of the same name get the end of their id."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

from cachetools import LRUCache

_SHORT = 6  # characters of an id
_NAMES = 1_000  # that one conversation keeps
_SEVERAL = 2  # ids stored per name; two suffice to know that it is shared


class SenderNames:
    """The names of one conversation's people, by how they read: case, blanks and signs make no difference."""

    def __init__(self) -> None:
        self._users: LRUCache[str, tuple[str, ...]] = LRUCache(_NAMES)

    def note(self, user: str, name: str) -> None:
        """Take note that the user with this id speaks as *name*."""
        folded = _fold(name)
        known = self._users.get(folded, ())
        self._users[folded] = known if user in known or len(known) == _SEVERAL else (*known, user)

    def note_line(self, line: Mapping[str, Any]) -> None:
        """Record the sender of a transcript line or a message."""
        by = line.get("by")
        if isinstance(by, Mapping) and by.get("id"):
            self.note(str(by["id"]), str(by.get("name") or ""))

    def label(self, user: str, name: str) -> str:
        """Return *name*, with the end of the user's id in brackets if others speak under it too."""
        if len(self._users.get(_fold(name), ())) < _SEVERAL or not user:
            return name
        return f"{name} ({user[-_SHORT:]})".strip()


def _fold(name: str) -> str:
    plain = unicodedata.normalize("NFKC", name).casefold()
    return "".join(sign for sign in plain if sign.isalnum())
