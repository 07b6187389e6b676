"""The whole gateway before the small Discord, as processes that can be killed: forked from one that has imported all.

`DiscordForkServer` is the test's half. A life is told when it begins (the clocks of both can stand in the past), how
its model behaves, and is ended by SIGKILL alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.fakes.chat_model import FakeChatModel
from tests.fakes.discord_records import ANN, BEN, TEAM_ROLE, TOKEN

_ROOT = Path(__file__).parents[2]
_CRASHED = 70


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscordProcessOrder:
    """One life; travels as one JSON line."""

    home: str
    base: str  # where Discord is
    log: str
    ago: float = 0.0  # seconds that its clock stands behind
    holds: bool = False  # the model says its first words, and no more
    words: int = 0  # of an answer beyond what was asked


class DiscordForkServer:
    """The forking process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._living: set[int] = set()

    def begin(self, order: DiscordProcessOrder) -> int:
        """Have a gateway made; return its process id. What it has to say is seen on Discord."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
        self._process.stdin.flush()
        pid = int(self._process.stdout.readline())
        self._living.add(pid)
        return pid

    def kill(self, pid: int) -> None:
        """End it as a power cut would; once."""
        if pid in self._living:
            self._living.discard(pid)
            os.kill(pid, signal.SIGKILL)

    def kill_all(self) -> None:
        """End whatever lives."""
        for pid in list(self._living):
            self.kill(pid)


@contextmanager
def open_nursery() -> Iterator[DiscordForkServer]:
    """Start the forking process; nothing of it is left afterwards."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PARLOUR_")}
    command = [sys.executable, "-m", "tests.fakes.discord_process"]
    process = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=kept)  # noqa: S603 - ours
    nursery = DiscordForkServer(process)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield nursery
    finally:
        nursery.kill_all()
        process.communicate(timeout=20)


# The child's half.


def main() -> None:
    """Fork a gateway for each line, until standard input closes."""
    _import_all()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended
    print("ready", flush=True)
    while select.select([sys.stdin], [], [])[0] and (line := sys.stdin.readline()):
        pid = os.fork()
        if not pid:
            _live(DiscordProcessOrder(**json.loads(line)))
        print(pid, flush=True)


def _import_all() -> None:
    from importlib.metadata import entry_points

    import time_machine  # noqa: F401 - for the children
    import uvicorn

    import gateway.app  # noqa: F401 - for the children
    from channels.discord.adapter import DiscordChannel

    # The pause before a new session, where an old one was not taken up again; the small Discord asks for none.
    DiscordChannel.__init__.__kwdefaults__ = {"identify_pause": 0.05}
    uvicorn.Config(_nothing).load()
    for group in ("parlour.channels", "parlour.commands", "parlour.tools"):
        for entry in entry_points(group=group):
            entry.load()


async def _nothing(scope: object, receive: object, send: object) -> None:
    """Be an application."""


def _live(order: DiscordProcessOrder) -> None:
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        empty = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, empty), (1, log), (2, log)):
            os.dup2(source, target)
        _run(order)
    except BaseException:  # noqa: BLE001 - a forked process must never return into the loop above
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(_CRASHED)


def _run(order: DiscordProcessOrder) -> None:
    import time_machine

    if order.ago:
        time_machine.travel(datetime.now(UTC) - timedelta(seconds=order.ago), tick=True).start()
    asyncio.run(_serve(order))


async def _serve(order: DiscordProcessOrder) -> None:
    from gateway.app.composition import run
    from gateway.app.context import ExtraPlugins
    from gateway.settings import load_settings

    settings = load_settings(_environment(order))
    await run(settings, plugins=ExtraPlugins(models=(_model(order),)))


def _environment(order: DiscordProcessOrder) -> Mapping[str, str]:
    return {
        "PARLOUR_HOME": order.home,
        "PARLOUR_WEB__PORT": "0",
        "PARLOUR_TIMEZONE": "UTC",
        "PARLOUR_CHANNELS__DISCORD__TOKEN": TOKEN,
        "PARLOUR_CHANNELS__DISCORD__API_URL": f"http://{order.base}/api/v10",
        "PARLOUR_CHANNELS__DISCORD__GATEWAY_URL": f"ws://{order.base}/gateway",
        "PARLOUR_CHANNELS__DISCORD__ALLOW_FROM": f"{ANN},{BEN},role:{TEAM_ROLE}",
    }


def _model(order: DiscordProcessOrder) -> Any:
    from agent.llm.chat_model import ChatReply, ChatRequest, Sink, TokenUsage

    class EchoReply(FakeChatModel):
        """Repeats what it was asked, or begins to and stops."""

        name = "parrot"

        async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
            asked = [str(each["content"]) for each in request.messages if each["role"] == "user"]
            text = f"These are the first words of an answer to: {asked[-1]}" + " word" * order.words
            if sink is not None:
                sink(text)
            if order.holds:
                await asyncio.Event().wait()
            return ChatReply(text=text, tool_calls=(), model=self.name, tokens=TokenUsage(), cost=None)

    return EchoReply()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
