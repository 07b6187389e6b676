"""Taking back on the disk what somebody took back in a chat: in place, so that indices and offsets stand."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from agent.attachments.file_facts import ASIDE, blobs_in, facts_in
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import FORGOTTEN, decode, encode, kind_of
from gateway.ports import Line

_HEAD_BYTES = 4096
_SAID_IN = {"message": "content", "command": "content", "notice": "asked"}
_GOES_TOO = ("files", *ASIDE)
_SPARE = ("by", "origin", "tokens")  # what makes room where a content was shorter than `[forgotten]`


def deleted_ids(lines: Iterable[Line]) -> frozenset[str]:
    """Return the platform's ids of the messages that *lines* say are forgotten."""
    return frozenset(str(line.get("mid", "")) for line in lines if kind_of(line) == "forgotten") - {""}


def blank_messages(disk: Disk, path: Path, key: str, mids: Collection[str], *, told_by: str) -> None:
    """Replace what the messages *mids* of *key* say, in its transcript at *path*, its segments and its archives.

    What came with them goes too: files, as far as nothing else in the scope names them, and what was quoted.

    A file is replaced as a whole, so that a crash leaves the old one or the new one; doing it twice is doing
    it once. What the turn *told_by*, which tells of it, says itself is left. Nobody may hold the files open for
    appending. Raises OSError.
    """
    mine = [each for each in _transcripts(path) if _is_of(disk, each, key)]
    # The bytes first: a crash between the two leaves the lines that name them, and so is a repetition.
    _drop_files(disk, path, mine, mids, told_by)
    for each in mine:
        before = disk.load(each) or b""
        after = b"".join(_blanked(raw, mids, told_by) for raw in before.splitlines(keepends=True))
        if after != before:
            disk.replace(each, after)


def find_message(disk: Disk, path: Path, key: str, mid: str) -> Iterator[tuple[str, Line, str]]:
    """Yield where the message *mid* of *key* stands: its transcript, its line, and what a person said in it. Blocks."""
    wanted = mid.encode("utf-8", "surrogatepass")
    for each in _transcripts(path):
        data = disk.load(each) or b""
        if wanted not in data or not _is_of(disk, each, key):
            continue
        head = decode(data.split(b"\n", 1)[0]) or {}
        for raw in data.splitlines():
            line = _meant(raw, (mid,), "")
            if line is not None:
                said = line.get(_SAID_IN[kind_of(line)])
                yield str(head.get("transcript", "")), line, said if isinstance(said, str) and said != FORGOTTEN else ""


def _transcripts(path: Path) -> list[Path]:
    return sorted(path.parent.glob("*.jsonl"))


def _is_of(disk: Disk, path: Path, key: str) -> bool:
    head = decode(disk.read(path, 0, _HEAD_BYTES).split(b"\n", 1)[0])
    return head is not None and head.get("key") == key


def _drop_files(disk: Disk, path: Path, mine: Iterable[Path], mids: Collection[str], told_by: str) -> None:
    """Remove the files that came with the messages, unless another line of the scope names the same bytes."""
    digests: set[bytes] = set()
    for each in mine:
        for raw in (disk.load(each) or b"").splitlines():
            line = _meant(raw, mids, told_by) if b'"files"' in raw else None
            names = blobs_in(facts_in(line)) if line is not None else []
            digests |= {name.rpartition("/")[2].encode() for name in names}
    if not digests:
        return
    for each in _transcripts(path):
        for raw in (disk.load(each) or b"").splitlines():
            named = {digest for digest in digests if digest in raw}
            if named and _meant(raw, mids, told_by) is None:
                digests -= named
    for digest in digests:
        if re.fullmatch(rb"[0-9a-f]{64}", digest):
            disk.remove(path.parents[1] / "attachments" / digest.decode())


def _meant(raw: bytes, mids: Collection[str], told_by: str) -> Line | None:
    """Return the line when it says one of *mids*."""
    line = decode(raw) if b'"mid"' in raw else None
    if line is None or line.get("mid") not in mids or line.get("turn") == told_by or kind_of(line) not in _SAID_IN:
        return None
    return line


def _blanked(raw: bytes, mids: Collection[str], told_by: str) -> bytes:
    """Return a line of the same length that says nothing, when it is one of *mids*."""
    line = _meant(raw, mids, told_by)
    if line is None:
        return raw
    empty: dict[str, Any] = {name: value for name, value in line.items() if name not in _GOES_TOO}
    empty[_SAID_IN[kind_of(line)]] = FORGOTTEN
    for spare in _SPARE:
        if len(encode(empty)) > len(raw):
            empty.pop(spare, None)
    data = encode(empty)[:-1]
    return data + b" " * (len(raw) - 1 - len(data)) + b"\n"
