"""Documents of projects, `docs/<project>/…`: Markdown and text as they stand, the rest as a library reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import structlog

from agent.memory.search.search_unit import SourceReading, UnitSource
from agent.memory.search.sources.scope_source import Cut, day_of
from gateway.errors import FileUnavailable

log = structlog.get_logger(__name__)

_PLAIN = frozenset({".md", ".markdown", ".txt", ".rst", ".org", ".csv"})
_READ = frozenset({".pdf", ".docx", ".html", ".htm"})
_LARGEST = 20_000_000  # bytes


class DocumentSource:
    """Implements `Sources` over the folder of all projects. Blocks."""

    def __init__(self, folder: Path, *, read: Callable[[Path], str], cut: Cut) -> None:
        """*read* returns what a PDF, DOCX or HTML file says; it raises FileUnavailable."""
        self._folder = folder
        self._read = read
        self._cut = cut

    def marks(self) -> Mapping[UnitSource, str]:
        """Return every document; hidden files, links and what is too large are none."""
        found = {}
        for source, path in self._files():
            stat = path.stat()
            if stat.st_size <= _LARGEST:
                found[source] = f"{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ino}"
        return found

    def read(self, source: UnitSource, since: str) -> SourceReading:  # noqa: ARG002 - a document that changed is read whole
        """Return what a document says; one that cannot be read says nothing, once. Raises FileNotFoundError."""
        path = self._path(source)
        stat = path.stat()
        mark = f"{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ino}"
        return SourceReading(units=tuple(self._cut(self._text(path), _written(path, stat.st_mtime))), mark=mark)

    def text(self, source: UnitSource) -> str:
        """Return what a document says, "" for one that is none of ours."""
        return self._text(self._path(source)) if source in self.marks() else ""

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


def _written(path: Path, changed: float) -> datetime:
    """Return when a document is of: the date its name begins with, else its last change."""
    return day_of(path.name) or datetime.fromtimestamp(changed, UTC)
