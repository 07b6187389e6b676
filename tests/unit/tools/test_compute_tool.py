"""The tool `compute`: it calculates, and hostile code reaches nothing and costs little."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from agent.attachments.process_confinement import PRIVATE_ROOT, can_confine, landlock_version, probe_confinement
from agent.code import compute_tool
from agent.code.compute_tool import compute
from agent.llm.chat_model import ToolCall
from agent.tools.toolbox import Toolbox, ToolOutcome
from gateway.settings.settings_model import CodeSettings, ToolSettings, disabled_tools
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
        ("x = ['a']\nwhile True: x += x", "killed: more than 64 MB of memory"),
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
    async with asyncio.timeout(60):
        outcome = await run(code)
    assert outcome.is_error
    assert why in outcome.text


@needs_code
async def test_no_terminal_obeys_the_output() -> None:
    """Escape sequences, bells and characters that turn text around are taken out of what is printed."""
    assert (await run(r"print('\x1b[2J\x07\u202eabc')")).text == "[2Jabc"


@pytest.fixture(autouse=True)
def _no_child_stays() -> Iterator[None]:
    """End the children after each test, as a minute without calls does."""
    yield
    compute_tool._children.close()


@needs_code
async def test_no_call_sees_another_and_no_worker_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls see nothing of each other, each worker ends with its call, and the child a while after the last one."""
    outcomes = await asyncio.gather(*(run("try:\n  x\nexcept NameError:\n  x = 1\nprint(x)") for _ in range(4)))
    assert {each.text for each in outcomes} == {"1"}
    children = _children()
    assert 1 <= len(children) <= 2
    workers = _workers()
    compute_tool._children.close()
    await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children | workers))
    monkeypatch.setattr(compute_tool, "IDLE", timedelta(milliseconds=1))
    assert (await run("1")).text == "1"
    await until(lambda: not _children())


@needs_code
async def test_each_call_has_a_worker_of_its_own() -> None:
    """Two calls in a row run in one child, and in two workers."""
    earlier: set[str] = set()
    for _ in range(2):
        task = asyncio.create_task(run("while True: pass"))
        await until(lambda old=frozenset(earlier): any(map(_is_busy, _workers() - old)))  # type: ignore[misc]
        earlier |= {pid for pid in _workers() if _is_busy(pid)}
        await task
    assert len(_children()) == 1
    assert len(earlier) == 2


@needs_code
async def test_a_cancelled_call_leaves_no_worker() -> None:
    """`/stop` ends the child and its worker, whatever they do."""
    task = asyncio.create_task(run("while True: pass"))
    await until(lambda: any(map(_is_busy, _workers())))
    gone = _children() | _workers()
    task.cancel()
    await asyncio.wait({task})
    await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in gone))


@needs_code
async def test_a_child_that_is_killed_costs_one_call() -> None:
    """Killed from outside, or by the system: the model reads it, and the next call has another child."""
    task = asyncio.create_task(run("while True: pass"))
    await until(lambda: any(map(_is_busy, _workers())))
    for pid in _children():
        os.kill(int(pid), signal.SIGKILL)
    assert "was killed" in (await task).text
    assert (await run("1 + 1")).text == "2"


