"""Forgetting that reaches the journal: what its rows say, who they are about, and what deleted pages still hold."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeAlias

from gateway.events import SessionKey

Redaction: TypeAlias = Callable[[Any], Any]  # a JSON value in, what may stay of it out; the same value for "all of it"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureFilter:
    """Which rows may be touched."""

    keys: frozenset[SessionKey]
    scope: str | None = None  # whose jobs; None = nobody's
    sender: str = ""  # the platform's id: only their messages and the turns that answered them; "" = everybody's
    upto: int = 0  # the newest inbox row that counts; what came later was said anew. 0 = all
    spare: frozenset[str] = frozenset()  # jobs that stay as they are
    is_over: bool = False  # only what has ended and is in its files: what waits or runs is answered as it is


class ErasureStore(Protocol):
    """Takes texts and people out of the journal, beside running turns. Doing it twice is doing it once."""

    async def at_work(self, reach: ErasureFilter) -> frozenset[str]:
        """Return the ids of turns and jobs within *reach* that are under way: what they know, they may yet write."""
        ...

    async def redact(self, reach: ErasureFilter, change: Redaction) -> int:
        """Put what people, we and models said through *change*: inbox, steps, records, outbox, jobs, dead letters.

        It is given texts, lists and mappings; a message's text and its files come in one mapping. Ids, keys and
        states stay, so that nothing is answered or sent twice. Return how many rows changed.
        """
        ...

    async def drop_jobs(self, scope: str, *, spare: Collection[str] = ()) -> int:
        """Remove every job of *scope* but those of the ids *spare*; return how many there were."""
        ...

    async def unlink(self, *, person: str, keys: Collection[SessionKey]) -> None:
        """Take a person and their chats out of the usage rows; the sums of the house stay right."""
        ...

    async def anonymise(self, *, sender: str, keys: Collection[SessionKey]) -> None:
        """Take the id and name of *sender* out of ended inbox rows of *keys*."""
        ...

    async def drop_sessions(
        self, keys: Collection[SessionKey], *, unused_since: datetime | None = None
    ) -> frozenset[SessionKey]:
        """Remove sessions that nothing is going on in, so that the next message begins a fresh one; return their keys.

        With *unused_since*, only those whose last turn is older.
        """
        ...

    async def scrub(self) -> bool:
        """Leave nothing of deleted rows in pages and log; False when somebody reads, and it has to be done later.

        Everybody's next write waits meanwhile, a second or two for each hundred megabytes.
        """
        ...


Meant: TypeAlias = Callable[[str, bytes], bool]  # the channel block, and what is kept of it


class UnscopedData(Protocol):
    """What channels keep outside any scope: events in quarantine, files that were added on a page."""

    async def forget(self, is_meant: Meant, *, tokens: Collection[str] = ()) -> int:
        """Blank the events and remove the files that are meant, files named in *tokens* too; return how many."""
        ...
