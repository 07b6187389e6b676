"""`parlour accept-loss`: going on with a home whose journal is lost, damaged or older than it was."""

from __future__ import annotations

import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import typer

from gateway.errors import UserError
from gateway.home import Home, hold_lock, make_private
from gateway.journal_file import (
    OpenChoice,
    damaged_line,
    files_of,
    is_missing,
    journal_fault,
    lost_journal,
    misplaced_journal,
    remove_stamp,
)
from gateway.ports.durable_files import sync_folder
from gateway.ports.journal import SessionRow
from gateway.settings import check_settings
from gateway.store.closed_store import read_sessions
from gateway.store.engine import new_transcript
from gateway.store.sqlite.closed_journal import mark_adopted


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
    lost = fault or lost_journal(home.journal) or _lost_turns(home, "")
    if not lost:
        typer.echo(f"{home.journal} is intact and belongs to this home; nothing is lost")
        return
    _ask(lost, is_sure=is_sure)
    if is_damaged or is_missing(home.journal):
        typer.echo(_begin_anew(home))
    else:
        work = mark_adopted(home.journal, choice, fit_sessions(home))
        typer.echo(f"the next start uses the journal as it is; {work.describe(choice)}")
    remove_stamp(home.journal)


def _accept_older_database(home: Home, url: str, choice: OpenChoice, *, is_sure: bool) -> None:
    """Make a database that is older than the transcripts fit them. An unreachable one is not lost, and raises."""
    lost = _lost_turns(home, url)
    if not lost:
        typer.echo("the database of store.url has all turns of this home's transcripts; nothing is lost")
        return
    _ask(lost, is_sure=is_sure)
    from gateway.store.postgres.schema import adopt_database

    work = adopt_database(url, choice, fit_sessions(home, url))
    typer.echo(f"the next start uses the database as it is; {work.describe(choice)}")


def _ask(line: str, *, is_sure: bool) -> None:
    typer.echo(line)
    if not is_sure:
        typer.confirm("Continue without the lost data?", abort=True)


def _lost_turns(home: Home, url: str) -> str:
    """Return a description of the turns that transcripts have and the store lacks; "" if it lacks none."""
    from agent.memory.storage.transcript_lead import describe_leads

    return describe_leads(home.path, read_sessions(home.journal, url))


def fit_sessions(home: Home, url: str = "") -> list[SessionRow]:
    """Return the store's sessions, corrected from the transcripts."""
    from agent.memory.storage.transcript_lead import fit_session

    return [fit_session(home.path, row, new_transcript) for row in read_sessions(home.journal, url)]


def _begin_anew(home: Home) -> str:
    """Move the rest of the journal to backups/. Transcripts remain beside the new ones."""
    make_private(home.backups)
    aside = Path(tempfile.mkdtemp(prefix=f"lost-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-", dir=home.backups))
    left = [file for file in files_of(home.journal) if file.exists()]
    for file in left:
        file.rename(aside / file.name)
    sync_folder(aside)
    sync_folder(home.path)
    kept = f"; the rest of the old one is in {aside}" if left else ""
    return (
        "the next start creates a new journal: conversations start over (transcripts and all memory are kept), and"
        f" users approved in chats and owners who used a claim code must be admitted again{kept}"
    )
