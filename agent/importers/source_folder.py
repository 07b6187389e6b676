"""Read another bot's folder within limits, without changing it, following links or leaving it.

The memory files of a workspace are read here too: the supported bots share its layout.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from itertools import islice
from pathlib import Path
from zoneinfo import ZoneInfo

from agent.base.disk import read_text
from agent.base.transcript_lines import decode, format_time
from agent.importers.import_data import ImportData, ImportedDocument, ImportedHistory, ImportedSession, SkippedItem
from agent.memory.history.history_files import STAMP, parse_legacy_history
from agent.memory.update.notes import slugify
from gateway.errors import UserError
from gateway.installation import operator_command
from gateway.ports.journal import Line

LARGEST_TEXT = 1024 * 1024  # bytes of a memory file: a larger one is data, not memory
LARGEST_SESSION = 64 * 1024 * 1024  # bytes of a file of conversations; reading takes ten times its size
LARGEST_TOTAL = 512 * 1024 * 1024  # bytes of all files together
MOST_FILES = 20_000
LONGEST = 900.0  # seconds
_NO_MEMORY = "neither a conversation nor a memory file"
_TASK_SESSION = "a task ran in it; it is not a conversation with a person"
_EMPTY_SESSION = "it has no messages"
_LINK = "a link; import the folder that it points to if you want its content"


def content_text(content: object) -> str | None:
    """Return a message's text; of a list of parts, their texts and the types of pictures and files."""
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


@contextmanager
def open_read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """Open another program's SQLite database and its log for reading. Raises sqlite3.Error and OSError."""
    log = path.with_name(f"{path.name}-wal")
    if not log.is_file() or not log.stat().st_size:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            yield database
        return
    # SQLite writes files beside a log that it reads, so the log is read in a copy.
    with tempfile.TemporaryDirectory(prefix="parlour-import-") as folder:
        for part in (path, log):
            shutil.copyfile(part, Path(folder) / part.name)
        with closing(sqlite3.connect(Path(folder) / path.name)) as database:
            yield database


