"""Adoption of a journal that lacks the newest events: a restored one, or one whose end is lost.

The outcome of its open messages and undelivered answers is unknown. The closed file is marked; the next start
settles them as the operator chose.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.journal_file import OpenChoice
from gateway.ports.journal import SessionRow
from gateway.store.database import SET_META, Database
from gateway.store.row_codec import write_key

_OPEN_ROWS = "SELECT count(*) FROM inbox WHERE ended_at IS NULL AND state != 'noted'"
_OPEN_ANSWERS = "SELECT count(*) FROM outbox WHERE open IN (1, 3)"
_ADOPTIONS = "('adopted_turns', 'adopted_documents', 'adopted_histories')"
_UNFINISHED = "('pending', 'sending', 'unknown')"


@dataclass(frozen=True, slots=True)
class AdoptedRange:
    """Up to which rows an answer may stand in its chat without this journal's knowing."""

    inbox: int = 0
    outbox: int = 0

    def covers(self, inbox: Iterable[int]) -> bool:
        """Return True if one of these inbox rows is among them."""
        return any(seq <= self.inbox for seq in inbox)


@dataclass(frozen=True, slots=True)
class OpenWork:
    """Number of open messages and undelivered answers in a journal."""

    messages: int
    answers: int

    def describe(self, choice: OpenChoice) -> str:
        """Return a line for the operator that says how open work is settled."""
        count = f"{self.messages} messages were open and {self.answers} answers undelivered in it"
        if not self.messages and not self.answers:
            return "nothing was open in it"
        if choice is OpenChoice.DROP:
            return f"{count}: they are dropped"
        return f"{count}: each is answered, and looked up or marked, since it may have been answered already"


def mark(database: Database, choice: OpenChoice, sessions: Iterable[SessionRow] = ()) -> OpenWork:
    """Mark a journal that no gateway has open as adopted; return its open work. *sessions* replace its own rows."""
    database.execute(SET_META, ("adopted", choice.value))
    # Files may have turns, documents and histories that are not in it.
    database.execute(f"DELETE FROM meta WHERE name IN {_ADOPTIONS}")  # noqa: S608 - our own words
    database.executemany(
        "UPDATE session SET transcript = ?, next_index = ? WHERE key = ?",
        [(row.transcript, row.next_index, write_key(row.key)) for row in sessions],
    )
    ((messages,), (answers,)) = (database.execute(query).fetchone() for query in (_OPEN_ROWS, _OPEN_ANSWERS))
    return OpenWork(messages, answers)


def is_all_adopted(database: Database) -> bool:
    """Return True if all that the home's files had at the first start is stored."""
    (count,) = database.execute(f"SELECT count(*) FROM meta WHERE name IN {_ADOPTIONS}").fetchone()  # noqa: S608
    return bool(count == _ADOPTIONS.count(",") + 1)


def settle(database: Database, choice: OpenChoice, at: int) -> None:
    """Settle what was open when the journal was adopted."""
    ((inbox,), (outbox,)) = (
        database.execute(f"SELECT coalesce(max(seq), 0) FROM {table}").fetchone()  # noqa: S608 - our own two words
        for table in ("inbox", "outbox")
    )
    database.execute(SET_META, ("adopted_range", json.dumps([inbox, outbox])))
    database.execute("DELETE FROM meta WHERE name = 'adopted'")
    if choice is OpenChoice.DROP:
        _drop(database, at)
    else:
        _doubt(database)


def _drop(database: Database, at: int) -> None:
    database.execute("DELETE FROM step WHERE turn IN (SELECT turn FROM inbox WHERE ended_at IS NULL AND turn != '')")
    database.execute("UPDATE inbox SET state = 'stopped', ended_at = ? WHERE ended_at IS NULL", (at,))
    database.execute("UPDATE lane SET turn = '' WHERE turn != ''")
    database.execute(
        f"UPDATE part SET state = 'cancelled', at = ? WHERE state IN {_UNFINISHED}"  # noqa: S608 - our own words
        " AND message IN (SELECT seq FROM outbox WHERE open IS NOT NULL)",
        (at,),
    )
    database.execute("UPDATE outbox SET open = NULL, ended_at = ? WHERE open IS NOT NULL", (at,))


def _doubt(database: Database) -> None:
    database.execute(
        "UPDATE part SET state = 'unknown', reason = 'restored' WHERE state = 'pending'"
        " AND message IN (SELECT seq FROM outbox WHERE open IS NOT NULL)"
    )


def read_range(database: Database) -> AdoptedRange:
    """Return which rows are older than what happened since."""
    found = database.execute("SELECT value FROM meta WHERE name = 'adopted_range'").fetchone()
    return AdoptedRange(*json.loads(found[0])) if found is not None else AdoptedRange()


def is_uncertain(database: Database, message: str, adopted: AdoptedRange) -> bool:
    """Return True if the outbox message of this id may have been delivered without this journal's knowing."""
    if not adopted.outbox and not adopted.inbox:
        return False
    if database.execute("SELECT 1 FROM outbox WHERE id = ? AND seq <= ?", (message, adopted.outbox)).fetchone():
        return True
    turn = message.rpartition(".")[0]
    found = database.execute("SELECT inbox FROM record WHERE turn = ?", (turn,)).fetchone()
    return found is not None and adopted.covers(json.loads(found[0]))
