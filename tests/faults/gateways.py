"""Gateways that share one PostgreSQL, killed at random while people write on Telegram, then audited.

python -m tests.faults.gateways --workers 4 --chats 100 --seconds 300 --kill-every 2

A random gateway is killed at each interval and started again; then PostgreSQL is killed, `--server-kills` times. When
every message is answered, the database, the platform and the transcripts that a new gateway fetches are compared with
what people wrote. The last line counts what is lost, doubled without a mark or out of order; the exit code is 1 if
anything is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.benchmarks.harness import percentile
from tests.fakes.gateway import GatewayProcess, free_port
from tests.fakes.openai_server import FakeOpenAI, ScriptedAnswer, open_server
from tests.fakes.postgres_server import PostgresServer
from tests.fakes.postgres_server import open_server as open_postgres
from tests.fakes.telegram_gateway import settings_for
from tests.fakes.telegram_server import TelegramServer, open_telegram
from tests.faults.process_pool import ForkServer, open_zygote

TOKEN = re.compile(r"\bm(\d+)-(\d+)\b")  # chat and number of a message
_ANSWER = "answer to "
_FIRST_CHAT = 1_000
_POLL = 0.02  # seconds
_SETTLED = 240.0  # seconds until everything is answered after the last kill
_OPEN = (
    "SELECT (SELECT count(*) FROM inbox WHERE ended_at IS NULL) + (SELECT count(*) FROM outbox WHERE open IS NOT NULL)"
    " + (SELECT count(*) FROM body)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosPlan:
    """How many of what, for how long."""

    workers: int = 4
    chats: int = 100
    seconds: float = 300.0
    kill_every: float = 2.0  # seconds
    pause: float = 8.0  # seconds between two messages of a chat, on average
    server_kills: int = 3
    latency: float = 0.5  # seconds of the model, at most


@dataclass(slots=True)
class ChaosReport:
    """What the audit found; each line of `wrong` is a promise that was not kept."""

    messages: int = 0
    turns: int = 0
    kills: int = 0
    server_kills: int = 0
    marked: int = 0
    takeovers: list[float] = field(default_factory=list)  # seconds until the killed worker's row is gone
    wrong: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the report as printed."""
        found = [
            f"messages {self.messages}  turns {self.turns}  gateways killed {self.kills}"
            f"  PostgreSQL killed {self.server_kills}  load {os.getloadavg()[0]:.1f}"
        ]
        if self.takeovers:
            p50, p99, most = (percentile(self.takeovers, share) for share in (0.5, 0.99, 1.0))
            found.append(f"takeovers {len(self.takeovers)}  p50 {p50:.2f} s  p99 {p99:.2f} s  longest {most:.2f} s")
        found += self.wrong[:40]
        kinds = Counter(line.partition(":")[0] for line in self.wrong)
        counts = "  ".join(f"{kind} {kinds[kind]}" for kind in ("lost", "doubled", "out of order", "other"))
        return [*found, f"{counts}  marked as possible duplicates {self.marked}"]


def scripted_answer(body: Mapping[str, Any], latency: float) -> ScriptedAnswer:
    """Return the answer that names every message since the last answer."""
    said: list[str] = []
    for message in reversed(body["messages"]):
        if message["role"] == "assistant":
            break
        if message["role"] == "user":
            said.append(str(message["content"]))
    names = dict.fromkeys(found[0] for text in reversed(said) for found in TOKEN.finditer(text))
    return ScriptedAnswer(text=_ANSWER + " ".join(names), latency=random.uniform(0, latency))  # noqa: S311


