"""What an export holds, file by file, and zips of at most so many bytes. Blocks; one file is in memory at a time.

What others said before a mention (`quoted`) is theirs and is left out; so is what a provider keeps of its thinking.
"""

from __future__ import annotations

import csv
import io
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from agent.attachments.file_facts import blobs_in, facts_for_display, facts_in
from agent.attachments.file_names import safe_name
from agent.memory.messages.message_range import moment
from agent.memory.scopes import scope_folder
from agent.memory.storage.disk import FILE_MODE, Disk
from agent.memory.storage.transcript_lines import decode, encode, kind_of
from gateway.ports import Line

_MEMORY = (
    "MEMORY.md",
    "HISTORY.md",
    "history.jsonl",
    "raw.jsonl",
    "[0-9]*.md",
    "[A-Z]*.conflict-*.md",
    ".staged/*.json",
)
IS_EXPORT = "is_export"  # of a fact: an export is in no other
_NOT_THEIRS = frozenset({"quoted", "thinking"})
_OVERHEAD = 1_024  # bytes of a zip for each file, names and directory included
_TAIL = 4_096
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_COLUMNS = ("purpose", "model", "calls", "tokens_in", "tokens_out", "tokens_cached", "cost")

Read = Callable[[], bytes | None]


@dataclass(frozen=True, slots=True)
class ArchiveMember:
    """One file of an export."""

    name: str
    size: int  # before it is packed, roughly
    read: Read


@dataclass(slots=True)
class PackedArchives:
    """The zips that were made, and what was too large for any of them."""

    zips: list[Path] = field(default_factory=list)
    files: int = 0
    left_out: list[str] = field(default_factory=list)


def members(
    home: Path, scope: str, usage: Sequence[Mapping[str, Any]], *, zone: str, disk: Disk
) -> Iterator[ArchiveMember]:
    """Yield what *scope* exports: memory, conversations as lines and as text, files under their names, usage."""
    folder = scope_folder(home, scope)
    yield ArchiveMember("usage.csv", 4_096, lambda: _usage(usage))
    for path in (folder / "SOUL.md", folder / "USER.md"):
        yield from _plain(disk, path, f"memory/{path.name}")
    for pattern in _MEMORY:
        for path in sorted((folder / "memory").glob(pattern)):
            part = "waiting/" if path.parent.name == ".staged" else ""
            name = f"memory/{part}{path.name}"
            if path.name == "raw.jsonl":
                yield ArchiveMember(name, disk.size(path) or 0, partial(_theirs, disk, path))
            else:
                yield from _plain(disk, path, name)
    names: dict[str, str] = {}  # digest -> the name that a conversation gave the file
    for path in sorted((folder / "sessions").glob("*.jsonl")):
        names |= _named(disk, path)
        size = disk.size(path) or 0
        yield ArchiveMember(f"conversations/{path.name}", size, partial(_theirs, disk, path))
        text = f"conversations/{path.stem}.md"
        yield ArchiveMember(text, size, partial(_as_text, disk, path, zone))
    for path in sorted((folder / "attachments").glob("*")):
        # A file that no conversation names is nobody's any more, or an export.
        if _DIGEST.match(path.name) and path.name in names:
            yield from _plain(disk, path, f"files/{path.name[:8]} {names[path.name]}")
    for path in sorted((folder / "files").rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield from _plain(disk, path, f"files/{path.relative_to(folder / 'files').as_posix()}")


def write_archives(
    found: Iterator[ArchiveMember], into: Callable[[int], Path], *, limit: int, about: Callable[[PackedArchives], str]
) -> PackedArchives:
    """Write *found* into zips of at most *limit* bytes at the paths that *into* names by number; 0600 from the start.

    *about* says in words what is in all of them; it stands in the last one.
    """
    packed = PackedArchives()
    writer: zipfile.ZipFile | None = None
    room = 0
    try:
        for member in found:
            data = member.read()
            if data is None:
                continue
            info = zipfile.ZipInfo(member.name, date_time=(1980, 1, 1, 0, 0, 0))
            info.external_attr = FILE_MODE << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            needed = _packed_size(data) + _OVERHEAD + 2 * len(member.name.encode("utf-8", "replace"))
            if needed > limit - 2 * _TAIL:
                packed.left_out.append(member.name)
                continue
            if writer is None or needed > room:
                if writer is not None:
                    writer.close()
                packed.zips.append(into(len(packed.zips) + 1))
                writer, room = _open(packed.zips[-1]), limit - 2 * _TAIL
            writer.writestr(info, data)
            packed.files += 1
            room -= needed
        if writer is None:
            packed.zips.append(into(1))
            writer = _open(packed.zips[-1])
        writer.writestr("README.md", about(packed)[: _TAIL - 200])
    finally:
        if writer is not None:
            writer.close()
    return packed


def _open(path: Path) -> zipfile.ZipFile:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
    return zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)


