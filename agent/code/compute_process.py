"""Child process that runs the calls of `compute`, one after the other; started by path with ``python -I``.

Each call has its own worker (pydantic-monty), which waits for it since the call before. The kernel confines this
process before the first worker starts, and the workers with it: they read the interpreter's files, start no other
program and reach no network. A line of JSON comes in and one goes out for each call.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import parlour  # noqa: F401 -- isolated, Python finds our packages by it

from agent.attachments.process_confinement import confine_process

if TYPE_CHECKING:
    import pydantic_monty

SECONDS = 1.0  # of one call
MEMORY = 64 << 20  # bytes of the worker, by its own count
OUTPUT = 64 << 10  # bytes that it may print
ADDRESSES = 1 << 30  # bytes of address space of each process
_DEPTH = 200  # of function calls
_ANSWER_WITHIN = 3.0  # seconds of a request to the worker
_LONGEST_ERROR = 2_000
_LONGEST_VALUE = 20_000
_LIMITS: pydantic_monty.ResourceLimits = {
    "max_feed_duration_secs": SECONDS,
    "max_memory": MEMORY,
    "max_recursion_depth": _DEPTH,
    "max_suspensions": 1,  # nothing is asked of us
    "max_total_sleep_secs": 0,
}


def main() -> None:
    """Answer calls until standard input ends."""
    import pydantic_monty as monty
    from pydantic_monty._binary import find_monty_binary

    program = os.path.realpath(find_monty_binary())
    drop_privileges(program)
    pool = _open_pool(monty, program)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        text, is_error = _run(monty, pool, request["code"], request["files"])
        print(json.dumps({"text": text, "is_error": is_error}), flush=True)
        pool.__exit__(None, None, None)
        pool = _open_pool(monty, program)
        _reap()
    os._exit(0)


def drop_privileges(program: str) -> None:
    """Allow this process and its workers to read the interpreter and to start *program*, and nothing else."""
    for limit, most in (
        (resource.RLIMIT_AS, ADDRESSES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 64),
    ):
        try:
            resource.setrlimit(limit, (most, most))
        except (OSError, ValueError):
            if sys.platform == "linux":
                raise
    confine_process(programs=[program])


def _open_pool(monty: Any, program: str) -> Any:
    """Return a pool with one worker, which is started and waits."""
    pool = monty.Monty(binary_path=program, max_processes=1, max_checkouts_per_worker=1, request_timeout=_ANSWER_WITHIN)
    return pool.__enter__()


def _reap() -> None:
    """Remove what the kernel keeps of workers that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _run(monty: Any, pool: Any, code: str, files: dict[str, Any]) -> tuple[str, bool]:
    """Return the output of the code and its last value, or its error, and True for an error.

    The rows of *files* are the value of the code's name `files`.
    """
    inputs = {"files": files} if files else {}
    output = monty.CollectString(OUTPUT)
    try:
        with pool.checkout(limits=_LIMITS) as session:
            return _format(output, session.feed_run(code, inputs=inputs, print_callback=output)), False
    except monty.MontySyntaxError as error:
        return error.display("type-msg")[:_LONGEST_ERROR], True
    except monty.MontyRuntimeError as error:
        return _describe(error, output.output), True
    except (TimeoutError, monty.MontyError, OSError):
        return "the interpreter was killed or could not be started; try something smaller", True


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


def _format(output: pydantic_monty.CollectString, value: object) -> str:
    parts = [output.output.rstrip("\n")] if output.output.strip() else []
    if value is not None:
        parts.append((value if isinstance(value, str) else repr(value))[:_LONGEST_VALUE])
    return "\n".join(parts) or "it printed nothing and has no value; print what you need"


if __name__ == "__main__":
    main()
