"""The tool `compute`: a subset of Python in an interpreter of its own, which has no files, no network and no imports.

Each call has a worker process of its own (pydantic-monty, the extra `code`), with an empty environment: no call sees
what another left behind, and nothing runs between calls. Nothing is imported before the first call.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import structlog

from agent.completion import run_to_end
from agent.tools.tool import ToolContext, ToolKind, tool
from gateway.errors import ToolFailed

if TYPE_CHECKING:
    import pydantic_monty

log = structlog.get_logger(__name__)

SECONDS = 1.0  # of one call
MEMORY = 64 << 20  # bytes of the worker
OUTPUT = 64 << 10  # bytes that it may print
_DEPTH = 200  # of function calls
_CODE_CHARS = 20_000
_AT_ONCE = 2  # workers, all chats together
_ANSWER_WITHIN = 4.0  # seconds; then its pool kills the worker, whatever it does
_LONGEST_ERROR = 2_000
_LONGEST_VALUE = 20_000

_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


@tool(
    "Calculate exactly with a small Python (math, json, re, datetime, decimal, random; no other modules, no files, no"
    " network) for 1 second. Returns what is printed and the last value.",
    kind=ToolKind.COMPUTE,
    timeout=timedelta(seconds=15),
    gives=["compute"],
)
async def compute(context: ToolContext, code: str) -> str:  # noqa: ARG001 - it may know nothing of the call
    """Return what the code printed and its last value. Raises ToolFailed with the interpreter's error."""
    if not code.strip():
        raise ToolFailed("there is no code")
    if len(code) > _CODE_CHARS:
        raise ToolFailed(f"the code has more than {_CODE_CHARS} characters")
    monty = await asyncio.to_thread(_load)
    async with _slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_AT_ONCE)):
        output = monty.CollectString(OUTPUT)
        try:
            value = await run_to_end(_run(monty, code, output))  # a pool that is cut short leaves its worker
        except monty.MontySyntaxError as error:
            raise ToolFailed(error.display("type-msg")[:_LONGEST_ERROR]) from None
        except monty.MontyRuntimeError as error:
            raise ToolFailed(_describe(error, output.output)) from None
        except (TimeoutError, monty.MontyError, OSError) as error:
            log.warning("compute.failed", error=type(error).__name__)
            raise ToolFailed("the interpreter was killed or could not be started; try something smaller") from None
    return _format(output.output, value)


def _load() -> Any:
    import pydantic_monty

    return pydantic_monty


async def _run(monty: Any, code: str, output: pydantic_monty.CollectString) -> object:
    limits: pydantic_monty.ResourceLimits = {
        "max_feed_duration_secs": SECONDS,
        "max_memory": MEMORY,
        "max_recursion_depth": _DEPTH,
        "max_suspensions": 1,  # nothing is asked of us
        "max_total_sleep_secs": 0,
    }
    pool = monty.AsyncMonty(max_processes=1, max_checkouts_per_worker=1, request_timeout=_ANSWER_WITHIN)
    async with pool, pool.checkout(limits=limits) as session:
        return await session.feed_run(code, print_callback=output)


def _describe(error: pydantic_monty.MontyRuntimeError, output: str) -> str:
    text = str(error)
    if "limit exceeded" in text or "memory limit" in text:
        if len(output.encode()) >= OUTPUT // 2 and "memory" in text:
            return f"killed: more than {OUTPUT >> 10} KB of output"
        if "memory" in text:
            return f"killed: more than {MEMORY >> 20} MB of memory"
        return "killed: it may not sleep" if "sleep" in text else f"killed: more than {SECONDS:.0f} s of CPU"
    shown = f"{output[-_LONGEST_ERROR:]}\n" if output else ""
    return shown + error.display("traceback")[-_LONGEST_ERROR:]


def _format(output: str, value: object) -> str:
    parts = [output.rstrip("\n")] if output.strip() else []
    if value is not None:
        parts.append((value if isinstance(value, str) else repr(value))[:_LONGEST_VALUE])
    return "\n".join(parts) or "it printed nothing and has no value; print what you need"
