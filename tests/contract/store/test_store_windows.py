"""Frames between workers that serve windows of the same chats: each once, in order, only where a window is open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.events import SessionKey
from gateway.store.database import QueryResult
from gateway.store.engine import StoreLimits
from gateway.store.postgres import open_database
from gateway.store.postgres.connection import PostgresConnection
from gateway.store.shared_windows import WorkerWindows
from gateway.store.sql_store import SqlStore
from tests.fakes.shared_workers import Workers, until
from tests.fakes.turns import START, accept, said

ANN, GARDEN, BEN = SessionKey("web", "ann"), SessionKey("web", "ann/garden"), SessionKey("web", "ben")
ROWS = "SELECT (SELECT count(*) FROM watch), (SELECT count(*) FROM frame)"


class LosingConnection(PostgresConnection):
    """A session that is lost after the first frames were removed, and before the worker has them."""

    _is_lost = _has_taken = False

    def execute(self, statement: str, parameters: Sequence[Any] = (), /) -> QueryResult:
        """Run one statement."""
        found = super().execute(statement, parameters)
        self._has_taken |= statement.startswith("DELETE FROM frame WHERE worker = ") and found.rowcount > 0
        return found

    def end_batch(self) -> bool:
        """Store the batch; then fail, once."""
        stored = super().end_batch()
        if self._has_taken and not type(self)._is_lost:
            type(self)._is_lost = True
            raise OSError("the reply was lost")
        return stored


class FrameLog:
    """A channel of one worker, which keeps what it is told."""

    def __init__(self, store: SqlStore) -> None:
        assert store.windows is not None
        self.windows: WorkerWindows = store.windows
        self.frames: list[tuple[SessionKey, str]] = []
        self.repeats: list[SessionKey] = []
        self.refreshes = 0
        self.windows.subscribe(
            "web", lambda key, text: self.frames.append((key, text)), self.repeats.append, self._note
        )

    def _note(self) -> None:
        self.refreshes += 1

    def texts(self) -> list[str]:
        """Return the frames' texts."""
        return [text for _, text in self.frames]


async def test_frames_come_once_in_order_where_a_window_is(team: Workers) -> None:
    """A worker has every frame of a chat that it watches, since then, but its own; and none of other chats."""
    first, second, third = [FrameLog(await team.open()) for _ in range(3)]
    await first.windows.send(ANN, "before")
    await first.windows.watch(ANN)
    await second.windows.watch(ANN)
    await third.windows.watch(BEN)
    for number in range(50):
        await first.windows.send(GARDEN if number % 2 else ANN, str(number))
    await until(lambda: len(second.frames) == 50)
    assert second.frames == [(GARDEN if number % 2 else ANN, str(number)) for number in range(50)]
    second.windows.unwatch(ANN)
    await second.windows.watch(BEN)  # stored after it
    await first.windows.send(ANN, "after")
    await third.windows.send(BEN, "to ben")
    await until(lambda: second.texts()[50:] == ["to ben"])
    assert (first.frames, third.frames) == ([], [])
    assert team.server.query(ROWS) == [(3, 0)]


async def test_of_what_grows_only_the_last_is_given(team: Workers) -> None:
    """Frames of one slot that come faster than they are given are one row; what is sent comes after what waits."""
    first, second = [FrameLog(await team.open()) for _ in range(2)]
    await second.windows.watch(ANN)
    for number in range(5_000):
        first.windows.post(ANN, f"text {number}", slot="preview")
    first.windows.post(ANN, "typed")
    await first.windows.send(ANN, "answer")
    await until(lambda: "answer" in second.texts())
    assert second.texts() == ["text 4999", "typed", "answer"]


async def test_the_chats_worker_knows_who_watches(team: Workers) -> None:
    """A window that opens elsewhere is known at the next look, and is shown what the chat shows, at each opening."""
    stores = [await team.open() for _ in range(2)]
    first, second = map(FrameLog, stores)
    await accept(stores[0], said(key=ANN))
    await until(lambda: ANN in team.holders())
    holder, other = (first, second) if team.holders()[ANN] == stores[0]._engine.owner else (second, first)
    await other.windows.watch(ANN)
    await until(lambda: holder.repeats == [ANN])
    assert holder.windows.is_watched(GARDEN)
    await other.windows.watch(ANN)
    await until(lambda: holder.repeats == [ANN, ANN])
    assert not holder.windows.is_watched(BEN)
    assert not other.windows.is_watched(ANN)
    other.windows.unwatch(ANN)
    await until(lambda: not holder.windows.is_watched(ANN))


async def test_a_lost_reply_is_made_good(team: Workers) -> None:
    """Where frames may be lost, because they were removed and not read, windows read their history again."""
    first = FrameLog(await team.open())
    store = await open_database(team.server.url, StoreLimits(), clock=lambda: START, wrap=LosingConnection, shares=True)
    try:
        second = FrameLog(store)
        await second.windows.watch(ANN)
        await first.windows.send(ANN, "lost")
        await until(lambda: second.refreshes == 1)
        await first.windows.send(ANN, "two")
        await until(lambda: second.texts() == ["two"])
        assert second.refreshes == 1
    finally:
        await store.close()


async def test_of_a_dead_worker_nothing_stays(team: Workers) -> None:
    """Neither its windows nor the frames for them; nor of one that stops."""
    stores = [await team.open() for _ in range(3)]
    logs = [FrameLog(store) for store in stores]
    for log in logs:
        await log.windows.watch(ANN)
    await team.kill(stores[2])
    await logs[0].windows.send(ANN, "to the dead one too")
    await until(lambda: team.server.query("SELECT count(*) FROM watch") == [(2,)])
    await stores[0].prune()
    await until(lambda: team.server.query(ROWS) == [(2, 0)])
    await stores[1].close()
    assert team.server.query(ROWS) == [(1, 0)]
