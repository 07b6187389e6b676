"""`parlour restore`, `accept-loss` and `mirror import`: a home from a backup, or one whose store is lost or older.

An import of the mirror is an operator's decision, made once: the store is marked, and what then opens it takes the
files over. So an import that was killed is continued by the same command, and by the next start.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path

import typer

from agent.base.disk import Disk
from agent.base.scopes import list_scopes, scope_folder
from agent.memory.adoption import add_missing, read_documents
from agent.memory.editing.document_commits import DocumentCommits
from agent.memory.erasure.scope_files import owed_scopes
from agent.memory.history.history_files import read_files
from gateway.app.lost_turns import LostTurns, describe_loss, find_lost_turns
from gateway.durable_files import sync_folder
from gateway.errors import SettingsError, UserError
from gateway.home import Home, hold_lock, is_home, make_private
from gateway.installation import operator_command, with_operator_commands
from gateway.journal_file import (
    OpenChoice,
    accept_store,
    damaged_line,
    files_of,
    is_missing,
    is_of_other_home,
    journal_fault,
    lost_journal,
    lost_rows_line,
    misplaced_journal,
    other_database,
    remove_move,
)
from gateway.logs import configure_logs
from gateway.ports.journal import SessionRow
from gateway.ports.memory import CACHE, MIRROR
from gateway.restore import BackupContents, restore
from gateway.settings import Settings, check_settings, home_of, load_settings, secret_values
from gateway.settings.sources import FILE_NAMES, read_file
from gateway.store.adoption import OpenWork, is_all_adopted
from gateway.store.closed_store import read_sessions, read_store, read_store_id
from gateway.store.documents import has_documents
from gateway.store.engine import new_transcript
from gateway.store.file_copies import set_bytes_aside
from gateway.store.history import load_history
from gateway.store.inspection import count_turns, owed_erasures
from gateway.store.session_queue import ALL
from gateway.store.sqlite.schema import mark_adopted
from gateway.text.message_text import strip_control_characters

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
_TAKEN_FROM_FILES = (
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
    _ask(f"{lost}\n{_TAKEN_FROM_FILES}" if is_begun_anew else lost, is_sure=is_sure)
    if is_begun_anew:
        _begin_anew(home)
    else:
        typer.echo(f"the next start uses the journal as it is; {_mark(home, '', choice).describe(choice)}")
    accept_store(home.journal, datetime.now(UTC))


def _accept_older_database(home: Home, url: str, choice: OpenChoice, *, is_sure: bool) -> None:
    """Make a database that is older than the transcripts fit them. An unreachable one is not lost, and raises.

    Where the database has newer turns too, the home's memory is moved to backups/: one transcript cannot keep both, and
    the next start fetches the database's.
    """
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
        typer.echo(f"the next start uses the database as it is; {_mark(home, url, choice).describe(choice)}")
    accept_store(home.journal, datetime.now(UTC))


def _describe_turns(home: Home, url: str, turns: LostTurns) -> str:
    """Return the error line for turns that only a look at every transcript finds; "" for a store that has all."""
    return lost_rows_line(home.journal, url, f"lacks {_count(turns)} of its transcripts") if turns.turns else ""


def _count(turns: LostTurns) -> str:
    chats = len({*turns.turns.values()})
    return f"{len(turns.turns):,} turns of {chats:,} conversations"


def _ask(text: str, question: str = "Continue without the lost data?", *, is_sure: bool) -> None:
    typer.echo(text)
    if not is_sure:
        typer.confirm(question, abort=True)


def fit_sessions(home: Home, url: str = "") -> list[SessionRow]:
    """Return the store's sessions, corrected from the transcripts."""
    from agent.memory.storage.transcript_files import fit_session

    return [fit_session(home.path, row, new_transcript) for row in read_sessions(home.journal, url)]


def _begin_anew(home: Home) -> None:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NewerFiles:
    """Contents of the files that the store lacks."""

    turns: LostTurns
    entries: dict[str, int] = field(default_factory=dict)  # history entries, raw messages and notes, by scope
    documents: list[str] = field(default_factory=list)  # scopes with newer changes

    def __bool__(self) -> bool:
        return bool(self.turns.turns or self.entries or self.documents)

    def lines(self) -> Iterator[str]:
        """Yield a line for each kind."""
        if self.turns.turns:
            yield f"  {_count(self.turns)}"
        if self.entries:
            yield f"  {sum(self.entries.values()):,} entries and notes of the histories of {', '.join(self.entries)}"
        if self.documents:
            yield f"  changes of the documents of {', '.join(self.documents)}"


