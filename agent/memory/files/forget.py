"""Taking back on the disk what somebody took back in a chat: in place, so that indices and offsets stand."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from agent.memory.files.disk import Disk
from agent.memory.files.lines import FORGOTTEN, decode, encode, kind_of
from gateway.ports import Line

_HEAD_BYTES = 4096
_SAID_IN = {"message": "content", "command": "content", "notice": "asked"}
_SPARE = ("by", "origin", "tokens")  # what makes room where a content was shorter than `[forgotten]`


def taken_back(lines: Iterable[Line]) -> frozenset[str]:
    """Return the platform's ids of the messages that *lines* say are forgotten."""
    return frozenset(str(line.get("mid", "")) for line in lines if kind_of(line) == "forgotten") - {""}


def blank(disk: Disk, path: Path, key: str, mids: Collection[str], *, told_by: str) -> None:
    """Replace what the messages *mids* of *key* say, in its transcript at *path*, its segments and its archives.

    A file is replaced as a whole, so that a crash leaves the old one or the new one; doing it twice is doing
    it once. What the turn *told_by*, which tells of it, says itself is left. Nobody may hold the files open for
    appending. Raises OSError.
    """
    for each in sorted(path.parent.glob("*.jsonl")):
        head = decode(disk.read(each, 0, _HEAD_BYTES).split(b"\n", 1)[0])
        if head is None or head.get("key") != key:
            continue
        before = disk.load(each) or b""
        after = b"".join(_blanked(raw, mids, told_by) for raw in before.splitlines(keepends=True))
        if after != before:
            disk.replace(each, after)


def _blanked(raw: bytes, mids: Collection[str], told_by: str) -> bytes:
    """Return a line of the same length that says nothing, when it is one of *mids*."""
    line = decode(raw) if b'"mid"' in raw else None
    if line is None or line.get("mid") not in mids or line.get("turn") == told_by or kind_of(line) not in _SAID_IN:
        return raw
    empty: dict[str, Any] = {**line, _SAID_IN[kind_of(line)]: FORGOTTEN}
    for spare in _SPARE:
        if len(encode(empty)) > len(raw):
            empty.pop(spare, None)
    data = encode(empty)[:-1]
    return data + b" " * (len(raw) - 1 - len(data)) + b"\n"
