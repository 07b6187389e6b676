"""Attachments of a scope by reference, whole or in pieces."""

from __future__ import annotations

import pytest

from gateway.errors import FileUnavailable
from gateway.store.attachment_store import AttachmentStore
from tests.fakes.memory import FakeRecords
from tests.fakes.turns import START

DATA = bytes(range(256)) * 20_000


async def test_a_large_file_is_read_in_pieces() -> None:
    """Its size is known before, and no more than a megabyte is handed out at a time."""
    blobs = AttachmentStore(FakeRecords().files, lambda: START)
    reference = await blobs.put("people/ann", DATA)
    assert await blobs.measure(reference) == len(DATA)
    pieces = [piece async for piece in blobs.stream(reference)]
    assert b"".join(pieces) == DATA
    assert max(map(len, pieces)) <= 1 << 20
    assert await blobs.get(reference) == DATA


async def test_what_is_lost_or_changed_is_not_handed_out() -> None:
    """A file that is gone, or is not what its name says, counts as lost; so does one of another scope."""
    records = FakeRecords()
    blobs = AttachmentStore(records.files, lambda: START)
    reference = await blobs.put("people/ann", DATA)
    other = f"people/ben/{reference.rpartition('/')[2]}"
    records.connection.execute("UPDATE file_piece SET data = ? WHERE n = 3", (b"damaged",))
    assert await blobs.get(reference) is None
    with pytest.raises(FileUnavailable):
        assert b"".join([piece async for piece in blobs.stream(reference)]) != DATA
    await records.files.remove("people/ann")
    for each in (reference, other, "no reference", ""):
        assert await blobs.get(each) is None
        assert await blobs.measure(each) is None
        with pytest.raises(FileUnavailable):
            _ = [piece async for piece in blobs.stream(each)]
