"""Opening a home: owned, and brought from an older shape to ours, after a snapshot of what will change."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import structlog

from gateway.backup import write_archive
from gateway.durable_files import write_private
from gateway.errors import SchemaTooNew, SchemaTooOld, UserError
from gateway.home import (
    SCHEMA,
    SNAPSHOT,
    Home,
    hold_lock,
    make_private,
    refuse_half_restored,
    remove_staging,
    schema_of,
    schema_too_new_message,
)
from gateway.journal_file import lost_journal

log = structlog.get_logger(__name__)

# The newest journal schema of each home schema. A journal that changes is a home that changes: the snapshot is of the
# whole home, since that is what `parlour restore` goes back to, the older program's as well as ours.
JOURNALS: Mapping[int, int] = {10: 11, 11: 15, 12: 16, 13: 26}


@contextmanager
def open_home(path: Path, *, schema: int = SCHEMA) -> Iterator[Home]:
    """Own the home until the block ends: created, locked, migrated.

    Raises HomeInUse, SchemaTooNew, SchemaTooOld or UserError, each one line. Sets the process's umask to 077.
    """
    os.umask(0o077)
    home = Home(path)
    make_private(path)
    with hold_lock(home):
        refuse_half_restored(home)
        remove_staging(path)
        if lost := lost_journal(home.journal):
            raise UserError(lost)
        _migrate(home, schema)
        yield home


def _migrate(home: Home, schema: int) -> None:
    """Save a snapshot of an older home, and note that it is ours: the store brings itself to its schema."""
    found = schema_of(home)
    if found is None:
        # A new home; or one whose first start was cut short before anything of worth was there.
        write_private(home.schema, f"{schema}\n")
        return
    if found > schema:
        raise SchemaTooNew(schema_too_new_message(home, found, schema))
    if found < min(JOURNALS):
        raise SchemaTooOld(f"{home.path} has schema {found}")
    if found < schema:
        home.backups.mkdir(mode=0o700, exist_ok=True)
        for left in home.backups.glob(f".{SNAPSHOT}*"):  # as large as the home, and a kill left it
            left.unlink()
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        snapshot = home.backups / f"{SNAPSHOT}{found + 1}-{stamp}.tar.gz"  # the older program looks for that number
        write_archive(home.path, snapshot, schema=found)
        write_private(home.schema, f"{schema}\n")
        log.info("home.migrated", schema=schema, snapshot=str(snapshot))
