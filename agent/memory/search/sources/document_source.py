"""Read the documents of projects, `docs/<project>/…`: text files directly, other formats with a library."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import structlog

from agent.memory.search.search_unit import SourceReading, UnitSource
from agent.memory.search.sources.scope_source import Cut, day_of, mark_of
from gateway.errors import FileUnavailable

log = structlog.get_logger(__name__)

_PLAIN = frozenset({".md", ".markdown", ".txt", ".rst", ".org", ".csv"})
_READ = frozenset({".pdf", ".docx", ".html", ".htm"})
_LARGEST = 20_000_000  # bytes


class DocumentSource:
    """Implements `UnitSources` over the folder of all projects; reads in threads, but for `text`."""

    def __init__(self, folder: Path, *, read: Callable[[Path], str], cut: Cut) -> None:
        """*read* returns the text of a PDF, DOCX or HTML file, or raises FileUnavailable."""
        self._folder = folder
        self._read = read
        self._cut = cut

    async def marks(self) -> Mapping[UnitSource, str]:
        """Return the marks of all documents except hidden files, links and files that are too large."""
        return await asyncio.to_thread(self._marks)

    async def read(self, source: UnitSource, since: str) -> SourceReading:  # noqa: ARG002 - a document that changed is read whole
        """Return the units of a document, none if it is unreadable. Raises FileNotFoundError."""
        return await asyncio.to_thread(self._read_units, source)

    def _marks(self) -> Mapping[UnitSource, str]:
        return {source: mark_of(path) for source, path in self._files() if path.stat().st_size <= _LARGEST}

    def _read_units(self, source: UnitSource) -> SourceReading:
        path = self._path(source)
        mark = mark_of(path)
        # The date in the file's name, else its last change.
        at = day_of(path.name) or datetime.fromtimestamp(path.stat().st_mtime, UTC)
        return SourceReading(units=tuple(self._cut(self._text(path), at)), mark=mark)

    def text(self, source: UnitSource) -> str:
        """Return the text of a document, "" if it is not a searchable one. Blocks."""
        return self._text(self._path(source)) if source in self._marks() else ""

    def _text(self, path: Path) -> str:
        if path.suffix.lower() in _PLAIN:
            return path.read_bytes().decode("utf-8", "replace")
        try:
            return self._read(path)
        except FileUnavailable as error:
            log.warning("documents.unreadable", kind=path.suffix.lower(), reason=str(error))
            return ""

    def _path(self, source: UnitSource) -> Path:
        return self._folder.parent / source.name

    def _files(self) -> Iterator[tuple[UnitSource, Path]]:
        if not self._folder.is_dir():
            return
        for project in sorted(self._folder.iterdir()):
            if project.name.startswith(".") or project.is_symlink() or not project.is_dir():
                continue
            for path in sorted(project.rglob("*")):
                inside = path.relative_to(self._folder)
                if any(part.startswith(".") for part in inside.parts) or path.is_symlink() or not path.is_file():
                    continue
                if path.suffix.lower() in _PLAIN | _READ:
                    yield UnitSource(name=f"docs/{inside.as_posix()}", project=project.name), path
