"""Commands on the store: `parlour store migrate`, `store check` and `workers`, which lists the gateways that use it.

A migration moves messages, people and usage from the journal's file to PostgreSQL, or back. Until one step, a rename,
the old store has the messages: a run that is killed before it has changed nothing, and the same command starts over. A
run that is killed after it is completed by the same command; until then, neither starts.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gateway.commands.operation_commands import call_operation, print_json, print_lines
from gateway.control import Line
from gateway.control.registry import rows
from gateway.durable_files import sync_folder
from gateway.errors import SettingsError, UserError
from gateway.home import STAGING, Home, is_held, make_private
from gateway.installation import HOW_TO_INSTALL, with_operator_commands
from gateway.journal_file import JournalMove, StoreKind, accept_store, read_move, remove_move, write_move
from gateway.preflight import open_home
from gateway.settings import Settings, load_settings
from gateway.store.claims import DEAD_AFTER, WorkerIdentity, WorkerStatus, list_workers
from gateway.store.file_copies import LargeFile, fetch_bytes, has_files, large_files, set_bytes_aside
from gateway.store.objects import open_objects
from gateway.store.sqlite.schema import read_journal, seal
from gateway.text.message_text import strip_control_characters

if TYPE_CHECKING:
    from gateway.store.objects import ObjectStore
    from gateway.store.postgres.connection import PostgresConnection


def migrate_store(target: StoreKind) -> None:
    """Move the messages of the home to *target*, and print what was done."""
    settings = load_settings(os.environ)
    url = settings.store.address
    if not url:
        raise UserError("set PARLOUR_STORE__URL to the address of the PostgreSQL database, in both directions")
    if not settings.home.is_dir():
        raise UserError(f"no home exists at {settings.home}; there is nothing to move")
    try:
        from gateway.store.postgres import schema
    except ModuleNotFoundError as missing:
        raise SettingsError(f"store.url needs {missing.name}: {HOW_TO_INSTALL}") from missing
    objects = open_objects(settings.store.objects, settings.proxy_address) if settings.store.objects.url else None
    # The locks of the home and of the database: no gateway runs on either.
    with (
        open_home(settings.home) as home,
        closing(schema.connect(url, WorkerIdentity(), wait=schema.LOCK_SECONDS)) as connection,
    ):
        if target is StoreKind.POSTGRESQL:
            move_to_database(home, connection, objects)
        else:
            move_to_file(home, connection, url, objects)


def move_to_database(home: Home, connection: PostgresConnection, objects: ObjectStore | None = None) -> None:
    """Move the journal's file into the database; the file is kept in backups/."""
    from gateway.store.postgres import schema
    from gateway.store.postgres.copies import fill_database

    if not home.journal.exists():
        _finish(home, connection)
        return
    at = datetime.now(UTC)
    move = schema.DatabaseMove(
        id=secrets.token_hex(8), state=schema.MoveState.COPIED, file=str(home.journal), at=_iso(at)
    )
    files = read_journal(home.journal, large_files) or ()
    count = fill_database(connection, home.journal, move, _report, objects=objects)
    _report_bytes(files)
    parameters = connection.session.info
    where = f"{parameters.dbname} on {parameters.host or 'this machine'}"
    write_move(home.journal, JournalMove(id=move.id, database=where, at=move.at))
    kept = home.backups / f"journal-{at:%Y%m%dT%H%M%SZ}-{move.id}.db"
    make_private(home.backups)
    seal(home.journal)
    accept_store(home.journal, at)  # the other store counts anew
    _rename(home.journal, kept)  # from here on the database has the messages
    set_bytes_aside(home.path, kept.with_suffix(""))
    schema.save_move(connection, replace(move, state=schema.MoveState.ACTIVE))
    typer.echo(
        f"{count:,} rows are in the database {where}: start Parlour with PARLOUR_STORE__URL set. The file is kept as"
        f" {kept}; delete it when you need it no more"
    )


