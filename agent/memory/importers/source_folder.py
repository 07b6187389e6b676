"""Reading another bot's folder: nothing in it is changed, and nothing outside of it is looked at."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from agent.memory.importers.import_data import ImportData, SkippedItem
from agent.memory.storage.disk import read_text
from agent.memory.storage.transcript_lines import decode, format_time
from gateway.errors import UserError

LARGEST_TEXT = 1024 * 1024  # bytes of a memory file: a larger one is data, not memory
LARGEST_SESSION = 64 * 1024 * 1024  # and of a file of conversations, which takes ten times its size to read
LARGEST_TOTAL = 512 * 1024 * 1024  # bytes of all that is read
MOST_FILES = 20_000
LONGEST = 900.0  # seconds
_NO_MEMORY = "neither a conversation nor a memory file"
_LINK = "a link; name the folder that it leads to if you want what is there"


def content_text(content: object) -> str | None:
    """Return what a message says in words: text as it is, of parts their texts and what the others are."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else None
    pieces = []
    for part in content:
        if isinstance(part, str):
            pieces.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            pieces.append(part["text"])
        elif isinstance(part, dict) and str(part.get("type", "")).startswith(("image", "audio", "file")):
            pieces.append(f"({str(part['type']).removesuffix('_url')})")
    return "\n".join(pieces)


class SourceFolder:
    """One folder, and what is left out of it. *zone* is that of times which name none."""

    def __init__(self, path: Path, zone: str) -> None:
        if not path.is_dir():
            raise UserError(f"{path} is no folder; name the one that the other bot keeps its memory in")
        self.path = path
        self.found = ImportData()
        self._zone = ZoneInfo(zone)
        self._seen: set[Path] = set()
        self._room = LARGEST_TOTAL
        self._ends_at = time.monotonic() + LONGEST

    def name(self, path: Path) -> str:
        """Return *path* as the report names it."""
        return str(path.relative_to(self.path))

    def skip(self, path: Path, why: str) -> None:
        """Say that a file is not taken over."""
        self._seen.add(path)
        self.found.left.append(SkippedItem(self.name(path), why))

    def files(self, folder: Path, pattern: str) -> Iterator[Path]:
        """Yield plain files that nobody asked for yet, by name; links are left out."""
        found = [*islice(folder.glob(pattern), MOST_FILES + 1)]
        if len(found) > MOST_FILES:
            raise UserError(f"{folder} holds more than {MOST_FILES:,} files; it is no folder of such a bot")
        for path in sorted(found):
            if path in self._seen:
                continue
            if any(each.is_symlink() for each in (path, *path.parents) if each.is_relative_to(self.path)):
                self.skip(path, _LINK)
            elif path.is_file():
                self._seen.add(path)
                yield path

    def one(self, path: Path) -> Path | None:
        """Return *path* if it is a plain file that nobody asked for yet."""
        return next(self.files(path.parent, path.name), None) if path.parent.is_dir() else None

    def leave_the_rest(self, place: Path, looked_into: frozenset[str]) -> None:
        """Say of what else stands in *place* that it is not taken over."""
        for path in sorted(place.iterdir()):
            if path not in self._seen and path.name not in looked_into and not path.name.startswith("."):
                is_config = path.suffix in (".json", ".yml", ".yaml", ".toml")
                self.skip(path, "settings are not taken: `parlour init` asks for them" if is_config else _NO_MEMORY)

    def text(self, path: Path) -> str | None:
        """Return what a memory file says; None when it says nothing, or is left out."""
        data = self.data(path, LARGEST_TEXT)
        text = read_text(data) if data is not None else ""
        if data is not None and not text.strip():
            self.skip(path, "it is empty")
        return text if text.strip() else None

    def data(self, path: Path, largest: int = LARGEST_SESSION) -> bytes | None:
        """Return a file's bytes; None when it is left out."""
        try:
            return path.read_bytes() if self.fits(path, largest) else None
        except OSError as error:
            self.skip(path, f"cannot be read: {error.strerror}")
            return None

    def fits(self, path: Path, largest: int = LARGEST_SESSION) -> bool:
        """Return True if *path* can be read within what an import may take; else leave it. Raises OSError."""
        size = path.stat().st_size
        if size > largest:
            self.skip(path, f"larger than {largest // 1024 // 1024} MiB")
        elif size > self._room:
            self.skip(path, f"beyond the {LARGEST_TOTAL // 1024 // 1024} MiB that are read in all")
        elif time.monotonic() > self._ends_at:
            self.skip(path, f"reading took longer than {LONGEST / 60:.0f} minutes")
        else:
            self._room -= size
            return True
        return False

    def lines(self, data: bytes) -> tuple[list[dict[str, Any]], tuple[bytes, ...]]:
        """Return the JSON objects among the lines, and the lines that are none."""
        good: list[dict[str, Any]] = []
        bad: list[bytes] = []
        for raw in data.splitlines():
            line = decode(raw) if raw.strip() else None
            if line is not None:
                good.append(dict(line))
            elif raw.strip():
                bad.append(raw)
        return good, tuple(bad)

    def json(self, path: Path) -> dict[str, Any]:
        """Return the JSON object in a file, {} where there is none."""
        data = self.data(path) if path.is_file() and not path.is_symlink() else None
        try:
            found = json.loads(data.decode("utf-8-sig")) if data is not None else {}
        except (ValueError, RecursionError):
            self.skip(path, "it is no JSON")
            return {}
        return found if isinstance(found, dict) else {}

    def moment(self, value: object) -> str | None:
        """Return the moment that a time of theirs names, as our lines carry it: text, or milliseconds since 1970."""
        at = self.read_moment(value)
        return format_time(at) if at is not None else None

    def modified_at(self, path: Path) -> datetime:
        """Return when a file was written last."""
        return datetime.fromtimestamp(path.stat().st_mtime, self._zone)

    def read_moment(self, value: object) -> datetime | None:
        """Return the moment that a time of theirs names."""
        try:
            if isinstance(value, int | float) and not isinstance(value, bool):
                return datetime.fromtimestamp(value / 1000, self._zone)
            at = datetime.fromisoformat(value) if isinstance(value, str) else None
        except (ValueError, OverflowError, OSError):
            return None
        return at.replace(tzinfo=self._zone) if at is not None and at.tzinfo is None else at
