"""What the platforms themselves say: every enabled block's token, rights and conflicts, by real calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import structlog

from gateway.doctor.findings import Finding, Level
from gateway.net.probing import probe
from gateway.net.proxy import Proxy
from gateway.ports import setup
from gateway.ports.installed import HOW_TO_INSTALL, installed
from gateway.settings import Settings

log = structlog.get_logger(__name__)

WITHIN = 15.0  # seconds, all platforms together

_LEVELS = {setup.Level.GOOD: Level.OK, setup.Level.WARNING: Level.WARN, setup.Level.WRONG: Level.FAIL}


async def ask_platforms(settings: Settings, environment: Mapping[str, str]) -> AsyncIterator[Finding]:
    """Ask every platform that can be asked, all at once; nothing is changed there."""
    found = {entry.name: entry for entry in installed("parlour.channels")}
    environment = with_proxy(environment, settings)
    asked: dict[str, asyncio.Task[Sequence[setup.Finding]]] = {}
    async with asyncio.TaskGroup() as tasks:
        for name, block in settings.channels.items():
            if block.enabled and block.kind in found:
                asked[name] = tasks.create_task(_asked(found[block.kind], block, environment), name=f"ask {name}")
    for name, task in asked.items():
        for finding in task.result():
            yield from_platform(f"channel {name}", finding)


async def ask_proxy(address: str) -> Finding:
    """Ask the proxy itself whether it is there and takes us, so that nobody looks for the mistake elsewhere."""
    wrong = await probe(address)
    if wrong:
        return Finding(Level.FAIL, "proxy", f"{wrong}. Until then nothing is heard or answered, and messages wait")
    return Finding(Level.OK, "proxy", f"what leaves this machine goes through {Proxy.read(address)}")


def with_proxy(environment: Mapping[str, str], settings: Settings) -> Mapping[str, str]:
    """Return *environment* as a platform's `verify` takes it: with the proxy, wherever it is set."""
    return {**environment, "PARLOUR_PROXY": settings.proxy_address}


def from_platform(name: str, finding: setup.Finding) -> Finding:
    """Return what a platform said as a line of the doctor's."""
    return Finding(_LEVELS[finding.level], name, finding.text, finding.id)


async def _asked(entry: Any, block: Any, environment: Mapping[str, str]) -> Sequence[setup.Finding]:
    try:
        kind = entry.load()
    except ImportError:
        return ()  # the check of the block says so
    return await verify(kind, block, environment) if isinstance(kind, setup.SetsUp) else ()


async def verify(
    kind: setup.SetsUp, block: Any, environment: Mapping[str, str], *, within: float = WITHIN
) -> Sequence[setup.Finding]:
    """Ask one platform whether *block* would work; whatever goes wrong is a finding, and it ends in time."""
    try:
        async with asyncio.timeout(within):
            return list(await kind.verify(block, environment))
    except TimeoutError:
        text = f"{kind.title} did not answer within {within:.0f} s; is this machine online?"
    except ImportError as missing:
        text = f"{kind.title} needs {missing.name}; {HOW_TO_INSTALL}"
    except Exception as error:  # noqa: BLE001 - the channel boundary; its text may hold the token
        log.debug("doctor.verify_failed", kind=kind.title, error=type(error).__name__)
        text = f"{kind.title} could not be asked ({type(error).__name__}); is this machine online?"
    return [setup.Finding(level=setup.Level.WRONG, text=text, id="reached")]
