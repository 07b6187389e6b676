"""`parlour restore` and `parlour accept-loss`: a home from a backup, and one whose journal is lost."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gateway.durable_files import sync_folder
from gateway.errors import SettingsError, UserError
from gateway.home import Home, hold_lock, make_private
from gateway.installation import operator_command
from gateway.journal_file import (
    OpenChoice,
    accept_store,
    damaged_line,
    files_of,
    is_missing,
    journal_fault,
    lost_journal,
    lost_rows_line,
    misplaced_journal,
    other_database,
    remove_move,
)
from gateway.ports.journal import SessionRow
from gateway.ports.memory import CACHE, MIRROR
from gateway.restore import BackupContents, restore
from gateway.settings import check_settings, home_of
from gateway.settings.sources import FILE_NAMES, read_file
from gateway.store.closed_store import read_sessions, read_store_id
from gateway.store.engine import new_transcript
from gateway.store.file_copies import set_bytes_aside
from gateway.store.session_queue import ALL
from gateway.store.sqlite.closed_journal import mark_adopted
from gateway.text.text_units import strip_control_characters

if TYPE_CHECKING:
    from gateway.app.lost_turns import LostTurns

# The cache of what the database has goes with the memory, so that all of it is fetched.
_MEMORY = ("people", "chats", "shared", "memory", "sessions", "USER.md", MIRROR, CACHE, f"{CACHE}-wal", f"{CACHE}-shm")
_USUAL = {
    "people": "private memory and conversations",
    "chats": "memory and conversations of groups",
    "shared": "memory in every prompt",
    "SOUL.md": "the persona of the bot",
    "USER.md": "the profile of its user",
    "journal.db": "conversations, memory, files, unanswered messages, people and their roles, usage",
    "memory": "shared memory (memory.isolation: shared)",
    "sessions": "conversations of shared memory (memory.isolation: shared)",
    "attachments": "files sent in conversations",
    "blobs": "prompt texts",
    "bytes": "large files of shared memory",
    "files": "files that you put there",
    "exports": "unfinished exports",
    "windows.json": "learned context windows of models, of an earlier version",
    "model-trials.json": "what trials of models have shown",
    "docs": "documents of projects",
    "quarantine": "quarantined platform events",
    "uploads": "files uploaded on the page",
}
TAKEN_FROM_FILES = (
    "Conversations and memory are taken from their files into a new journal. Lost are open messages, reminders, links"
    " between accounts, attachments and files of workspaces; users approved in chats and owners who used a claim code"
    " must be admitted again."
)
_LISTED_OTHERWISE = ("journal.db-wal", "journal.db-shm", "schema", *FILE_NAMES)
_MOST_LINES = 40  # of one list; a backup names what it likes


def accept_loss(choice: OpenChoice, *, is_sure: bool) -> None:
    """Print what is lost, ask, and make the home one that starts."""
    report = check_settings(os.environ)
    home, url = Home(report.home), report.settings.store.address if report.settings else ""
    if not home.path.is_dir():
        raise UserError(f"no home exists at {home.path}; nothing is lost")
    with hold_lock(home):
        if mistake := misplaced_journal(home.journal, has_database=bool(url)):
            raise UserError(mistake)
        if url:
            _accept_older_database(home, url, choice, is_sure=is_sure)
        else:
            _accept_lost_file(home, choice, is_sure=is_sure)


def _accept_lost_file(home: Home, choice: OpenChoice, *, is_sure: bool) -> None:
    from gateway.app.lost_turns import LostTurns, describe_loss, find_lost_turns

    fault = journal_fault(home.journal)
    is_damaged = fault == damaged_line(home.journal)
    if fault and not is_damaged:
        raise UserError(fault)
    lost = fault or lost_journal(home.journal) or describe_loss(home, "", sessions=ALL)
    turns = LostTurns({}, has_newer=False) if lost else find_lost_turns(home, "")
    lost = lost or _describe_turns(home, "", turns)
    if not lost:
        typer.echo(f"{home.journal} is intact and belongs to this home; nothing is lost")
        return
    is_begun_anew = is_damaged or is_missing(home.journal)
    _ask(f"{lost}\n{TAKEN_FROM_FILES}" if is_begun_anew else lost, is_sure=is_sure)
    if is_begun_anew:
        begin_anew(home)
    else:
        work = mark_adopted(home.journal, choice, fit_sessions(home))
        typer.echo(f"the next start uses the journal as it is; {work.describe(choice)}")
    accept_store(home.journal, datetime.now(UTC))


def _accept_older_database(home: Home, url: str, choice: OpenChoice, *, is_sure: bool) -> None:
    """Make a database that is older than the transcripts fit them. An unreachable one is not lost, and raises.

    Where the database has newer turns too, the home's memory is moved to backups/: one transcript cannot keep both, and
    the next start fetches the database's.
    """
    from gateway.app.lost_turns import describe_loss, find_lost_turns

    other = other_database(home.journal, read_store_id(url))
    turns = find_lost_turns(home, url)
    lost = other or describe_loss(home, url, sessions=ALL) or _describe_turns(home, url, turns)
    if not lost:
        typer.echo("the database of store.url has all turns of this home's transcripts; nothing is lost")
        return
    if turns.turns:
        typer.echo(f"{_count(turns)} are in {home.path} and not in the database of store.url")
    _ask(lost, is_sure=is_sure)
    if other:
        remove_move(home.journal)
        typer.echo("the next start uses the database of store.url, and names it in the home")
    if turns.has_newer:
        aside = _set_aside(home, [home.path / name for name in _MEMORY])
        typer.echo(f"the database has newer turns: the next start uses its memory, and that of this home is in {aside}")
    elif turns.turns or not other:
        from gateway.store.postgres.schema import adopt_database

        work = adopt_database(url, choice, fit_sessions(home, url))
        typer.echo(f"the next start uses the database as it is; {work.describe(choice)}")
    accept_store(home.journal, datetime.now(UTC))


def _describe_turns(home: Home, url: str, turns: LostTurns) -> str:
    """Return the error line for turns that only a look at every transcript finds; "" for a store that has all."""
    return lost_rows_line(home.journal, url, f"lacks {_count(turns)} of its transcripts") if turns.turns else ""


def _count(turns: LostTurns) -> str:
    chats = len({*turns.turns.values()})
    return f"{len(turns.turns):,} turns of {chats:,} conversations"


def _ask(line: str, *, is_sure: bool) -> None:
    typer.echo(line)
    if not is_sure:
        typer.confirm("Continue without the lost data?", abort=True)


def fit_sessions(home: Home, url: str = "") -> list[SessionRow]:
    """Return the store's sessions, corrected from the transcripts."""
    from agent.memory.storage.transcript_files import fit_session

    return [fit_session(home.path, row, new_transcript) for row in read_sessions(home.journal, url)]


