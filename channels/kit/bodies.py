"""Bytes of messages: request bodies, files of outgoing parts, and the receipts of parts."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from starlette.requests import Request

from gateway.errors import FileUnavailable, RetryLater, SendRefused, StoreUnavailable
from gateway.events import DeliveryReceipt, MessagePart

if TYPE_CHECKING:
    from gateway.store.attachment_store import AttachmentStore


STORE_PAUSE = timedelta(seconds=5)  # before a file that could not be read is sent again


def build_receipt(part: MessagePart, message_id: str) -> DeliveryReceipt:
    """Return the receipt of a part that was delivered just now as *message_id*."""
    return DeliveryReceipt(part=part.id, message_id=message_id, at=datetime.now(UTC))


async def read_file(part: MessagePart, blobs: AttachmentStore) -> bytes:
    """Return the bytes of a part that is a file; without a blob they are its plain text.

    Raises FileUnavailable, and RetryLater while the store or its bucket is away: nothing was sent.
    """
    blob = part.file.blob if part.file is not None else ""
    try:
        data = await blobs.get(blob) if blob else part.plain.encode("utf-8", "replace")
    except StoreUnavailable as error:
        raise RetryLater(STORE_PAUSE, str(error)) from error
    if data is None:
        raise FileUnavailable("its bytes are lost")
    return data


async def require_file(blob: str, blobs: AttachmentStore) -> None:
    """Raise FileUnavailable if nothing is stored under *blob*, and RetryLater as `read_file` does."""
    try:
        size = await blobs.measure(blob)
    except StoreUnavailable as error:
        raise RetryLater(STORE_PAUSE, str(error)) from error
    if size is None:
        raise FileUnavailable("it is lost")


async def load_file(part: MessagePart, blobs: AttachmentStore, *, limit: int) -> bytes:
    """Like `read_file`, and raise SendRefused for a file without bytes or with more than *limit*."""
    data = await read_file(part, blobs)
    if not data:
        raise SendRefused("the file is empty")
    if len(data) > limit:
        raise SendRefused(f"the file is larger than {limit // 1_000_000} MB")
    return data


# -- webhook ---------------------------------------------------------------------------------------
# Request bodies, read within a limit.


async def read_body(request: Request, *, limit: int, timeout: float | None = None) -> bytes | None:  # noqa: ASYNC109 - a request's, not the caller's
    """Return the body, or None if it is longer than *limit* bytes.

    Raises TimeoutError after *timeout* seconds, and starlette's ClientDisconnect.
    """
    length = request.headers.get("Content-Length", "0")
    if not length.isdigit() or int(length) > limit:
        return None
    body = bytearray()
    async with asyncio.timeout(timeout):
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                return None
    return bytes(body)
