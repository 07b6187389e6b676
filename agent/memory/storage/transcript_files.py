"""Read transcript files: of a folder without a gateway, of earlier releases, and of a home whose store has lost turns.

A turn without its `end` line is ignored. An unreadable line costs that line alone: in the place of an `end`, it ends
the turn before it. Everything here blocks.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from agent.base.disk import Disk
from agent.base.scopes import list_scopes, scope_folder, transcript_path
from agent.base.transcript_lines import TranscriptBlock, decode, kind_of, parse_time
from gateway.ports.journal import Line, SessionRow

NEWEST_SESSIONS = 50  # checked at start: a journal loses the turns of recently used sessions
_ARCHIVE = re.compile(r"([a-z2-7]{16})\.t[a-z0-9]*\.jsonl\Z")
_TRANSCRIPT = re.compile(r"[a-z0-9]{1,64}")
_MOST_SEGMENTS = 9_999  # their numbers have four digits
_LONGEST_HEAD = 8 * 1024
_END = re.compile(rb'"kind"\s*:\s*"end"')
_TAIL_BYTES, _MOST_TAIL_BYTES = 4 * 1024, 4 * 1024 * 1024
_RECORDS = 8  # read from the end of a transcript: enough to include the last one with messages
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


# -- paths -----------------------------------------------------------------------------------------


def segment_path(path: Path, transcript: str, number: int) -> Path:
    """Return the path of a transcript's full segment *number* (from 1), which earlier releases divided it into."""
    return path.with_name(f"{transcript}.{number:04d}.jsonl")


def archive_path(path: Path, transcript: str, turn: str) -> Path:
    """Return the path of a transcript that *turn* has ended."""
    return path.with_name(f"{transcript}.{turn}.jsonl")


def archive_of(path: Path, transcript: str) -> Path | None:
    """Return the archive of *transcript* in the folder of *path*, None if it does not exist."""
    return next(path.parent.glob(f"{glob.escape(transcript)}.t*.jsonl"), None)


def transcript_of_archive(path: Path) -> str:
    """Return the id of the transcript whose archive is at *path*, "" for any other file."""
    found = _ARCHIVE.match(path.name)
    return found[1] if found else ""


# -- whole transcripts -----------------------------------------------------------------------------


@dataclass(slots=True)
class ParsedTranscript:
    """The content of a transcript."""

    blocks: list[TranscriptBlock] = field(default_factory=list)
    bad: list[bytes] = field(default_factory=list)  # lines that cannot be decoded
    torn: bytes = b""  # the rest behind the last complete turn


def read_head(disk: Disk, path: Path) -> Line:
    """Return the head line of a transcript file, an empty line if it has none."""
    if not disk.size(path):
        return {}
    first, newline, _ = disk.read(path, 0, _LONGEST_HEAD).partition(b"\n")
    line = decode(first) if newline else None
    return line if line is not None and kind_of(line) == "head" else {}


def read_transcript(disk: Disk, path: Path) -> ParsedTranscript:
    """Read the transcript whose last file is *path*, with the segments before it; a missing file reads as empty."""
    head = read_head(disk, path)
    number, transcript = head.get("segment"), str(head.get("transcript", ""))
    if not isinstance(number, int) or _TRANSCRIPT.fullmatch(transcript) is None:
        number = 0
    paths = [segment_path(path, transcript, n) for n in range(1, min(number, _MOST_SEGMENTS) + 1)]
    return parse_transcript(b"".join(disk.load(each) or b"" for each in (*paths, path)))


def parse_transcript(data: bytes) -> ParsedTranscript:
    """Parse bytes that begin with a turn or a head."""
    parser = _BlockParser()
    position = 0
    *lines, _torn = data.split(b"\n")
    for raw in lines:
        parser.feed(raw, position)
        position += len(raw) + 1
    parser.finish(position)
    parser.parsed.torn = data[parser.complete :]
    return parser.parsed


class _BlockParser:
    """Groups lines into blocks."""

    def __init__(self) -> None:
        self.parsed = ParsedTranscript()
        self.complete = 0  # offset behind the last complete turn
        self._begin()

    def feed(self, raw: bytes, offset: int) -> None:
        """Parse one line, without its newline."""
        after = offset + len(raw) + 1
        line = decode(raw) if raw.strip() else {"kind": "blank"}
        if line is None:
            self.parsed.bad.append(raw)
            self._hole = offset if self._lines else -1
        elif kind_of(line) == "end" and isinstance(line.get("turn"), str):
            self._close_at_hole(line["turn"])
            self._lines.append(line)
            self._close(line["turn"], after)
            return
        elif kind_of(line) not in ("head", "blank"):
            self._take(line)
        if not self._lines:
            self._begin()
            self.complete = after

    def finish(self, position: int) -> None:
        """Complete the last block; nothing follows."""
        if self._hole >= 0 and self._turn:
            self._close(self._turn, position)

    def _take(self, line: Line) -> None:
        turn = line.get("turn")
        if isinstance(turn, str):
            self._close_at_hole(turn)
            self._turn = turn
        self._hole = -1
        self._lines.append(line)

    def _close_at_hole(self, turn: str) -> None:
        """Treat an unreadable line between two turns as the `end` of the first."""
        if self._hole >= 0 and self._turn and turn != self._turn:
            self._close(self._turn, self._hole)

    def _begin(self) -> None:
        self._lines: list[Line] = []
        self._hole = -1
        self._turn = ""

    def _close(self, turn: str, after: int) -> None:
        lines = tuple(line for line in self._lines if line.get("turn", turn) == turn)
        low, high = _index_range(lines)
        self.parsed.blocks.append(TranscriptBlock(turn, lines, low, high))
        self.complete = after
        self._begin()


