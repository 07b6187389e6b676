"""The tool `compute`: it calculates, and hostile code reaches nothing and costs little."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from agent.code.compute_tool import compute
from agent.llm.chat_model import ToolCall
from agent.tools.toolbox import Toolbox, ToolOutcome
from gateway.settings.disabled_tools import disabled_tools
from gateway.settings.settings_model import CodeSettings, ToolSettings
from tests.fakes.llm_context import context

BOX = Toolbox([compute])
needs_code = pytest.mark.skipif(importlib.util.find_spec("pydantic_monty") is None, reason="the extra `code`")


async def run(code: str) -> ToolOutcome:
    """Call the tool as a model does."""
    return await BOX.run(ToolCall("c", "compute", json.dumps({"code": code})), context())


@needs_code
@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("0.1 + 0.2", "0.30000000000000004"),
        ("from decimal import Decimal\nprint(Decimal('0.1') + Decimal('0.2'))", "0.3"),
        ("print('a')\nprint('b')\nlen('abc')", "a\nb\n3"),
        ("'text'", "text"),
        ("import math\nmath.factorial(20)", "2432902008176640000"),
        ("import datetime\n(datetime.date(2027, 3, 1) - datetime.date(2027, 2, 1)).days", "28"),
        ("x = 1", "it printed nothing and has no value; print what you need"),
    ],
)
async def test_it_calculates(code: str, result: str) -> None:
    """What is printed, then the value of the last expression."""
    outcome = await run(code)
    assert (outcome.text, outcome.is_error) == (result, False)


@needs_code
@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("open('/etc/passwd').read()", "PermissionError"),
        ("open('x.txt', 'w').write('x')", "PermissionError"),
        ("import os\nos.environ", "not supported"),
        ("import os\nos.listdir('/')", "PermissionError"),
        ("import socket", "ModuleNotFoundError"),
        ("import subprocess", "ModuleNotFoundError"),
        ("import urllib.request\nurllib.request.urlopen('http://169.254.169.254/')", "ModuleNotFoundError"),
        ("open('/proc/self/environ').read()", "PermissionError"),
        ("open('/proc/1/environ').read()", "PermissionError"),
        ("open('/dev/tty', 'w').write('x')", "PermissionError"),
        ("import base64\nexec(base64.b64decode('b3BlbignL2V0Yy9wYXNzd2QnKS5yZWFkKCk='))", "PermissionError"),
        ("import os\nos.fork()", "AttributeError"),
        ("import os\nos.kill(os.getppid(), 9)", "AttributeError"),
        ("import ctypes", "ModuleNotFoundError"),
        ("(1).__class__.__bases__[0].__subclasses__()", "AttributeError"),
        ("__import__('os').system('id')", "NameError"),
        ("while True: pass", "killed: more than 1 s of CPU"),
        ("x = []\nwhile True: x.append('a' * 1000)", "killed: more than 64 MB of memory"),
        ("'a' * (1 << 40)", "killed: more than 64 MB of memory"),
        ("def f(n): return f(n + 1)\nf(0)", "RecursionError"),
        ("(" * 9_000, "nested"),
        ("while True: print('x' * 1000)", "killed: more than 64 KB of output"),
        ("import time\ntime.sleep(100)", "killed: it may not sleep"),
        ("import asyncio\nasync def f():\n  await asyncio.sleep(100)\nasyncio.run(f())", "killed: it may not sleep"),
        ("raise ValueError('mine')", "ValueError: mine"),
        ("1 +", "SyntaxError"),
        ("", "there is no code"),
        ("1" * 30_000, "more than 20000 characters"),
    ],
)
async def test_hostile_code_is_stopped(code: str, why: str) -> None:
    """Files, environment, modules, the way to our objects, endless loops, memory, depth, output: refused or ended."""
    started = time.monotonic()
    outcome = await run(code)
    assert outcome.is_error
    assert why in outcome.text
    assert time.monotonic() - started < 10


@needs_code
async def test_no_terminal_obeys_the_output() -> None:
    """Escape sequences, bells and characters that turn text around are taken out of what is printed."""
    assert (await run(r"print('\x1b[2J\x07\u202eabc')")).text == "[2Jabc"


@needs_code
async def test_no_call_sees_another_and_no_worker_stays() -> None:
    """Calls see nothing of each other, and their processes are gone afterwards."""
    before = _workers()
    outcomes = await asyncio.gather(*(run("try:\n  x\nexcept NameError:\n  x = 1\nprint(x)") for _ in range(4)))
    assert {each.text for each in outcomes} == {"1"}
    await until(lambda: not _workers() - before)


@needs_code
async def test_a_cancelled_call_leaves_no_worker() -> None:
    """`/stop` ends the worker, whatever it does."""
    before = _workers()
    task = asyncio.create_task(run("while True: pass"))
    await until(lambda: bool(_workers() - before))
    task.cancel()
    await asyncio.wait({task})
    await until(lambda: not _workers() - before)


@needs_code
async def test_the_worker_has_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our keys are not in the process that runs the code."""
    monkeypatch.setenv("PARLOUR_LLM__API_KEY", "secret")
    before = _workers()
    task = asyncio.create_task(run("while True: pass"))
    seen: list[bytes] = []

    def look() -> bool:
        seen.extend(Path(f"/proc/{pid}/environ").read_bytes() for pid in _workers() - before)
        return bool(seen)

    await until(look)
    await task
    assert not any(b"secret" in each for each in seen)


async def until(condition: Callable[[], bool]) -> None:
    """Return when *condition* is true."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - processes tell nobody
            await asyncio.sleep(0.001)


def _workers() -> set[str]:
    """Return the running interpreters that are children of this process."""
    pids: set[str] = set()
    for task in Path(f"/proc/{os.getpid()}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            pids.update((task / "children").read_text("ascii").split())
    return {pid for pid in pids if _is_worker(pid)}


def _is_worker(pid: str) -> bool:
    try:
        return "monty" in Path(f"/proc/{pid}/cmdline").read_text("utf-8")
    except OSError:
        return False


def test_it_is_off_where_it_is_not_installed_or_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entry point is not loaded then."""
    assert "compute" in disabled_tools(ToolSettings(code=CodeSettings(compute=False)))
    monkeypatch.setattr("gateway.settings.disabled_tools.find_spec", lambda _: None)
    assert "compute" in disabled_tools(ToolSettings())
    monkeypatch.setattr("gateway.settings.disabled_tools.find_spec", lambda _: object())
    assert disabled_tools(ToolSettings()) == {}


def test_nothing_is_imported_before_the_first_call() -> None:
    """A start with the tool on loads no interpreter."""
    program = "import sys, agent.code.compute_tool; print('pydantic_monty' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603 - ours
    assert done.stdout == "False\n"


def test_its_absence_is_in_the_list_of_abilities() -> None:
    """A bot without it says so when it is asked to calculate with code."""
    assert "- calculate with code" in Toolbox([]).abilities
    assert "- calculate with code" not in BOX.abilities
