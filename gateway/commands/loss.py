"""`parlour accept-loss`: going on with a home whose journal is lost, damaged or older than it was."""

from __future__ import annotations

import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import typer

from gateway.errors import UserError
from gateway.home import Home, hold_lock, make_private, sync_folder
from gateway.journal_file import (
    OpenChoice,
    damaged_line,
    files_of,
    is_missing,
    journal_fault,
    lost_journal,
    remove_stamp,
)
from gateway.settings import home_of
from gateway.store.engine import new_transcript
from gateway.store.sqlite.closed_journal import mark_adopted, read_sessions


def accept_loss(choice: OpenChoice, *, is_sure: bool) -> None:
    """Print what is lost, ask, and make the home one that starts."""
    home = Home(home_of(os.environ))
    if not home.path.is_dir():
        raise UserError(f"no home exists at {home.path}; nothing is lost")
    with hold_lock(home):
        fault = journal_fault(home.journal)
        is_damaged = fault == damaged_line(home.journal)
        if fault and not is_damaged:
            raise UserError(fault)
        lost = fault or _loss(home)
        if not lost:
            typer.echo(f"{home.journal} is intact and belongs to this home; nothing is lost")
            return
        typer.echo(lost)
        if not is_sure:
            typer.confirm("Continue without the lost data?", abort=True)
        typer.echo(_begin_anew(home) if is_damaged or is_missing(home.journal) else _go_on(home, choice))
        remove_stamp(home.journal)


def _loss(home: Home) -> str:
    from agent.memory.storage.transcript_lead import describe_leads

    return lost_journal(home.journal) or describe_leads(home.path, read_sessions(home.journal))


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


def _go_on(home: Home, choice: OpenChoice) -> str:
    """Make the older journal fit the transcripts, and treat its open work as that of a restored one."""
    from agent.memory.storage.transcript_lead import fit_session

    fitted = [fit_session(home.path, row, new_transcript) for row in read_sessions(home.journal)]
    work = mark_adopted(home.journal, choice, fitted)
    return f"the next start uses the journal as it is; {work.describe(choice)}"
