"""A process that has imported everything and forks one gateway per order, so that hundreds of lives fit in a minute.

`python -m tests.faults.fork_server SOCKET [--shared]`, with the shim preloaded. Each connection brings one order; the
child speaks over it, and when the child is gone this process adds ``{"exit": status}`` (negative: the signal) and
closes it. An order with ``words`` and ``environment`` is a `parlour` command, or ``-m`` and one of our modules; it
writes to the first of the descriptors that come with it, and reads from the second. What it names as ``modules`` is
imported here, before the fork. A shared process leaves its starter, and removes the socket's folder.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import runpy
import secrets
import select
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import uvicorn

from agent.base import disk
from agent.llm.chat_model import ModelConfig
from agent.llm.openai_model import OpenAIModel
from agent.memory.search import embedding
from agent.memory.search.time_grammar import find_time_expressions
from gateway.app.chat_settings import build_web_tools
from gateway.app.composition import find_confinement
from gateway.errors import UserError
from gateway.installation import load_entry_points
from gateway.main import main as parlour
from gateway.settings import Settings
from tests.faults.child import GatewayChild
from tests.faults.process_order import ProcessOrder

_CRASHED = 70
_ORDER_BYTES = 1 << 20
_STREAMS = 2  # of a command: what it writes to, and what it reads
_GROUPS = ("parlour.channels", "parlour.stores", "parlour.models", "parlour.commands", "parlour.tools")


def main() -> None:
    """Serve until standard input closes, which it does when the test processes are gone, however they went."""
    os.environ.pop("LD_PRELOAD", None)  # for this process only, not for what it starts
    _import_the_rest()
    is_shared = "--shared" in sys.argv
    if is_shared:
        _leave_starter()
    awake, bell = socket.socketpair()
    for end in (awake, bell):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(bell.fileno())
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(sys.argv[1])
    listening.listen(64)
    gc.collect()
    gc.freeze()  # what is here stays as it is: children share its pages
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:
        sys.exit(f"importing left {threads - 1} thread(s) running; a fork would not have them")
    print("ready", flush=True)
    children: dict[int, socket.socket] = {}
    while True:
        readable, _, _ = select.select([sys.stdin, listening, awake], [], [])
        if sys.stdin in readable:
            break
        if awake in readable:
            awake.recv(4096)
            _reap(children)
        if listening in readable:
            connection, _ = listening.accept()
            pid = _fork(connection, [listening, awake, bell, *children.values()])
            children[pid] = connection
    listening.close()
    _kill(children)
    if is_shared:
        shutil.rmtree(Path(sys.argv[1]).parent)


def _leave_starter() -> None:
    if os.fork():
        os._exit(0)
    os.setsid()  # an interrupt from the keyboard is for the tests, which then close our input


def _kill(children: Iterable[int]) -> None:
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _import_the_rest() -> None:
    """Import what the gateway puts off until it is asked for.

    A child finds out what that is, since warming a model also starts threads, which a fork would not have.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.dup2(2, 1)  # stdout says when the zygote is ready, and nothing else
        asyncio.run(OpenAIModel(ModelConfig(model="openai/warm")).warm())
        uvicorn.Config(_nothing).load()
        build_web_tools(Settings(home=Path(os.devnull)))
        for group in _GROUPS:
            for entry in entry_points(group=group):
                entry.load()
        with os.fdopen(writing, "w") as names:
            names.write("\n".join(sys.modules))
            names.flush()
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as names:
        wanted = names.read().split()
    if os.waitpid(pid, 0)[1]:
        sys.exit("it could not be found out what a gateway imports")
    for group in _GROUPS:
        load_entry_points(group)  # read once here, not once a life
    for name in wanted:
        if name not in sys.modules and name != "__mp_main__":
            with suppress(ImportError):  # made at run time, not to be found again
                importlib.import_module(name)
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  # jsonschema would build a grammar of IRIs by it
    # What takes a gateway a tenth of a second and more, and is the same in every life.
    find_time_expressions("", datetime.now(UTC))
    find_confinement()
    embedding.find_installed_model = lambda: None  # they search by words, as without the extra `local`


async def _nothing(scope: object, receive: object, send: object) -> None:
    """Be an application."""


def _reap(children: dict[int, socket.socket]) -> None:
    for pid in list(children):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            connection = children.pop(pid)
            try:
                connection.sendall(json.dumps({"exit": os.waitstatus_to_exitcode(status)}).encode() + b"\n")
            except OSError:
                print(f"nobody waited for {pid}", file=sys.stderr)
            connection.close()


def _fork(connection: socket.socket, others: list[socket.socket]) -> int:
    line, descriptors, _, _ = socket.recv_fds(connection, _ORDER_BYTES, _STREAMS)
    while not line.endswith(b"\n"):
        line += connection.recv(_ORDER_BYTES)
    order = json.loads(line)
    for name in order.get("modules", ()):
        importlib.import_module(name)
    pid = os.fork()
    if pid:
        for descriptor in descriptors:
            os.close(descriptor)
        return pid
    status = _CRASHED
    try:
        # Said by the child: on a busy machine it is up before its parent has the processor again.
        connection.sendall(json.dumps({"pid": os.getpid()}).encode() + b"\n")
        signal.set_wakeup_fd(-1)
        for name in (signal.SIGCHLD, signal.SIGHUP):  # the second is ignored if the tests run under nohup
            signal.signal(name, signal.SIG_DFL)
        for other in others:
            other.close()
        disk._RUN = secrets.token_hex(4)  # what an import draws anew in every process that was not forked
        status = _command(order, *descriptors) if "words" in order else _live(ProcessOrder(**order), connection)
    except BaseException:  # noqa: BLE001 - a forked process must never return into the zygote's loop
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _live(order: ProcessOrder, connection: socket.socket) -> int:
    _to_log(order.log)
    try:
        asyncio.run(GatewayChild(order, connection).live())
    except UserError as mistake:
        print(mistake, file=sys.stderr)
        return 2
    return 0


def _command(order: Mapping[str, Any], output: int, typed: int) -> int:
    """Run a command or a module as a process of its own would; return its exit code."""
    _redirect(output, typed)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(order["environment"])
    words = order["words"]
    is_module = words[0] == "-m"
    sys.argv = words[1:] if is_module else ["parlour", *words]
    try:
        if is_module:
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            parlour()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _to_log(path: str) -> None:
    empty = os.open(os.devnull, os.O_RDONLY)
    _redirect(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), empty)


def _redirect(output: int, typed: int) -> None:
    """Make *output* what this process writes to, and *typed* what it reads."""
    for target, source in ((0, typed), (1, output), (2, output)):
        os.dup2(source, target)
    os.close(output)
    os.close(typed)


if __name__ == "__main__":
    main()