class ChaosRun:
    """The gateways, the people who write, and what was killed."""

    def __init__(
        self, plan: ChaosPlan, folder: Path, server: PostgresServer, telegram: TelegramServer, model: FakeOpenAI,
        zygote: ForkServer,
    ) -> None:  # fmt: skip
        self.plan = plan
        self.report = ChaosReport()
        self._server = server
        self._telegram = telegram
        self._folder = folder
        self._zygote = zygote
        self._model = model
        self._environment = {
            **settings_for(telegram, ALLOW_FROM="*", PARLOUR_ALLOW_EVERYONE="true"),
            "PARLOUR_STORE__URL": server.address, "PARLOUR_STORE__SHARED": "true",
            "PARLOUR_LLM__MODEL": "openai/scripted", "PARLOUR_LLM__API_BASE": model.base,
            "PARLOUR_LLM__API_KEY": "sk-x",
            "PARLOUR_CAPS__PERSON_TURNS_PER_10_MIN": "0", "PARLOUR_CAPS__PERSON_TOKENS_PER_DAY": "0",
        }  # fmt: skip
        self._gateways = [self._new_gateway(f"home{number}") for number in range(plan.workers)]
        self._running: set[GatewayProcess] = set()
        self._said: Counter[int] = Counter()  # messages of each chat

    def _new_gateway(self, name: str) -> GatewayProcess:
        return GatewayProcess(self._folder / name, free_port(), self._zygote, **self._environment)

    async def play(self) -> ChaosReport:
        """Let people write, kill, wait until everything is answered, and audit."""
        try:
            await asyncio.gather(*map(self._start, self._gateways))
            async with asyncio.TaskGroup() as group:
                writing = [group.create_task(self._write(chat)) for chat in range(self.plan.chats)]
                await self._kill_gateways(group)
                await self._kill_server(group)
                for task in writing:
                    task.cancel()
            await self._settle()
            for gateway in list(self._running):
                if code := await gateway.stop():
                    self.report.wrong.append(f"other: a gateway ended with {code}: {gateway.log[-1]}")
                self._running.discard(gateway)
            await self._audit()
        finally:
            for gateway in self._gateways:
                await gateway.close()
        return self.report

    async def _start(self, gateway: GatewayProcess) -> None:
        await gateway.start()
        self._running.add(gateway)

    async def _write(self, chat: int) -> None:
        while True:
            await asyncio.sleep(random.uniform(0, 2 * self.plan.pause))  # noqa: S311
            place = _FIRST_CHAT + chat
            self._telegram.say(f"m{chat}-{self._said[chat]}", chat=place, sender=place)
            self._said[chat] += 1

    async def _kill_gateways(self, group: asyncio.TaskGroup) -> None:
        until = time.monotonic() + self.plan.seconds
        while time.monotonic() < until:
            await asyncio.sleep(self.plan.kill_every)
            if not self._running:
                continue
            victim = random.choice(sorted(self._running, key=lambda each: each.port))  # noqa: S311
            self._running.discard(victim)
            group.create_task(self._replace(victim))
        while len(self._running) < self.plan.workers:  # noqa: ASYNC110 - each restart is a task of its own
            await asyncio.sleep(_POLL)

    async def _replace(self, victim: GatewayProcess) -> None:
        found = self._server.query(f"SELECT name FROM worker WHERE process = {victim.pid}")  # noqa: S608
        killed_at = time.monotonic()
        await victim.kill()
        self.report.kills += 1
        starting = asyncio.create_task(self._start(victim))
        for (name,) in found:
            await self._until(f"SELECT count(*) FROM worker WHERE name = '{name}'")  # noqa: S608
            self.report.takeovers.append(time.monotonic() - killed_at)
        await starting

    async def _kill_server(self, group: asyncio.TaskGroup) -> None:
        for _ in range(self.plan.server_kills):
            await asyncio.sleep(random.uniform(2, 6))  # noqa: S311
            await asyncio.to_thread(self._server.kill)
            self.report.server_kills += 1
            await asyncio.sleep(random.uniform(0, 2))  # noqa: S311
            await asyncio.to_thread(self._server.start)
            for gateway in list(self._running):  # one whose work was taken over ends, and its service manager starts it
                if gateway.has_ended:
                    self._running.discard(gateway)
                    await gateway.close()
                    group.create_task(self._start(gateway))
        await asyncio.sleep(2)

    async def _until(self, count: str, limit: float = 60.0) -> None:
        """Return when the query *count* returns 0. Raises TimeoutError after *limit* seconds."""
        until = time.monotonic() + limit
        while self._server.query(count) != [(0,)]:
            if time.monotonic() > until:
                raise TimeoutError(count)
            await asyncio.sleep(_POLL)

    async def _settle(self) -> None:
        """Wait until everything is answered; what is not by then is found by the audit."""
        until = time.monotonic() + _SETTLED
        total = sum(self._said.values())
        while time.monotonic() < until:
            if self._server.query("SELECT count(*) FROM inbox WHERE state = 'answered'") == [(total,)]:
                break
            await asyncio.sleep(0.2)
        try:
            await self._until(_OPEN)
        except TimeoutError:
            self.report.wrong.append("other: something is open in the database a minute after the last answer")

    # -- the audit -----------------------------------------------------------------------------

    async def _audit(self) -> None:
        self.report.messages = sum(self._said.values())
        self._audit_database()
        self._audit_platform()
        fresh = self._new_gateway("fresh")
        try:
            await fresh.start()
            self._audit_transcripts()
        finally:
            await fresh.close()

    def _wrong(self, kind: str, *words: object) -> None:
        self.report.wrong.append(f"{kind}: {' '.join(map(str, words))}")

    def _audit_database(self) -> None:
        query = self._server.query
        for state, count in query("SELECT state, count(*) FROM inbox GROUP BY state"):
            if state != "answered":
                self._wrong("lost", count, "inbox rows are", state)
        ((turns, distinct),) = query("SELECT count(*), count(DISTINCT turn) FROM record")
        self.report.turns = distinct
        if turns != distinct:
            self._wrong("doubled", turns - distinct, "turn records")
        self._audit_turns()
        for table in ("dead", "claim", "worker"):
            if (found := query(f"SELECT count(*) FROM {table}")) != [(0,)]:  # noqa: S608
                self._wrong("other", found[0][0], "rows in", table)

    def _audit_turns(self) -> None:
        """Each inbox row belongs to one turn, and the turns of a session follow its rows."""
        query = self._server.query
        rows: Counter[int] = Counter()
        last: dict[str, int] = {}
        for key, inbox in query("SELECT key, inbox FROM record ORDER BY seq"):
            for row in map(int, json.loads(inbox)):
                rows[row] += 1
                if row <= last.get(key, 0):
                    self._wrong("out of order", "inbox row", row, "of", key)
                last[key] = max(row, last.get(key, 0))
        known = {seq for (seq,) in query("SELECT seq FROM inbox")}
        for row in known - rows.keys():
            self._wrong("lost", "inbox row", row, "has no turn")
        for row, times in rows.items():
            if times > 1:
                self._wrong("doubled", "inbox row", row, "has", times, "turns")
        if len(known) != self.report.messages:
            self._wrong("other", len(known), "rows for", self.report.messages, "messages")

    def _audit_platform(self) -> None:
        shown: dict[int, list[str]] = {}
        for post in self._telegram.posts:
            text = post.text
            answer = next((line for line in text.splitlines() if line.startswith(_ANSWER)), None)
            chat = post.chat - _FIRST_CHAT
            if answer is None:
                self._wrong("other", "chat", chat, "shows", repr(text[:100]))
            elif answer == text:
                shown.setdefault(chat, []).append(answer)
            else:
                self.report.marked += 1  # an outcome that nobody knows: sent before, or not
                if answer not in shown.setdefault(chat, []):
                    shown[chat].append(answer)
        for chat, count in self._said.items():
            self._compare(f"chat {chat}", chat, count, TOKEN.findall(" ".join(shown.get(chat, ()))))

    def _audit_transcripts(self) -> None:
        said: dict[int, list[tuple[str, str]]] = {}
        for (body,) in self._server.query("SELECT body FROM record WHERE body IS NOT NULL ORDER BY seq"):
            for line in bytes(body).splitlines():
                fields = json.loads(line)
                if fields.get("role") == "assistant":
                    for chat, number in TOKEN.findall(str(fields.get("content", ""))):
                        said.setdefault(int(chat), []).append((chat, number))
        for chat, count in self._said.items():
            self._compare(f"transcript {chat}", chat, count, said.get(chat, ()))

    def _compare(self, where: str, chat: int, count: int, found: Iterable[tuple[str, str]]) -> None:
        """Compare the messages that were answered somewhere with those that were written."""
        numbers = [int(number) for name, number in found if int(name) == chat]
        times = Counter(numbers)
        if missing := [number for number in range(count) if number not in times]:
            self._wrong("lost", where, missing)
        if doubled := [number for number, each in times.items() if each > 1]:
            self._wrong("doubled", where, doubled)
        if list(times) != sorted(times):
            self._wrong("out of order", where, numbers)


