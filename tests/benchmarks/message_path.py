"""How much of the tree a message runs through: files, functions and store calls of one warm text over Telegram.

It is the figure of a reader who follows a message with a debugger. What runs only at the start, or for the first
message of a chat, does not count; what runs behind the answer does. Loops that run every second without any message do
not count in their own tasks. What they do in the store's thread does, because the thread does not know whose it is.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

from tests.benchmarks.harness import row
from tests.fakes.inprocess_gateway import InstantModel
from tests.fakes.store import WriterLog, writer_of
from tests.fakes.telegram_gateway import open_gateway
from tests.fakes.telegram_server import open_telegram

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("gateway", "channels", "agent")
WARM = 4  # messages before the one that counts
PACE, BEHIND = 1.3, 3.0  # seconds between messages, and for what runs behind the answer
PERIODIC = frozenset({"store_watcher", "store measurement", "alert of the store", "web server", "control server"})


class CallTracer:
    """Collects the functions that are called, in every thread that starts once it is installed."""

    def __init__(self) -> None:
        self.is_on = False
        self.called: set[CodeType] = set()

    def install(self) -> None:
        """Trace this thread and those that are started later."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def remove(self) -> None:
        """Stop tracing in this thread, and in those that are started later."""
        threading.setprofile(None)
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        if self.is_on and event == "call" and _task_name() not in PERIODIC:
            self.called.add(frame.f_code)

    def functions(self) -> list[tuple[str, str]]:
        """Return the path below the root and the qualified name of each named function of ours, sorted."""
        found = set()
        for code in self.called:
            path = Path(code.co_filename)
            if not path.is_relative_to(ROOT) or code.co_name.startswith("<"):
                continue
            relative = path.relative_to(ROOT)
            if relative.parts[0] in PACKAGES:
                found.add((str(relative), code.co_qualname))
        return sorted(found)


def _task_name() -> str:
    """Return the name of the task that runs in this thread; "" for none."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # a thread without a loop
        return ""
    return "" if task is None else task.get_name()


async def measure(*, listed: bool = False) -> None:
    """Print the files and named functions of one warm text; *listed* prints each file with its count too."""
    tracer = CallTracer()
    tracer.install()
    try:
        async with open_telegram() as server, open_gateway(server, InstantModel()) as up:
            server.now = lambda: int(time.time())
            calls = WriterLog(writer_of(up.app.store))

            async def ask(text: str) -> None:
                posts = len(server.posts)
                server.say(text, chat=42, sender=42)
                await server.until(lambda: len(server.posts) > posts)

            for number in range(WARM):
                await ask(f"warm {number}")
                await asyncio.sleep(PACE)
            calls.clear()
            tracer.is_on = True
            await ask("the one that counts")
            await asyncio.sleep(BEHIND)
            tracer.is_on = False
            row("store calls of a warm text", operations=len(calls.operations), transactions=len(calls.transactions))
    finally:
        tracer.remove()
    functions = tracer.functions()
    files = Counter(path for path, _name in functions)
    row("one warm text over Telegram", files=len(files), functions=len(functions))
    if listed:
        for path, count in sorted(files.items()):
            print(f"{count:4} {path}")


if __name__ == "__main__":
    asyncio.run(measure(listed=True))