def _finish(home: Home, connection: PostgresConnection) -> None:
    """Do what a run that was killed behind the last step has left."""
    from gateway.store.postgres import schema

    file = read_move(home.journal)
    if file is None or not file.id:
        raise UserError(f"{home.journal} does not exist; there is nothing to move, start Parlour with store.url set")
    move = schema.read_move(connection) if schema.schema_version(connection) else None
    if move is None or move.id != file.id:
        raise UserError(
            f"the messages of {home.path} are in another database ({file.database}) since {file.at[:10]}: set"
            " PARLOUR_STORE__URL to its address"
        )
    for kept in home.backups.glob(f"journal-*-{move.id}.db"):
        set_bytes_aside(home.path, kept.with_suffix(""))
    schema.save_move(connection, replace(move, state=schema.MoveState.ACTIVE))
    typer.echo("the messages are in the database of store.url: start Parlour with PARLOUR_STORE__URL set")


def move_to_file(home: Home, connection: PostgresConnection, url: str, objects: ObjectStore | None = None) -> None:
    """Move the tables into the journal's file; the database keeps its rows, and is not started on any more."""
    from gateway.store.postgres import schema
    from gateway.store.postgres.copies import copy_database

    if not schema.schema_version(connection):
        raise UserError("the database of store.url has no tables of Parlour; there is nothing to move")
    schema.prepare(connection)
    move = schema.read_move(connection)
    has_left = move is not None and move.state is schema.MoveState.LEFT
    if home.journal.exists():
        if not has_left:
            raise UserError(
                f"{home.journal} exists, and would be overwritten: the messages of this home are in it; leave"
                " store.url empty to go on with it"
            )
        remove_move(home.journal)
        typer.echo(f"the messages are in {home.journal}: start Parlour without PARLOUR_STORE__URL")
        return
    if move is not None and (move.state is schema.MoveState.COPIED or (has_left and move.file != str(home.journal))):
        schema.require_active(connection)
    if has_files(connection):
        raise UserError(
            "the database has files of an earlier release: start Parlour once with PARLOUR_STORE__URL, which takes them"
            " over, stop it, and try again"
        )
    new = home.path / f"{STAGING}store" / home.journal.name
    count = copy_database(url, new, _report)
    files = read_journal(new, large_files) or ()
    fetch_bytes(files, home.path, objects)
    _report_bytes(files)
    now = _iso(datetime.now(UTC))
    left = schema.DatabaseMove(id=secrets.token_hex(8), state=schema.MoveState.LEFT, file=str(home.journal), at=now)
    accept_store(home.journal, datetime.now(UTC))
    schema.save_move(connection, left)
    _rename(new, home.journal)  # from here on the file has the messages
    new.parent.rmdir()
    remove_move(home.journal)
    typer.echo(
        f"{count:,} rows are in {home.journal}: start Parlour without PARLOUR_STORE__URL. The database keeps its rows;"
        " drop it when you need it no more"
    )


def _rename(file: Path, target: Path) -> None:
    file.rename(target)
    sync_folder(target.parent)
    sync_folder(file.parent)


def _iso(at: datetime) -> str:
    return at.isoformat(timespec="seconds")


def _report(table: str, count: int) -> None:
    typer.echo(f"  {table}: {count:,} rows")


def _report_bytes(files: Sequence[LargeFile]) -> None:
    if files:
        typer.echo(f"  large files: {len(files):,}, {sum(file.size for file in files):,} bytes with their digests")


_TABLES = """\
Rows were changed or lost by a damaged disk or another program. What helps, with the gateway stopped:
  - `parlour restore FILE --force` with the newest backup; or a later dump of the database
  - without a backup, and if the files of conversations and memory in the home are right: move the journal to another
    place, and run `parlour mirror import`, which rebuilds it from them"""
_FILES = """\
Files are not what was stored. What helps:
  - bring the bytes back from a copy, under the same name: in the home as SCOPE/bytes/PLACE, with an object store as the
    object PLACE; a file without a place in `-` is in the database, whose backup or dump has it
  - if no copy exists, `parlour store check --remove`: these files are removed, everything else stays"""


