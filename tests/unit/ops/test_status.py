"""`parlour status`: what was given up is named by channel and reason, on one line each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gateway.admission import RefusalLog
from gateway.commands import asking
from gateway.control import Line
from gateway.events import SessionKey
from gateway.home import Home
from gateway.operations import Operations
from gateway.ports import Channel, Store
from gateway.quarantine import Quarantine
from tests.fakes.meter import FakeMeter
from tests.fakes.store import open_inline_store
from tests.fakes.turns import ANN, answer, parts_of, said
from tests.fakes.web import FakeHouse


class Office:
    """A home whose only life is in its store."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.home = Home(folder)
        self.store = store
        self.sessions = FakeHouse()
        self.refusals = RefusalLog()
        self.intake = self
        self.quarantine = Quarantine(
            self.home.quarantine, unclean_stops=0, meter=FakeMeter(), now=lambda: datetime.now(UTC)
        )
        self.channels: Mapping[str, Channel] = {}

    def readiness(self) -> Mapping[str, bool | None]:
        return {"telegram": True}

    @asynccontextmanager
    async def still(self) -> AsyncIterator[None]:
        yield

    async def submit(self, key: SessionKey, text: str) -> str:
        raise NotImplementedError


async def status(store: Store, folder: Path) -> Line:
    """Return the operation's one line."""
    (line,) = [line async for line in Operations(Office(folder, store)).status({})]
    return line


async def test_status_names_what_was_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A blocked bot's answer: counted, with its channel and the platform's reason, which cannot move the cursor."""
    store = await open_inline_store()
    line: dict[str, Any] = dict(await status(store, tmp_path))
    assert (line["dead"], line["dead_letters"]) == (0, [])
    await answer(store, said(), "one")
    delivery = await store.outbox.next(ANN)
    assert delivery is not None
    parts = parts_of(delivery.message, 2)
    await store.outbox.freeze(delivery.message, parts)
    await store.outbox.bury(parts[0], "403: bot was \x1b[2Jblocked by the user")
    line = dict(await status(store, tmp_path))
    (group,) = line["dead_letters"]
    assert (group["channel"], group["count"]) == ("telegram", 2)
    monkeypatch.setattr(asking, "ask", lambda _: [line])
    asking.show_status(as_json=False)
    (told,) = [printed for printed in capsys.readouterr().out.splitlines() if printed.startswith("dead letters")]
    assert told.endswith("403: bot was [2Jblocked by the user")
    assert "telegram: 2 given up" in told
    await store.close()