async def run_chaos(plan: ChaosPlan, zygote: ForkServer, server: PostgresServer, folder: Path) -> ChaosReport:
    """Play *plan* on a database with empty tables, and return what the audit found."""
    script: Callable[[Mapping[str, Any], int], ScriptedAnswer] = lambda body, _: scripted_answer(body, plan.latency)  # noqa: E731
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(open_server(script))
        telegram = await stack.enter_async_context(open_telegram())
        telegram.now = lambda: int(time.time())
        return await ChaosRun(plan, folder, server, telegram, model, zygote).play()


def main() -> int:
    """Run once and print the report."""
    parser = argparse.ArgumentParser(description="kill gateways that share a database, and audit what is left")
    for name in ("workers", "chats", "server_kills"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(ChaosPlan(), name))
    for name in ("seconds", "kill_every", "pause", "latency"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=getattr(ChaosPlan(), name))
    plan = ChaosPlan(**vars(parser.parse_args()))
    print(plan, flush=True)
    server = open_postgres()
    try:
        with open_zygote() as zygote, tempfile.TemporaryDirectory(prefix="parlour-gateways-") as folder:
            report = asyncio.run(run_chaos(plan, zygote, server, Path(folder)))
    finally:
        server.close()
    print(*report.lines(), sep="\n")
    return int(bool(report.wrong))


if __name__ == "__main__":
    sys.exit(main())