@needs_code
async def test_the_processes_have_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our keys are neither in the process that runs the code nor in its parent."""
    monkeypatch.setenv("PARLOUR_LLM__API_KEY", "secret")
    await run("1")
    await until(lambda: bool(_workers()))  # the next call's worker starts behind the answer
    processes = _children() | _workers()
    assert len(processes) >= 2
    assert not any("secret" in _read(pid, "environ") for pid in processes)


# What a bug in the interpreter could try: the worker is Python here, which the kernel confines as it does the worker.
ATTEMPTS = """
import ctypes, os, socket, sys
sys.path[:0] = [ROOT]
from agent.code.compute_process import drop_privileges
victim, program = VICTIM, os.path.realpath(sys.executable)
drop_privileges(program)
tries = '''
import os, socket, sys
victim = sys.argv[1]
TRIES = {
    "TCP": lambda: socket.socket(),
    "UDP": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
    "Unix": lambda: socket.socket(socket.AF_UNIX),
    "read": lambda: open(victim).read(),
    "write": lambda: open(victim, "w"),
    "remove": lambda: os.unlink(victim),
    "list": lambda: os.listdir(os.path.dirname(victim)),
    "environment of the gateway": lambda: open(sys.argv[2]).read(),
    "program": lambda: os.execv("/bin/sh", ["sh", "-c", "true"]),
    "kill": lambda: os.kill(1, 0),
    "kill the gateway": lambda: os.kill(int(sys.argv[3]), 0),
    "leave the group": lambda: os.setsid(),
    "memory": lambda: bytearray(2 << 30),
}
for name, attempt in TRIES.items():
    try:
        attempt()
    except (OSError, MemoryError):
        continue
    print(name)
print("ran")
'''
import subprocess
done = subprocess.run(
    [program, "-I", "-S", "-c", tries, victim, f"/proc/{os.getppid()}/environ", str(os.getppid())],
    capture_output=True, text=True,
)
print(done.stdout, done.stderr)
"""


@needs_code
@pytest.mark.skipif(not can_confine(), reason="needs seccomp")
async def test_the_real_worker_is_confined_too() -> None:
    """It is started by the thread that the kernel confines: both have the filter and can get no new rights.

    Where a private root can be had, both are in it.
    """
    is_private = PRIVATE_ROOT in await asyncio.to_thread(probe_confinement)
    await run("1")
    await until(lambda: bool(_workers()))  # the next call's, which starts behind the answer
    for pid in _children() | _workers():
        status = dict(line.split(":\t") for line in _read(pid, "status").splitlines() if ":\t" in line)
        assert (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1")
        assert int(status["CapPrm"], 16) | 0b110 == 0b110  # of root: no more than files of others
        assert (_read(pid, "root/etc/passwd") == "") is is_private


@pytest.mark.skipif(not landlock_version(), reason="needs Landlock")
def test_the_kernel_confines_the_worker(tmp_path: Path) -> None:
    """Whatever the interpreter's code becomes: no file, no network, no program, no signal, no gigabyte."""
    victim = tmp_path / "secret.txt"
    victim.write_text("secret")
    program = ATTEMPTS.replace("VICTIM", repr(str(victim))).replace("ROOT", repr(str(Path.cwd())))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603 - ours
    assert done.stdout.split() == ["ran"], done
    assert victim.read_text() == "secret"


async def until(condition: Callable[[], bool]) -> None:
    """Return when *condition* is true."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - processes tell nobody
            await asyncio.sleep(0.001)


def _children(of: int | str = "self", name: str = "compute_process") -> set[str]:
    """Return the processes that a process has started, and whose command line has *name*."""
    pids: set[str] = set()
    with suppress(OSError):  # it has just ended
        for task in Path(f"/proc/{of}/task").iterdir():
            with suppress(OSError):
                pids.update((task / "children").read_text("ascii").split())
    return {pid for pid in pids if name in _read(pid, "cmdline")}


def _workers() -> set[str]:
    """Return the running interpreters of our children."""
    return {worker for child in _children() for worker in _children(child, "monty")}


def _is_busy(pid: str) -> bool:
    """Return True if the process has worked for a tenth of a second."""
    return sum(map(int, _read(pid, "stat").rpartition(")")[2].split()[11:13])) >= 10


def _read(pid: str, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text("utf-8")
    except OSError:
        return ""


def test_it_is_off_where_it_is_not_installed_or_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entry point is not loaded then."""
    assert "compute" in disabled_tools(ToolSettings(code=CodeSettings(compute=False)))
    monkeypatch.setattr("gateway.settings.settings_model.find_spec", lambda _: None)
    assert "compute" in disabled_tools(ToolSettings())
    monkeypatch.setattr("gateway.settings.settings_model.find_spec", lambda _: object())
    assert "compute" not in disabled_tools(ToolSettings())


def test_nothing_is_imported_before_the_first_call() -> None:
    """A start with the tool on loads no interpreter."""
    program = "import sys, agent.code.compute_tool; print('pydantic_monty' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603 - ours
    assert done.stdout == "False\n"


def test_its_absence_is_in_the_list_of_abilities() -> None:
    """A bot without it says so when it is asked to calculate with code."""
    assert "- calculate with code" in Toolbox([]).abilities
    assert "- calculate with code" not in BOX.abilities
