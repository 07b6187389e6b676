"""Checks of the journal file before it is opened: usable, whole, and not older than at the last start.

SQLite silently opens a missing, emptied or older file, and one without its write-ahead log. Therefore a stamp is stored
beside the journal: its id, and a count that the journal holds too. The stamp is written after the count is durable in
the journal. A crash or power cut never leaves a journal behind its stamp, but a lost or replaced file does.

A home whose messages are in a database has a stamp as well. Of several gateways each has its own, so an older copy of
the database is noticed by the newest turns that the stamp names, whatever other gateways have stored since.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import sqlite3
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from gateway.durable_files import sync_folder
from gateway.ports.memory import CACHE

STAMP = "journal.stamp"
MOVED = "journal.moved"  # names the database that has the messages of this home
_FULL = 1024 * 1024  # bytes; with less free space, an I/O error is a full disk's
_LONGEST_STAMP = 256 * 1024  # bytes
STAMPED_SESSIONS = 50  # of which a stamp names the newest turn: an older store lacks the newest turns of all
_TRANSCRIPTS = ("people/*/sessions/*.jsonl", "chats/*/sessions/*.jsonl", "sessions/*.jsonl")
_HEAD = (b'"kind":"head"', b'"transcript":')  # in the first line of our transcripts, and of no older system's
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_FORBIDDEN = (sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)


class OpenChoice(StrEnum):
    """The treatment of unanswered messages and undelivered replies of a restored or lost journal."""

    ANSWER = "answer"  # answered; each part is looked up at its platform, or marked as a possible repeat
    DROP = "drop"  # ended without an answer


class StoreKind(StrEnum):
    """A store of the messages of a home."""

    POSTGRESQL = "postgresql"
    SQLITE = "sqlite"


@dataclass(frozen=True, slots=True)
class StampedTurn:
    """The newest turn of a session that this home's gateway has stored."""

    turn: str
    at: int  # microseconds since 1970


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalStamp:
    """The state that a store had durably when the stamp was written."""

    store: str  # random id of the store; "" = the next start takes the store that it finds
    count: int  # stamps of a journal so far, starts on a database; never decreases
    schema: int
    at: str  # ISO 8601, UTC
    kind: StoreKind = StoreKind.SQLITE
    turns: Mapping[str, StampedTurn] | None = None  # by session, at most STAMPED_SESSIONS; None = of an older version
    accepted_until: int = 0  # microseconds since 1970; turns of this home up to then may be missing in the store
    is_damaged: bool = False  # found while it was in use; it is read whole before the next start


def stamp_of(journal: Path) -> Path:
    """Return the path of the stamp of *journal*."""
    return journal.with_name(STAMP)


def files_of(journal: Path) -> tuple[Path, ...]:
    """Return the files that are the journal together, existing or not."""
    return tuple(journal.with_name(f"{journal.name}{end}") for end in ("", "-wal", "-shm"))


