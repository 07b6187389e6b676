"""One gateway of the explorer, a process of its own: its platform and its model are at the other end of a socket.

`python -m tests.faults.explorer.child_gateway SOCKET NAME SECONDS`, with the settings in the environment. The clock of
the process is SECONDS ahead.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from agent.llm.chat_model import ChatReply, ChatRequest, Sink, TokenUsage, ToolCall
from agent.memory.erasure import erase_service, scope_files
from gateway.admission import AdmissionGrant, AdmissionPolicy, AllowEntry, GroupPolicy
from gateway.app.composition import open_app, serve
from gateway.app.context import ExtraChannel, ExtraPlugins
from gateway.app.runtime import Runtime
from gateway.channel import Channel, ChannelContext
from gateway.errors import OutcomeUnknown, ParlourError, StoreUnavailable, WorkerReplaced
from gateway.events import DeliveryReceipt, InboundKind, MessagePart
from gateway.logs import configure_logs
from gateway.ports.channel import ChannelCapabilities
from gateway.settings import load_settings
from tests.fakes.chat_model import FakeChatModel
from tests.fakes.inprocess_gateway import InProcessChannel, InProcessPlugin, _installed
from tests.faults.explorer.rpc_line import LINE_BYTES, Handler, RpcLine

CHANNEL = "wire"
_ANYBODY = AdmissionPolicy(
    channel=CHANNEL, entries=frozenset({AllowEntry(AdmissionGrant.EVERYONE)}), group_policy=GroupPolicy.OPEN
)
TAKEN_OVER, FAILED = 1, 3  # exit codes
_DEPTHS = ("queued", "running", "undelivered", "unwritten")
_SOON = timedelta(minutes=1)  # later jobs are planned, not pending


class WireChannel(InProcessChannel):
    """A platform in another process."""

    def __init__(self, context: ChannelContext, capabilities: ChannelCapabilities, line: RpcLine) -> None:
        super().__init__(context, capabilities)
        self._line = line

    async def send(self, part: MessagePart, *, may_be_duplicate: bool = False) -> DeliveryReceipt:
        """Have the platform show it; the reply may be lost."""
        shown = await self._line.call(
            "show", chat=part.key.chat, text=part.payload or part.plain, part=part.id, reply_to=part.reply_to,
            kind=part.kind.value, is_marked=may_be_duplicate,
        )  # fmt: skip
        if not shown:
            raise OutcomeUnknown("the platform did not reply")
        return DeliveryReceipt(part=part.id, message_id=shown, at=datetime.now(UTC))

    async def find(self, part: MessagePart) -> DeliveryReceipt | None:
        """Ask the platform, where it knows keys."""
        found = await self._line.call("find", part=part.id)
        if found is None:
            raise OutcomeUnknown("this platform knows no keys")
        return DeliveryReceipt(part=part.id, message_id=found, at=datetime.now(UTC)) if found else None


class WirePlugin(InProcessPlugin):
    """The kind of the channel."""

    name = CHANNEL

    def __init__(self, line: RpcLine) -> None:
        super().__init__(ChannelCapabilities(text_limit=20_000))
        self._line = line

    def open(self, context: ChannelContext) -> Channel:
        """Build the channel."""
        self.channel = WireChannel(context, self._capabilities, self._line)
        return self.channel


class WireModel(FakeChatModel):
    """A model in another process."""

    def __init__(self, line: RpcLine) -> None:
        self.name = "wire"
        self._line = line

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Send the whole request; return the text or the one tool call that comes back."""
        tools = [str(each["function"]["name"]) for each in request.tools]
        said = await self._line.call(
            "think", chat=request.chat, purpose=request.purpose, messages=list(request.messages), tools=tools
        )
        calls = (ToolCall("s", said["tool"], said["arguments"]),) if said["tool"] else ()
        return ChatReply(text=said["text"], tool_calls=calls, model=self.name, tokens=TokenUsage(1, 1), cost=0.0)


class ChildGateway:
    """The process: a gateway that is told what people say, and by which it is stopped."""

    def __init__(self, ahead: timedelta) -> None:
        self._ahead = ahead
        self._stop = asyncio.Event()
        self._app: Runtime | None = None

    async def live(self, socket: str, name: str) -> None:
        """Serve until told to stop, or until the store is lost to other gateways."""
        reader, writer = await asyncio.open_unix_connection(socket, limit=LINE_BYTES)
        handlers: Mapping[str, Handler] = {"receive": self._receive, "pending": self._pending, "stop": self._end}
        line = RpcLine(reader, writer, handlers)
        serving = asyncio.create_task(line.serve(), name="line")
        self._plugin = WirePlugin(line)
        settings = load_settings(os.environ, _installed((), CHANNEL))
        channel = ExtraChannel(
            name=CHANNEL, kind=self._plugin, settings=None, policy=_ANYBODY, traits=self._plugin.traits
        )
        plugins = ExtraPlugins(channels=(channel,), models=(WireModel(line),))

        def ready(app: Runtime) -> None:
            self._app = app
            self._hello = asyncio.create_task(line.call("ready", name=name), name="ready")

        try:
            async with open_app(settings, plugins=plugins, now=self._now) as app:
                await serve(app, self._stop, ready=ready)
        finally:
            serving.cancel()

    def _now(self) -> datetime:
        return datetime.now(UTC) + self._ahead

    async def _receive(self, **fields: Any) -> str:
        """Return the verdict; "" where the message could not be stored, so that the platform brings it again."""
        assert self._plugin.channel is not None
        fields["kind"] = InboundKind(fields["kind"])
        fields["sent_at"] = datetime.fromisoformat(fields["sent_at"])
        try:
            result, _ = await self._plugin.channel.say(**fields)
        except (StoreUnavailable, ParlourError):
            return ""
        return result.verdict.value

    async def _pending(self) -> list[str]:
        """Return what is left to do soon, as text."""
        assert self._app is not None
        store = self._app.store
        try:
            depth = await store.journal.depth()
            found = [f"{count} {name}" for name in _DEPTHS if (count := depth[name])]
            kinds = {each.kind for each in await store.jobs.count()}
            jobs = [each for kind in sorted(kinds) for each in await store.jobs.pending_of(kind)]
            soon = store.journal.now() + _SOON
            # The bytes are looked at when no scrub is left, however long it rests.
            due = [each for each in jobs if each.due_at < soon or each.kind == scope_files.SCRUB]
            found += [f"job {each.kind} of {each.scope}" for each in due]
            if await store.links.moves():
                found.append("accounts that are moved")
        except StoreUnavailable:
            return ["the store"]
        return found

    async def _end(self) -> None:
        self._stop.set()


async def _live(socket: str, name: str, seconds: str) -> int:
    configure_logs(level="warning", form="text", secrets=())
    erase_service._REST_FACTOR = 1  # scrubs of several scopes rest for minutes on a busy machine
    code = 0
    try:
        await ChildGateway(timedelta(seconds=float(seconds))).live(socket, name)
    except* WorkerReplaced:
        code = TAKEN_OVER
    except* ParlourError as errors:
        print("ended:", *errors.exceptions, flush=True)
        traceback.print_exception(errors)
        code = FAILED
    return code


if __name__ == "__main__":
    sys.exit(asyncio.run(_live(*sys.argv[1:4])))
