"""What every test may ask for."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import structlog
from execnet import XSpec
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from agent.memory.search import embedding
from tests import forked_workers
from tests.fakes.clock import VirtualClock, VirtualLoop
from tests.faults.process_pool import ForkServer, share_zygote
from tests.faults.shim import NoCompiler

if TYPE_CHECKING:
    from tests.fakes.postgres_server import PostgresServer

# `make test` plays the same examples on every run; `make fuzz` plays new ones, and many. Speed is measured in
# tests/benchmarks.
settings.register_profile(
    "test",
    max_examples=30,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("fuzz", max_examples=200, deadline=None, print_blob=True)
settings.load_profile("test")
# A logged exception is printed plainly: with the variables of every frame it took a second.
structlog.dev.ConsoleRenderer.get_active().exception_formatter = structlog.dev.plain_traceback


_MEMORY = Path("/dev/shm")  # noqa: S108 - what is made in it has names of its own
_MEMORY_BYTES = 1 << 30  # a run uses a fifth of it; containers often have 64 MB there


def pytest_configure(config: pytest.Config) -> None:
    """Keep the tests' folders in memory, where an fsync costs nothing; half of the time of a run were waits for disks.

    A temporary folder that the caller has chosen (TMPDIR) stays, and so does the disk where memory is short.
    """
    if "TMPDIR" not in os.environ and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES:
        os.environ["TMPDIR"] = tempfile.tempdir = str(_MEMORY)  # workers and gateways inherit it


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Return two workers for each processor and two more, at most six: tests wait for timers, browsers, gateways."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    return min(2 * len(os.sched_getaffinity(0)) + 2, 6)


def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[XSpec]) -> None:
    """Fork the workers from one process that has imported the tests (tests/forked_workers.py)."""
    if len(specs) < 2 or not hasattr(os, "pidfd_open"):
        return
    folder = Path(tempfile.mkdtemp())
    config.add_cleanup(lambda: shutil.rmtree(folder))
    path = str(folder / "workers.sock")
    arguments = [str(each) for each in config.invocation_params.args]
    process = subprocess.Popen(  # noqa: S603 - ours
        [sys.executable, forked_workers.__file__, "serve", path, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    config.add_cleanup(lambda: _end(process))
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n", "the tests could not be imported"
    for spec in specs:
        spec.python = forked_workers.command_of_a_worker(path)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.communicate()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Have the garbage collector run less often and skip what was imported: it took a sixth of the tests' time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(7_000, 10, 10)


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run what asks for the `clock` on virtual time, and everything else on a plain loop."""
    if "clock" in getattr(item, "fixturenames", ()):
        return {"virtual": VirtualLoop}
    return {"real": asyncio.new_event_loop}


@pytest.fixture(autouse=True)
def _restored_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo the logging configuration of a command that ran in this process, so that the next test reads its own logs.

    A module's logger that was used once would keep that configuration for ever: here none may cache it.
    """
    configure = structlog.configure
    monkeypatch.setattr(
        structlog, "configure", lambda **options: configure(**options | {"cache_logger_on_first_use": False})
    )
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    if structlog.is_configured():
        structlog.reset_defaults()
        root.handlers[:], root.level = handlers, level


@pytest.fixture(autouse=True, scope="module")
def _words_alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have gateways search by words, as without the extra `local`, but for the tests of models.

    Each of some thousand gateways would load the installed model, which takes half a second of a processor.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not request.path.name.startswith("test_embedding"):
            patch.setattr(embedding, "find_installed_model", lambda: None)
        yield


@pytest.fixture
async def clock() -> VirtualClock:
    """The virtual clock of the loop that this test runs on (tests/fakes/clock.py)."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return VirtualClock(loop)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the figures that tests have recorded with `record_property("figure", text)`."""
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, ()):
            for name, text in report.user_properties:
                if name == "figure":
                    terminalreporter.write_line(str(text))


def missing(why: str) -> None:
    """Skip where somebody just has no compiler, but never in CI."""
    if os.environ.get("CI"):
        pytest.fail(f"{why}; in CI these tests never skip", pytrace=False)
    pytest.skip(why)


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """The process that has imported everything and forks gateways; the workers share it."""
    own = tmp_path_factory.getbasetemp()
    try:
        with share_zygote(own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) as zygote:
            yield zygote
    except NoCompiler as error:
        missing(str(error))


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server that runs, one for all tests of a worker."""
    from tests.fakes.postgres_server import NoPostgres, open_server

    try:
        server = open_server()
    except NoPostgres as error:
        missing(str(error))
    else:
        yield server
        server.close()


@cache
def _group_of(path: str) -> str:
    """Return the group of the module at *path*, empty where each of its tests may run in another worker."""
    source = (Path(__file__).parents[1] / path).read_text(encoding="utf-8")
    if found := re.search(r"""xdist_group\("(\w+)"\)""", source):
        return found[1]
    return "" if path.startswith(("tests/e2e/", "tests/faults/")) and 'scope="module"' not in source else path


def _unit_of(nodeid: str) -> str:
    return _group_of(nodeid.partition("::")[0]) or nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Return a scheduler that runs the tests of one group in one worker, in the order of `mixed`.

    A group is a module, or modules with the same expensive start (`xdist_group("litellm")`); tests that start gateways
    are distributed singly. The scheduler "loadgroup" of pytest-xdist finds no groups under pytest 9.2, where test ids
    are read-only.
    """
    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = _unit_of
    return scheduler


def mixed(nodeids: Sequence[str]) -> Sequence[int]:
    """Return the places of *nodeids* in the order in which workers run them; each group stays together.

    Tests that start gateways wait for processes and timers half of their time, the others compute: spread evenly among
    each other they leave no processor idle. Modules that share a group are the longest unit and begin at once. Those of
    faults come next, those of the folders below tests/e2e are the shortest and come last, so that the workers end
    together.
    """
    units: dict[str, list[int]] = {}
    waiting: dict[str, str] = {}  # units, each with the path of its first test
    for place, nodeid in enumerate(nodeids):
        unit = _unit_of(nodeid)
        if unit not in units and nodeid.startswith(("tests/e2e/", "tests/faults/")):
            waiting[unit] = nodeid.partition("::")[0]
        units.setdefault(unit, []).append(place)
    longest_first = sorted(waiting, key=lambda unit: (waiting[unit].startswith("tests/e2e/"), waiting[unit].count("/")))
    computing = [unit for unit in units if unit not in waiting]
    order = [(place / len(each), unit) for each in (longest_first, computing) for place, unit in enumerate(each)]
    order.sort(key=lambda each: ("/" in each[1], each))  # the name of a shared group is no path
    return [place for _, unit in order for place in units[unit]]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have the workers run the tests in the order of `mixed`; a run without workers keeps that of the files."""
    if hasattr(config, "workerinput"):
        items[:] = [items[place] for place in mixed([item.nodeid for item in items])]
