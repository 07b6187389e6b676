"""Playing a plot: a gateway on a fresh home, killed once, started until it rests, and a look at what is left.

`PlotRun` kills a gateway. `play_images` plays a plot once and stops the process at every point, where it copies what a
kill would leave: the files, and what the platform and the people know. Each copy is then gone on from, as after the
kill. That costs half, and only a store in a file can be copied.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
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

_PATIENCE = 120.0  # seconds for a life: the machine may be busy
_LIVES = 3
_LOOK_AGAIN = 0.002  # seconds
_LEAST = 4  # points before the one at which an act is killed, lest the shim sees nothing
_COMMIT = "commit"  # a point of PostgreSQL
_SEEN = ("updates", "confirmed", "shown", "posts")  # of the platform


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


@dataclass(frozen=True, slots=True)
class PlotImage:
    """What a kill before a call would leave."""

    at: int
    folder: Path
    relay: Mapping[str, Any]  # fields of the platform
    plot: Mapping[str, Any]  # what people remember


class PlotRun:
    """Plays one plot on a fresh home, killed before call number *at*; 0 = never.

    With *server* its database is used, empty, over a connection that the shim sees, and call number *at* is a commit:
    files are written by the same code on both engines.
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
        self._images: list[PlotImage] | None = None
        self._wanted: Container[int] = ()

    async def take_images(self, numbers: Container[int]) -> list[PlotImage]:
        """Play undisturbed on SQLite; return the images of the points that *numbers* has.

        Raises AssertionError if that goes wrong.
        """
        self._images, self._wanted = [], numbers
        ending = await self._run()
        assert not ending.wrong, str(ending)
        return self._images

    async def run_image(self, image: PlotImage) -> PlotOutcome:
        """Go on from an image, in place of a fresh home."""
        shutil.rmtree(self._folder)
        self._folder = image.folder
        return await self._run(image)

    async def run(self) -> PlotOutcome:
        """Play until a life ends well, and look at what is left."""
        if self._server is None:
            return await self._run()
        await asyncio.to_thread(self._server.empty)
        found = {name: str(value) for name, value in conninfo_to_dict(self._server.url).items()}
        async with DatabaseProxy(self._folder, found).serve_loopback() as self._database:
            return await self._run()

    async def _run(self, image: PlotImage | None = None) -> PlotOutcome:
        ending = self._ending
        async with open_relay() as relay, open_server(self._plot.answer) as model:
            plot = self._plot(relay, self._folder / "root")
            is_done = False
            if image is None:
                await self._lead_to_first_life(plot, model)
            else:
                ending.struck, ending.lives = "image", 1
                for name, value in image.relay.items():
                    setattr(relay, name, value)
                vars(plot).update(image.plot)
            while not is_done and ending.lives < _LIVES:
                ending.lives += 1
                is_done = await self._live(plot, self._order(plot, model))
            report = self._folder / "report"
            if report.exists():
                ending.struck = report.read_text().strip()
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

    async def _lead_to_first_life(self, plot: AccessPlot, model: FakeOpenAI) -> None:
        await asyncio.to_thread(plot.prepare)
        if plot.dies_first:
            await self._die(plot, self._order(plot, model))
        if plot.imports:
            await asyncio.to_thread(self._lose_store)

    def _lose_store(self) -> None:
        if self._server is not None:
            self._server.empty()
            return
        for path in (self._folder / "root" / "home").glob("journal.*"):
            path.unlink()

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
            settings=plot.settings,
            imports=plot.imports and self._ending.lives > 0,
            has_page=plot.has_page,
            by_state=True,
            is_later=not plot.counts_start or not self._ending.lives,
            whole_life=plot.counts_start and self._ending.lives == 1,
        )
        if self._ending.lives == 1 and self._images is not None:
            return replace(order, mode=ShimMode.STOP)
        is_faulty = self._ending.lives == 1 and self._ending.at
        of = _COMMIT if self._server is not None else ""
        return replace(order, mode=ShimMode.KILL_BEFORE, at=self._ending.at, of=of) if is_faulty else order

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
            stopping = asyncio.create_task(self._image_stops(plot, line.pid), name="images")
            try:
                async with asyncio.timeout(_PATIENCE if self._images is None else _PATIENCE * 4):
                    return await self._steer(plot, line)
            except TimeoutError:
                line.kill()
                await line.wait("exit")
                self._ending.wrong.append(f"life {self._ending.lives} hung: {plot.relay.shown}")
                return False
            finally:
                stopping.cancel()

    async def _image_stops(self, plot: AccessPlot, pid: int) -> None:
        """Copy everything whenever the process stands still before a call, and let it go on."""
        if self._images is None or not self._ending.lives:
            return
        number = 0
        while True:
            await asyncio.sleep(_LOOK_AGAIN)
            if not _stands_still(pid):
                continue
            number += 1
            if number not in self._wanted:
                os.kill(pid, signal.SIGCONT)
                continue
            await asyncio.sleep(_LOOK_AGAIN)  # what is on its way to the platform arrives
            folder = self._zygote.new_folder()
            copy = ["cp", "-a", "--", str(self._folder / "root"), str(folder)]
            process = await asyncio.create_subprocess_exec(*copy)
            assert await process.wait() == 0
            relay = {each.name: getattr(plot.relay, each.name) for each in fields(plot.relay) if each.name in _SEEN}
            people = {name: value for name, value in vars(plot).items() if name not in ("relay", "root", "line")}
            self._images.append(PlotImage(number, folder, deepcopy(relay), deepcopy(people)))
            os.kill(pid, signal.SIGCONT)

    async def _steer(self, plot: AccessPlot, line: ChildConnection) -> bool:
        if not await line.wait("ready"):
            return False
        if self._ending.lives == 1 and not plot.counts_start:
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


