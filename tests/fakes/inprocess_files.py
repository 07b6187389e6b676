"""The pocket platform with files in and out, and with a history that can be asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from gateway.channel import Channel, ChannelContext
from gateway.errors import FileUnavailable
from gateway.events import (
    Attachment,
    ChatKind,
    DeliveryReceipt,
    InboundMessage,
    MessagePart,
    OutboundMessage,
    Sender,
    SessionKey,
)
from gateway.ports.channel import ChannelCapabilities
from tests.fakes.inprocess_gateway import PLAIN, InProcessChannel, InProcessPlugin

WITH_FILES = replace(PLAIN, file_limit=1_000_000)
PIECE = 65_536


@dataclass(frozen=True, slots=True)
class SentFile:
    """A file as it arrived in a chat."""

    name: str
    data: bytes
    media_type: str


@dataclass(slots=True)
class PlatformFiles:
    """What the platform keeps: files by address, and what people said by chat."""

    files: dict[str, bytes] = field(default_factory=dict)
    fetched: list[str] = field(default_factory=list)
    gate: asyncio.Event | None = None  # downloads wait for it
    waiting: asyncio.Event = field(default_factory=asyncio.Event)  # set when one does
    said: dict[str, list[InboundMessage]] = field(default_factory=dict)
    asked: list[tuple[str, datetime | None]] = field(default_factory=list)  # (message id, since)

    def put(
        self, name: str, data: bytes, *, kind: str = "document", media_type: str = "", size: int = -1
    ) -> Attachment:
        """Keep a file and return it as a message carries it."""
        address = f"pocket-file-{len(self.files)}"
        self.files[address] = data
        size = len(data) if size < 0 else size
        return Attachment(kind=kind, name=name, size=size, media_type=media_type, url=address)

    def tell(self, chat: str, text: str, *, by: str, at: datetime, **facts: Any) -> InboundMessage:
        """Let somebody say something in a chat that nobody addressed to us."""
        said = self.said.setdefault(chat, [])
        message = InboundMessage(
            key=SessionKey("pocket", chat),
            message_id=f"h{len(said)}",
            sender=Sender(id=by.split()[0].lower(), name=by, **facts),
            text=text,
            sent_at=at,
            chat_kind=ChatKind.GROUP,
        )
        said.append(message)
        return message


class InProcessFileChannel(InProcessChannel):
    """`SupportsFiles` and `SupportsHistory`, over a shelf."""

    def __init__(self, context: ChannelContext, capabilities: ChannelCapabilities, sources: PlatformFiles) -> None:
        super().__init__(context, capabilities)
        self.sources = sources
        self.arrived: list[SentFile] = []
        self.kinds: dict[str, ChatKind] = {}
        self._blobs = context.blobs

    async def fetch(self, attachment: Attachment) -> AsyncGenerator[bytes, None]:
        """Yield a file in pieces."""
        self.sources.fetched.append(attachment.url)
        if self.sources.gate is not None:
            self.sources.waiting.set()
            await self.sources.gate.wait()
        data = self.sources.files.get(attachment.url)
        if data is None:
            raise FileUnavailable("gone from the platform")
        for start in range(0, len(data), PIECE):
            yield data[start : start + PIECE]

    async def messages_before(
        self, message: InboundMessage, *, since: datetime | None, limit: int
    ) -> Sequence[InboundMessage]:
        """Return what was said, as the port promises: a thread's start, the newest *limit*, nothing old."""
        self.sources.asked.append((message.message_id, since))
        said = [each for each in self.sources.said.get(message.key.chat, []) if each.sent_at < message.sent_at]
        fresh = [each for each in said if since is None or each.sent_at > since]
        start = fresh[:1] if message.key.thread and len(fresh) > limit else []
        return [*start, *fresh[-limit:]]

    def render(self, message: OutboundMessage, *, least: int = 0) -> Sequence[MessagePart]:
        """Note what kind of chat it goes to."""
        self.kinds[message.key.chat] = message.chat_kind
        return super().render(message)

    async def send(self, part: MessagePart, *, may_be_duplicate: bool = False) -> DeliveryReceipt:
        """Take a file's bytes, or a text as ever."""
        if part.file is not None:
            data = await self._blobs.get(part.file.blob) if part.file.blob else part.plain.encode()
            assert data is not None, f"{part.file.name} has no bytes"
            self.arrived.append(SentFile(part.file.name, data, part.file.media_type))
        return await super().send(part, may_be_duplicate=may_be_duplicate)


class InProcessFilePlugin(InProcessPlugin):
    """Opens a `InProcessFileChannel`."""

    def __init__(self, sources: PlatformFiles, capabilities: ChannelCapabilities = WITH_FILES) -> None:
        super().__init__(capabilities)
        self.sources = sources
        self._limits = capabilities

    def open(self, context: ChannelContext) -> Channel:
        """Build the channel."""
        self.channel = InProcessFileChannel(context, self._limits, self.sources)
        return self.channel


def minute(number: int) -> datetime:
    """Return a moment of the day the tests' people talk on, not long ago."""
    start = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=90)
    return start + timedelta(minutes=number)
