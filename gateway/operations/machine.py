"""Operations on the machine: the doctor's findings, the backups in the home, a check of the store."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.control import Line
from gateway.control.registry import AuditRule, operation, plain
from gateway.errors import UserError
from gateway.events import Role
from gateway.home import make_private
from gateway.installation import operator_command
from gateway.logs import recent_lines
from gateway.operations.group import OperationGroup
from gateway.ports.memory import ScopeFileChange
from gateway.settings.sources import HOME

if TYPE_CHECKING:
    from gateway.app.runtime import Runtime
    from gateway.backup import BackupResult

CHECK_WITHIN = 90.0  # seconds: the doctor's own checks end in 60
_VERIFY_WITHIN = 1800.0  # seconds
_SPARE = 1024 * 1024 * 1024  # bytes of the disk that the gateway keeps meanwhile
_PROGRESS_EVERY = 0.5  # seconds
_MOST_BACKUPS = 200  # that are listed
_LEVELS = ("debug", "info", "warning", "error", "critical")
_MOST_LOG_LINES = 500
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}\.tar\.gz\Z")
# The same program, whether it runs from a checkout or from a wheel; what is imported does not come from the folder
# that the gateway was started in.
_DOCTOR = ("-P", "-m", "parlour", "doctor", "--json")


class MachineOperations(OperationGroup):
    """The operations `doctor`, `backups list|create|verify`, `store check` and `logs`."""

    def __init__(self, app: Runtime, *, check_within: float = CHECK_WITHIN) -> None:
        super().__init__(app)
        self._check_within = check_within
        self._checks = asyncio.Lock()
        self._backups = asyncio.Lock()
        self._writing: asyncio.Task[BackupResult] | None = None

    @operation("doctor", Role.OWNER)
    async def doctor(self, offline: bool = False) -> AsyncIterator[Line]:
        """Yield the findings of `parlour doctor`, the failures first; with *offline*, no platform or model is called.

        A separate process makes the checks, so that none can block the event loop; one that takes too long is killed.
        """
        if self._checks.locked():
            raise UserError("the checks are running already; wait for them to end")
        async with self._checks:
            output = await self._run_doctor(is_offline=offline)
        for line in output.splitlines():
            yield json.loads(line)

    async def _run_doctor(self, *, is_offline: bool) -> bytes:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *_DOCTOR,
            *(["--offline"] if is_offline else []),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, HOME: str(self._app.home.path)},
        )
        try:
            async with asyncio.timeout(self._check_within):
                output, _ = await process.communicate()
        except TimeoutError:
            raise UserError(
                f"the checks took more than {self._check_within:.0f} s; run `parlour doctor` in a terminal"
            ) from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode not in (0, 2) or not output.endswith(b"\n"):
            raise UserError("the checks could not be made; run `parlour doctor` in a terminal")
        return output

    @operation("backups list", Role.OWNER)
    async def list_backups(self) -> AsyncIterator[Line]:
        """Yield one line per archive in the home's folder of backups, the newest first."""
        for line in await asyncio.to_thread(_list_archives, self._app.home.backups):
            yield line

    @operation("backups create", Role.OWNER, audit=AuditRule.CALL)
    async def create_backup(self) -> AsyncIterator[Line]:
        """Write a backup into the home's folder of backups: lines of progress, then one of the archive.

        It is finished even if its caller leaves.
        """
        from gateway.backup import BackupProgress

        if self._writing is not None and not self._writing.done():
            raise UserError("a backup is being written; wait for it to end")
        home, progress = self._app.home, BackupProgress()
        await asyncio.to_thread(make_private, home.backups)
        name = f"parlour-{datetime.now(UTC):%Y-%m-%dT%H%M%SZ}-{secrets.token_hex(2)}.tar.gz"
        self._writing = task = asyncio.create_task(self._app.backup(home.backups / name, progress), name="backup")
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=_PROGRESS_EVERY)
                yield {"done": progress.done, "of": progress.total}
            result = await task
        except asyncio.CancelledError:  # the gateway stops
            task.cancel()
            raise
        yield {"name": name, "files": result.files, "size": result.size, "left_out": list(result.left_out)}

    @operation("backups verify", Role.OWNER, audit=AuditRule.CALL, subject="name")
    async def verify_backup(self, name: str) -> AsyncIterator[Line]:
        """Unpack a backup beside the home, compare every file with the archive's own list, and delete it again."""
        from gateway.restore import RestoreLimits, verify_backup  # a gateway that verifies none does without tarfile

        folder = self._app.home.backups
        if not _NAME.match(name) or name not in await asyncio.to_thread(_names, folder):
            raise UserError(f"there is no backup {name[:130]!r} in {folder}")
        if self._backups.locked():
            raise UserError("a backup is being checked; wait for it to end")
        async with self._backups:
            limits = RestoreLimits(seconds=_VERIFY_WITHIN, spare=_SPARE)
            files = await asyncio.to_thread(verify_backup, folder / name, folder, limits=limits)
        yield {"name": name, "files": files}

    @operation("store check")
    async def check_store(self, remove: object = ()) -> AsyncIterator[Line]:
        """Read the whole store; yield a line for each fault, then one with the numbers of rows.

        A file whose bytes are not what was stored has a line with its scope, kind and name. With `remove`, a list of
        these, the files that it names are removed if they are still damaged.
        """
        from agent.base.scopes import label
        from gateway.store.closed_store import read_store
        from gateway.store.upkeep import check_tables, damaged_files

        store, home = self._app.store, self._app.home
        if damage := await store.find_damage():
            raise UserError(damage)
        url = self._app.settings.store.address
        checked = await asyncio.to_thread(read_store, home.journal, url, check_tables)
        if checked is None:
            raise UserError("the store could not be read beside this gateway; try again")
        for fault in checked.faults:
            yield {"fault": fault.what, "count": fault.count}
        named = [tuple(each) for each in remove] if isinstance(remove, list) else []
        async for scope, file, reason in damaged_files(store.files):
            is_removed = (scope, file.kind, file.name) in named
            if is_removed and not await store.files.change(scope, ScopeFileChange(was=file)):
                continue  # it was replaced or removed since it was read
            yield {
                "name": label(scope),
                "scope": scope,
                "kind": file.kind,
                "file": file.name,
                "size": file.size,
                "place": file.place,
                "reason": reason,
                "state": "removed" if is_removed else "damaged",
            }
        yield {"counts": checked.counts}

    @operation("logs", Role.OWNER)
    async def list_logs(
        self, after: int = 0, level: str = "", component: str = "", about: str = ""
    ) -> AsyncIterator[Line]:
        """Yield the newest lines of the log after the number *after*, the oldest first; filters narrow them.

        *level* is the least level, *component* the beginning of a logger's name, *about* that of a turn's id or
        reference.
        """
        if level not in ("", *_LEVELS):
            raise UserError(f"`level` is one of {', '.join(_LEVELS)}")
        levels = _LEVELS[_LEVELS.index(level) if level else 0 :]
        found = [
            {"number": number, **event}
            for number, event in recent_lines.read(after)
            if event.get("level") in levels
            and str(event.get("logger", "")).startswith(component)
            and any(str(event.get(name, "")).startswith(about) for name in ("turn", "reference"))
        ]
        for line in found[-_MOST_LOG_LINES:]:
            yield line


def _list_archives(folder: Path) -> list[Line]:
    lines: list[Line] = []
    for name in sorted(_names(folder), key=lambda each: (folder / each).stat().st_mtime, reverse=True)[:_MOST_BACKUPS]:
        found = (folder / name).stat()
        at = plain(datetime.fromtimestamp(found.st_mtime, UTC))
        lines.append(
            {"name": name, "size": found.st_size, "at": at, "restore": operator_command(f"restore {folder / name}")}
        )
    return lines


def _names(folder: Path) -> list[str]:
    """Return the names of the archives in *folder*, links excluded."""
    if not folder.is_dir():
        return []
    found = (each for each in os.scandir(folder) if _NAME.match(each.name))
    return [each.name for each in found if each.is_file(follow_symlinks=False)]
