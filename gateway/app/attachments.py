"""Files and what was said before: the agent's parts, built from settings and channels."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from agent.attachments.hearing import LitellmEars
from agent.attachments.intake import FilesIn
from agent.attachments.outgoing import FilesOut
from agent.llm.books import Books
from gateway.app.channels import Doors, Judge, may_be_read
from gateway.events import SessionKey
from gateway.files import ChannelFiles
from gateway.home import Home
from gateway.overheard import ChannelHistory
from gateway.ports import Blobs, Meter
from gateway.settings import Settings


def files_in(
    settings: Settings,
    doors: Doors,
    blobs: Blobs,
    sees: Callable[[SessionKey], Awaitable[bool]],
    *,
    books: Books,
    meter: Meter,
) -> FilesIn:
    """Return what becomes of files that people send; *sees* says whether a chat's model looks at pictures."""
    return FilesIn(
        ChannelFiles(doors.channels, most_mb=settings.files.max_mb),
        blobs,
        text_chars=settings.files.text_chars,
        sees=sees,
        ears=_ears(settings, books, meter),
    )


def files_out(settings: Settings, home: Home, doors: Doors, blobs: Blobs) -> FilesOut:
    """Return what sends files, within what each channel takes."""

    def limit(channel: str) -> int:
        found = doors.channels.get(channel)
        return found.capabilities.file_limit if found is not None else 0

    return FilesOut(home.path, blobs, most=settings.files.max_mb * 1_000_000, limit=limit)


def overheard(doors: Doors, judge: Judge) -> ChannelHistory:
    """Return what reads a chat before a mention; *judge* notes nothing, since nobody is refused by not being read."""
    return ChannelHistory(doors.channels, admits=lambda message: may_be_read(judge, message))


def _ears(settings: Settings, books: Books, meter: Meter) -> LitellmEars | None:
    llm = settings.llm
    if not llm.transcription_model:
        return None
    # The address and the key are those of the answering model's provider, and nobody else's to see.
    entry = llm.entry(llm.transcription_model)
    return LitellmEars(
        entry.model,
        api_base=str(entry.api_base or ""),
        api_key=entry.api_key.get_secret_value() if entry.api_key else "",
        proxy=settings.proxy_address,
        books=books,
        meter=meter,
    )
