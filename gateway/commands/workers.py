"""`parlour workers`: the gateways that use the database, and what each of them holds.

The database is read as it is, without a gateway and without its locks: this also works on another machine.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

from gateway.commands.operation_commands import print_lines
from gateway.control import Line
from gateway.errors import SettingsError
from gateway.home import Home, is_held
from gateway.installation import HOW_TO_INSTALL
from gateway.settings import Settings, load_settings
from gateway.store.sqlite.closed_journal import read_journal
from gateway.store.workers import DEAD_AFTER, WorkerStatus, list_workers


def show_workers(*, as_json: bool) -> None:
    """Print one row per worker, the oldest first."""
    settings = load_settings(os.environ)
    print_lines(_workers(settings), as_json, _row, empty="no gateway is running")


def _workers(settings: Settings) -> list[Line]:
    """Return the workers of the configured store. Blocks."""
    url = settings.store.address
    if not url:
        home = Home(settings.home)
        listed = read_journal(home.journal, list_workers) or ()
        return [_line(each, has_ended=not is_held(home)) for each in listed]
    try:
        from gateway.store.postgres.schema import read_workers
    except ModuleNotFoundError as missing:
        raise SettingsError(f"store.url needs {missing.name}: {HOW_TO_INSTALL}") from missing
    found, now = read_workers(url)
    return [_line(each, has_ended=now - each.beat_at > DEAD_AFTER, silence=now - each.beat_at) for each in found]


def _line(worker: WorkerStatus, *, has_ended: bool, silence: timedelta | None = None) -> Line:
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


def _row(line: Line) -> str:
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