class SourceFolder:
    """One folder and the data read from it. *zone* applies to times without a zone."""

    def __init__(self, path: Path, zone: str) -> None:
        if not path.is_dir():
            raise UserError(f"{path} is not a folder; name the folder that the other bot keeps its memory in")
        self.path = path
        self.data = ImportData()
        self._zone = ZoneInfo(zone)
        self._seen: set[Path] = set()
        self._bytes_left = LARGEST_TOTAL
        self._ends_at = time.monotonic() + LONGEST

    def check_layout(self, workspace: Path, expected: Sequence[str]) -> None:
        """Raise UserError if nothing was read and *workspace* has none of the *expected* files and folders."""
        data = self.data
        if data.sessions or data.documents or data.notes or data.histories:
            return
        if not any((workspace / name).exists() for name in expected):
            names = ", ".join(name for name in expected if not name.startswith(".."))
            raise UserError(f"{self.path} is not a bot's folder: expected one of {names} in it or in its workspace/")

    def name(self, path: Path) -> str:
        """Return *path* relative to the folder, as the report names it."""
        return str(path.relative_to(self.path))

    def skip(self, path: Path, reason: str) -> None:
        """Report that *path* is not imported."""
        self._seen.add(path)
        self.data.skipped.append(SkippedItem(self.name(path), reason))

    def add_session(self, session: ImportedSession, *, is_task: bool, is_empty: bool) -> None:
        """Add *session*, or skip it if it is no conversation with a person."""
        if is_task or is_empty:
            self.data.skipped.append(SkippedItem(session.source, _TASK_SESSION if is_task else _EMPTY_SESSION))
        else:
            self.data.sessions.append(session)

    def files(self, folder: Path, pattern: str) -> Iterator[Path]:
        """Yield the regular files that were not yielded or skipped before, by name; links are skipped."""
        paths = [*islice(folder.glob(pattern), MOST_FILES + 1)]
        if len(paths) > MOST_FILES:
            raise UserError(f"{folder} has more than {MOST_FILES:,} files; it cannot be a bot's folder")
        for path in sorted(paths):
            if path in self._seen:
                continue
            if any(each.is_symlink() for each in (path, *path.parents) if each.is_relative_to(self.path)):
                self.skip(path, _LINK)
            elif path.is_file():
                self._seen.add(path)
                yield path

    def one(self, path: Path) -> Path | None:
        """Return *path* if it is a regular file that was not returned or skipped before."""
        return next(self.files(path.parent, path.name), None) if path.parent.is_dir() else None

    def skip_rest(self, folder: Path, except_names: frozenset[str]) -> None:
        """Skip what was not read in *folder*, except the entries called *except_names*."""
        for path in sorted(folder.iterdir()):
            if path not in self._seen and path.name not in except_names and not path.name.startswith("."):
                is_config = path.suffix in (".json", ".yml", ".yaml", ".toml")
                config = f"settings are not imported: `{operator_command('init')}` asks for them"
                self.skip(path, config if is_config else _NO_MEMORY)

    def read_text(self, path: Path) -> str | None:
        """Return a memory file's text; None when it is empty or skipped."""
        data = self.read_bytes(path, LARGEST_TEXT)
        text = read_text(data) if data is not None else ""
        if data is not None and not text.strip():
            self.skip(path, "it is empty")
        return text if text.strip() else None

    def read_bytes(self, path: Path, largest: int = LARGEST_SESSION) -> bytes | None:
        """Return a file's bytes; None when it is skipped."""
        try:
            return path.read_bytes() if self.fits(path, largest) else None
        except OSError as error:
            self.skip(path, f"cannot be read: {error.strerror}")
            return None

    def fits(self, path: Path, largest: int = LARGEST_SESSION) -> bool:
        """Return True if *path* is within the limits of an import, else skip it. Raises OSError."""
        size = path.stat().st_size
        if size > largest:
            self.skip(path, f"larger than {largest // 1024 // 1024} MiB")
        elif size > self._bytes_left:
            self.skip(path, f"beyond the {LARGEST_TOTAL // 1024 // 1024} MiB that are read in all")
        elif time.monotonic() > self._ends_at:
            self.skip(path, f"reading took longer than {LONGEST / 60:.0f} minutes")
        else:
            self._bytes_left -= size
            return True
        return False

    def lines(self, data: bytes) -> tuple[list[Line], tuple[bytes, ...]]:
        """Return the lines that are JSON objects, and the lines that are not."""
        good: list[Line] = []
        bad: list[bytes] = []
        for raw in data.splitlines():
            line = decode(raw) if raw.strip() else None
            if line is not None:
                good.append(line)
            elif raw.strip():
                bad.append(raw)
        return good, tuple(bad)

    def read_json(self, path: Path) -> Line:
        """Return the JSON object in a file, {} for any other content."""
        data = self.read_bytes(path) if path.is_file() and not path.is_symlink() else b"{}"
        value = decode(data) if data is not None else {}
        if value is None:
            self.skip(path, "it is not JSON")
        return value or {}

    def format_time(self, value: object) -> str | None:
        """Return the time that `parse_time` finds in *value*, in the format of transcript lines."""
        at = self.parse_time(value)
        return format_time(at) if at is not None else None

    def modified_at(self, path: Path) -> datetime:
        """Return a file's modification time."""
        return datetime.fromtimestamp(path.stat().st_mtime, self._zone)

    def parse_time(self, value: object) -> datetime | None:
        """Parse an ISO 8601 text or milliseconds since 1970; None if *value* is neither."""
        try:
            if isinstance(value, int | float) and not isinstance(value, bool):
                return datetime.fromtimestamp(value / 1000, self._zone)
            at = datetime.fromisoformat(value) if isinstance(value, str) else None
        except (ValueError, OverflowError, OSError):
            return None
        return at.replace(tzinfo=self._zone) if at is not None and at.tzinfo is None else at


_DATED = re.compile(r"(\d{4}-\d{2}-\d{2})(?:[-_ ](.*))?\.md\Z")
_LEAST_PIECE = 20  # characters of a text that is compared with parts of entries
_NOT_IMPORTED: Mapping[str, str] = {
    "AGENTS.md": "it instructs another program; copy what still applies into SOUL.md",
    "IDENTITY.md": "it describes the other bot; copy what you want into SOUL.md",
    "TOOLS.md": "it describes tools of the other program",
    "HEARTBEAT.md": "it is a task of the other program",
    "BOOT.md": "it is a task of the other program",
    "BOOTSTRAP.md": "it is a task of the other program",
    "DREAMS.md": "it is the other program's diary; MEMORY.md has what it learnt",
}


