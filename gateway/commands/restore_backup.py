"""`parlour restore`: shows the contents of a backup and asks before it replaces anything."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import typer

from gateway.commands.loss import fit_sessions
from gateway.errors import SettingsError, UserError
from gateway.journal_file import OpenChoice
from gateway.restore import BackupContents, restore
from gateway.settings import home_of
from gateway.settings.sources import read_file
from gateway.text.text_units import strip_control_characters

_USUAL = {
    "people": "private memory and conversations",
    "chats": "memory and conversations of groups",
    "shared": "memory in every prompt",
    "SOUL.md": "the persona of the bot",
    "USER.md": "the profile of its user",
    "journal.db": "unanswered messages, people and their roles, usage",
    "memory": "shared memory (memory.isolation: shared)",
    "sessions": "conversations of shared memory (memory.isolation: shared)",
    "attachments": "files sent in conversations",
    "blobs": "prompt texts",
    "files": "files that you put there",
    "exports": "unfinished exports",
    "windows.json": "learned context windows of models",
    "docs": "documents of projects",
    "quarantine": "quarantined platform events",
    "uploads": "files uploaded on the page",
}
_PARTS_OF_OTHERS = ("journal.db-wal", "journal.db-shm", "schema")
_MOST_LINES = 40  # of one list; a backup names what it likes


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
        f"{count} files restored into {home}; backups contain no secrets: put them back, then run `parlour doctor`"
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
    settings = {file.name for file in contents.settings}
    for name, files in contents.parts:
        if name in _PARTS_OF_OTHERS or name in settings:
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
