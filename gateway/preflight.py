"""Before a gateway starts: checks, shared by `parlour run` and `parlour doctor`, and the opening of its home.

The checks change nothing. One that fails has the error line that the start itself would end with. A home is opened
under its lock, and brought from an older shape to ours, after a snapshot of what will change.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import structlog

from gateway.durable_files import write_private
from gateway.errors import SchemaTooNew, SchemaTooOld, UserError
from gateway.home import (
    SCHEMA,
    SNAPSHOT,
    Home,
    foreign_file_message,
    hold_lock,
    in_use,
    is_held,
    make_private,
    refuse_half_restored,
    remove_staging,
    schema_of,
    schema_too_new_message,
    unwritable,
)
from gateway.journal_file import files_of, lost_journal, misplaced_journal, stamp_of
from gateway.net.addresses import cannot_listen
from gateway.ports.setup import Finding, FindingLevel, fail, ok
from gateway.settings import Settings


def before_start(settings: Settings) -> Iterator[Finding]:
    """Yield the checks in the order in which a start meets them."""
    home = Home(settings.home)
    yield _judge("home", home_mistake(settings.home), f"{settings.home} is writable")
    yield _judge("owner", owner_mistake(home), "its files are readable and writable")
    yield _judge("lock", in_use(home) if is_held(home) else "", "no other process uses the home")
    yield _judge("schema", schema_mistake(home), "this version supports the schema of the data")
    store = misplaced_journal(home.journal, has_database=bool(settings.store.address))
    yield _judge("message store", store, "the messages of this home are in no other store")
    yield _judge("journal", lost_journal(home.journal), "is the journal of the last start")
    port = port_mistake(settings.web.host, settings.web.port)
    yield _judge("port", port, f"port {settings.web.port} is free")


def _judge(name: str, mistake: str, well: str) -> Finding:
    return fail(mistake, name) if mistake else ok(well, name)


def require_startable(settings: Settings) -> None:
    """Raise UserError with the first failed check."""
    for finding in before_start(settings):
        if finding.level is FindingLevel.FAIL:
            raise UserError(finding.text)


def home_mistake(folder: Path) -> str:
    """Return the error line of a home that cannot be used; otherwise "".

    A home that does not exist yet is judged by the folder it would be created in.
    """
    if folder.is_symlink() and not folder.exists():
        return f"{folder} is a broken symbolic link; fix it, or set PARLOUR_HOME to a directory"
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    mistake = unwritable(there)
    if not mistake or there == folder:
        return mistake
    return f"the home {folder} cannot be created: {mistake}"


def owner_mistake(home: Home) -> str:
    """Return the error line for a file of the home that belongs to another user and cannot be used; otherwise ""."""
    journal = (*files_of(home.journal), stamp_of(home.journal))
    for path in (*journal, home.lock, home.schema, home.secrets, home.backups, home.quarantine):
        if mistake := foreign_file_message(home.path, path):
            return mistake
    return ""


def schema_mistake(home: Home) -> str:
    """Return the error line for data that cannot be used; otherwise ""."""
    try:
        refuse_half_restored(home)
        found = schema_of(home)
    except UserError as error:
        return str(error)
    return schema_too_new_message(home, found, SCHEMA) if found is not None and found > SCHEMA else ""


def port_mistake(host: str, port: int) -> str:
    """Return the error line for an address that the web server cannot listen on; otherwise ""."""
    if port == 0:
        return ""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(1)  # two may bind with SO_REUSEADDR; only one may listen
    except OSError as error:
        return cannot_listen(host, port, error)
    return ""


log = structlog.get_logger(__name__)

# The newest journal schema of each home schema. A journal that changes is a home that changes: the snapshot is of the
# whole home, since that is what `parlour restore` goes back to, the older program's as well as ours.
JOURNALS: Mapping[int, int] = {10: 11, 11: 15, 12: 16, 13: 27}


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
        from gateway.backup import write_archive  # not light, and most starts need none

        home.backups.mkdir(mode=0o700, exist_ok=True)
        for left in home.backups.glob(f".{SNAPSHOT}*"):  # as large as the home, and a kill left it
            left.unlink()
        # Killed before the schema is noted, the next start makes another one, maybe in the same second.
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%fZ")
        snapshot = home.backups / f"{SNAPSHOT}{found + 1}-{stamp}.tar.gz"  # the older program looks for that number
        write_archive(home.path, snapshot, schema=found)
        write_private(home.schema, f"{schema}\n")
        log.info("home.migrated", schema=schema, snapshot=str(snapshot))
