"""The tool `compute`: a subset of Python in a separate interpreter, which has no files, no network and no imports.

Tables of the scope's files are values of the code: they are read here, with the rights of `file_read`.

Calls run in a confined child process (`compute_process.py`), each in its own worker with an empty environment: no
call sees what another left behind. The child ends after a minute without calls, and is started again by the next one.
Nothing is imported or started before the first call.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated
from weakref import WeakKeyDictionary

import structlog

from agent.files.turn_files import Rows
from agent.tools.tool import ToolContext, ToolKind, tool
from gateway.errors import ToolFailed

log = structlog.get_logger(__name__)

Tables = Mapping[str, Rows | Mapping[str, Rows]]

IDLE = timedelta(minutes=1)  # that a child waits for a further call
_CHILD = str(Path(__file__).with_name("compute_process.py"))
_CODE_CHARS = 20_000
_AT_ONCE = 2  # calls, all chats together
_MOST_FILES = 5  # of one call
_MOST_CELLS = 100_000  # of all of them
_ANSWER_WITHIN = 5.0  # seconds; then the child is killed with its worker, whatever they do
_LONGEST_ANSWER = 2 << 20  # bytes; a value is cut before

_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


@tool(
    "Calculate exactly with a small Python (math, json, re, datetime, decimal, random), 1 second. Returns prints and"
    " the last value.",
    kind=ToolKind.COMPUTE,
    timeout=timedelta(seconds=60),
    gives=["compute"],
    uses=lambda arguments: "file_read" if arguments["files"] else "",
)
async def compute(
    context: ToolContext,
    code: str,
    files: Annotated[tuple[str, ...], "tables: files[name] is rows"] = (),
) -> str:
    """Return the output of the code and its last value. Raises ToolFailed with the interpreter's error."""
    if not code.strip():
        raise ToolFailed("there is no code")
    if len(code) > _CODE_CHARS:
        raise ToolFailed(f"the code has more than {_CODE_CHARS} characters")
    tables = await _read_tables(context, files)
    async with _slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_AT_ONCE)):
        answer = await _children.ask(code, tables)
    if answer.is_error:
        raise ToolFailed(answer.text)
    return answer.text


async def _read_tables(context: ToolContext, names: Sequence[str]) -> Tables:
    """Return each file's rows by its name, of one with several sheets those of each sheet. Raises ToolFailed."""
    if len(names) > _MOST_FILES:
        raise ToolFailed(f"at most {_MOST_FILES} files in one call; these are {len(names)}")
    tables: dict[str, Rows | Mapping[str, Rows]] = {}
    cells = 0
    for name in dict.fromkeys(each.strip() for each in names):
        sheets = await context.files.read_tables(name)
        sheets = {sheet: rows for sheet, rows in sheets.items() if rows} or sheets  # programs add empty ones
        cells += sum(len(row) + 1 for rows in sheets.values() for row in rows)
        if cells > _MOST_CELLS:
            raise ToolFailed(f"the files have more than {_MOST_CELLS} cells: take fewer or smaller ones")
        tables[name] = next(iter(sheets.values())) if len(sheets) == 1 else sheets
    return tables


@dataclass(frozen=True, slots=True)
class ComputeAnswer:
    """The output of the code and its last value, or its error."""

    text: str
    is_error: bool


class ComputeChild:
    """One child process. Its methods block; `kill` may be called from another thread, and ends the others."""

    def __init__(self) -> None:
        """Start it; the kernel confines it before it takes a call. Raises OSError."""
        self._process = subprocess.Popen(  # noqa: S603 - ours
            [sys.executable, "-I", "-B", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},  # no key, no path, no setting
            cwd="/",
            start_new_session=True,
        )
        self.timer: threading.Timer | None = None  # closes it while it is idle
        self.kill = weakref.finalize(self, _kill, self._process)  # at the latest when we exit

    def ask(self, code: str, tables: Tables) -> ComputeAnswer:
        """Run *code* over *tables*. Raises OSError, ValueError, TypeError or KeyError if the child is broken."""
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: S101, PT018 - pipes
        self._process.stdin.write(json.dumps({"code": code, "files": tables}).encode() + b"\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline(_LONGEST_ANSWER))
        return ComputeAnswer(str(answer["text"]), is_error=answer["is_error"] is not False)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the child with every process that it started; none of them can leave its group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):
            pipe.close()  # type: ignore[union-attr]
    process.wait()


class IdleChildren:
    """The children that wait for a further call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[ComputeChild] = []

    async def ask(self, code: str, tables: Tables) -> ComputeAnswer:
        """Run *code* over *tables* in a child. Raises ToolFailed if it is killed or cannot be started."""
        try:
            child = self._take()
            if child is None:
                child = await asyncio.to_thread(ComputeChild)
            try:
                async with asyncio.timeout(_ANSWER_WITHIN):
                    answer: ComputeAnswer = await asyncio.to_thread(child.ask, code, tables)
            except BaseException:  # cancelled, too: nobody waits for what it does
                child.kill()
                raise
        except (TimeoutError, ValueError, TypeError, KeyError, OSError) as error:
            log.warning("compute.failed", error=type(error).__name__)
            raise ToolFailed("the interpreter was killed or could not be started; try something smaller") from None
        self._put(child)
        return answer

    def close(self) -> None:
        """End every idle child."""
        while (child := self._take()) is not None:
            child.kill()

    def _take(self) -> ComputeChild | None:
        with self._lock:
            child = self._idle.pop() if self._idle else None
        if child is not None and child.timer is not None:
            child.timer.cancel()
        return child

    def _put(self, child: ComputeChild) -> None:
        child.timer = threading.Timer(IDLE.total_seconds(), self._close_idle, [child])
        child.timer.daemon = True
        with self._lock:
            self._idle.append(child)
        child.timer.start()

    def _close_idle(self, child: ComputeChild) -> None:
        with self._lock:
            is_idle = child in self._idle
            if is_idle:
                self._idle.remove(child)
        if is_idle:
            child.kill()


_children = IdleChildren()
