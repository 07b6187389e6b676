"""The real gateway in this process, with a channel inside the process: a platform that a test speaks for."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

from agent.llm.chat_model import ChatReply, ChatRequest, Sink, TokenUsage, ToolCall
from gateway.admission import AdmissionGrant, AdmissionPolicy, AllowEntry, GroupPolicy
from gateway.app.composition import open_app, serve
from gateway.app.context import ExtraChannel, ExtraPlugins
from gateway.app.runtime import Runtime
from gateway.channel import Channel, ChannelContext
from gateway.errors import SendRefused
from gateway.events import (
    Attachment,
    ChatKind,
    DeliveryReceipt,
    InboundKind,
    InboundMessage,
    MessagePart,
    OutboundKind,
    OutboundMessage,
    Sender,
    SessionKey,
)
from gateway.ports.channel import ChannelCapabilities, ChatActivity, IntakeResult, PlatformTraits
from gateway.settings import InstalledPlugins, load_settings
from gateway.settings.channel_blocks import ChannelSettings
from gateway.store.engine import utc_now
from gateway.text import find_command
from tests.fakes.chat_model import FakeChatModel


class InstantModel(FakeChatModel):
    """Answers after *seconds*; keeps nothing, so that a long run measures the gateway."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.name = "instant"
        self.seconds = seconds
        self.calls = 0

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Repeat the last message; a consolidation is answered as a good model does, with nothing new."""
        if request.purpose != "answer":
            return self._summary(request)
        self.calls += 1
        if self.seconds:
            await asyncio.sleep(self.seconds)
        text = f"answer to: {str(request.messages[-1]['content'])[-80:]}"
        if sink is not None:
            sink(text)
        return ChatReply(text=text, tool_calls=(), model=self.name, tokens=TokenUsage(10, 10, 0), cost=0.0)

    def _summary(self, request: ChatRequest) -> ChatReply:
        shown = str(request.messages[-1]["content"])
        memory = shown.partition("Long-term Memory\n")[2].partition("\n\n## Conversation")[0]
        saved = json.dumps({"history_entry": "They talked.", "memory_update": memory or "(empty)"})
        call = ToolCall("save", "save_memory", saved)
        return ChatReply(text="", tool_calls=(call,), model=self.name, tokens=TokenUsage(10, 10, 0), cost=0.0)


# Whoever writes on the channel `pocket` is let in, whether the bot is named or not.
OPEN = AdmissionPolicy(
    channel="pocket", entries=frozenset({AllowEntry(AdmissionGrant.EVERYONE)}), group_policy=GroupPolicy.OPEN
)
PLAIN = ChannelCapabilities(text_limit=4_000)
STREAMING = ChannelCapabilities(
    text_limit=4_000, edits=True, preview_every=timedelta(milliseconds=1), shows_activity=True
)


@dataclass(slots=True)
class PostedMessage:
    """A message as it stands on the platform, with every text it ever had."""

    id: str
    text: str
    kind: OutboundKind
    reply_to: str
    visible_to: str
    was: list[str] = field(default_factory=list)


class InProcessChannel:
    """A platform inside the process: what is sent is noted, and wakes whoever waits for that answer."""

    def __init__(self, context: ChannelContext, capabilities: ChannelCapabilities = PLAIN) -> None:
        self.name = context.name
        self.capabilities = capabilities
        self.posts: dict[str, list[PostedMessage]] = {}
        self.activities: list[ChatActivity] = []
        self._posted = asyncio.Condition()
        self._intake = context.intake
        self._numbers = count(time.time_ns())  # a restarted platform does not begin at 1 again
        self._waiting: dict[str, asyncio.Future[float]] = {}
        self.sent = 0
        self.blocking: set[str] = set()  # chats that take nothing
        self.order: dict[str, list[str]] = {}
        self.texts: dict[str, list[str]] = {}

    async def run(self) -> None:
        """Hear nothing by itself; `say` is how messages come."""
        await asyncio.Event().wait()

    async def say(
        self,
        chat: str,
        text: str,
        *,
        sender: str = "ann",
        name: str = "Ann",
        number: str = "",
        revision: str = "",
        kind: InboundKind = InboundKind.MESSAGE,
        sent_at: datetime | None = None,
        group: bool = False,
        is_admin: bool = False,
        bot: str = "parlour_bot",
        album: str = "",
        quoted: str = "",
        is_addressed: bool = False,
        guild: str = "",
        replaces: str = "",
        attachments: Sequence[Attachment] = (),
    ) -> tuple[IntakeResult, asyncio.Future[float]]:
        """Hand a message over; the future is done when it is answered, with the time of the clock then."""
        number = number or f"{next(self._numbers):020d}"
        message = InboundMessage(
            key=SessionKey(self.name, chat),
            message_id=number,
            sender=Sender(id=sender, name=name, is_admin=is_admin),
            text=text,
            command=find_command(text, bot),
            sent_at=sent_at or datetime.now(UTC),
            revision=revision,
            kind=kind,
            chat_kind=ChatKind.GROUP if group else ChatKind.DIRECT,
            bot=bot,
            album=album,
            quoted=quoted,
            is_addressed=is_addressed,
            guild=guild,
            replaces=replaces,
            attachments=tuple(attachments),
        )
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        return await self._intake.receive(message), future

    async def ask(self, chat: str, text: str, **facts: Any) -> str:
        """Hand a message over and return the text that answers it."""
        number = facts.setdefault("number", f"{next(self._numbers):020d}")
        _, answer = await self.say(chat, text, **facts)
        await answer
        return next(post.text for post in reversed(self.posts[chat]) if post.reply_to == number)

    async def posted(self, chat: str, number: int) -> list[PostedMessage]:
        """Return what stands in *chat* once it is that many messages."""
        await self.until(lambda: len(self.posts.get(chat, ())) >= number)
        return self.posts[chat]

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Return once *is_so* of what stands in the chats."""
        async with self._posted:
            await self._posted.wait_for(is_so)

    def is_ready(self) -> bool:
        """Always."""
        return True

    def is_watched(self, key: SessionKey) -> bool:
        """Somebody looks on where there is something to see."""
        return self.capabilities.preview_every is not None

    def render(self, message: OutboundMessage, *, least: int = 0) -> Sequence[MessagePart]:
        """One part, as it stands."""
        return [
            MessagePart(
                id=f"{message.id}.1",
                key=message.key,
                payload=message.text,
                plain=message.text,
                reply_to=message.reply_to,
                visible_to=message.visible_to,
                kind=message.kind,
            )
        ]

    async def send(self, part: MessagePart, *, may_be_duplicate: bool = False) -> DeliveryReceipt:
        """Note the time. Raises SendRefused in a chat whose person has blocked the bot."""
        if part.key.chat in self.blocking:
            raise SendRefused("403 bot was blocked by the user")
        self.sent += 1
        self.order.setdefault(part.key.chat, []).append(part.reply_to)
        self.texts.setdefault(part.key.chat, []).append(part.plain)
        post = PostedMessage(str(self.sent), part.plain, part.kind, part.reply_to, part.visible_to)
        self.posts.setdefault(part.key.chat, []).append(post)
        await self._note(part)
        return DeliveryReceipt(part=part.id, message_id=post.id, at=datetime.now(UTC))

    async def edit(self, message_id: str, part: MessagePart) -> DeliveryReceipt:
        """Replace a text; what it was is kept."""
        post = next(post for post in self.posts[part.key.chat] if post.id == message_id)
        post.was.append(post.text)
        post.text, post.kind = part.plain, part.kind
        await self._note(part)
        return DeliveryReceipt(part=part.id, message_id=message_id, at=datetime.now(UTC))

    async def _note(self, part: MessagePart) -> None:
        """Wake who waits: a preview is no answer yet."""
        if part.kind is not OutboundKind.PREVIEW:
            future = self._waiting.pop(part.reply_to, None)
            if future is not None and not future.done():
                future.set_result(time.perf_counter())
        async with self._posted:
            self._posted.notify_all()

    async def find(self, part: MessagePart) -> DeliveryReceipt | None:
        """Say that it never arrived."""
        return None

    async def show(self, activity: ChatActivity) -> None:
        """Note what is shown."""
        self.activities.append(activity)

    async def close(self) -> None:
        """Nothing to close."""


