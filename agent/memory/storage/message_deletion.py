"""Blank the messages that a user deleted in a chat, in place: indices and byte offsets do not change."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from agent.attachments.file_facts import ASIDE, blobs_in, facts_in
from agent.memory.storage.disk import Disk, rewrite_raw_lines
from agent.memory.storage.segments import read_head
from agent.memory.storage.transcript_lines import FORGOTTEN, decode, kind_of, pad_line
from gateway.ports import Line

_TEXT_FIELD = {"message": "content", "command": "content", "notice": "asked"}
_REMOVED_FIELDS = ("files", *ASIDE)


def blank_messages(disk: Disk, path: Path, key: str, mids: Collection[str], *, deletion_turn: str) -> None:
    """Blank the messages *mids* of *key* in its transcript at *path*, the transcript's segments and archives.

    Their quotes are removed, and their files unless another line of the scope refers to them. The lines of
    *deletion_turn*, the turn that reports the deletion, are not changed. Each file is replaced atomically;
    the call is idempotent. No file may be open for appending. Raises OSError.
    """
    transcripts = [each for each in _transcripts(path) if read_head(disk, each).get("key") == key]
    # Files first: after a crash the lines still refer to them, and a retry removes the rest.
    _remove_files(disk, path, transcripts, mids, deletion_turn)
    for each in transcripts:
        rewrite_raw_lines(disk, each, partial(_blank_line, mids=mids, deletion_turn=deletion_turn))


def find_message(disk: Disk, path: Path, key: str, mid: str) -> Iterator[tuple[str, Line, str]]:
    """Yield the transcript id, line and text of each occurrence of the message *mid* of *key*. Blocks."""
    pattern = mid.encode("utf-8", "surrogatepass")
    for each in _transcripts(path):
        data = disk.load(each) or b""
        head = read_head(disk, each) if pattern in data else {}
        if head.get("key") != key:
            continue
        for raw in data.splitlines():
            line = _matching_line(raw, (mid,), "")
            if line is not None:
                text = line.get(_TEXT_FIELD[kind_of(line)])
                yield str(head.get("transcript", "")), line, text if isinstance(text, str) and text != FORGOTTEN else ""


def _transcripts(path: Path) -> list[Path]:
    return sorted(path.parent.glob("*.jsonl"))


def _remove_files(
    disk: Disk, path: Path, transcripts: Iterable[Path], mids: Collection[str], deletion_turn: str
) -> None:
    """Remove the messages' files, unless another line of the scope refers to the same bytes."""
    digests: set[bytes] = set()
    for each in transcripts:
        for raw in (disk.load(each) or b"").splitlines():
            line = _matching_line(raw, mids, deletion_turn) if b'"files"' in raw else None
            names = blobs_in(facts_in(line)) if line is not None else []
            digests |= {name.rpartition("/")[2].encode() for name in names}
    if not digests:
        return
    for each in _transcripts(path):
        for raw in (disk.load(each) or b"").splitlines():
            referenced = {digest for digest in digests if digest in raw}
            if referenced and _matching_line(raw, mids, deletion_turn) is None:
                digests -= referenced
    for digest in digests:
        if re.fullmatch(rb"[0-9a-f]{64}", digest):
            disk.remove(path.parents[1] / "attachments" / digest.decode())


def _matching_line(raw: bytes, mids: Collection[str], deletion_turn: str) -> Line | None:
    """Return the line if it is one of the messages *mids*."""
    line = decode(raw) if b'"mid"' in raw else None
    if line is None or line.get("mid") not in mids or line.get("turn") == deletion_turn:
        return None
    return line if kind_of(line) in _TEXT_FIELD else None


def _blank_line(raw: bytes, mids: Collection[str], deletion_turn: str) -> bytes:
    """Return a blank line of the same length for one of the messages *mids*, any other line unchanged."""
    line = _matching_line(raw, mids, deletion_turn)
    if line is None:
        return raw
    blank: dict[str, Any] = {name: value for name, value in line.items() if name not in _REMOVED_FIELDS}
    blank[_TEXT_FIELD[kind_of(line)]] = FORGOTTEN
    return pad_line(blank, blank | {_TEXT_FIELD[kind_of(line)]: ""}, len(raw))
