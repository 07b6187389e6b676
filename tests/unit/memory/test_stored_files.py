"""Files of a scope, read whole or in pieces."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.memory.scopes import attachment_path
from agent.memory.storage.attachment_blobs import AttachmentBlobStore
from gateway.errors import FileUnavailable
from tests.fakes.memory import CountingDisk

DATA = bytes(range(256)) * 20_000


async def test_a_large_file_is_checked_and_read_in_pieces(tmp_path: Path) -> None:
    """Its size and any stretch of it can be had, and no more than a megabyte is read at a time."""

    class PieceDisk(CountingDisk):
        largest = 0

        def read(self, path: Path, start: int, length: int) -> bytes:
            self.largest = max(self.largest, length)
            return super().read(path, start, length)

    disk = PieceDisk()
    blobs = AttachmentBlobStore(tmp_path, disk)
    reference = await blobs.put("people/ann", DATA)
    assert await blobs.measure(reference) == len(DATA)
    assert await blobs.read_at(reference, 5, 1_000) == DATA[5:1_005]
    assert disk.largest <= 1 << 20


async def test_what_is_lost_or_changed_is_not_handed_out(tmp_path: Path) -> None:
    """A file that is gone, is shorter, or is not what its name says counts as lost."""
    blobs = AttachmentBlobStore(tmp_path)
    reference = await blobs.put("people/ann", DATA)
    path = attachment_path(tmp_path, "people/ann", reference.rpartition("/")[2])
    path.write_bytes(DATA[:-1])
    assert await blobs.measure(reference) is None
    with pytest.raises(FileUnavailable):
        await blobs.read_at(reference, len(DATA) - 10, 10)
    path.unlink()
    assert await blobs.measure(reference) is None
    with pytest.raises(FileUnavailable):
        await blobs.read_at(reference, 0, 10)
