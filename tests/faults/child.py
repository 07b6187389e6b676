"""The process under test: the whole gateway, with one channel, a tool that leaves traces, and the shim."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

from agent.tools.tool import AskRule, Tool, ToolContext, ToolKind, tool
from channels.web import WebSettings
from channels.web import plugin as web_plugin
from gateway.admission import AdmissionPolicy, AllowEntry
from gateway.app.composition import open_app, run, serve
from gateway.app.context import ExtraChannel, ExtraPlugins
from gateway.app.runtime import Runtime
from gateway.commands.recovery import take_mirror
from gateway.errors import StoreUnavailable
from gateway.journal_file import OpenChoice
from gateway.ports.journal import Job
from gateway.settings import Settings
from gateway.settings.channel_blocks import combine_models
from tests.fakes.relay import RelayKind, RelaySettings
from tests.faults.process_order import CHANNEL, ProcessOrder, traces
from tests.faults.real_channels import is_up, platform_channel
from tests.faults.sabotage import SABOTAGES
from tests.faults.shim import FaultShim, ShimMode

_appending = threading.Lock()
_LOOK_AGAIN = 0.005  # seconds; another process's disk and threads give no event to wait for
_QUIET = 10  # looks in a row that find no new call: what a channel does on connecting is over
_SPANS = {"later": timedelta(hours=1), "days later": timedelta(days=3)}
_SPACE_RETURNS = 0.15  # seconds after the disk was first full


def tools(root: Path) -> tuple[Tool, ...]:
    """Return the tools of the test: two that leave a trace, the second asks first, and one that kills the process."""

    @tool("Put something on record.", kind=ToolKind.ACT, ask=AskRule.NEVER)
    async def put_on_record(context: ToolContext, what: Annotated[str, "what to write down"]) -> str:
        line = json.dumps({"what": what, "turn": context.turn, "call": context.call}) + "\n"
        await asyncio.to_thread(_append, traces(root), line.encode())
        return f"on record: {what}"

    @tool("Do harm.", kind=ToolKind.ACT, ask=AskRule.NEVER, repeatable=True)
    async def die(context: ToolContext) -> str:
        await asyncio.to_thread(_append, traces(root), json.dumps({"died": context.turn}).encode() + b"\n")
        os.kill(os.getpid(), signal.SIGKILL)
        return "never said"

    @tool("Send a letter.", kind=ToolKind.ACT)
    async def send_letter(context: ToolContext, to: str) -> str:
        await asyncio.to_thread(_append, traces(root), json.dumps({"to": to}).encode() + b"\n")
        return f"sent to {to}"

    return put_on_record, die, send_letter


def _append(path: Path, line: bytes) -> None:
    # One at a time: another's line in the middle of one that is written in two pieces would break both.
    with _appending, path.open("ab", buffering=0) as file:
        done = 0
        while done < len(line):
            done += file.write(line[done:]) or 0
        os.fsync(file.fileno())


def settings_of(order: ProcessOrder) -> Settings:
    """Return the gateway's settings; everything else is as on a fresh machine."""
    values: dict[str, Any] = {
        "home": order.home,
        "timezone": "UTC",
        "llm": {"model": "openai/test", "api_base": order.model, "api_key": "sk-none"},
        "web": {"port": 0},
        "agent": {"shutdown_grace_seconds": order.grace, "merge": order.merge},
        "owners": (f"{CHANNEL}:{order.owner}",) if order.owner else (),
        "caps": {"person_turns_per_10_min": order.turns},
        "store": {"url": order.database},
        "delivery": {"once": "strict" if order.is_strict else "marked"},
    }
    values |= {name: {**values.get(name, {}), **group} for name, group in order.settings.items()}
    return Settings.model_validate(values)


def plugins_of(order: ProcessOrder) -> ExtraPlugins:
    """Return the channel of the platform, and the tools."""
    channel = _relay(order) if order.platform == CHANNEL else platform_channel(order)
    page = (_page(),) if order.has_page else ()
    return ExtraPlugins(channels=(channel, *page), tools=tools(Path(order.root)))


def _relay(order: ProcessOrder) -> ExtraChannel:
    """Return the relay channel, open to everybody unless somebody owns it."""
    block = RelaySettings(base_url=order.base, send_key=order.send_key, preview_seconds=order.preview_seconds)
    everybody = frozenset() if order.owner else frozenset({AllowEntry.parse("*")})
    policy = AdmissionPolicy(channel=CHANNEL, entries=everybody, owners=frozenset({order.owner} - {""}))
    return ExtraChannel(name=CHANNEL, kind=RelayKind(), settings=block, policy=policy)


def _page() -> ExtraChannel:
    policy = AdmissionPolicy(channel="web", entries=frozenset({AllowEntry.parse("*")}))
    block = combine_models(WebSettings).model_validate({"kind": "web"})
    return ExtraChannel(name="web", kind=web_plugin, settings=block, policy=policy, traits=WebSettings.traits)


