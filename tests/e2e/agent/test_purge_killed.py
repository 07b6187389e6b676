"""A purge killed at its writes and done again: nothing half is left, and no byte of what was to go."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from agent.memory.documents.scope_documents import ScopeDocuments
from agent.memory.erasure.word_eraser import ErasureRequester
from agent.memory.erasure.word_match import ErasurePattern
from agent.memory.storage.disk import Disk
from gateway.app import Runtime, open_app
from gateway.events import PlatformAccount, SessionKey
from gateway.ports import Job
from gateway.settings import load_settings
from gateway.store.documents import SqlDocuments
from tests.e2e.agent.test_consolidation import SCOPE
from tests.e2e.agent.test_purge import plant_canaries, use_canaries
from tests.fakes.canaries import CYRILLIC, where
from tests.fakes.documents import stored_text

ANN = SessionKey("pocket", "ann")
EVERY = int(os.environ.get("PURGE_KILLED_EVERY", "3"))  # 1 = at every single write; the suite plays some of them


class ProcessKilled(BaseException):
    """The process is gone."""


class KillCountdown:
    """Counts what is written, and kills before the write of that number."""

    def __init__(self, at: int = -1) -> None:
        self.at = at
        self.writes = 0

    def write(self) -> None:
        """Live on, or do not."""
        if self.writes == self.at:
            raise ProcessKilled
        self.writes += 1


class KilledDisk(Disk):
    """A disk whose process may be killed before any change."""

    def __init__(self, fate: KillCountdown) -> None:
        self.fate = fate

    def replace(self, path: Path, data: bytes) -> None:
        """Put a file there, or die."""
        self.fate.write()
        super().replace(path, data)

    def remove(self, path: Path) -> None:
        """Take a file away, or die."""
        self.fate.write()
        super().remove(path)


class KilledObject:
    """Anything whose calls may be the last: the store's forgetting, the versions."""

    def __init__(self, whole: Any, fate: KillCountdown) -> None:
        self._whole = whole
        self._fate = fate

    def __getattr__(self, name: str) -> Any:
        self._fate.write()
        return getattr(self._whole, name)


@asynccontextmanager
async def own_home(home: Path) -> AsyncIterator[Runtime]:
    """Own the home as a command does."""
    settings = load_settings({"PARLOUR_HOME": str(home), "PARLOUR_LOG__LEVEL": "error"})
    async with open_app(settings, channels=False) as app:
        yield app


async def start_purge(home: Path) -> Job:
    """Begin a purge as the command does; its job stands in the journal."""
    async with own_home(home) as app:
        asker = ErasureRequester(account=PlatformAccount(kind="pocket", id="ann"), sender="ann", may_all=True)
        wanted = ErasurePattern.of(CYRILLIC)
        assert wanted is not None
        _, job = await app.commands.erasure.purge(SCOPE, wanted, asker, key=ANN, upto=10**9, turn="tx")
        assert job.next is not None
        await app.store.jobs.advance(job.job, job.next)
        return job.next


async def purge(home: Path, job: Job, fate: KillCountdown) -> None:
    """Do the job with a process that may be killed."""
    async with own_home(home) as app:
        whole = app.commands.erasure.purge_jobs
        disk = KilledDisk(fate)
        store: Any = KilledObject(whole.storage.store, fate)
        documents = ScopeDocuments(cast("SqlDocuments", KilledObject(whole.storage.documents.changes, fate)))
        storage = dataclasses.replace(whole.storage, disk=disk, store=store, documents=documents)
        mortal = dataclasses.replace(whole, storage=storage)
        whole.word_eraser._storage = dataclasses.replace(whole.storage, disk=disk)
        app.session_files._disk = disk
        await mortal.purge(job)


@pytest.fixture(scope="module")
def purging(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Job, int]:
    """A home in which a purge has begun, its job, and how many writes the rest of it takes."""
    home = tmp_path_factory.mktemp("killed") / "home"

    async def prepare() -> tuple[Job, int]:
        await use_canaries(home)
        plant_canaries(home)
        job = await start_purge(home)
        fate = KillCountdown()
        await purge(shutil.copytree(home, home.with_name("counted")), job, fate)
        return job, fate.writes

    job, writes = asyncio.run(prepare())
    return home, job, writes


async def test_killed_at_a_write_the_rerun_completes_it(purging: tuple[Path, Job, int], tmp_path: Path) -> None:
    """Wherever it died: the words are gone after the rerun, and memory and versions are whole."""
    home, job, writes = purging
    assert writes >= 8
    for at in range(0, writes, EVERY):
        there = shutil.copytree(home, tmp_path / str(at))
        with contextlib.suppress(ProcessKilled):  # which files hold words differs by a few from copy to copy
            await purge(there, job, KillCountdown(at))
        await purge(there, job, KillCountdown())
        async with own_home(there) as app:
            await app.store.jobs.finish(job)
            for each in await app.store.jobs.pending_in(SCOPE):
                if each.kind == "scrub":
                    assert await app.commands.erasure.purge_jobs.scrub(each) is None
        assert not where(there, CYRILLIC), at
        assert "- my dog is Bello\n" in stored_text(there, SCOPE), at
        shutil.rmtree(there)