def begin_anew(home: Home) -> None:
    """Move the rest of the journal to backups/, with the bytes of large files, which no row names any more."""
    left = [file for file in files_of(home.journal) if file.exists()]
    aside = _set_aside(home, left)
    set_bytes_aside(home.path, aside)
    if left:
        typer.echo(f"the rest of the old journal is in {aside}")


def _set_aside(home: Home, paths: Iterable[Path]) -> Path:
    """Move what exists of *paths* into a new folder in backups/, durably; return the folder."""
    make_private(home.backups)
    aside = Path(tempfile.mkdtemp(prefix=f"lost-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-", dir=home.backups))
    for path in paths:
        if path.exists():
            path.rename(aside / path.name)
    sync_folder(aside)
    sync_folder(home.path)
    return aside


def put_back(file: Path, *, force: bool, choice: OpenChoice, is_sure: bool) -> None:
    """Restore a backup into the home once the operator has confirmed its contents; print what it lacks."""
    home = home_of(os.environ)

    def confirm(contents: BackupContents) -> None:
        for line in list_contents(contents, choice):
            typer.echo(strip_control_characters(line))
        if not is_sure and not typer.confirm(f"Restore this into {home}?"):
            raise UserError("nothing was changed; use --yes to restore without confirmation")

    count = restore(file.absolute(), home, force=force, choice=choice, confirm=confirm, fit=fit_sessions)
    typer.echo(
        f"{count} files restored into {home}; backups contain no secrets: put them back, then run"
        f" `{operator_command('doctor')}`"
    )


def list_contents(contents: BackupContents, choice: OpenChoice) -> Iterator[str]:
    """Yield what a backup brings, a line each."""
    yield f"a backup from {contents.created or 'an unknown date'}: {contents.files:,} files, {contents.size:,} bytes"
    yield from _cut(_parts(contents))
    for file in contents.settings:
        yield f"{file.name}: these settings will apply"
        yield from _cut(_settings(file))
    for name in contents.settings_kept:
        yield f"{name}: the existing file is kept; the settings file of the backup is not restored"
    if contents.defused:
        yield "removed from git repositories, because git would run or follow it:"
        yield from _cut(f"  {name}" for name in contents.defused)
    yield f"unfinished work: {contents.work.describe(choice)}"


def _parts(contents: BackupContents) -> Iterator[str]:
    for name, files in contents.parts:
        if name in _LISTED_OTHERWISE:
            continue
        what = _USUAL.get(name, "unknown to Parlour: check it")
        yield f"  {name} ({files:,} files): {what}" if files > 1 else f"  {name}: {what}"


def _settings(file: Path) -> Iterator[str]:
    try:
        for leaf in read_file(file):
            yield f"  {'.'.join(leaf.path)} = {str(leaf.value)[:200]}"
    except SettingsError as error:
        yield f"  it cannot be read: {error}"


def _cut(lines: Iterator[str]) -> Iterator[str]:
    yield from islice(lines, _MOST_LINES)
    if rest := sum(1 for _ in lines):
        yield f"  and {rest:,} more"
