"""Collect the files of an export, and write them to zip files of limited size. Blocks; holds one file in memory.

Quoted messages of other people and the provider's thinking blocks are not exported.
"""

from __future__ import annotations

import csv
import io
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import chain, starmap
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from agent.base.disk import FILE_MODE, Disk
from agent.base.scopes import scope_folder
from agent.base.transcript_lines import blobs_in, decode, encode, facts_in, kind_of, safe_name
from agent.memory.history.history_files import NOTE_NAME
from agent.memory.storage.messages import moment
from agent.memory.storage.stored_sessions import visible_lines
from gateway.ports.journal import Line
from gateway.ports.memory import RAW_JSONL

_COPIES = "[A-Z]*.conflict-*.md"  # of documents, that two writers changed
IS_EXPORT = "is_export"  # in file facts: exports do not contain earlier exports
_EXCLUDED_FIELDS = frozenset({"quoted", "thinking"})
_OVERHEAD = 1_024  # bytes of a zip file for each member's headers
_TAIL = 4_096
_COLUMNS = ("purpose", "model", "calls", "tokens_in", "tokens_out", "tokens_cached", "cost")

Read = Callable[[], bytes | None]


@dataclass(frozen=True, slots=True)
class ArchiveMember:
    """One file of an export."""

    name: str
    read: Read


@dataclass(slots=True)
class PackedArchives:
    """The zip files of an export, and the members that were too large for one."""

    zips: list[Path] = field(default_factory=list)
    files: int = 0
    left_out: list[str] = field(default_factory=list)


def members(
    home: Path,
    scope: str,
    usage: Sequence[Mapping[str, Any]],
    *,
    documents: Mapping[str, bytes] | None = None,
    conversations: Sequence[ArchiveMember] = (),
    attachments: Mapping[str, ArchiveMember] | None = None,
    workspace: Sequence[ArchiveMember] = (),
    rows: Mapping[str, Sequence[Line]] | None = None,
    zone: str,
    disk: Disk,
) -> Iterator[ArchiveMember]:
    """Yield the members of an export of *scope*: memory, conversations as JSON Lines and as text, files, usage.

    *documents* are its documents, history and notes by name, *conversations* the files of its transcripts,
    *attachments* the files that were sent and received, by digest, *workspace* those of its workspace, and *rows* the
    content of further JSON Lines files by name.
    """
    folder = scope_folder(home, scope)
    yield ArchiveMember("usage.csv", lambda: _usage(usage))
    yield from chain.from_iterable(starmap(_encoded, (rows or {}).items()))
    for document, data in sorted((documents or {}).items()):
        read = partial(bytes, data)
        is_raw = document == RAW_JSONL
        yield ArchiveMember(f"memory/{document}", partial(_filter_lines, read) if is_raw else read)
    others = [path for path in (folder / "memory").glob("[0-9]*.md") if not NOTE_NAME.match(path.name)]
    for path in sorted([*others, *(folder / "memory").glob(_COPIES)]):
        yield from _plain(disk, path, f"memory/{path.name}")
    names: dict[str, str] = {}  # digest -> file name in a conversation
    for each in conversations:
        names |= _file_names(each.read)
        yield ArchiveMember(f"conversations/{each.name}", partial(_filter_lines, each.read))
        text = f"conversations/{each.name.removesuffix('.jsonl')}.md"
        yield ArchiveMember(text, partial(_render_text, each.read, zone))
    for digest, member in (attachments or {}).items():
        # Attachments that no conversation refers to are unused, or exports.
        if digest in names:
            yield replace(member, name=f"files/{digest[:8]} {names[digest]}")
    yield from workspace


def write_archives(
    files: Iterator[ArchiveMember], into: Callable[[int], Path], *, limit: int, about: Callable[[PackedArchives], str]
) -> PackedArchives:
    """Write *files* to zip files of at most *limit* bytes, with mode 0600; *into* returns the path of each, from 1.

    *about* returns the text of README.md, which is in the last one.
    """
    packed = PackedArchives()
    writer: zipfile.ZipFile | None = None
    bytes_left = 0
    try:
        for member in files:
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
            if writer is None or needed > bytes_left:
                if writer is not None:
                    writer.close()
                packed.zips.append(into(len(packed.zips) + 1))
                writer, bytes_left = _open(packed.zips[-1]), limit - 2 * _TAIL
            writer.writestr(info, data)
            packed.files += 1
            bytes_left -= needed
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
    # The size after deflating; incompressible data grows by a few bytes per block.
    return len(zlib.compress(data)) + len(data) // 1_000 + 64


def _plain(disk: Disk, path: Path, name: str) -> Iterator[ArchiveMember]:
    if disk.size(path) is not None:
        yield ArchiveMember(name, lambda: disk.load(path))


def _encoded(name: str, lines: Sequence[Line]) -> Iterator[ArchiveMember]:
    data = b"".join(map(encode, lines))
    if data:
        yield ArchiveMember(name, lambda: data)


def _lines(read: Read) -> Iterator[Line]:
    for raw in (read() or b"").splitlines():
        line = decode(raw)
        if line is not None:
            yield line


def _filter_lines(read: Read) -> bytes:
    """Return a transcript without the excluded fields."""
    return b"".join(encode(_filter_fields(line)) for line in _lines(read))


def _filter_fields(line: Line) -> Line:
    fields = {name: value for name, value in line.items() if name not in _EXCLUDED_FIELDS}
    if isinstance(fields.get("message"), Mapping):  # a message of the raw archive
        fields["message"] = _filter_fields(fields["message"])
    return fields


def _render_text(read: Read, zone: str) -> bytes:
    """Render a transcript as Markdown with speakers and times."""
    sections: list[str] = []
    for line in _lines(read):
        if kind_of(line) == "head":
            sections.append(f"# {line.get('key', '')}\n\nbegun {moment(line.get('created'), zone)} ({zone})\n")
        at = moment(line.get("timestamp"), zone)
        for each in visible_lines(str(line.get("turn", "")), line, frozenset()):
            speaker = (each.name or "you") if each.role == "user" else "Parlour"
            sections.append(f"**{speaker}**, {at}\n\n{each.text}\n")
    return "\n".join(sections).encode("utf-8", "replace")


def _file_names(read: Read) -> dict[str, str]:
    """Return the names of a conversation's files by digest."""
    names: dict[str, str] = {}
    for line in _lines(read):
        for fact in facts_in(line):
            if fact.get(IS_EXPORT):
                continue
            for blob in blobs_in([fact]):
                names[blob.rpartition("/")[2]] = safe_name(str(fact.get("name", "")), str(fact.get("kind", "document")))
    return names


def _usage(rows: Sequence[Mapping[str, Any]]) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(_COLUMNS)
    writer.writerows([["unknown" if row[name] is None else row[name] for name in _COLUMNS] for row in rows])
    return out.getvalue().encode("utf-8", "replace")


def format_day(at: datetime, zone: str) -> str:
    """Format the date of *at* in *zone*."""
    return f"{at.astimezone(ZoneInfo(zone)):%Y-%m-%d}"
