"""Checks of this machine: the home and its files, the journal, the disk, the clock, and limits of the process.

Those of the disk and the quarantine are read by alerts too: `gateway_checks` declares them.
"""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

from gateway.alerts.alert_sources import measure_disk
from gateway.health.checks import CheckContext, HealthCheck
from gateway.home import Home, holder, is_held
from gateway.installation import ownership_hint
from gateway.journal_file import is_empty, journal_fault, lost_journal
from gateway.ports.setup import Finding, fail, ok, warn
from gateway.preflight import before_start
from gateway.quarantine import count_events, list_events

_BEHIND = timedelta(hours=1)
_MOST_FILES = 50_000  # that are looked at one by one
_MOST_LINES = 5  # of one kind
_MOST_EVENTS = 3
_FEW_FILES, _TOO_FEW_FILES = 1_024, 128  # open at once
_AREAS, _IN = ("people", "chats"), ("", "memory/")  # where the documents of scopes are


def check_start(context: CheckContext) -> Iterator[Finding]:
    """Yield what a start would check, with the lines that it would end with."""
    # The gateway that holds the home has the port, and is asked itself; `check_journal` reads all of the journal.
    left_out = ("lock", "port", "journal") if is_held(context.home) else ("journal",)
    return (each for each in before_start(context.settings) if each.name not in left_out)


def check_privacy(context: CheckContext) -> Iterator[Finding]:
    """Yield state files that others may read (docs/attacks.md, attack 87)."""
    home = context.home
    if not home.path.is_dir():
        return
    open_paths = [path for path in _state_paths(home) if _is_open(path)]
    for path in open_paths[:_MOST_LINES]:
        line = f"{path} is readable by other users of this machine; run chmod {700 if path.is_dir() else 600} {path}"
        yield (fail if home.secrets in (path, path.parent) else warn)(line, "privacy")
    if len(open_paths) > _MOST_LINES:
        yield warn(f"and {len(open_paths) - _MOST_LINES} more; run chmod -R go-rwx {home.path}", "privacy")
    if not open_paths:
        yield ok("nothing in the home is readable by other users", "privacy")


def _state_paths(home: Home) -> Iterator[Path]:
    yield home.path
    for folder in (home.path, home.secrets, home.backups):
        if folder.is_dir() and os.access(folder, os.R_OK | os.X_OK):
            yield from (path for path in sorted(folder.iterdir()) if not path.is_symlink())