def check_store(*, removes: bool, is_sure: bool, as_json: bool) -> int:
    """Print each fault and the numbers of rows; return 2 if a fault is left, else 0."""
    lines = call_operation("store check")
    damaged = [line for line in lines if line.get("state") == "damaged"]
    if damaged and removes:
        if not is_sure:
            for line in damaged:
                typer.echo(_row(line), err=as_json)
            typer.confirm(f"Remove these files ({len(damaged):,})?", abort=True, err=as_json)
        named = [[line["scope"], line["kind"], line["file"]] for line in damaged]
        lines = call_operation("store check", {"remove": named})
    faults = [line for line in lines if "fault" in line]
    left = [line for line in lines if line.get("state") == "damaged"]
    if as_json:
        print_json(lines)
    else:
        _print(lines, faults, left)
    return 2 if faults or left else 0


def _print(lines: Sequence[Line], faults: Sequence[Line], damaged: Sequence[Line]) -> None:
    *found, numbers = lines
    for line in found:
        typer.echo(f"{line['count']:,} {line['fault']}" if "fault" in line else _row(line))
    counts = ", ".join(f"{count:,} {name}" for name, count in numbers["counts"].items())
    typer.echo(f"{'the store is whole' if not faults and not damaged else 'the store is damaged'}: {counts}")
    for text in [text for text, is_needed in ((_TABLES, faults), (_FILES, damaged)) if is_needed]:
        typer.echo(with_operator_commands(text))


def _row(line: Line) -> str:
    return strip_control_characters(
        f"{line['name']}: {line['kind']} {line['file']} ({line['size']:,} bytes, place {line['place'] or 'none'}) is"
        f" {line['state']}: {line['reason']}"
    )


def show_workers(*, as_json: bool) -> None:
    """Print one row per worker, the oldest first."""
    settings = load_settings(os.environ)
    print_lines(_workers(settings), as_json, rows(_worker_row, empty="no gateway is running"), {})


def _workers(settings: Settings) -> list[Line]:
    """Return the workers of the configured store. Blocks."""
    url = settings.store.address
    if not url:
        home = Home(settings.home)
        listed = read_journal(home.journal, list_workers) or ()
        return [_worker_line(each, has_ended=not is_held(home)) for each in listed]
    try:
        from gateway.store.postgres.schema import read_workers
    except ModuleNotFoundError as missing:
        raise SettingsError(f"store.url needs {missing.name}: {HOW_TO_INSTALL}") from missing
    found, now = read_workers(url)
    return [_worker_line(each, has_ended=now - each.beat_at > DEAD_AFTER, silence=now - each.beat_at) for each in found]


def _worker_line(worker: WorkerStatus, *, has_ended: bool, silence: timedelta | None = None) -> Line:
    return {
        "worker": worker.name,
        "host": worker.host,
        "process": worker.process,
        "version": worker.version,
        "started_at": worker.started_at.isoformat(timespec="seconds"),
        "running": not has_ended,
        "heartbeat_seconds": None if silence is None else round(max(silence.total_seconds(), 0.0), 1),
        "turns": worker.turns,
        "jobs": worker.jobs,
        "chats": worker.chats,
        "connections": list(worker.connections),
    }


def _worker_row(line: Line) -> str:
    beat = line["heartbeat_seconds"]
    state = "running" if line["running"] else "killed"
    since = datetime.fromisoformat(line["started_at"]).astimezone(UTC)
    version = f"version {line['version']}, since {since:%Y-%m-%d %H:%M} UTC"
    facts = [
        f"{state}  {line['host']}, process {line['process']}, {version}",
        f"{line['turns']} turns and {line['jobs']} jobs running" if line["running"] else "taken over at the next start",
    ]
    if line["connections"]:
        facts.append("connected: " + ", ".join(line["connections"]))
    if beat is not None:
        facts.append(f"last heartbeat {beat:.0f} s ago")
    return "; ".join(facts)