class InProcessPlugin:
    """The kind `pocket`; keeps the channel it opened."""

    name = "pocket"
    settings: type[Any] = dict
    traits = PlatformTraits(chat_is_person=True, group_prefix="-")

    def __init__(self, capabilities: ChannelCapabilities = PLAIN) -> None:
        self.channel: InProcessChannel | None = None
        self._capabilities = capabilities

    def open(self, context: ChannelContext) -> Channel:
        """Build the channel."""
        self.channel = InProcessChannel(context, self._capabilities)
        return self.channel

    def routes(self, channel: Channel) -> Sequence[Any]:
        """No pages."""
        return ()

    def check(self, settings: Any, environment: Mapping[str, str]) -> Sequence[str]:
        """Nothing can be wrong."""
        return ()


@dataclass(slots=True)
class InProcessGateway:
    """A gateway at work."""

    app: Runtime
    channel: InProcessChannel
    home: Path

    async def idle(self) -> None:
        """Return when everything accepted is answered, delivered and in its file, and no quick job is due."""
        while True:
            if not await self._is_busy():
                await self.app.session_files.flush()
                await self.app.memory_files.flush()
                if not await self._is_busy() and not (await self.app.store.journal.depth())["unwritten"]:
                    return
            await asyncio.sleep(0.005)

    async def document(self, scope: str, name: str = "MEMORY.md") -> str:
        """Return a document of a scope; its file is written a moment later."""
        return (await self.app.store.documents.read(scope, name)).text

    async def remembered(self) -> str:
        """Return the documents of every scope, one behind the other; their files are written a moment later."""
        documents = self.app.store.documents
        texts = [await documents.texts(scope) for scope in await documents.scopes()]
        return "\n".join(text for each in texts for text in each.values())

    async def settle_documents(self) -> None:
        """Return when the files of all documents are written, and edits of them taken over."""
        for scope in await self.app.store.documents.scopes():
            await self.app.memory_files.settle(scope)

    async def _is_busy(self) -> bool:
        """Return True if there is a turn, a message, or a due job of files; other jobs may wait for a held model."""
        depth = await self.app.store.journal.depth()
        if self.app.pool.turns or depth["queued"] or depth["undelivered"]:
            return True
        runner, jobs = self.app.background, self.app.store.jobs
        kinds = {each.kind for each in await jobs.count()} & set(runner._quick)
        pending = [job for kind in kinds for job in await jobs.pending_of(kind)]
        return any(job.due_at <= runner._now() for job in pending)

    def kill(self, into: Path) -> Path:
        """Copy the home as a kill at this moment leaves it; return the copy, for another `gateway`."""
        ignored = shutil.ignore_patterns("control.sock", "lock", "*-shm")
        shutil.copytree(self.home, into, ignore=ignored, copy_function=_copy)
        return into


