"""A store that has less than its home: found before it is used, by a start, the doctor and `parlour accept-loss`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from agent.memory.storage.transcript_lead import NEWEST_SESSIONS, TranscriptTurn, read_ends, read_turns
from gateway.home import Home
from gateway.journal_file import (
    JournalStamp,
    StampedTurn,
    StoreKind,
    lost_rows_line,
    misplaced_journal,
    other_database,
    read_stamp,
    unstamped_loss,
)
from gateway.store.closed_store import (
    find_missing,
    read_newest_turn,
    read_sessions,
    read_stamp_count,
    read_store_id,
)


@dataclass(frozen=True, slots=True)
class LostTurns:
    """Turns that the transcripts of a home have and its store lacks."""

    turns: Mapping[str, str]  # the session of each
    has_newer: bool  # the store has turns that the home lacks: it was used since


def describe_loss(home: Home, url: str, *, sessions: int = NEWEST_SESSIONS) -> str:
    """Return the error line for a store that is missing, another home's, or older than the home; otherwise "". Blocks.

    Transcripts of so many *sessions* are looked at, of those used last: the cost does not depend on the number of
    chats. `lost_journal` judges the journal's file. Raises StoreUnavailable and SettingsError for a database that
    cannot be used.
    """
    journal = home.journal
    if misplaced_journal(journal, has_database=bool(url)):
        return ""  # opening the store says more
    if url and (other := other_database(journal, partial(read_store_id, url))):
        return other
    if not url and (line := unstamped_loss(journal)):
        return line
    stamp = read_stamp(journal)
    keys = _lost_sessions(home, url, stamp, sessions)
    if keys:
        others = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
        return lost_rows_line(journal, url, f"lacks turns that are in the transcript of {keys[0]}{others}")
    if url and stamp is not None and stamp.kind is StoreKind.POSTGRESQL and stamp.store:
        count = read_stamp_count(journal, url, stamp.store)
        if count is not None and count < stamp.count:
            at = stamp.at[:16].replace("T", " ")
            return lost_rows_line(journal, url, f"is older than at {at} UTC, when it contained more data")
    return ""


def _lost_sessions(home: Home, url: str, stamp: JournalStamp | None, limit: int) -> list[str]:
    """Return the sessions, of those used last, with turns that the store lacks."""
    ends = [*read_ends(home.path, read_sessions(home.journal, url, limit))]
    newest = [TranscriptTurn(key, each.turn, each.at) for key, each in _stamped(stamp)]
    if stamp is None or stamp.turns is not None:  # one of an older version does not say what was accepted
        newest += [end.newest for end in ends if end.newest is not None]
    missing = _missing(home, url, newest, stamp)
    found = [str(end.session.key) for end in ends if end.is_ahead]
    return list(dict.fromkeys([*found, *missing.values()]))


def _stamped(stamp: JournalStamp | None) -> Iterable[tuple[str, StampedTurn]]:
    return (stamp.turns or {}).items() if stamp is not None else ()


def find_lost_turns(home: Home, url: str) -> LostTurns:
    """Return all turns of the transcripts that the store lacks. Reads every transcript. Raises as `describe_loss`."""
    turns = [*read_turns(home.path)]
    newest = read_newest_turn(home.journal, url)
    has_newer = bool(newest) and all(each.turn != newest for each in turns)
    return LostTurns(_missing(home, url, turns, read_stamp(home.journal)), has_newer)


def _missing(home: Home, url: str, turns: Iterable[TranscriptTurn], stamp: JournalStamp | None) -> Mapping[str, str]:
    accepted = stamp.accepted_until if stamp is not None else 0
    found = {each.turn: each for each in turns if each.at > accepted}
    missing = find_missing(home.journal, url, {turn: each.at for turn, each in found.items()})
    return {turn: found[turn].key for turn in missing}
