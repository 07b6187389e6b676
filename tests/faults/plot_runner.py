"""Playing a plot: a gateway on a fresh home, killed once, started until it rests, and a look at what is left."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tests.fakes.openai_server import FakeOpenAI, open_server
from tests.fakes.postgres_server import PostgresServer
from tests.fakes.relay import open_relay
from tests.faults.access_plots import AccessPlot
from tests.faults.explorer.gateway_team import DatabaseProxy
from tests.faults.process_order import ProcessOrder
from tests.faults.process_pool import ChildConnection, ForkServer, open_line
from tests.faults.shim import ShimMode

_PATIENCE = 30.0  # seconds for a life
_LIVES = 3


@dataclass(slots=True)
class PlotOutcome:
    """What came of a plot with one fault."""

    at: int
    struck: str = ""
    lives: int = 0
    points: list[str] = field(default_factory=list)  # of the last life, once armed
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"killed at {self.at} [{self.struck or 'not reached'}], {self.lives} lives: {'; '.join(self.wrong)}"


class PlotRun:
    """Plays one plot on a fresh home, killed before call number *at*; 0 = never.

    With *server* its database is used, empty, over a connection that the shim sees: a kill comes before each statement.
    """

    def __init__(
        self, zygote: ForkServer, plot: type[AccessPlot], at: int = 0, server: PostgresServer | None = None
    ) -> None:
        self._server = server
        self._database = ""
        self._zygote = zygote
        self._plot = plot
        self._folder = zygote.new_folder()
        self._ending = PlotOutcome(at)

    async def run(self) -> PlotOutcome:
        """Play until a life ends well, and look at what is left."""
        if self._server is None:
            return await self._run()
        await asyncio.to_thread(self._server.empty)
        found = {name: str(value) for name, value in conninfo_to_dict(self._server.url).items()}
        async with DatabaseProxy(self._folder, found).serve_loopback() as self._database:
            return await self._run()

    async def _run(self) -> PlotOutcome:
        ending = self._ending
        async with open_relay() as relay, open_server(self._plot.answer) as model:
            plot = self._plot(relay, self._folder / "root")
            is_done = False
            if plot.dies_first:
                await self._die(plot, self._order(plot, model))
            while not is_done and ending.lives < _LIVES:
                ending.lives += 1
                is_done = await self._live(plot, self._order(plot, model))
            report = self._folder / "report"
            ending.struck = report.read_text().strip() if report.exists() else ""
            if is_done:
                with closing(self._connect()) as journal:
                    ending.wrong += plot.wrong(journal, len(model.bodies))
            else:
                ending.wrong.append("never came to rest")
        if ending.wrong:
            ending.wrong.append(f"log: {(self._folder / 'log').read_text()[-4_000:]}")
        else:
            shutil.rmtree(self._folder)
        return ending

    def _connect(self) -> Any:
        if self._server is None:
            return sqlite3.connect(self._folder / "root" / "home" / "journal.db")
        return psycopg.connect(self._server.url)

    def _order(self, plot: AccessPlot, model: FakeOpenAI) -> ProcessOrder:
        order = ProcessOrder(
            root=str(self._folder / "root"),
            report=str(self._folder / "report"),
            log=str(self._folder / "log"),
            base=plot.relay.base,
            model=model.base,
            owner=plot.owner,
            turns=plot.turns,
            hours=plot.hours,
            database=self._database,
            settles=plot.settles,
            is_later=not plot.dies_first,
            whole_life=plot.dies_first and self._ending.lives == 1,
        )
        is_faulty = self._ending.lives == 1 and self._ending.at
        return replace(order, mode=ShimMode.KILL_BEFORE, at=self._ending.at) if is_faulty else order

    async def _die(self, plot: AccessPlot, order: ProcessOrder) -> None:
        """Lead the life before the others."""
        async with open_line(self._zygote, order) as line:
            assert await line.wait("ready")
            await plot.begin(line)
            line.kill()
            await line.wait("exit")

    async def _live(self, plot: AccessPlot, order: ProcessOrder) -> bool:
        """Lead one life; say whether it came to rest."""
        async with open_line(self._zygote, order) as line:
            try:
                async with asyncio.timeout(_PATIENCE):
                    return await self._steer(plot, line)
            except TimeoutError:
                line.kill()
                await line.wait("exit")
                self._ending.wrong.append(f"life {self._ending.lives} hung: {plot.relay.shown}")
                return False

    async def _steer(self, plot: AccessPlot, line: ChildConnection) -> bool:
        if not await line.wait("ready"):
            return False
        if self._ending.lives == 1 and not plot.dies_first:
            await plot.begin(line)
            line.tell("arm")
            assert await line.wait("armed")

        plot.line = line

        async def play() -> None:
            await plot.play()
            line.tell("finish")

        playing = asyncio.create_task(play(), name=f"play {plot.name}")
        try:
            news = await line.wait("idle")
        finally:
            playing.cancel()
            await asyncio.wait([playing])
        self._ending.points = news.get("points", [])
        return bool(news) and (await line.wait("exit"))["exit"] == 0


async def points_of(zygote: ForkServer, plot: type[AccessPlot], server: PostgresServer | None = None) -> list[str]:
    """Play *plot* undisturbed; return the calls it makes. Raises AssertionError when even that goes wrong."""
    ending = await PlotRun(zygote, plot, server=server).run()
    assert not ending.wrong, str(ending)
    return ending.points


async def play_plot(
    zygote: ForkServer,
    plot: type[AccessPlot],
    points: Collection[int],
    *,
    at_once: int,
    server: PostgresServer | None = None,
    record: Callable[[int, str], None] = lambda _number, _wrong: None,
) -> list[PlotOutcome]:
    """Play *plot* killed at each of *points*, so many at once; *record* is called with each and what is wrong there.

    On a *server* they are played one after the other, since each empties its database.
    """
    slots = asyncio.Semaphore(at_once if server is None else 1)

    async def play(at: int) -> PlotOutcome:
        async with slots:
            outcome = await PlotRun(zygote, plot, at, server).run()
        record(at, str(outcome) if outcome.wrong else "")
        return outcome

    return list(await asyncio.gather(*(play(at) for at in points)))


def format_outcomes(outcomes: Sequence[PlotOutcome]) -> str:
    """Return one line of figures, and every broken promise."""
    wrong = [str(each) for each in outcomes if each.wrong]
    struck = sum(bool(each.struck) for each in outcomes)
    return "\n".join([f"{len(outcomes)} points, {struck} struck, {len(wrong)} wrong", *wrong])
