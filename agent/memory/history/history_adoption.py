"""Take over the histories that earlier releases have kept in files: once, before anything moves or removes them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import structlog

from agent.memory.history.history_files import REPLACED, read_files
from agent.memory.scopes import list_scopes, scope_folder
from agent.memory.storage.disk import Disk
from gateway.ports import HistoryRowStore, ScopeHistory, ScopeMove

log = structlog.get_logger(__name__)

_MOVED = ".move"  # in a scope's `memory/`: the id of the move that has built the folder


async def adopt_histories(home: Path, history: HistoryRowStore, moves: Sequence[ScopeMove]) -> int:
    """Store the history in the files of every scope; return the number of scopes that have one.

    Idempotent; a kill interrupts it.

    *moves* are those that were interrupted: where one has merged two folders, the files of its source are left out.
    The files stay, as those that are printed from the rows. Raises OSError and StoreUnavailable.
    """
    if await history.is_adopted():
        return 0
    disk, count = Disk(), 0
    scopes = ["", *await asyncio.to_thread(list_scopes, home)]
    for scope in scopes:
        folder = scope_folder(home, scope) / "memory"
        done = [each for each in moves if each.source == scope and each.kind != "unlink"]
        if any([await asyncio.to_thread(_is_merged, home, disk, each) for each in done]):
            continue
        contents = await asyncio.to_thread(read_files, folder, disk) if folder.is_dir() else ScopeHistory()
        if contents != ScopeHistory():
            count += await history.adopt(scope, contents)
            await asyncio.to_thread(_remove_replaced, folder, disk)
    await history.mark_adopted()
    if count:
        log.info("memory.histories_adopted", scopes=len(scopes), with_history=count)
    return count


def _is_merged(home: Path, disk: Disk, move: ScopeMove) -> bool:
    return disk.load(scope_folder(home, move.target) / "memory" / _MOVED) == move.id.encode()


def _remove_replaced(folder: Path, disk: Disk) -> None:
    for name in REPLACED:
        disk.remove(folder / name)
