"""What changed in a scope since its index was made: a look costs what is new, and a stat of each file."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from agent.memory.files.disk import Disk
from agent.memory.history.log import HistoryLog
from agent.memory.search.sources.papers import paper_units
from agent.memory.search.sources.transcripts import Fresh, transcript_files, transcript_units
from agent.memory.search.unit import Source, Unit

SESSIONS = "sessions/"
HISTORY = "memory/history.jsonl"
_PAPERS = ("USER.md", "memory/MEMORY.md")
_DATED = re.compile(r"(\d{4}-\d{2}-\d{2})")

_Stat = tuple[int, int, int]  # inode, bytes, nanoseconds


@dataclass(frozen=True, slots=True)
class Change:
    """A source that differs from the index; without `fresh` it is gone."""

    source: Source
    fresh: Fresh | None


class ScopeSources:
    """The sources of one scope's folder. Blocks; one thread at a time."""

    def __init__(self, folder: Path, *, zone: Callable[[], str], disk: Disk | None = None) -> None:
        """*zone* is the scope's own: entries of the history carry local times."""
        self._folder = folder
        self._zone = zone
        self._disk = disk or Disk()
        self._seen: dict[Path, _Stat] = {}

    def changes(self, marks: Mapping[Source, str]) -> Iterator[Change]:
        """Yield what differs from the index whose sources were read up to *marks*; nothing twice."""
        there: set[Source] = set()
        for name, path in self._papers():
            there.add(Source(name=name))
            yield from self._paper(Source(name=name), path, marks)
        for transcript, path in transcript_files(self._disk, self._folder / "sessions"):
            source = Source(name=f"{SESSIONS}{transcript}")
            there.add(source)
            yield from self._transcript(source, path, marks)
        for source in marks.keys() - there:
            yield Change(source, None)

    def forget_looks(self) -> None:
        """Look at every file again the next time, whatever its stat says."""
        self._seen.clear()

    # -- inside ------------------------------------------------------------------------------------

    def _papers(self) -> Iterator[tuple[str, Path]]:
        memory = self._folder / "memory"
        notes = [f"memory/{path.name}" for path in sorted(memory.glob("[0-9]*.md"))]
        for name in (*_PAPERS, HISTORY, *notes):
            path = self._folder / name
            if path.is_file():
                yield name, path

    def _paper(self, source: Source, path: Path, marks: Mapping[Source, str]) -> Iterator[Change]:
        stat = self._changed(path, source in marks)
        data = self._disk.load(path) if stat else None
        if data is None:
            return
        mark = hashlib.sha256(data).hexdigest()[:32]
        if marks.get(source) != mark:
            units = self._entries() if source.name == HISTORY else _written(source.name, data)
            yield Change(source, Fresh(tuple(units), mark, is_whole=True))
        self._look(path, stat)

    def _transcript(self, source: Source, path: Path, marks: Mapping[Source, str]) -> Iterator[Change]:
        stat = self._changed(path, source in marks)
        if stat is None:
            return
        fresh = transcript_units(self._disk, path, marks.get(source, ""))
        if fresh is not None:
            yield Change(source, fresh)
        self._look(path, stat)

    def _changed(self, path: Path, is_known: bool) -> _Stat | None:
        """Return the file's stat; None when nothing was written since the last look, or it is gone."""
        try:
            found = path.stat()
        except FileNotFoundError:
            return None
        stat = (found.st_ino, found.st_size, found.st_mtime_ns)
        return None if is_known and self._seen.get(path) == stat else stat

    def _look(self, path: Path, stat: _Stat | None) -> None:
        if stat is not None:
            self._seen[path] = stat

    def _entries(self) -> Sequence[Unit]:
        zone = ZoneInfo(self._zone())
        entries = HistoryLog(self._folder / "memory", self._disk).after(0)
        return [
            Unit(text=entry.content, line=n, at=_local(entry.timestamp, zone))
            for n, entry in enumerate(entries, start=1)
            if entry.content.strip()
        ]


def _written(name: str, data: bytes) -> Sequence[Unit]:
    dated = _DATED.match(name.rpartition("/")[2])
    at = _day(dated[1]) if dated else None
    return paper_units(data.decode("utf-8", "replace"), at=at)


def _day(text: str) -> datetime | None:
    """Return the noon of a day; None for a date there is not."""
    try:
        return datetime.fromisoformat(f"{text}T12:00:00+00:00")
    except ValueError:
        return None


def _local(text: str, zone: ZoneInfo) -> datetime | None:
    try:
        return datetime.strptime(text, "%Y-%m-%d %H:%M").replace(tzinfo=zone).astimezone(UTC)
    except ValueError:
        return None