def _index_range(lines: Sequence[Line]) -> tuple[int, int]:
    """Return the first index of a block and the one after its last."""
    end = lines[-1] if lines else {}
    low, high = end.get("from"), end.get("to")
    if isinstance(low, int) and isinstance(high, int):
        return low, high
    indices = [line["i"] for line in lines if kind_of(line) == "message"]
    return (min(indices), max(indices) + 1) if indices else (0, 0)


# -- the ends of transcripts, which a store that has lost its newest turns does not know -----------


@dataclass(frozen=True, slots=True)
class TranscriptTurn:
    """A turn that answered messages, in the transcript of a session."""

    key: str
    turn: str
    at: int  # microseconds since 1970


@dataclass(frozen=True, slots=True)
class TranscriptEnd:
    """The end of a session's transcript."""

    session: SessionRow
    next_index: int  # 0 if the transcript is not the one that the store names
    newest: TranscriptTurn | None

    @property
    def is_ahead(self) -> bool:
        """Return True if the store would give indices of stored messages again.

        A turn is durable in the store before it is in a file, so a crash alone cannot cause this.
        """
        return self.next_index > self.session.next_index


def read_ends(home: Path, sessions: Iterable[SessionRow]) -> Iterator[TranscriptEnd]:
    """Yield the end of the transcript of each session."""
    for row in sessions:
        path, transcript = _newest_file(transcript_path(home, row.scope, str(row.key)), row.transcript)
        lines = _read_tail(path)
        turns = (_answering_turn(str(row.key), line) for line in reversed(lines))
        is_named = transcript == row.transcript
        yield TranscriptEnd(row, _next_index(lines) if is_named else 0, next(filter(None, turns), None))


def read_turns(home: Path) -> Iterator[TranscriptTurn]:
    """Yield every turn that answered messages, of all transcripts of *home*. Reads all of their bytes."""
    for scope in ("", *list_scopes(home)):
        for path in sorted((scope_folder(home, scope) / "sessions").glob("*.jsonl")):
            key = ""
            for raw in path.read_bytes().split(b"\n"):
                line = decode(raw) if b'"kind"' in raw else None
                if line is None:
                    continue
                if kind_of(line) == "head":
                    key = str(line.get("key", ""))
                elif (turn := _answering_turn(key, line)) is not None:
                    yield turn


def fit_session(home: Path, row: SessionRow, new_transcript: Callable[[], str]) -> SessionRow:
    """Return *row* corrected from its files, so that the next turn gets indices that no stored turn has."""
    path, transcript = _newest_file(transcript_path(home, row.scope, str(row.key)), row.transcript)
    if transcript == row.transcript:
        return replace(row, next_index=max(row.next_index, _next_index(_read_tail(path))))
    if archive_of(path, row.transcript) is None:
        return row
    # The journal lost the /new that archived the transcript.
    if transcript:
        return replace(row, transcript=transcript, next_index=_next_index(_read_tail(path)))
    return replace(row, transcript=new_transcript(), next_index=0)


def _newest_file(path: Path, transcript: str) -> tuple[Path, str]:
    """Return the file at *path*, or the last full segment of *transcript* if it is missing, and its transcript."""
    if not path.exists():  # an earlier release was killed before it began the next segment
        path = max(path.parent.glob(f"{glob.escape(transcript)}.[0-9]*.jsonl"), default=path)
    return path, str(read_head(Disk(), path).get("transcript", ""))


def _read_tail(path: Path) -> Sequence[Line]:
    """Return the lines at the end of a file that have the newest turns: at least `_RECORDS` of them, if there are."""
    disk = Disk()
    size = disk.size(path) or 0
    width = _TAIL_BYTES
    while True:
        start = max(size - width, 0)
        data = disk.read(path, start, size - start) if size else b""
        if not start or width >= _MOST_TAIL_BYTES or len(_END.findall(data)) > _RECORDS:
            break
        width *= 2
    if start:  # without half a line
        data = data.partition(b"\n")[2]
    return [line for raw in data.split(b"\n")[:-1] if (line := decode(raw)) is not None]


def _next_index(lines: Sequence[Line]) -> int:
    """Return the index behind the last message of the turns that are complete in *lines*."""
    ends = [line.get("to") for line in lines if kind_of(line) == "end"]
    return max((to for to in ends if isinstance(to, int)), default=0)


def _answering_turn(key: str, line: Line) -> TranscriptTurn | None:
    """Return the turn that *line* ends; None for another line, and for a turn without messages of the inbox.

    Imported turns are such: the store has no record of them.
    """
    at = parse_time(line.get("at"))
    if kind_of(line) != "end" or not line.get("inbox") or at is None:
        return None
    return TranscriptTurn(key, str(line.get("turn", "")), (at - _EPOCH) // _MICROSECOND)
