"""`parlour mirror import`: rebuilds a lost store from the files of its home, or takes over what it lacks of them.

The decision is an operator's, and is made once: the store is marked, and what then opens it takes the files over. So an
import that was killed is continued by the same command, and by the next start.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

import typer

from agent.base.disk import Disk
from agent.base.scopes import list_scopes, scope_folder
from agent.memory.adoption import add_missing, read_documents
from agent.memory.documents.document_commits import DocumentCommits
from agent.memory.history.history_files import read_files
from agent.memory.storage.erasure_notes import owed_scopes
from gateway.app.lost_turns import LostTurns, find_lost_turns
from gateway.commands.restore_backup import TAKEN_FROM_FILES, begin_anew, fit_sessions
from gateway.errors import UserError
from gateway.home import Home, hold_lock, is_home
from gateway.installation import with_operator_commands
from gateway.journal_file import (
    OpenChoice,
    accept_store,
    damaged_line,
    is_missing,
    is_of_other_home,
    journal_fault,
    lost_journal,
    misplaced_journal,
    other_database,
    remove_move,
)
from gateway.logs import configure_logs
from gateway.settings import Settings, load_settings, secret_values
from gateway.store.adoption import OpenWork, is_all_adopted
from gateway.store.closed_store import read_store, read_store_id
from gateway.store.documents import has_documents
from gateway.store.history import load_history
from gateway.store.inspection import count_turns, owed_erasures
from gateway.store.sqlite.closed_journal import mark_adopted


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
            chats = len({*self.turns.turns.values()})
            yield f"  {len(self.turns.turns):,} turns of {chats:,} conversations"
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
        typer.echo(with_operator_commands(f"{loss}\n{TAKEN_FROM_FILES}"))
        _ask("Rebuild the store from the files of this home?", is_sure=is_sure)
        if url:
            remove_move(home.journal)
        else:
            begin_anew(home)
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
        typer.echo("\n".join(["the files of this home have what the store lacks:", *news.lines()]))
        _ask("Take it over? What the store has stays.", is_sure=is_sure)
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


def _ask(question: str, *, is_sure: bool) -> None:
    if not is_sure:
        typer.confirm(question, abort=True)


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