def _copy(source: str, target: str) -> None:
    """Copy a file; one that is being written beside another may have taken its place meanwhile."""
    try:
        shutil.copy2(source, target)
    except FileNotFoundError:
        if not source.endswith(".tmp"):
            raise


def _installed(tools: Sequence[Any], platform: str) -> InstalledPlugins:
    """Return what is installed, the pocket's channel and the caller's tools with it, so that settings may name them."""
    kinds = InstalledPlugins.installed()
    return replace(
        kinds,
        models={**kinds.models, platform: lambda: ChannelSettings},
        tools=(kinds.tools or frozenset()) | {each.name for each in tools},
    )


class AllAccounts(frozenset[str]):
    """Ids that need not be listed: whoever writes in a pocket is its owner, if the test says nothing else."""

    def __contains__(self, _: object) -> bool:
        return True


@asynccontextmanager
async def gateway(
    *,
    home: Path | None = None,
    model: Any = None,
    tools: Sequence[Any] = (),
    environment: Mapping[str, str] | None = None,
    capabilities: ChannelCapabilities = PLAIN,
    policy: AdmissionPolicy | None = None,
    kind: InProcessPlugin | None = None,
    now: Callable[[], datetime] = utc_now,
) -> AsyncIterator[InProcessGateway]:
    """Run the whole gateway, web server included, on a fresh home (or *home*), by the clock *now*."""
    # A thread that keeps a version when we stop ends after us; a process would wait for it.
    with tempfile.TemporaryDirectory(prefix="parlour-pocket-", ignore_cleanup_errors=True) as folder:
        place = home or Path(folder) / "home"
        kind = kind or InProcessPlugin(capabilities)
        settings = load_settings(
            {
                "PARLOUR_HOME": str(place),
                "PARLOUR_WEB__PORT": "0",
                "PARLOUR_LOG__LEVEL": "error",
                "PARLOUR_AGENT__MERGE": "split",  # a held model is asked about each message by itself
                **(environment or {}),
            },
            _installed(tools, kind.name),
        )
        policy = policy or AdmissionPolicy(channel=kind.name, is_local=True, owners=AllAccounts())
        extra = ExtraChannel(name=kind.name, kind=kind, settings=None, policy=policy, traits=kind.traits)
        plugins = ExtraPlugins(channels=(extra,), tools=tools, models=() if model is None else (model,))
        stop, ready = asyncio.Event(), asyncio.Event()
        async with open_app(settings, plugins=plugins, now=now) as app:
            serving = asyncio.create_task(serve(app, stop, ready=lambda _: ready.set()))
            waiting = asyncio.create_task(ready.wait())
            await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                await serving
            assert kind.channel is not None
            try:
                yield InProcessGateway(app, kind.channel, place)
            finally:
                stop.set()
                await serving
