"""One user against another: how long Ben waits for an answer while somebody attacks, beside a calm minute.

The gateway, its model and the attacker are processes of their own. To add an attack, write an asynchronous context
manager that attacks while it is open, and name it in `ATTACKS`; it runs in the attacker's process.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp

from tests.benchmarks.harness import median, percentile, row
from tests.fakes.gateway import GatewayProcess, gateway
from tests.fakes.openai_server import ScriptedAnswer, open_server
from tests.fakes.telegram_server import open_telegram

MARKUP = "# a\n*b **c _d `e` ~~f~~ [g](h) ![i](j) <k> &amp;\n" * 2_000  # 100,000 characters
ROUNDS, ANSWERS = 4, 12  # each round calm, then during the attack: the machine's own noise meets both
IDLE = 1_000
WINDOWS, WINDOWS_OF_ONE = 100, 20
LONG_MESSAGES = 25  # 5 MB
_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackTarget:
    """The gateway under attack, and a login of the attacker's own."""

    port: int
    cookie: str  # of the page's user `mallory`, as the header Cookie has it
    telegram: str  # a file: while it is there, new chats of Telegram ask for `MARKUP`

    @property
    def origin(self) -> str:
        """Where the page is, without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"


Attack = Callable[[AttackTarget], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def idle_connections(target: AttackTarget) -> AsyncIterator[None]:
    """Hold 1,000 connections: idle ones, half a header each, one byte of a body each; open what is closed again."""
    openings = (
        b"",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ",
        f"POST /login HTTP/1.1\r\nHost: 127.0.0.1:{target.port}\r\nOrigin: {target.origin}\r\n"
        "Content-Length: 4000\r\n\r\n{".encode(),
    )

    async def hold(opening: bytes) -> None:
        while True:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
                try:
                    writer.write(opening)
                    await reader.read()
                finally:
                    writer.close()
            # A thousand that hammer as fast as one core can would measure that core.
            await asyncio.sleep(1)

    async with AsyncExitStack() as stack:
        holding = [asyncio.create_task(hold(openings[n % len(openings)])) for n in range(IDLE)]
        stack.callback(lambda: [task.cancel() for task in holding])
        await asyncio.sleep(2)
        yield


@asynccontextmanager
async def history_flood(target: AttackTarget) -> AsyncIterator[None]:
    """Ask for a long history from 20 windows, ten times a second each, and read all that comes."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session, AsyncExitStack() as stack:
        await _fill_history(session, target)
        pages = [await stack.enter_async_context(_page(session, target)) for _ in range(WINDOWS_OF_ONE)]

        async def ask(page: aiohttp.ClientWebSocketResponse) -> None:
            while not page.closed:
                await page.send_json({"type": "look"})
                await asyncio.sleep(0.1)

        async def read(page: aiohttp.ClientWebSocketResponse) -> None:
            async for _ in page:
                pass

        flooding = [asyncio.create_task(each(page)) for page in pages for each in (ask, read)]
        stack.callback(lambda: [task.cancel() for task in flooding])
        await asyncio.sleep(2)
        yield


@asynccontextmanager
async def hundred_windows(target: AttackTarget) -> AsyncIterator[None]:
    """Open 100 windows of a long history at once, read them, close them, and begin again after a second."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session, AsyncExitStack() as stack:
        await _fill_history(session, target)

        async def visit() -> None:
            with suppress(aiohttp.ClientError):
                async with _page(session, target) as page:
                    await page.receive()
                    await asyncio.sleep(1)

        async def hammer() -> None:
            while True:
                await asyncio.gather(*(visit() for _ in range(WINDOWS)))

        task = asyncio.create_task(hammer())
        stack.callback(task.cancel)
        await asyncio.sleep(2)
        yield


@asynccontextmanager
async def frame_flood(target: AttackTarget) -> AsyncIterator[None]:
    """Send frames of almost a megabyte that are no frames, from 20 windows, as fast as they are taken."""
    frame = "[" + "1," * 450_000 + "1]"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session, AsyncExitStack() as stack:

        async def flood() -> None:
            with suppress(aiohttp.ClientError):
                async with _page(session, target) as page:
                    while True:
                        await page.send_str(frame)

        flooding = [asyncio.create_task(flood()) for _ in range(WINDOWS_OF_ONE)]
        stack.callback(lambda: [task.cancel() for task in flooding])
        await asyncio.sleep(2)
        yield


def _page(session: aiohttp.ClientSession, target: AttackTarget) -> AbstractAsyncContextManager[Any]:
    headers = {"Origin": target.origin, "Cookie": target.cookie}
    return session.ws_connect(f"{target.origin}/ws", headers=headers, max_msg_size=0)


async def _fill_history(session: aiohttp.ClientSession, target: AttackTarget) -> None:
    """Say the longest messages there are, unless an earlier round did, and wait for their answers.

    The windows of an earlier round count until the gateway has noticed that their process is gone: until then this
    one is refused, and asks again.
    """
    while True:
        async with _page(session, target) as page:
            frame = await page.receive_json(timeout=120)
            if frame["type"] == "history":
                if len(frame["lines"]) == 1:
                    await _say_long_messages(page)
                return
        await asyncio.sleep(2)


async def _say_long_messages(page: aiohttp.ClientWebSocketResponse) -> None:
    for n in range(LONG_MESSAGES):
        await page.send_json({"type": "say", "id": secrets.token_hex(8), "text": f"/help {n} {'ü' * 99_980}"})
        while not ((frame := await page.receive_json(timeout=120))["type"] == "message" and frame["last"]):
            pass


@asynccontextmanager
async def formatting(target: AttackTarget) -> AsyncIterator[None]:
    """Have answers written of which each costs as much formatting as an answer can."""
    flag = Path(target.telegram)
    await asyncio.to_thread(flag.touch)
    try:
        await asyncio.sleep(1)
        yield
    finally:
        await asyncio.to_thread(flag.unlink)


ATTACKS: dict[str, Attack] = {
    "1,000 idle connections": idle_connections,
    "20 windows flood with requests for history": history_flood,
    "100 windows at once, again and again": hundred_windows,
    "20 windows send large frames that are none": frame_flood,
    "formatting": formatting,
}


def answer(body: Mapping[str, Any], n: int) -> ScriptedAnswer:
    """Answer at once; what an attack wants of the model is asked for by its message."""
    asked = next((str(each["content"]) for each in reversed(body["messages"]) if each["role"] == "user"), "")
    return ScriptedAnswer(text=MARKUP, pieces=10_000) if "markup" in asked else ScriptedAnswer(text=f"Answer {n}.")


async def attacked() -> None:
    """Measure Ben's answers calm and during each attack, and print the ratio of the medians (goal: below 1.2)."""
    for name in ATTACKS:
        with tempfile.TemporaryDirectory(prefix="parlour-attack-") as folder, _child(_serve_model) as model:
            flag = str(Path(folder) / "telegram")
            with _child(_serve_telegram, flag) as telegram:
                settings = _settings(model.recv()) | telegram.recv()
                async with gateway(Path(folder) / "home", **settings) as process:
                    await _measure(process, name, flag)


