"""Checks before a gateway starts, shared by `parlour run` and `parlour doctor`.

The checks change nothing. One that fails has the error line that the start itself would end with.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

from gateway.errors import UserError
from gateway.home import (
    SCHEMA,
    Home,
    foreign_file_message,
    in_use,
    is_held,
    refuse_half_restored,
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
