"""Opening a home: owned, and brought from an older shape to ours, after a snapshot of what will change."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import structlog

from gateway.backup import write_archive
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
from gateway.ports.durable_files import write_private

log = structlog.get_logger(__name__)

Migration = Callable[[Home], None]  # from schema n-1 to n; may run twice


# The journal has a new schema, to which it brings itself when it is opened; no file changes.
MIGRATIONS: Mapping[int, Migration] = dict.fromkeys((11, 12, 13), lambda _: None)
# The newest journal schema of each home schema. A journal that changes is a home that changes: the snapshot is of the
# whole home, since that is what `parlour restore` goes back to, the older program's as well as ours.
JOURNALS: Mapping[int, int] = {10: 11, 11: 15, 12: 16, 13: 25}


@contextmanager
def open_home(path: Path, *, schema: int = SCHEMA, migrations: Mapping[int, Migration] = MIGRATIONS) -> Iterator[Home]:
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
        _migrate(home, schema, migrations)
        yield home


def _migrate(home: Home, schema: int, migrations: Mapping[int, Migration]) -> None:
    found = schema_of(home)
    if found is None:
        # A new home; or one whose first start was cut short before anything of worth was there.
        write_private(home.schema, f"{schema}\n")
        return
    if found > schema:
        raise SchemaTooNew(schema_too_new_message(home, found, schema))
    if found < min(JOURNALS):
        raise SchemaTooOld(f"{home.path} has schema {found}")
    for number in range(found + 1, schema + 1):
        snapshot = _snapshot(home, number)
        migrations[number](home)
        write_private(home.schema, f"{number}\n")
        home.migrating.unlink()
        log.info("home.migrated", schema=number, snapshot=str(snapshot))


def _snapshot(home: Home, number: int) -> Path:
    # A migration that was cut short left half of each shape: the snapshot of before it still counts.
    with suppress(OSError, UnicodeDecodeError):
        earlier = home.backups / home.migrating.read_text("utf-8").strip()
        if earlier.is_file() and earlier.name.startswith(f"{SNAPSHOT}{number}-"):
            return earlier
    home.backups.mkdir(mode=0o700, exist_ok=True)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    target = home.backups / f"{SNAPSHOT}{number}-{stamp}.tar.gz"
    write_archive(home.path, target, schema=number - 1)
    write_private(home.migrating, f"{target.name}\n")
    return target