def _stands_still(pid: int) -> bool:
    try:
        states = [
            (task / "stat").read_text().rpartition(")")[2].split()[0] for task in Path(f"/proc/{pid}/task").iterdir()
        ]
    except OSError:  # a thread, or all of it, has ended
        return False
    return bool(states) and set(states) == {"T"}


async def play_images(
    zygote: ForkServer,
    plot: type[AccessPlot],
    images: Sequence[PlotImage],
    at_once: int,
    *,
    record: Callable[[int, str], None] = lambda _number, _wrong: None,
) -> list[PlotOutcome]:
    """Go on from each image of *plot*, so many at once; *record* is called as by `play_plot`."""
    slots = asyncio.Semaphore(at_once)

    async def play(image: PlotImage) -> PlotOutcome:
        async with slots:
            outcome = await PlotRun(zygote, plot, image.at).run_image(image)
        record(image.at, str(outcome) if outcome.wrong else "")
        return outcome

    return list(await asyncio.gather(*(play(image) for image in images)))


async def points_of(zygote: ForkServer, plot: type[AccessPlot], server: PostgresServer | None = None) -> list[str]:
    """Play *plot* undisturbed; return the points of a kill. Raises AssertionError if even that goes wrong."""
    ending = await PlotRun(zygote, plot, server=server).run()
    assert not ending.wrong, str(ending)
    return [point for point in ending.points if server is None or point.startswith(_COMMIT)]


@contextmanager
def open_databases(server: PostgresServer | None, count: int) -> Iterator[Sequence[PostgresServer | None]]:
    """Make so many databases of *server* to play in at once; without a server, so many times None: SQLite."""
    with ExitStack() as stack:
        databases: list[PostgresServer | None] = []
        for number in range(count):
            database = PostgresServer(server.address, f"plot_{os.getpid()}_{number}") if server is not None else None
            if database is not None:
                database.start()
                stack.callback(database.close)
            databases.append(database)
        yield databases


async def play_plot(
    zygote: ForkServer,
    plot: type[AccessPlot],
    points: Collection[int],
    databases: Sequence[PostgresServer | None],
    *,
    record: Callable[[int, str], None] = lambda _number, _wrong: None,
) -> list[PlotOutcome]:
    """Play *plot* killed at each of *points*, one in each of *databases* at once.

    *record* is called with each point and what is wrong there.
    """
    free: asyncio.Queue[PostgresServer | None] = asyncio.Queue()
    for each in databases:
        free.put_nowait(each)

    async def play(at: int) -> PlotOutcome:
        database = await free.get()
        outcome = await PlotRun(zygote, plot, at, database).run()
        free.put_nowait(database)
        record(at, str(outcome) if outcome.wrong else "")
        return outcome

    return list(await asyncio.gather(*(play(at) for at in points)))


async def kill_once(
    zygote: ForkServer, plot: type[AccessPlot], at: int, server: PostgresServer | None = None
) -> list[PlotOutcome]:
    """Play *plot* killed at the point *at*, or at half of the number and so on where it has become shorter than that.

    Return what came of each try. Points are known to be there only where the last one struck.
    """
    outcomes: list[PlotOutcome] = []
    while at >= _LEAST:
        outcomes += await play_plot(zygote, plot, [at], [server])
        if outcomes[-1].struck or outcomes[-1].wrong:
            break
        at //= 2
    return outcomes


def format_outcomes(outcomes: Sequence[PlotOutcome]) -> str:
    """Return one line of figures, and every broken promise."""
    wrong = [str(each) for each in outcomes if each.wrong]
    struck = sum(bool(each.struck) for each in outcomes)
    return "\n".join([f"{len(outcomes)} points, {struck} struck, {len(wrong)} wrong", *wrong])
