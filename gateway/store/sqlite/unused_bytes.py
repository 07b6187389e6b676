"""Bytes of a file's pages that hold nothing: where SQLite leaves copies of rows that it has moved to other pages.

With `secure_delete` SQLite overwrites what it deletes, and pages that it frees. When rows move between pages, their
old copies stay in the space between a page's list of cells and its cells (docs/adr/0012-purge.md). No statement
reaches that space, and rebuilding a file of 500 MB holds up every write for twelve seconds.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

_HEADERS = {2: 12, 5: 12, 10: 8, 13: 8}  # lengths by the kind of a page of a tree; all other pages are used whole
_FILE_HEADER = 100  # bytes, before the header of the first page
# Other pages begin with a page's number, which is that of a kind in files with more pages than this.
MOST_PAGES = 1 << 25


def unused_spans(data: bytes, page_size: int, *, is_start: bool) -> Iterator[tuple[int, int]]:
    """Yield the spans of *data*, whole pages of a file, that are unused and not zero; *is_start*: from its first."""
    for page in range(0, len(data), page_size):
        header = page + (_FILE_HEADER if is_start and not page else 0)
        kind, block, count, content = struct.unpack_from(">BHHH", data, header)
        if kind not in _HEADERS:
            continue
        spans = [(header + _HEADERS[kind] + 2 * count, page + (content or 65536))]
        while block and len(spans) <= page_size // 4:
            following, length = struct.unpack_from(">HH", data, page + block)
            spans.append((page + block + 4, page + block + length))
            block = following
        for start, end in spans:
            if start < end <= page + page_size and data.count(0, start, end) != end - start:
                yield start, end


def logged_pages(log: bytes) -> set[int]:
    """Return the numbers of the pages that a write-ahead log has, those of earlier rounds included."""
    if len(log) < 32:
        return set()
    (page_size,) = struct.unpack_from(">I", log, 8)
    return {struct.unpack_from(">I", log, at)[0] for at in range(32, len(log) - 23, 24 + page_size)}
