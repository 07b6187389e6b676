"""A health check: what is looked at, and everything that reads it. Checks change nothing."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import structlog

from gateway.errors import ParlourError
from gateway.home import Home
from gateway.ports.setup import Finding, fail
from gateway.settings import Settings, SettingsReport

if TYPE_CHECKING:
    from gateway.alerts.monitor import Source
    from gateway.app.runtime import Runtime
    from gateway.store.database import Database

log = structlog.get_logger(__name__)

T = TypeVar("T")
Status: TypeAlias = Mapping[str, Any]  # the line of the operation `status`; of a stopped gateway it has fewer fields


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckContext:
    """What the doctor looks at: the settings, the environment that they are from, the store and the running gateway."""

    report: SettingsReport
    environment: Mapping[str, str]
    url: str = ""  # of a database that can be used; "" for the embedded store
    status: Status = field(default_factory=dict)  # of the gateway that runs; empty when none does
    error: str = ""  # why the gateway that holds the home has no status
    asks_model: bool = False  # also a model that answered the gateway a short time ago

    @property
    def home(self) -> Home:
        """The home that the settings name, if it exists or not."""
        return Home(self.report.home)

    @property
    def settings(self) -> Settings:
        """The settings; a check that asks for them is left out while they have mistakes."""
        if self.report.settings is None:
            raise LookupError("the settings have mistakes")
        return self.report.settings

    def read_store(self, read: Callable[[Database], T]) -> T | None:
        """Return what *read* returns; None for a store that cannot be read, which another check reports. Blocks."""
        return read_closed_store(self.home, self.url, read)


def read_closed_store(home: Home, url: str, read: Callable[[Database], T]) -> T | None:
    """Read from the store without changing it; None if it cannot be read. Blocks."""
    if not url and not home.journal.exists():
        return None
    # Here, since the store's own imports are not light, and most doctors need none of it.
    from gateway.store.closed_store import read_store

    try:
        return read_store(home.journal, url, read)
    except ParlourError:
        return None


CheckFunction: TypeAlias = Callable[[CheckContext], Iterable[Finding] | Awaitable[Iterable[Finding]]]


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """One check, with a function for each of its readers. What has no function for a reader is not read by it.

    Facts of a gateway are read once, by `read` or `fetch`, or by `read_stored` where none runs. `judge` words their
    findings, for the doctor, `parlour status` and the console alike.
    """

    name: str
    find: CheckFunction | None = None  # the doctor's own look, at this machine or at other servers
    _: KW_ONLY
    seconds: float = 30.0  # of `find`
    needs_settings: bool = True
    calls_others: bool = False  # `--offline` leaves it out
    in_chat: bool = False  # /status of a chat reads it too
    read: Callable[[Runtime], Status] | None = None  # fields of the status that are in memory
    fetch: Callable[[Runtime], Awaitable[Any]] | None = None  # the field *name* of the status, from the store
    read_stored: Callable[[Database], Status] | None = None  # the same fields of a gateway that does not run
    judge: Callable[[Status], Iterable[Finding]] | None = None
    alert: Callable[[Runtime, str], Source] | None = None  # the text ends the causes of one of several gateways
    ready: Callable[[Runtime], tuple[bool, Status]] | None = None  # whether traffic may come, and fields of /readyz

    async def run(self, context: CheckContext) -> list[Finding]:
        """Return the doctor's findings, in time: a check that hangs or has a bug is a finding, and stops no other.

        A plain function runs in a thread, because it may block.
        """
        if self.find is None or (self.needs_settings and context.report.settings is None):
            return []
        try:
            async with asyncio.timeout(self.seconds):
                if inspect.iscoroutinefunction(self.find):
                    return list(await self.find(context))
                return await asyncio.wrap_future(self._start(self.find, context))
        except TimeoutError:
            return [fail(f"could not be checked within {self.seconds:.0f} s", self.name, "deadline")]
        except Exception as error:  # the boundary of a check; the text may hold a secret
            log.debug("health.check_failed", check=self.name, exc_info=True)
            return [fail(f"could not be checked ({type(error).__name__}); please report it", self.name, "failed")]

    def _start(self, find: CheckFunction, context: CheckContext) -> Future[list[Finding]]:
        """Run a plain function in a thread that does not keep the process: a read of a dead disk may never end."""
        found: Future[list[Finding]] = Future()
        found.set_running_or_notify_cancel()

        def run() -> None:
            try:
                found.set_result(list(find(context)))  # type: ignore[arg-type]
            except Exception as error:  # noqa: BLE001 - raised again where the result is awaited
                found.set_exception(error)

        threading.Thread(target=run, name=f"check {self.name}", daemon=True).start()
        return found
