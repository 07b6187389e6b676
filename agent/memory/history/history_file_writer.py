"""Write the files of every history behind the commits, for people and other programs: the rows are true.

No turn reads these files. One that a person has edited is set aside as `<name>.edited-<digest>` when it is written
again. The digests of what was written last are in `memory/.mirror/history.json`, so that such a file is recognized.
Entries that were added are appended to files that are as this process has left them; otherwise a file is written whole.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from agent.base.disk import Disk, wait_for_thread
from agent.base.scopes import list_scopes, scope_folder
from agent.base.transcript_lines import decode, encode
from agent.memory.history.history_files import CURSOR, is_history_file, print_entries, printed_files
from gateway.errors import StoreUnavailable
from gateway.ports.memory import HISTORY_JSONL, HISTORY_MD, StalePath
from gateway.text.json_lines import encode_entry

if TYPE_CHECKING:
    from gateway.store.documents import SqlDocuments
    from gateway.store.history import SqlHistory


log = structlog.get_logger(__name__)

WRITTEN = ".mirror/history.json"  # name -> digests that the file may have: of its text now, and of the one before
_FOLDER = "memory/"
_POLL = 0.5  # seconds; what nothing was stored of since is known without asking the store
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds before files that cannot be written are tried again
_FROM_ENTRIES = (HISTORY_JSONL, HISTORY_MD, CURSOR)
_MOST_KNOWN = 256  # scopes


@dataclass(frozen=True, slots=True)
class _WrittenEntries:
    """The files of a scope's entries as they were written last."""

    cursor: int  # of the last entry
    hashes: Mapping[str, Any]  # by name, of hashlib; more bytes may be added to a copy
    states: Mapping[str, object]  # by name, as `_state` returns them