def _packed_size(data: bytes) -> int:
    # Deflate as the zip does it; what does not shrink grows by a few bytes in each block.
    return len(zlib.compress(data)) + len(data) // 1_000 + 64


def _plain(disk: Disk, path: Path, name: str) -> Iterator[ArchiveMember]:
    size = disk.size(path)
    if size is not None:
        yield ArchiveMember(name, size, lambda: disk.load(path))


def _lines(disk: Disk, path: Path) -> Iterator[Line]:
    for raw in (disk.load(path) or b"").splitlines():
        line = decode(raw)
        if line is not None:
            yield line


def _theirs(disk: Disk, path: Path) -> bytes:
    """Return a transcript without what is not theirs."""
    return b"".join(encode(_stripped(line)) for line in _lines(disk, path))


def _stripped(line: Line) -> Line:
    kept = {name: value for name, value in line.items() if name not in _NOT_THEIRS}
    if isinstance(kept.get("message"), Mapping):  # a message of the raw archive
        kept["message"] = _stripped(kept["message"])
    return kept


def _as_text(disk: Disk, path: Path, zone: str) -> bytes:
    """Return a transcript as people read it: who said what, and when."""
    told: list[str] = []
    for line in _lines(disk, path):
        kind = kind_of(line)
        if kind == "head":
            told.append(f"# {line.get('key', '')}\n\nbegun {moment(line.get('created'), zone)} ({zone})\n")
        at = moment(line.get("timestamp"), zone)
        for who, said in _said(kind, line):
            told.append(f"**{who}**, {at}\n\n{said}\n")
    return "\n".join(told).encode("utf-8", "replace")


def _said(kind: str, line: Line) -> Iterator[tuple[str, str]]:
    by = line.get("by")
    name = str(by.get("name") or "you") if isinstance(by, Mapping) else "you"
    if kind == "message":
        role = line.get("role")
        who = name if role == "user" else "Parlour" if role == "assistant" else ""
        said = [_words(line.get("content")), facts_for_display(facts_in(line))]
        text = "\n".join(each for each in said if each)
        if who and text:
            yield who, text
    elif kind in ("command", "notice"):
        asked, told = ("content", "reply") if kind == "command" else ("asked", "content")
        for who, field_name in ((name, asked), ("Parlour", told)):
            if _words(line.get(field_name)):
                yield who, _words(line.get(field_name))


def _words(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part["text"]) for part in parts if isinstance(part, Mapping) and "text" in part)


def _named(disk: Disk, path: Path) -> dict[str, str]:
    """Return the names of the files that a conversation came with or sent, by digest."""
    found: dict[str, str] = {}
    for line in _lines(disk, path):
        for fact in facts_in(line):
            if fact.get(IS_EXPORT):
                continue
            for blob in blobs_in([fact]):
                found[blob.rpartition("/")[2]] = safe_name(str(fact.get("name", "")), str(fact.get("kind", "document")))
    return found


def _usage(rows: Sequence[Mapping[str, Any]]) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(_COLUMNS)
    writer.writerows([["unknown" if row[name] is None else row[name] for name in _COLUMNS] for row in rows])
    return out.getvalue().encode("utf-8", "replace")


def dated(at: datetime, zone: str) -> str:
    """Return the day of *at* where the person lives."""
    return f"{at.astimezone(ZoneInfo(zone)):%Y-%m-%d}"