class GatewayChild:
    """One life of the gateway, steered over a socket: it is told `arm`, `later`, `code`, `finish` …, and says so."""

    def __init__(self, order: ProcessOrder, connection: socket.socket) -> None:
        self._order = order
        self._connection = connection
        self._shim = FaultShim()
        self._stop = asyncio.Event()
        self._app: Runtime | None = None
        self._settling: asyncio.Task[None] | None = None
        self._ahead = timedelta(hours=order.hours or 0)

    async def live(self) -> None:
        """Run until told to finish."""
        reader, self._writer = await asyncio.open_connection(sock=self._connection)
        self._shim.watch(Path(self._order.root), Path(self._order.report))
        if self._order.by_state:
            self._shim.count_states()
        helper = asyncio.create_task(self._obey(reader), name="orders")
        refill = asyncio.create_task(self._refill(), name="space returns")
        if self._order.sabotage:
            SABOTAGES[self._order.sabotage]()
        if self._order.whole_life:
            self._arm()
        try:
            if self._order.imports:
                await asyncio.to_thread(self._import_files)
            await self._serve()
        finally:
            beside = [task for task in (helper, refill, self._settling) if task is not None]
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)

    def _import_files(self) -> None:
        """Do what `parlour mirror import --yes` does."""
        given = {"HOME": str(self._order.home), "STORE__URL": self._order.database, "TIMEZONE": "UTC"}
        os.environ.update({f"PARLOUR_{name}": value for name, value in given.items()})
        take_mirror(OpenChoice.ANSWER, is_sure=True)

    async def _serve(self) -> None:
        settings, plugins = settings_of(self._order), plugins_of(self._order)
        if self._order.is_signalled:
            await run(settings, plugins=plugins, ready=self._ready)
            return
        async with open_app(settings, plugins=plugins, now=self._now) as app:
            await serve(app, self._stop, ready=self._ready)

    def _now(self) -> datetime:
        return datetime.now(UTC) + self._ahead

    async def _move_clock(self, span: timedelta) -> None:
        """Let time pass, and wake what waits for its time."""
        assert self._app is not None
        self._ahead += span
        now = self._now()
        await self._app.store.jobs.put(Job(id=f"wake:{now}", kind="wake", scope="", payload={}, due_at=now))

    def _arm(self) -> None:
        self._shim.arm(ShimMode(self._order.mode), self._order.at, self._order.of)

    def _ready(self, app: Runtime) -> None:
        self._app = app
        self._settling = asyncio.create_task(self._settle(app), name="settle")

    async def _settle(self, app: Runtime) -> None:
        """Begin to count when the channel hears its platform and is quiet: from there on it is the message's way."""
        if not self._order.whole_life:
            if self._order.platform != CHANNEL:
                await self._wait_quiet(app)
            if not self._order.is_later:
                self._arm()
        self._tell(ready=True)

    async def _wait_quiet(self, app: Runtime) -> None:
        self._shim.arm(ShimMode.COUNT, 0)
        counted, quiet = -1, 0
        while quiet < _QUIET or not is_up(app.channels[self._order.platform]):
            quiet = quiet + 1 if self._shim.counted == counted else 0
            counted = self._shim.counted
            await asyncio.sleep(_LOOK_AGAIN)

    def _tell(self, **news: Any) -> None:
        self._writer.write(json.dumps(news).encode() + b"\n")

    async def _obey(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            what = json.loads(line)
            if what in ("arm", "settle", "finish"):
                await self._wait_idle()
                if what == "settle" or self._order.settles:
                    await self._wait_settled()
            if what == "arm":
                self._arm()
                self._tell(armed=True)
            elif what == "settle":
                self._tell(settled=True)
            elif what in _SPANS:
                await self._move_clock(_SPANS[what])
            elif what == "code":
                self._tell(code=await self._owners_code())
            elif what == "finish":
                if not self._order.whole_life:
                    self._shim.disarm()
                self._tell(idle=True, counted=self._shim.counted, points=list(self._shim.points()))
                self._stop.set()

    async def _owners_code(self) -> str:
        """Return a code as `parlour owner claim` prints it."""
        assert self._app is not None
        issued = await self._app.owner_claims.issue()
        assert issued is not None
        return issued.code

    async def _wait_idle(self) -> None:
        assert self._app is not None
        while True:
            with suppress(StoreUnavailable):  # a broken disk is not idle
                depth = await self._app.store.journal.depth()
                if not (depth["queued"] or depth["undelivered"] or depth["unwritten"]):
                    return
            await asyncio.sleep(_LOOK_AGAIN)

    async def _wait_settled(self) -> None:
        """Return when no background job is due, and the mirror is written."""
        assert self._app is not None
        app = self._app
        while True:
            kinds = {each.kind for each in await app.store.jobs.count()}
            jobs = [each for kind in kinds for each in await app.store.jobs.pending_of(kind)]
            if not any(each.due_at <= self._now() and app.background.can_do(each.kind) for each in jobs):
                break
            await asyncio.sleep(_LOOK_AGAIN)
        await self._wait_idle()
        for scope in await app.store.documents.scopes():
            await app.memory_files.settle(scope)
        await app.memory_files.flush()

    async def _refill(self) -> None:
        """Make room again a moment after the disk was full."""
        if self._order.mode != ShimMode.NO_SPACE:
            return
        while not self._shim.struck:  # noqa: ASYNC110 - the shim lies outside of Python and rings no event
            await asyncio.sleep(_LOOK_AGAIN)
        await asyncio.sleep(_SPACE_RETURNS)
        self._shim.disarm()