class HistoryFileWriter:
    """Writes the files of every scope. `run` must run in one task; any task may call the other methods."""

    def __init__(
        self,
        home: Path,
        history: SqlHistory,
        documents: SqlDocuments,
        *,
        is_mirroring: bool = True,
        disk: Disk | None = None,
    ) -> None:
        """*documents* knows the stale files of all of a scope's memory. Without *is_mirroring* none is written."""
        self._is_mirroring = is_mirroring
        self._home = home
        self._history = history
        self._documents = documents
        self._disk = disk or Disk()
        self._lock = asyncio.Lock()
        self._is_failing = False
        self._known: OrderedDict[str, _WrittenEntries] = OrderedDict()

    async def run(self) -> None:
        """Write until cancelled."""
        pause = _POLL
        while True:
            is_clean = await self.flush()
            pause = _POLL if is_clean else min(max(pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE)
            await asyncio.sleep(pause)

    async def begin(self, *, is_outdated: bool) -> None:
        """Write every file, if those of the home are of another store, or older than it; none is set aside.

        Raises OSError and StoreUnavailable.
        """
        if is_outdated and self._is_mirroring:
            scopes = {"", *await asyncio.to_thread(list_scopes, self._home), *await self._history.scopes()}
            async with self._lock:
                for scope in sorted(scopes):
                    await self._write(scope, None, is_outdated=True)

    async def flush(self, scope: str | None = None) -> bool:
        """Write the stale files, of *scope* or of all; return False if one could not be written."""
        if not self._is_mirroring:
            return True
        async with self._lock:
            try:
                failed = await self._write_stale(scope)
            except StoreUnavailable:
                return False
        if failed and not self._is_failing:
            log.warning("history_files.cannot_write", error=failed)
        self._is_failing = bool(failed)
        return not failed

    async def settle(self, scope: str) -> None:
        """Write every file of *scope*, and set aside those that a person has edited. Raises OSError."""
        if not self._is_mirroring:
            return
        async with self._lock:
            await self._write(scope, None)
        if not await self.flush(scope):
            raise OSError("the files of the history cannot be written")

    @asynccontextmanager
    async def pause_writes(self) -> AsyncIterator[None]:
        """Write nothing while the context is open."""
        async with self._lock:
            yield

    async def _write_stale(self, scope: str | None) -> str:
        """Return the error of a file that could not be written, "" without one."""
        stale: dict[str, list[StalePath]] = defaultdict(list)
        for file in await self._documents.stale_paths(scope):
            if file.path.startswith(_FOLDER) and is_history_file(file.path.removeprefix(_FOLDER)):
                stale[file.scope].append(file)
        error = ""
        for each, files in stale.items():
            names = {file.path.removeprefix(_FOLDER) for file in files}
            try:
                if HISTORY_JSONL in names:
                    is_appended = HISTORY_MD not in names and await self._append(each)
                    names = names - {HISTORY_JSONL} if is_appended else names | set(_FROM_ENTRIES)
                if names:
                    await self._write(each, names)
            except OSError as failure:
                error = failure.strerror or str(failure)
                continue
            for file in files:
                await self._documents.drop_stale_path(file)
        return error

    async def _write(self, scope: str, names: Collection[str] | None, *, is_outdated: bool = False) -> None:
        """Write the files *names*, or all; outdated ones are not set aside. Raises OSError."""
        self._known.pop(scope, None)
        contents = await self._history.load(scope)
        folder = scope_folder(self._home, scope) / "memory"
        printed = await asyncio.to_thread(printed_files, contents)
        await wait_for_thread(asyncio.to_thread(self._write_files, folder, printed, names, is_outdated))
        if names is None or HISTORY_MD in names:
            hashes = {name: hashlib.sha256(printed.get(name, b"")) for name in (HISTORY_JSONL, HISTORY_MD)}
            self._remember(scope, _WrittenEntries(contents.cursor, hashes, _states(folder)))

    def _remember(self, scope: str, files: _WrittenEntries) -> None:
        self._known[scope] = files
        self._known.move_to_end(scope)
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)

    async def _append(self, scope: str) -> bool:
        """Append the entries behind those in the files; return False where these are not as they were left."""
        known = self._known.pop(scope, None)
        folder = scope_folder(self._home, scope) / "memory"
        if known is None or await asyncio.to_thread(_states, folder) != known.states:
            return False
        entries = await self._history.after(scope, known.cursor)
        added = print_entries([encode_entry(each) for each in entries])
        hashes = {name: each.copy() for name, each in known.hashes.items()}
        for name, data in added.items():
            hashes[name].update(data)
        digests = {name: [hashes[name].hexdigest(), each.hexdigest()] for name, each in known.hashes.items()}
        cursor = entries[-1].cursor if entries else known.cursor
        if entries:
            await wait_for_thread(asyncio.to_thread(self._append_files, folder, added, digests, cursor))
        self._remember(scope, _WrittenEntries(cursor, hashes, await asyncio.to_thread(_states, folder)))
        return True

    def _append_files(
        self, folder: Path, added: Mapping[str, bytes], digests: Mapping[str, list[str]], cursor: int
    ) -> None:
        written = dict(decode(self._disk.load(folder / WRITTEN) or b"{}") or {})
        self._disk.replace(folder / WRITTEN, encode({**written, **digests}))  # before the files, as below
        for name, data in added.items():
            self._disk.append(folder / name, data)
        self._disk.replace(folder / CURSOR, b"%d\n" % cursor)

    def _write_files(
        self, folder: Path, printed: Mapping[str, bytes], names: Collection[str] | None, is_outdated: bool
    ) -> None:
        if not folder.is_dir() and not printed:  # the scope was erased, or moved
            return
        if names is None:
            there = {path.name for path in folder.glob("*")} if folder.is_dir() else set()
            names = {name for name in there | set(printed) if is_history_file(name)}
        written = dict(decode(self._disk.load(folder / WRITTEN) or b"{}") or {})
        current = {name: self._disk.load(folder / name) for name in names}
        changes = {name: printed.get(name) for name in names if printed.get(name) != current[name]}
        if not changes:
            return
        for name, data in changes.items():
            now = current[name]
            if now and not is_outdated and not name.startswith("."):
                is_ours = _digest(now) in written.get(name, ()) or (data or b"").startswith(now)
                if not is_ours:
                    self._disk.replace(folder / f"{name}.edited-{_digest(now)[:8]}", now)
            written[name] = [_digest(each) for each in (data, now) if each]
        # Before the files: after a kill in between, both texts are known as ours.
        self._disk.replace(folder / WRITTEN, encode({name: each for name, each in written.items() if each}))
        for name, data in changes.items():
            if data is None:
                self._disk.remove(folder / name)
            else:
                self._disk.replace(folder / name, data)


def _states(folder: Path) -> dict[str, object]:
    """Return inode, size and time of the files of the entries, which change with them."""
    states: dict[str, object] = {}
    for name in (HISTORY_JSONL, HISTORY_MD):
        try:
            found = (folder / name).stat()
        except (FileNotFoundError, NotADirectoryError):
            states[name] = None
        else:
            states[name] = (found.st_ino, found.st_size, found.st_mtime_ns)
    return states


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
