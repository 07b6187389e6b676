"""One run of the explorer: steps are taken for a while, faults among them, and then everything is checked."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from tests.fakes.postgres_server import PostgresServer
from tests.faults.explorer import places
from tests.faults.explorer.child_gateway import TAKEN_OVER
from tests.faults.explorer.gateway_team import ExploredGateway, GatewayTeam, eventually
from tests.faults.explorer.people import People, document_of
from tests.faults.explorer.steps import ExplorerStep, draw_steps
from tests.faults.explorer.truth import LinkedPair, Presence, Truth
from tests.faults.explorer.wire_platform import TOKEN, WirePlatform
from tests.faults.process_pool import ForkServer

PEOPLE = ("ann1", "ann2", "bob1", "bob2", "cat1")
GROUPS = ("-team",)
_BUSY = 20  # steps of people at once
_RESTS = 90.0  # seconds until everything is done after the last step
_ON_ITS_WAY = 0.3
_UP = 60.0
_AHEAD = (0.0, 170.0, -140.0)  # seconds of the gateways' clocks
_SETTINGS = {
    "PARLOUR_WEB__PORT": "0", "PARLOUR_LOG__LEVEL": "error", "PARLOUR_AGENT__MERGE": "split",
    "PARLOUR_AGENTS__DEFAULTS__MEMORY_WINDOW": "12", "PARLOUR_CAPS__PERSON_TURNS_PER_10_MIN": "0",
    "PARLOUR_CAPS__PERSON_TOKENS_PER_DAY": "0", "PARLOUR_CAPS__BACKGROUND_TOKENS_PER_DAY": "0",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplorerPlan:
    """What a run is made of."""

    seed: int
    minutes: float = 1.0
    gateways: int = 3
    steps: int = 150  # of a round; everything is checked between two rounds
    rounds: int = 0  # 0 = as many as begin within *minutes*
    without: frozenset[str] = frozenset()  # actions that are drawn and not taken
    plants: bool = False  # a word of somebody else is put into a file before the last check


@dataclass(slots=True)
class ExplorerReport:
    """What a run came to."""

    wrong: list[str]
    counts: Mapping[str, int]
    errors: list[str]  # lines of the gateways' logs
    trace: Path = Path()

    def lines(self) -> list[str]:
        """Return the report as printed."""
        counts = "  ".join(f"{name} {count}" for name, count in self.counts.items())
        return [counts, *self.wrong, *(f"log: {each}" for each in self.errors[:10]), f"trace: {self.trace}"]


@dataclass(slots=True)
class ExplorerRun:
    """Takes the steps of a plan."""

    plan: ExplorerPlan
    folder: Path
    zygote: ForkServer
    server: PostgresServer | None  # None = SQLite
    trace: TextIO
    _began: float = field(default_factory=time.monotonic)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _truth: Truth = field(init=False)
    _platform: WirePlatform = field(init=False)
    _team: GatewayTeam = field(init=False)
    _gateways: list[ExploredGateway] = field(init=False)
    _people: People = field(init=False)
    _faults: int = 0
    _left: Mapping[str, Sequence[str]] = field(default_factory=dict)  # what each gateway has to do

    async def play(self) -> ExplorerReport:
        """Take the steps and check; return what was found."""
        pairs = [LinkedPair(frozenset({"ann1", "ann2"})), LinkedPair(frozenset({"bob1", "bob2"}))]
        self._truth = Truth(pairs)
        self._platform = WirePlatform(self._truth, knows_keys=self.plan.seed % 2 == 0)
        self._team = GatewayTeam(self.folder, self.zygote, self._platform.handlers())
        ahead = [_AHEAD[number % len(_AHEAD)] for number in range(self.plan.gateways)]
        database = self.server.url if self.server is not None else ""
        async with self._team.open(ahead, _SETTINGS, database) as self._gateways:
            self._people = People(self._truth, self._platform, self._gateways, self._note)
            await self._play_rounds()
            await self._check_windows()
        for each in self._gateways:
            await asyncio.to_thread(places.look_at_home, self._truth, each.home, each.name)
        self._check_ends()
        messages = self._truth.messages.values()
        counts = {
            "steps": self._truth.step, "messages": len(messages), "answers": sum(bool(each.parts) for each in messages),
            "prompts": self._platform.prompt_count, "marked": self._platform.marked, "faults": self._faults,
            "lines": len(self._truth.lines), "words seen": self._truth.looks, "wrong": len(self._truth.wrong),
        }  # fmt: skip
        for line in self._truth.wrong:
            self._note("WRONG", line)
        return ExplorerReport(self._truth.wrong, counts, self._team.errors())

    async def _play_rounds(self) -> None:
        names = [each.name for each in self._gateways]
        steps = draw_steps(self.plan.seed, PEOPLE, GROUPS, names, has_database=self.server is not None)
        rounds = 0
        while rounds < self.plan.rounds or (not self.plan.rounds and self._seconds() < self.plan.minutes * 60):
            rounds += 1
            for step in islice(steps, self.plan.steps):
                if step.action in self.plan.without:
                    continue
                await asyncio.sleep(step.pause)
                while len(self._tasks) >= _BUSY:
                    await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
                self._truth.step = step.number
                self._start(step)
            if self._tasks:
                await asyncio.wait(self._tasks)
            await self._check_round(step)

    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def _note(self, *words: object) -> None:
        self.trace.write(f"{self._seconds():8.2f} {' '.join(map(str, words))}\n")

    def _start(self, step: ExplorerStep) -> None:
        is_person = step.actor in PEOPLE or step.actor in GROUPS
        task = asyncio.create_task(self._people.act(step) if is_person else self._disturb(step))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if (error := task.exception()) is not None:
            self._truth.fail("explorer", repr(error))

    async def _disturb(self, step: ExplorerStep) -> None:
        """Do something to a gateway, or to its way to the database."""
        gateway = next(each for each in self._gateways if each.name == step.actor)
        self._faults += 1
        first, seconds = step.picks[0], 4 * step.picks[1]
        if step.action == "lose":
            self._platform.lose += 1
        elif gateway.line is None or not gateway.is_wanted:
            return
        elif step.action == "kill":
            await self._team.kill(gateway, seconds / 2)
        elif step.action == "restart":
            if not await self._team.stop(gateway):
                self._truth.fail("rest", gateway.name, "did not stop in order")
            gateway.is_wanted = True
        elif (proxy := gateway.proxy) is not None:
            if step.action == "cut":
                proxy.cut()
            elif step.action == "slow":
                proxy.delay = 0.04 * first
            else:
                proxy.stall()
            await asyncio.sleep(seconds)
            proxy.heal()
        self._note(step.number, step.actor, step.action, f"{first} {seconds:.2f}")

    # -- the checks ------------------------------------------------------------------------

    async def _check_round(self, step: ExplorerStep) -> None:
        self._note("CHECK")
        await self._rest()
        self._truth.check_answers()
        for chat in (*PEOPLE, *GROUPS):
            self._truth.check_order(chat, self._platform.answers(chat))
            await self._check_memory(chat, step)
        if self.server is not None:
            await asyncio.to_thread(places.look_at_rows, self._truth, self.server, self.folder)
            if self.server.is_ours:
                await asyncio.to_thread(places.look_at_tables, self._truth, self.server)

    async def _check_memory(self, chat: str, step: ExplorerStep) -> None:
        shown = await self._people.memory_of(chat, step)
        if not shown:
            self._truth.fail("lost", "/memory of", chat, "was not answered")
            return
        is_whole = "This is the beginning of" not in shown
        self._truth.check_document(chat, shown, f"/memory of {chat}", is_whole=is_whole)

    async def _rest(self) -> None:
        """Return when every gateway is up and has nothing to do; what is left then is wrong."""
        for each in self._gateways:
            if each.proxy is not None:
                each.proxy.heal()
        if not await eventually(self._are_all_up, _UP):
            self._truth.fail("rest", "not every gateway is up a minute after the last fault")
        if not await eventually(self._is_all_done, _RESTS):
            self._truth.fail("rest", "this is left minutes after the last step:", self._left)

    async def _are_all_up(self) -> bool:
        return all(each.line is not None for each in self._gateways if each.is_wanted)

    async def _is_all_done(self) -> bool:
        for _ in range(2):  # a part that is on its way is in no count
            self._left = {each.name: await self._pending(each) for each in self._gateways if each.is_wanted}
            if any(self._left.values()):
                self._note("LEFT", dict(self._left))
                return False
            await asyncio.sleep(_ON_ITS_WAY)
        return True

    async def _pending(self, gateway: ExploredGateway) -> Sequence[str]:
        with suppress(ConnectionError, TimeoutError):
            if gateway.line is not None:
                async with asyncio.timeout(10):
                    found: Sequence[str] = await gateway.line.call("pending")
                    return found
        return ["the gateway does not reply"]

    async def _check_windows(self) -> None:
        """Let each gateway alone answer in every chat: each prompt goes on where the one before it ended."""
        self._note("WINDOWS")
        number = self._truth.step
        before: dict[str, Sequence[Mapping[str, Any]]] = {}
        if self.plan.plants:
            self._plant()
        for gateway in self._gateways:
            await self._leave_only(gateway)
            for chat in (*PEOPLE, *GROUPS):
                number += 1
                step = ExplorerStep(number, 0.0, chat, "talk", (0.9, 0.5, 0.5, 0.1))
                message = await self._people.talk(chat, step)
                await self._platform.reply(message.number, 60.0)
                prompt = self._platform.prompts.get(message.token, ())
                self._check_prompt(gateway.name, chat, prompt)
                if chat in before and not _continues(before[chat], prompt):
                    self._truth.fail(
                        "window", gateway.name, "does not go on in", chat, _difference(before[chat], prompt)
                    )
                before[chat] = prompt
            await self._rest()
            for chat in (*PEOPLE, *GROUPS):
                number += 1
                await self._check_memory(chat, ExplorerStep(number, 0.0, chat, "memory", (0.9, 0.5, 0.5, 0.1)))
        self._truth.check_answers()
        for gateway in self._gateways:
            await self._team.stop(gateway)

    async def _leave_only(self, gateway: ExploredGateway) -> None:
        gateway.is_wanted = True
        for each in self._gateways:
            if each is not gateway and not await self._team.stop(each):
                self._truth.fail("rest", each.name, "did not stop in order")
        if not await eventually(self._are_all_up, _UP):
            self._truth.fail("rest", gateway.name, "does not start alone")

    def _check_prompt(self, name: str, chat: str, prompt: Sequence[Mapping[str, Any]]) -> None:
        if not prompt:
            self._truth.fail("lost", "the last message in", chat, "reached no model at", name)
            return
        text = json.dumps(prompt, ensure_ascii=False)
        for line, found in self._truth.lines.items():
            if found.account == chat and found.presence is Presence.YES and line not in text:
                self._truth.fail("lost line", "prompt at", name, "in", chat, "lacks:", line)
        for message in self._truth.messages.values():
            if message.chat == chat and message.is_deleted and f"{message.token} I talk" in text:
                self._truth.fail("deleted", "prompt at", name, "in", chat, "has", message.token)

    def _plant(self) -> None:
        """Put a word of one person into a file of another, as a gateway that mixes them up would."""
        file = document_of(self._gateways[0].home, "cat1").with_name("2026-11-01.md")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"- {self._truth.new_word('bob1')}\n")

    def _check_ends(self) -> None:
        """A gateway ends by itself only where others have taken over its work."""
        for each in self._gateways:
            if each.proxy is None and each.ends:
                self._truth.fail("ended", each.name, "with", each.ends)
            if odd := [code for code in each.ends if code != TAKEN_OVER]:
                self._truth.fail("ended", each.name, "with", odd)


def _continues(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if *after* has what *before* had, its beginning perhaps left out, an answer and one more message."""
    had, kept = _talk_of(before), _talk_of(after)[:-2]
    return bool(kept) and kept == had[-len(kept) :]


def _talk_of(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what was said, without the notes about memory, which a new snapshot leaves out."""
    return [str(each.get("content")) for each in messages[1:] if TOKEN.search(str(each.get("content")))]


def _difference(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> str:
    texts = [[TOKEN.findall(text)[0] for text in _talk_of(messages)] for messages in (before, after)]
    return f"{texts[0]} and then {texts[1]}"