def _settings(base: str) -> dict[str, str]:
    return {
        "PARLOUR_LLM__MODEL": "openai/test",
        "PARLOUR_LLM__API_BASE": base,
        "PARLOUR_LLM__API_KEY": "k",
        "PARLOUR_WEB__LOGIN": "always",
    }


async def _measure(process: GatewayProcess, name: str, telegram: str) -> None:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        target = AttackTarget(port=process.port, cookie=await _login(process, session, "mallory"), telegram=telegram)
        await _login(process, session, "ben")
        async with session.ws_connect(f"{process.url}ws", origin=target.origin, max_msg_size=0) as page:
            await _answers(page, 5)
            calm, during = list[float](), list[float]()
            for _ in range(ROUNDS):
                await asyncio.sleep(3)  # until the windows of the attack before are gone
                calm += await _answers(page, ANSWERS)
                with _child(_run_attack, name, target) as attacker:
                    await _wait_ready(attacker, page)
                    during += await _answers(page, ANSWERS)
    row(
        name,
        calm_ms=median(calm) * 1e3,
        calm_p95_ms=percentile(calm, 0.95) * 1e3,
        during_ms=median(during) * 1e3,
        during_p95_ms=percentile(during, 0.95) * 1e3,
        ratio=median(during) / median(calm),
    )


async def _wait_ready(attacker: Connection, page: aiohttp.ClientWebSocketResponse) -> None:
    """Wait until the attack has begun; read meanwhile, since a page that answers no ping is closed."""
    ready = asyncio.create_task(asyncio.to_thread(attacker.recv))
    while not ready.done():
        with suppress(TimeoutError):
            await page.receive(timeout=0.5)


async def _login(process: GatewayProcess, session: aiohttp.ClientSession, who: str) -> str:
    code = (await process.command("web", "login", "--as", who)).split()[0]
    session.cookie_jar.clear()
    headers = {"Origin": process.url.rstrip("/")}
    async with session.post(f"{process.url}login", json={"code": code}, headers=headers) as reply:
        reply.raise_for_status()
        return "; ".join(f"{cookie.key}={cookie.value}" for cookie in reply.cookies.values())


async def _answers(page: aiohttp.ClientWebSocketResponse, count: int) -> list[float]:
    """Return the seconds of *count* answers, one after the other."""
    seconds = []
    for n in range(count):
        begun = time.perf_counter()
        await page.send_json({"type": "say", "id": secrets.token_hex(8), "text": f"question {n}"})
        while True:
            frame = await page.receive_json(timeout=120)
            if frame["type"] == "message" and frame["last"]:
                break
        seconds.append(time.perf_counter() - begun)
        await asyncio.sleep(0.05)
    return seconds


@contextmanager
def _child(work: Callable[..., None], *arguments: object) -> Iterator[Connection]:
    """Run *work* in a process of its own until the block ends; yield the pipe on which it says that it is ready."""
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=work, args=(theirs, *arguments), daemon=True)
    process.start()
    try:
        yield ours
    finally:
        process.terminate()
        process.join()


def _serve_model(pipe: Connection) -> None:
    async def serve() -> None:
        async with open_server(answer) as server:
            pipe.send(server.base)
            await asyncio.Event().wait()

    asyncio.run(serve())


def _serve_telegram(pipe: Connection, flag: str) -> None:
    async def serve() -> None:
        async with open_telegram() as server:
            server.now = lambda: int(time.time())
            chats = itertools.count(1_000)
            block = "PARLOUR_CHANNELS__TELEGRAM__"
            pipe.send(
                {
                    f"{block}TOKEN": server.token,
                    f"{block}BASE_URL": f"{server.base}/bot",
                    f"{block}ALLOW_FROM": ",".join(map(str, range(1_000, 2_000))),
                }
            )
            while True:
                if await asyncio.to_thread(Path(flag).exists):
                    chat = next(chats)
                    server.say("markup, please", chat=chat, sender=chat)
                await asyncio.sleep(0.1)

    os.nice(10)
    asyncio.run(serve())


def _run_attack(pipe: Connection, name: str, target: AttackTarget) -> None:
    async def attack() -> None:
        async with ATTACKS[name](target):
            pipe.send("attacking")
            await asyncio.Event().wait()

    os.nice(10)  # a real one has a machine of its own
    asyncio.run(attack())
