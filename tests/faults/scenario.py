"""One scenario: a gateway on a fresh home, one fault at one of its calls, starts until it rests, the examination."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass, field

from tests.faults import examine
from tests.faults.platforms import SceneOptions, stage_of
from tests.faults.process_order import CHANNEL, ProcessOrder
from tests.faults.process_pool import ChildConnection, ForkServer, open_line
from tests.faults.scripted_peers import ScenarioPeers, open_peers, request_of, sender_of
from tests.faults.shim import ShimMode

_PACE, _SLOW_PACE = 0.01, 0.1  # seconds between the edits of a preview; of fifty at once


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCase:
    """Which fault, where, and on what."""

    platform: str = CHANNEL
    is_thread: bool = False  # a mention in a thread of a group; else a direct chat
    is_long: bool = False  # the answer is too long for a group: its beginning and a file
    is_strict: bool = False  # `delivery.once: strict`
    chats: int = 1
    lose: int = 0  # instead of a fault of ours: this send's reply never arrives
    mode: ShimMode = ShimMode.COUNT
    at: int = 0
    of: str = ""  # `at` counts only the calls whose "kind name" begins with this
    whole_life: bool = False
    send_key: bool = True
    forgets_acks: bool = False  # the platform hands everything out again after a restart
    sabotage: str = ""  # a gateway that breaks this promise (sabotage.py)
    unclean_stops: int = 0  # lives before the faulty one, each killed as soon as it is ready
    lives: int = 3  # a fault may end the first; the later ones are left alone
    patience: float = 60.0  # seconds for one life; a gateway that is not idle by then hangs

    def __str__(self) -> str:
        where = "life" if self.whole_life else "turn"
        fault = f"{self.mode.name.lower()} at {where} {self.at}" + (f" of {self.of}" if self.of else "")
        return f"{f'reply_lost at send {self.lose}' if self.lose else fault}, {self.place}"

    @property
    def place(self) -> str:
        """Where it happens."""
        if self.platform == CHANNEL:
            return f"{self.chats} chat(s), {'key' if self.send_key else 'no-key'}"
        where = "file in a thread" if self.is_long else "thread" if self.is_thread else "direct"
        return f"{self.platform} {where}{' strict' if self.is_strict else ''}"

    @property
    def scene(self) -> SceneOptions:
        """What the platform has to know of it."""
        return SceneOptions(
            is_thread=self.is_thread,
            is_long=self.is_long,
            is_strict=self.is_strict,
            knows_keys=self.send_key,
            forgets_acks=self.forgets_acks,
            lose=self.lose,
        )


@dataclass(slots=True)
class ProcessRun:
    """One run of the process, from its fork to its end."""

    status: int | None = None  # exit code; negative = the signal; None = it hung and was killed by us
    is_idle: bool = False  # it said so, with nothing queued, undelivered or unwritten
    points: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ScenarioOutcome:
    """What a scenario came to."""

    case: FaultCase
    struck: str = ""  # the call that failed, as "n kind name"; empty = the run had fewer calls
    lives: list[ProcessRun] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    requests: int = 0
    marked: int = 0
    unknown: int = 0  # tool results "outcome unknown"
    orphans: int = 0  # placeholders that nothing was put into
    sends: int = 0  # posts and edits of ours that the platform was asked for

    @property
    def points(self) -> list[str]:
        """The calls of the last life, if it ended well."""
        return self.lives[-1].points if self.lives else []

    def __str__(self) -> str:
        ends = ", ".join(str(life.status) for life in self.lives)
        return f"{self.case} [{self.struck or 'not reached'}] exits {ends}: {'; '.join(self.wrong) or 'fine'}"


class FaultScenario:
    """Plays one case."""

    def __init__(self, zygote: ForkServer, case: FaultCase) -> None:
        self._zygote = zygote
        self._case = case
        self._folder = zygote.new_folder()
        self._chats = [f"c{n}" for n in range(case.chats)]
        self._outcome = ScenarioOutcome(case)

    async def play(self) -> ScenarioOutcome:
        """Run the faulty life, then undisturbed ones until one is idle, and examine what is left."""
        outcome = self._outcome
        async with open_peers(stage_of(self._case.platform, self._case.scene)) as peers:
            for _ in range(self._case.unclean_stops):
                await self._end_unclean(peers)
            for number in range(self._case.lives):
                before = self._look_at_the_dead(peers, number) if number else None
                asked_before = len(peers.model.bodies)
                life = await self._live(peers, is_first=number == 0)
                outcome.lives.append(life)
                if before is not None:
                    outcome.wrong += examine.asked_again(before, peers.asked(asked_before))
                if life.is_idle and life.status == 0:
                    break
            outcome.struck = self._report() or peers.stage.replies.lost
            outcome.orphans = peers.stage.count_orphans()
            outcome.sends = peers.stage.replies.sends
            outcome.requests = len(peers.model.bodies)
            self._judge_lives()
            if outcome.lives[-1].is_idle:
                found = examine.examine(self._folder / "root", self._chats, peers, self._case.mode)
                outcome.wrong += found.wrong
                outcome.marked, outcome.unknown = found.marked, found.unknown
        if outcome.wrong:
            outcome.wrong.append(f"log: {self._log_tail()}")
        else:
            shutil.rmtree(self._folder)
        return outcome

    async def _end_unclean(self, peers: ScenarioPeers) -> None:
        async with open_line(self._zygote, self._order(peers, is_first=False)) as line:
            await line.wait("ready")
            line.kill()
            await line.wait("exit")

    def _look_at_the_dead(self, peers: ScenarioPeers, number: int) -> examine.StoredState:
        """Read what the life before left; what the platform was told must be in it."""
        stored = examine.stored(self._folder / "root", self._folder / f"copy{number}", peers.stage.chat_of)
        if peers.stage.is_told() and not set(self._chats) <= stored.received:
            self._outcome.wrong.append("the platform was told of a message that is not stored")
        return stored

    def _judge_lives(self) -> None:
        first, last = self._outcome.lives[0], self._outcome.lives[-1]
        if not last.is_idle:
            self._outcome.wrong.append("never came to rest")
        if any(life.status is None for life in self._outcome.lives):
            self._outcome.wrong.append("hung and had to be killed")
        if last.status != 0:
            self._outcome.wrong.append(f"the last life ended with {last.status}")
        if self._outcome.struck and self._case.mode.kills and first.status != -9:
            self._outcome.wrong.append(f"the shim killed it, yet it ended with {first.status}")

    def _order(self, peers: ScenarioPeers, *, is_first: bool) -> ProcessOrder:
        return ProcessOrder(
            root=str(self._folder / "root"),
            report=str(self._folder / "report"),
            log=str(self._folder / "log"),
            base=peers.stage.base,
            platform=self._case.platform,
            is_strict=self._case.is_strict,
            notes=peers.stage.notes if is_first else {},
            model=peers.model.base,
            mode=self._case.mode if is_first else ShimMode.COUNT,
            at=self._case.at,
            of=self._case.of,
            whole_life=self._case.whole_life,
            send_key=self._case.send_key,
            sabotage=self._case.sabotage,
            preview_seconds=_PACE if self._case.chats == 1 else _SLOW_PACE,
        )

    async def _live(self, peers: ScenarioPeers, *, is_first: bool) -> ProcessRun:
        order = self._order(peers, is_first=is_first)
        if is_first and self._case.whole_life:
            self._say(peers)
        life = ProcessRun()
        async with open_line(self._zygote, order) as line:
            try:
                async with asyncio.timeout(self._case.patience):
                    await self._steer(line, peers, life)
            except TimeoutError:
                line.kill()
                while await line.read():
                    pass  # its end
        return life

    async def _steer(self, line: ChildConnection, peers: ScenarioPeers, life: ProcessRun) -> None:
        waiting: asyncio.Task[None] | None = None
        try:
            while (news := await line.read()) is not None:
                if "exit" in news:
                    life.status = news["exit"]
                    return
                if "ready" in news:
                    self._say(peers)
                    waiting = asyncio.create_task(self._finish(line, peers), name="wait for answers")
                if "idle" in news:
                    life.is_idle, life.points = True, news["points"]
        finally:
            if waiting is not None:
                waiting.cancel()

    async def _finish(self, line: ChildConnection, peers: ScenarioPeers) -> None:
        await peers.wait_answered(self._chats)
        line.tell("finish")

    def _say(self, peers: ScenarioPeers) -> None:
        """Let people write, once: a first life may have been too short for it."""
        if peers.stage.names:
            return
        for chat in self._chats:
            peers.stage.say(chat, request_of(chat), sender=sender_of(chat))

    def _report(self) -> str:
        report = self._folder / "report"
        return report.read_text().strip() if report.exists() else ""

    def _log_tail(self) -> str:
        log = self._folder / "log"
        return log.read_text()[-4_000:] if log.exists() else "(none)"
