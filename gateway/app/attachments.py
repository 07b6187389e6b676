"""Files and what was said before: the agent's parts, built from settings and channels."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from agent.attachments.attachment_loader import AttachmentLoader
from agent.attachments.outgoing_files import OutgoingFiles
from agent.attachments.transcription import LitellmTranscriber
from agent.llm.usage_recorder import UsageRecorder
from gateway.app.channels import ConfiguredChannels, Judge, may_be_read
from gateway.attachment_fetcher import ChannelAttachmentFetcher
from gateway.channel_history import ChannelHistory
from gateway.events import SessionKey
from gateway.home import Home
from gateway.ports import BlobStore, MetricsRecorder
from gateway.settings import Settings


def build_attachment_loader(
    settings: Settings,
    doors: ConfiguredChannels,
    blobs: BlobStore,
    sees: Callable[[SessionKey], Awaitable[bool]],
    *,
    books: UsageRecorder,
    meter: MetricsRecorder,
) -> AttachmentLoader:
    """Return what becomes of files that people send; *sees* says whether a chat's model looks at pictures."""
    return AttachmentLoader(
        ChannelAttachmentFetcher(doors.channels, most_mb=settings.files.max_mb),
        blobs,
        text_chars=settings.files.text_chars,
        sees=sees,
        ears=_ears(settings, books, meter),
    )


def build_outgoing_files(settings: Settings, home: Home, doors: ConfiguredChannels, blobs: BlobStore) -> OutgoingFiles:
    """Return what sends files, within what each channel takes."""

    def limit(channel: str) -> int:
        found = doors.channels.get(channel)
        return found.capabilities.file_limit if found is not None else 0

    return OutgoingFiles(home.path, blobs, most=settings.files.max_mb * 1_000_000, limit=limit)


def build_history_reader(doors: ConfiguredChannels, judge: Judge) -> ChannelHistory:
    """Return what reads a chat before a mention; *judge* notes nothing, since nobody is refused by not being read."""
    return ChannelHistory(doors.channels, admits=lambda message: may_be_read(judge, message))


def _ears(settings: Settings, books: UsageRecorder, meter: MetricsRecorder) -> LitellmTranscriber | None:
    llm = settings.llm
    if not llm.transcription_model:
        return None
    # The address and the key are those of the answering model's provider, and nobody else's to see.
    entry = llm.entry(llm.transcription_model)
    return LitellmTranscriber(
        entry.model,
        api_base=str(entry.api_base or ""),
        api_key=entry.api_key.get_secret_value() if entry.api_key else "",
        proxy=settings.proxy_address,
        books=books,
        meter=meter,
    )