def read_stamp(journal: Path) -> JournalStamp | None:
    """Return the stamp of *journal*; None for a missing or torn one, which proves nothing."""
    try:
        with stamp_of(journal).open("rb") as file:
            found = json.loads(file.read(_LONGEST_STAMP))
        turns = found.get("turns")
        return JournalStamp(
            store=str(found["store"]),
            count=int(found["count"]),
            schema=int(found["schema"]),
            at=str(found["at"]),
            kind=StoreKind(found.get("kind", StoreKind.SQLITE)),
            turns=None
            if turns is None
            else {key: StampedTurn(str(turn), int(at)) for key, (turn, at) in turns.items()},
            accepted_until=int(found.get("accepted_until", 0)),
            is_damaged=found.get("is_damaged") is True,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_stamp(journal: Path, stamp: JournalStamp) -> None:
    """Replace the stamp of *journal*, durably. Its count and turns must be durable in the store. Raises OSError."""
    turns = {key: [each.turn, each.at] for key, each in (stamp.turns or {}).items()}
    fields = {name: value for name, value in asdict(stamp).items() if name != "turns"}
    _replace_file(stamp_of(journal), {**fields, "turns": turns})


def accept_store(journal: Path, at: datetime) -> None:
    """Have the next start take the store that it finds, which may lack turns of before *at*. Raises OSError."""
    accepted = int(at.timestamp() * 1_000_000)
    stamp = JournalStamp(store="", count=0, schema=0, at=at.isoformat(timespec="seconds"), accepted_until=accepted)
    write_stamp(journal, stamp)


def _replace_file(target: Path, content: Mapping[str, object]) -> None:
    beside = target.with_name(f".{target.name}.part")  # one process owns the home: the next write replaces a leftover
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, json.dumps(content).encode() + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    beside.replace(target)
    sync_folder(target.parent)


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalMove:
    """A note that a database has the messages of a home: true only while the journal's file is not there."""

    id: str  # of `parlour store migrate`, random; the database holds the same one. "" = the home began on a database
    database: str  # for people, without a password
    at: str  # ISO 8601, UTC
    store: str = ""  # random id of the database's store; "" before its first start


def read_move(journal: Path) -> JournalMove | None:
    """Return which database has the messages of *journal*, whose file is not there; None if none has."""
    if journal.exists():
        return None
    try:
        with journal.with_name(MOVED).open("rb") as file:
            found = json.loads(file.read(_LONGEST_STAMP))
        return JournalMove(
            id=str(found["id"]),
            database=str(found["database"]),
            at=str(found["at"]),
            store=str(found.get("store", "")),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_move(journal: Path, move: JournalMove) -> None:
    """Note which database has the messages of *journal*, durably. Raises OSError."""
    _replace_file(journal.with_name(MOVED), asdict(move))


def remove_move(journal: Path) -> None:
    """Remove the note of the database, durably."""
    note = journal.with_name(MOVED)
    if note.exists():
        note.unlink()
        sync_folder(note.parent)


def misplaced_journal(journal: Path, *, has_database: bool) -> str:
    """Return the error line for settings that name another store than the one with this home's messages; else "".

    *has_database* is True if `store.url` names a database.
    """
    if has_database and journal.exists():
        return (
            f"store.url names a PostgreSQL database, but {journal} holds messages and people: run `parlour store"
            " migrate postgresql` to move them there, leave store.url empty to go on with the file, or, to start with"
            f" an empty database, move it and {STAMP} away"
        )
    if has_database or journal.exists():
        return ""
    if (move := read_move(journal)) is not None:
        what = f"({move.database}) since" if not move.id else f"({move.database}) on"
        where = f"{'were moved to' if move.id else 'are in'} PostgreSQL {what} {move.at[:16].replace('T', ' ')} UTC"
    elif journal.with_name(CACHE).exists() or _is_of_database(read_stamp(journal)):
        where = "are in a PostgreSQL database"
    else:
        return ""
    return (
        f"the messages and people of {journal.parent} {where}: set PARLOUR_STORE__URL to its address; with it, `parlour"
        " store migrate sqlite` moves them back. An empty journal needs another home"
    )


def other_database(journal: Path, store: str) -> str:
    """Return the error line for a database that is not the one of this home; otherwise "".

    *store* is the id of the database's store, "" for a database without one.
    """
    move = read_move(journal)
    if move is None or not move.store or move.store == store:
        return ""
    found = "has no messages of a Parlour" if not store else "belongs to another home"
    return (
        f"the database of store.url {found}; the messages and people of {journal.parent} are in {move.database} since"
        f" {move.at[:16].replace('T', ' ')} UTC: set PARLOUR_STORE__URL to its address or, to continue with this"
        " database and without them, run `parlour accept-loss`"
    )


def lost_journal(journal: Path) -> str:
    """Return the error line for a journal that is not the one of its stamp, or is older; otherwise "".

    Changes nothing. `journal_fault` and the start judge a journal that cannot be read.
    """
    stamp = read_stamp(journal)
    if read_move(journal) is not None or _is_of_database(stamp):
        return ""
    if _is_log_alone(journal):
        return lost_line(journal, "is missing or empty, and its -wal file is left")
    if stamp is None or not stamp.store:
        return ""
    if stamp.is_damaged and (fault := journal_fault(journal)):
        return fault
    try:
        identity = _read_identity(journal)
    except sqlite3.Error:
        return ""
    if identity is not None and identity[0] == stamp.store and identity[1] >= stamp.count:
        return ""
    if identity is None:
        what = "is missing or empty"
    elif identity[0] != stamp.store:
        what = "belongs to another home"
    else:
        what = "is older than at the last start, or its -wal file is missing"
    return lost_line(journal, f"{what}; on {stamp.at[:16].replace('T', ' ')} UTC it contained more data")


def is_of_other_home(journal: Path) -> bool:
    """Return True if the file is the journal of another home. Raises sqlite3.Error when it cannot be read."""
    stamp, identity = read_stamp(journal), _read_identity(journal)
    return bool(stamp and stamp.store and identity and identity[0] != stamp.store)


def unstamped_loss(journal: Path) -> str:
    """Return the error line for conversations whose journal is gone, its stamp too; otherwise "". Changes nothing.

    It is for a home without a database. A home in which no gateway has run yet has lost none.
    """
    if read_stamp(journal) is not None or not journal.with_name("schema").exists():
        return ""
    with suppress(sqlite3.Error):  # a journal that cannot be read is there
        if _read_identity(journal) is None and _has_transcripts(journal.parent):
            return lost_line(journal, f"is missing or empty, but {journal.parent} contains conversations")
    return ""


def _has_transcripts(home: Path) -> bool:
    for path in (path for pattern in _TRANSCRIPTS for path in home.glob(pattern)):
        with suppress(OSError), path.open("rb") as file:
            first = file.readline(_LONGEST_STAMP)
            if all(mark in first for mark in _HEAD):
                return True
    return False


def _is_of_database(stamp: JournalStamp | None) -> bool:
    return stamp is not None and stamp.kind is StoreKind.POSTGRESQL


def _is_log_alone(journal: Path) -> bool:
    """Return True if the write-ahead log is left of a deleted or emptied journal."""
    log = journal.with_name(f"{journal.name}-wal")
    return is_empty(journal) and not is_empty(log)


def is_empty(path: Path) -> bool:
    """Return True if the file is missing or empty. SQLite, also as a reader, deletes the log beside an empty one."""
    return not path.exists() or path.stat().st_size == 0


def lost_line(journal: Path, what: str) -> str:
    """Return the error line for a journal that has lost data, with every remedy."""
    return (
        f"{journal} {what}. Put the file back (with its -wal file), or {restore_hint(journal)}, or run `parlour mirror"
        " import`, which takes over what the files of this home have, or, to continue without the lost data, run"
        " `parlour accept-loss`"
    )


def lost_rows_line(journal: Path, url: str, what: str) -> str:
    """Return the error line for a store without the newest turns, with every remedy: of *url*, or of *journal*."""
    if not url:
        return lost_line(journal, what)
    return (
        f"the database of store.url {what}: it is older than the files in {journal.parent}. Restore a later copy of"
        f" it, or run `parlour mirror import`, which takes over what these files have, or, to continue without the lost"
        " data, run `parlour accept-loss`"
    )


def is_missing(journal: Path) -> bool:
    """Return True if the file, which may exist, holds no journal. Raises sqlite3.Error when it cannot be read."""
    return _read_identity(journal) is None


def _read_identity(journal: Path) -> tuple[str, int] | None:
    """Return the journal's id and count; None where the file holds no journal. Raises sqlite3.Error."""
    if is_empty(journal):
        return None
    with closing(sqlite3.connect(read_only(journal), uri=True, timeout=2)) as database:
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
            return None
        meta = dict(database.execute("SELECT name, value FROM meta WHERE name IN ('store', 'stamps')").fetchall())
    return str(meta.get("store", "")), int(meta.get("stamps", "0"))


def journal_fault(journal: Path) -> str:
    """Return the error line for a journal that cannot be used or is damaged; "" for a good or a missing one.

    Reads the whole file and changes nothing.
    """
    try:
        if is_empty(journal):
            return ""
        with closing(sqlite3.connect(read_only(journal), uri=True, timeout=2)) as database:
            answer = str(database.execute("PRAGMA quick_check(1)").fetchone()[0])
    except (sqlite3.Error, OSError) as error:
        return fault_line(journal, error)
    return "" if answer == "ok" else damaged_line(journal)


def fault_line(journal: Path, error: sqlite3.Error | OSError) -> str:
    """Return the line that says why *journal* cannot be used: damage, a lock, a full disk, permissions, or the disk."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    number = getattr(error, "errno", None)
    if code in _DAMAGED:
        return damaged_line(journal)
    if code in _LOCKED:
        return f"{journal} is locked by another program: stop that program and start again; no data is damaged"
    if code == sqlite3.SQLITE_FULL or number in (errno.ENOSPC, errno.EDQUOT) or _is_disk_full(journal):
        return f"the disk of {journal} is full: free some space and start again; no data is damaged"
    if (code in _FORBIDDEN or number in (errno.EACCES, errno.EPERM)) and (forbidden := _forbidden_path(journal)):
        return (
            f"user id {os.geteuid()} cannot read and write {forbidden}: change its owner to the user who runs Parlour;"
            " no data is damaged"
        )
    if code == sqlite3.SQLITE_IOERR or number == errno.EIO:
        return f"the disk of {journal} reported an error ({error}): check the disk before you start again"
    return (
        f"{journal} cannot be opened ({error}): check the permissions of its directory and the free space of its disk"
    )


def damaged_line(journal: Path | None) -> str:
    """Return the error line for a damaged journal."""
    if journal is None:
        return "the journal is damaged"
    return (
        f"{journal} is damaged; {restore_hint(journal)}, which keeps the damaged file in backups/;"
        f" or, to continue without it, run `parlour accept-loss`"
    )


def restore_hint(journal: Path) -> str:
    """Return the command that restores a backup: the newest in the home's backups folder, if any."""
    archives: list[tuple[float, Path]] = []
    with suppress(OSError):
        archives = [(path.stat().st_mtime, path) for path in (journal.parent / "backups").glob("*.tar.gz")]
    if not archives:
        return "to restore a backup, run `parlour restore FILE --force`"
    newest = shlex.quote(str(max(archives)[1]))
    return f"to restore the newest backup in backups/, run `parlour restore {newest} --force`"


def _is_disk_full(journal: Path) -> bool:
    with suppress(OSError):
        disk = shutil.disk_usage(journal.parent)
        return disk.total > 0 and disk.free < _FULL
    return False


def _forbidden_path(journal: Path) -> Path | None:
    """Return the first file or folder of the journal that we may not use; None when permissions are not the cause."""
    effective = os.access in os.supports_effective_ids
    if not os.access(journal.parent, os.R_OK | os.W_OK | os.X_OK, effective_ids=effective):
        return journal.parent
    there = (path for path in files_of(journal) if path.exists())
    return next((path for path in there if not os.access(path, os.R_OK | os.W_OK, effective_ids=effective)), None)


def read_only(journal: Path) -> str:
    """Return the address under which SQLite reads a journal and leaves nothing beside it.

    Even a reader makes the two files of the write-ahead log where they are missing, and they would be the reader's:
    the doctor of another user would keep the gateway out. Without a log the file itself is everything.
    """
    has_log = journal.with_name(f"{journal.name}-wal").exists()
    return f"{journal.resolve().as_uri()}?mode=ro{'' if has_log else '&immutable=1'}"
