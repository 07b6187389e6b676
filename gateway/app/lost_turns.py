"""A store that has less than its home: found before it is used, by a start, the doctor and `parlour accept-loss`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agent.memory.storage.transcript_files import NEWEST_SESSIONS, TranscriptTurn, read_ends, read_turns
from gateway.home import Home
from gateway.journal_file import (
    JournalStamp,
    StoreKind,
    lost_rows_line,
    misplaced_journal,
    other_database,
    read_stamp,
    unstamped_loss,
)
from gateway.store.closed_store import read_store
from gateway.store.inspection import count_turns, missing_turns, newest_turn, read_identity, stale_sessions
from gateway.store.session_queue import list_sessions

if TYPE_CHECKING:
    from gateway.store.database import Database


@dataclass(frozen=True, slots=True)
class LostTurns:
    """Turns that the transcripts of a home have and its store lacks."""

    turns: Mapping[str, str]  # the session of each
    has_newer: bool  # the store has turns that the home lacks: it was used since


@dataclass(frozen=True, slots=True)
class _Comparison:
    store: str  # random id
    stamps: int
    lost: tuple[str, ...]  # sessions with turns that the store lacks


def describe_loss(home: Home, url: str, *, sessions: int = NEWEST_SESSIONS) -> str:
    """Return the error line for a store that is missing, another home's, or older than the home; otherwise "". Blocks.

    Transcripts of so many *sessions* are looked at, of those used last: the cost does not depend on the number of
    chats. `lost_journal` judges the journal's file. Raises StoreUnavailable and SettingsError for a database that
    cannot be used.
    """
    journal = home.journal
    if misplaced_journal(journal, has_database=bool(url)):
        return ""  # opening the store says more
    if not url and (line := unstamped_loss(journal)):
        return line
    stamp = read_stamp(journal)
    stale = _stale(journal, url)
    found = read_store(journal, url, partial(_compare, home=home, stamp=stamp, stale=stale, limit=sessions))
    if url and (other := other_database(journal, found.store if found is not None else "")):
        return other
    if found is None:
        return ""
    if found.lost:
        others = f" and {len(found.lost) - 1} more" if len(found.lost) > 1 else ""
        return lost_rows_line(journal, url, f"lacks turns that are in the transcript of {found.lost[0]}{others}")
    # Starts of other gateways raise the count of a database: it proves a loss, and never the absence of one.
    if stamp is not None and stamp.kind is StoreKind.POSTGRESQL and stamp.store == found.store:
        at = stamp.at[:16].replace("T", " ")
        if found.stamps < stamp.count:
            return lost_rows_line(journal, url, f"is older than at {at} UTC, when it contained more data")
    return ""


def find_lost_turns(home: Home, url: str, *, is_any_age: bool = False) -> LostTurns:
    """Return all turns of the transcripts that the store lacks, with *is_any_age* also those whose loss was accepted.

    Reads every transcript. Raises as `describe_loss`.
    """
    turns = [*read_turns(home.path)]
    stamp = None if is_any_age else read_stamp(home.journal)
    stale = _stale(home.journal, url)
    newest = read_store(home.journal, url, newest_turn)
    has_newer = bool(newest) and all(each.turn != newest for each in turns)
    missing = read_store(home.journal, url, partial(_missing, turns=turns, stamp=stamp, stale=stale))
    return LostTurns(missing or {}, has_newer)


def _stale(journal: Path, url: str) -> Collection[str]:
    """Return the sessions with stale files; none in a store of the version before, which has no such table."""
    return read_store(journal, url, stale_sessions) or ()


def _compare(
    database: Database, home: Home, stamp: JournalStamp | None, stale: Collection[str], limit: int
) -> _Comparison:
    ends = [*read_ends(home.path, list_sessions(database, limit))]
    stamped = stamp.turns if stamp is not None else None
    newest = [TranscriptTurn(key, each.turn, each.at) for key, each in (stamped or {}).items()]
    # A stamp of an older version does not say what was accepted. Before the end of a take-over, old turns of some chats
    # are rows, and those of others are in files alone: the oldest row does not say from when on all are there.
    if stamp is None or (stamped is not None and count_turns(database) is not None):
        newest += [end.newest for end in ends if end.newest is not None]
    ahead = [str(end.session.key) for end in ends if end.is_ahead]
    lost = dict.fromkeys([*ahead, *_missing(database, newest, stamp, stale).values()])
    return _Comparison(*read_identity(database), lost=tuple(lost))


def _missing(
    database: Database, turns: Iterable[TranscriptTurn], stamp: JournalStamp | None, stale: Collection[str]
) -> Mapping[str, str]:
    accepted = stamp.accepted_until if stamp is not None else 0
    found = {each.turn: each for each in turns if each.at > accepted and each.key not in stale}
    missing = missing_turns(database, {turn: each.at for turn, each in found.items()})
    return {turn: found[turn].key for turn in missing}