def read_workspace(folder: SourceFolder, workspace: Path) -> None:
    """Read everything in *workspace* except the sessions."""
    memory = workspace / "memory"
    for name in ("SOUL.md", "USER.md"):
        _read_document(folder, workspace / name)
    for path in (memory / "MEMORY.md", workspace / "MEMORY.md", workspace / "memory.md"):
        _read_document(folder, path, "MEMORY.md")
    for name, reason in _NOT_IMPORTED.items():
        if (unwanted := folder.one(workspace / name)) is not None:
            folder.skip(unwanted, reason)
    _read_history(folder, memory)
    for path in folder.files(memory, "**/*.md"):
        _read_note(folder, path)
    folder.skip_rest(workspace, frozenset({"memory", "sessions", "agents", "workspace"}))


def _read_document(folder: SourceFolder, path: Path, name: str = "") -> None:
    file = folder.one(path)
    text = folder.read_text(file) if file is not None else None
    if text is not None:
        folder.data.documents.append(ImportedDocument(source=folder.name(path), name=name or path.name, text=text))


def _read_note(folder: SourceFolder, path: Path) -> None:
    text = folder.read_text(path)
    if text is None:
        return
    dated = _DATED.match(path.name)
    if dated is not None and _is_date(dated[1]):
        day, title = dated[1], dated[2] or ""
    else:  # a file without a date gets the day of its last change
        day, title = f"{folder.modified_at(path):%Y-%m-%d}", path.stem
    name = f"{day}-{slugify(title)}.md" if title else f"{day}.md"
    folder.data.notes.append(ImportedDocument(source=folder.name(path), name=name, text=text))


def _is_date(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _read_history(folder: SourceFolder, memory: Path) -> None:
    record = folder.one(memory / "history.jsonl")
    data = folder.read_bytes(record) if record is not None else None
    markdown = folder.one(memory / "HISTORY.md")
    if record is not None and data is not None:
        lines, bad = folder.lines(data)
        lines = [line for line in lines if isinstance(line.get("content"), str) and str(line["content"]).strip()]
        cursors = [line["cursor"] if isinstance(line.get("cursor"), int) else 0 for line in lines]
        dream_cursor = _read_number(folder, memory / ".dream_cursor")
        dreamt = 0
        if dream_cursor:
            dreamt = next((n for n, cursor in enumerate(cursors) if cursor > dream_cursor), len(lines))
        entries = tuple((_format_minute(folder, line.get("timestamp")), str(line["content"])) for line in lines)
        folder.data.histories.append(
            ImportedHistory(source=folder.name(record), entries=entries, dreamt=dreamt, bad=bad)
        )
        if markdown is not None:
            _read_markdown_history(folder, markdown, [content for _, content in entries])
    elif markdown is not None:
        _read_markdown_history(folder, markdown, ())


def _read_markdown_history(folder: SourceFolder, path: Path, recorded: Sequence[str]) -> None:
    """Read the entries of HISTORY.md whose text is not one of *recorded*, those of history.jsonl."""
    data = folder.read_bytes(path)
    if not data:
        return
    left = Counter(map(_comparable, recorded))
    everything = "\0".join(left)
    entries: list[tuple[str, str]] = []
    for timestamp, content, _ in parse_legacy_history(data, folder.modified_at(path)):
        text = _comparable(content)
        if left[text] > 0:
            left[text] -= 1
        elif len(text) < _LEAST_PIECE or text not in everything:  # a line with a time splits an entry of the record
            entries.append((timestamp, content))
    if entries:
        folder.data.histories.append(ImportedHistory(source=folder.name(path), entries=tuple(entries)))
    else:
        folder.skip(path, "history.jsonl has the same entries")


def _comparable(content: str) -> str:
    """Return an entry's text without the time that it begins with, in single spaces."""
    text = " ".join(content.split())
    stamp = STAMP.match(text)
    return text[stamp.end() :].strip() if stamp else text


def _format_minute(folder: SourceFolder, value: object) -> str:
    """Return a time as `YYYY-MM-DD HH:MM`, without converting its zone."""
    if isinstance(value, str) and re.match(r"\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}", value):
        return value[:16].replace("T", " ")
    at = folder.parse_time(value)
    return f"{at:%Y-%m-%d %H:%M}" if at is not None else "1970-01-01 00:00"


def _read_number(folder: SourceFolder, path: Path) -> int:
    text = (folder.read_bytes(path, 1024) or b"").strip() if path.is_file() else b""
    return int(text) if text.isdigit() and len(text) < 17 else 0
