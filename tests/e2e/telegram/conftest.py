"""Waits that prove the same when they are shorter, and locks of these tests alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.delivery import part_planner
from tests.fakes.telegram_server import TelegramServer, telegram_now


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setattr(part_planner, "FIRST_DELAY", 0.05)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(_private(tmp_path_factory.getbasetemp() / "runtime")))


def _private(folder: Path) -> Path:
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


@pytest.fixture
async def server() -> AsyncIterator[TelegramServer]:
    """Give a Telegram that counts the seconds as they pass."""
    async with telegram_now() as server:
        yield server