def take_mirror(choice: OpenChoice, *, is_sure: bool) -> None:
    """Show what the files have and the store lacks, ask, take it over, and print what is stored then."""
    settings = load_settings(os.environ)
    home = Home(settings.home)
    if not is_home(home.path):
        raise UserError(f"no home exists at {home.path}; there is nothing to import")
    with hold_lock(home):
        if mistake := misplaced_journal(home.journal, has_database=bool(settings.store.address)):
            raise UserError(mistake)
        if not _prepare(home, settings.store.address, choice, is_sure=is_sure):
            return
    configure_logs(level="error", form=settings.log.format, secrets=secret_values(settings))
    memory = asyncio.run(_take_over(settings))
    turns = read_store(home.journal, settings.store.address, count_turns) or 0
    typer.echo(f"the store has {turns:,} turns, {memory}")


def _prepare(home: Home, url: str, choice: OpenChoice, *, is_sure: bool) -> bool:
    """Mark the store, once the operator has agreed, as one that takes the files over; return False if it has all."""
    if owed := owed_scopes(home.path):
        raise UserError(
            f"an erasure has not reached the files of {', '.join(owed)}, and its words would come back: restore a"
            " backup, or remove the words from these folders by hand, and then memory/.mirror/erasures in each"
        )
    if loss := _describe_loss(home, url):
        text = with_operator_commands(f"{loss}\n{_TAKEN_FROM_FILES}")
        _ask(text, "Rebuild the store from the files of this home?", is_sure=is_sure)
        if url:
            remove_move(home.journal)
        else:
            _begin_anew(home)
    elif not read_store(home.journal, url, is_all_adopted):
        typer.echo("files are being taken over already; this goes on")
        return True
    elif not (news := _find_news(home, url)):
        typer.echo("the store has everything that the files of this home have")
        return False
    else:
        if owed := read_store(home.journal, url, owed_erasures) or ():
            raise UserError(
                f"an erasure has not reached the files of {', '.join(owed)}, and its words would come back: start"
                " Parlour, which goes on with it, and try again"
            )
        if url and news.turns.turns and news.turns.has_newer:
            raise UserError(
                "the database has newer turns than the files of this home, too, and one transcript cannot have both:"
                " `parlour accept-loss` goes on with those of the database and keeps these files in backups/"
            )
        text = "\n".join(["the files of this home have what the store lacks:", *news.lines()])
        _ask(text, "Take it over? What the store has stays.", is_sure=is_sure)
        typer.echo(_mark(home, url, choice).describe(choice))
    accept_store(home.journal, datetime.now(UTC))
    return True


def _describe_loss(home: Home, url: str) -> str:
    """Return the line for a store that is missing, emptied or damaged; "" for one that is there."""
    if url:
        return other_database(home.journal, read_store_id(url))
    fault = journal_fault(home.journal)
    if fault and fault != damaged_line(home.journal):
        raise UserError(fault)
    if fault or is_missing(home.journal):
        return fault or lost_journal(home.journal) or f"{home.journal} is missing or empty"
    if is_of_other_home(home.journal):
        raise UserError(f"{lost_journal(home.journal)}. To rebuild the store from the files, move {home.journal} away")
    return ""


def _mark(home: Home, url: str, choice: OpenChoice) -> OpenWork:
    if not url:
        return mark_adopted(home.journal, choice, fit_sessions(home))
    from gateway.store.postgres.schema import adopt_database

    return adopt_database(url, choice, fit_sessions(home, url))


def _find_news(home: Home, url: str) -> NewerFiles:
    """Compare every file with the store: turns and changes by id, entries by id or by cursor and content."""
    news = NewerFiles(turns=find_lost_turns(home, url, is_any_age=True))
    disk, commits = Disk(), DocumentCommits(home.path)
    for scope in ("", *list_scopes(home.path)):
        folder = scope_folder(home.path, scope) / "memory"
        stored = read_store(home.journal, url, partial(load_history, scope=scope))
        if stored is not None and (missing := add_missing(stored, read_files(folder, disk))[1]):
            news.entries[scope or "the home"] = missing
        newest, _ = commits.newest(scope)
        texts = read_documents(disk, folder.parent)
        if not read_store(home.journal, url, partial(has_documents, scope=scope, change=newest, texts=texts)):
            news.documents.append(scope or "the home")
    return news


async def _take_over(settings: Settings) -> str:
    """Open the store, which takes the files over; return the amounts of its memory."""
    from gateway.app.composition import open_app

    async with open_app(settings, channels=False) as app:
        store = app.store
        scopes = await store.documents.scopes()
        versions = sum([(await store.documents.heads([scope]))[scope].number for scope in scopes])
        histories = await store.history.scopes()
        entries = sum([len(await store.history.after(scope)) for scope in histories])
        notes = sum([len(await store.history.note_names(scope)) for scope in histories])
    return f"{versions:,} changes of documents, {entries:,} history entries and {notes:,} notes"
