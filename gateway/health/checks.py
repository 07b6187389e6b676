"""Checks: each is a function that returns findings, with a deadline. They change nothing."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeAlias

import structlog

from gateway.errors import StoreUnavailable
from gateway.home import Home
from gateway.ports.setup import Finding, fail
from gateway.settings import Settings, SettingsReport
from gateway.store_watcher import one_line

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckContext:
    """The subjects of checks: the settings, the environment that they are from, the store and the running gateway."""

    report: SettingsReport
    environment: Mapping[str, str]
    url: str = ""  # of a database that can be used; "" for the embedded store
    status: Mapping[str, Any] = field(default_factory=dict)  # of the gateway that runs, or of a stopped one's store
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


async def read_facts(
    reads: Mapping[str, Callable[[], Awaitable[Any]]], deadline: timedelta
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what is read by name, all at once, and why the rest is unknown: the store's line, or no answer in time."""
    facts: dict[str, Any] = {}
    unknown: dict[str, str] = {}

    async def read(name: str) -> None:
        try:
            async with asyncio.timeout(deadline.total_seconds()):
                facts[name] = await reads[name]()
        except StoreUnavailable as error:
            unknown[name] = one_line(error)
        except TimeoutError:
            unknown[name] = "it does not answer"

    await asyncio.gather(*map(read, reads))
    return facts, unknown


CheckFunction: TypeAlias = Callable[[CheckContext], Iterable[Finding] | Awaitable[Iterable[Finding]]]


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """One check. A plain function runs in a thread, because it may block."""

    name: str
    find: CheckFunction
    seconds: float = 30.0
    needs_settings: bool = True

    async def run(self, context: CheckContext) -> list[Finding]:
        """Return the findings, in time: a check that hangs or has a bug is a finding itself, and stops no other."""
        if self.needs_settings and context.report.settings is None:
            return []
        try:
            async with asyncio.timeout(self.seconds):
                if inspect.iscoroutinefunction(self.find):
                    return list(await self.find(context))
                return await asyncio.wrap_future(self._start(context))
        except TimeoutError:
            return [fail(f"could not be checked within {self.seconds:.0f} s", self.name, "deadline")]
        except Exception as error:  # the boundary of a check; the text may hold a secret
            log.debug("health.check_failed", check=self.name, exc_info=True)
            return [fail(f"could not be checked ({type(error).__name__}); please report it", self.name, "failed")]

    def _start(self, context: CheckContext) -> Future[list[Finding]]:
        """Run a plain function in a thread that does not keep the process: a read of a dead disk may never end."""
        found: Future[list[Finding]] = Future()
        found.set_running_or_notify_cancel()

        def run() -> None:
            try:
                found.set_result(list(self.find(context)))  # type: ignore[arg-type]
            except Exception as error:  # noqa: BLE001 - raised again where the result is awaited
                found.set_exception(error)

        threading.Thread(target=run, name=f"check {self.name}", daemon=True).start()
        return found