def _is_open(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return bool(mode & (stat.S_IRWXG | stat.S_IRWXO)) and not stat.S_ISSOCK(mode)


def check_owner(context: CheckContext) -> Iterator[Finding]:
    """Yield the owner of the home, and files in it that belong to another user and cannot be used."""
    home = context.home.path
    if not home.is_dir():
        return
    owner = home.stat()
    if owner.st_uid != os.geteuid():
        back = ownership_hint(home, os.geteuid(), os.getegid(), context.environment)
        line = (
            f"{home} belongs to user id {owner.st_uid}, but the current user id is {os.geteuid()}; run Parlour as"
            f" its owner, or change the owner: {back}"
        )
        yield warn(line, "owner", "home")
    strange = [path for path in islice(_everything(home), _MOST_FILES) if _uid(path) not in (owner.st_uid, None)]
    if strange:
        more = f" and {len(strange) - 1} more belong" if len(strange) > 1 else " belongs"
        back = ownership_hint(home, owner.st_uid, owner.st_gid, context.environment)
        line = (
            f"{strange[0]}{more} to user id {_uid(strange[0])}, but the home belongs to {owner.st_uid}, which cannot"
            f" use such files; change their owner: {back}"
        )
        yield fail(line, "owner", "files")


def _everything(folder: Path) -> Iterator[Path]:
    yield folder
    for inside, folders, files in os.walk(folder):  # a folder that may not be read is named by the one that it is in
        yield from (Path(inside) / name for name in (*folders, *files))


def _uid(path: Path) -> int | None:
    try:
        return path.lstat().st_uid
    except OSError:  # removed in the meantime
        return None


def check_documents(context: CheckContext) -> Iterator[Finding]:
    """Yield the files of documents that a person saved, and that cannot be read as text."""
    home = context.home.path
    places = ("", "memory/", "shared/", "shared/memory/", *(f"{area}/*/{memory}" for area in _AREAS for memory in _IN))
    found = sorted(path for place in places for path in home.glob(f"{place}*.md.unreadable-*"))
    for path in found[:_MOST_EVENTS]:
        line = "it was edited by hand and is no text; save it as UTF-8, copy its lines into the document, and delete it"
        yield warn(f"{path.relative_to(home)}: {line}", "memory")
    if len(found) > _MOST_EVENTS:
        yield warn(f"and {len(found) - _MOST_EVENTS:,} more such files", "memory")


def check_quarantine(context: CheckContext) -> Iterator[Finding]:
    """Yield the newest events that could not be read, or that caused a crash."""
    folder = context.home.quarantine
    held = count_events(folder)
    for event in list_events(folder, _MOST_EVENTS):
        at = f" at {event.at[:19]}Z" if event.at else ""
        line = f"an event from {event.channel} was quarantined{at}: {event.reason}; it is in {event.file}"
        yield warn(line, "quarantine")
    if held > _MOST_EVENTS:
        commands = "`parlour quarantine list` lists them, `parlour quarantine replay` retries one"
        yield warn(f"and {held - _MOST_EVENTS:,} more; {commands}", "quarantine")
    if not held:
        yield ok("is empty", "quarantine")


def check_journal(context: CheckContext) -> Iterator[Finding]:
    """Read all of the journal's file."""
    journal = context.home.journal
    if fault := journal_fault(journal) or lost_journal(journal):
        yield fail(fault, "journal")
    elif not is_empty(journal):
        yield ok("is intact", "journal")


def check_disk(context: CheckContext) -> Iterator[Finding]:
    """Yield the free space on the home's disk."""
    space = measure_disk(context.home.path)
    if space is None:  # it is no disk at all, and the check of the home says so
        return
    megabytes = f"{space.free // (1024 * 1024):,} MB free on the disk of {context.home.path}"
    if not space.stage:
        yield ok(megabytes, "disk")
    else:
        yield (fail if space.is_full else warn)(f"only {megabytes}; free some space", "disk")


def check_open_files(context: CheckContext) -> Iterator[Finding]:
    """Yield a limit of open files that is low."""
    limit = open_file_limit(context.home)
    if limit is not None and limit < _FEW_FILES:
        line = (
            f"only {limit} files may be open at once, which limits connections, platforms and the store; allow"
            f" {_FEW_FILES} or more (LimitNOFILE= in the unit, ulimits: nofile in compose, ulimit -n in a shell)"
        )
        yield (fail if limit < _TOO_FEW_FILES else warn)(line, "open files")


def open_file_limit(home: Home) -> int | None:
    """Return the hard limit of open files, up to which a start raises its own; None where there is none.

    It is that of the gateway that runs on *home*, otherwise that of this process.
    """
    process = holder(home) if is_held(home) else None
    if process:
        try:
            text = Path(f"/proc/{process}/limits").read_text()
        except OSError:  # another user's, or there is no /proc
            return None
        (values,) = [line.split() for line in text.splitlines() if line.startswith("Max open files")] or [[]]
        return int(values[4]) if len(values) > 4 and values[4].isdigit() else None
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def check_clock(context: CheckContext) -> Iterator[Finding]:
    """Yield a clock that is far behind: no certificate would be valid, and days would begin at the wrong hour."""
    now, known = datetime.now(UTC), [path for path in (context.home.journal, Path(__file__)) if path.exists()]
    latest = max(datetime.fromtimestamp(path.stat().st_mtime, UTC) for path in known)
    if now < latest - _BEHIND:
        line = (
            f"this machine's clock shows {now:%Y-%m-%d %H:%M} UTC, but files here were written at"
            f" {latest:%Y-%m-%d %H:%M}; correct the clock (sudo timedatectl set-ntp true)"
        )
        yield fail(line, "clock")


CHECKS = (
    HealthCheck("start", check_start),
    HealthCheck("privacy", check_privacy, needs_settings=False),
    HealthCheck("owner", check_owner, needs_settings=False),
    HealthCheck("memory", check_documents, needs_settings=False),
    HealthCheck("journal", check_journal, seconds=600, needs_settings=False),
    HealthCheck("open files", check_open_files),
    HealthCheck("clock", check_clock, needs_settings=False),
)
