"""Take over the transcripts of an earlier release, or of a lost store, from their files, before any turn runs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from agent.memory.scopes import list_scopes, scope_folder
from agent.memory.storage.disk import Disk, save_corrupt
from agent.memory.storage.transcript_files import read_head, read_transcript, transcript_of_archive
from agent.memory.storage.transcript_lines import TranscriptBlock, encode, parse_time
from gateway.events import SessionKey
from gateway.ports.journal import Line, MessageOutcome, SessionRow
from gateway.ports.memory import StoredTurn

if TYPE_CHECKING:
    from gateway.store.transcripts import SqlTranscripts


log = structlog.get_logger(__name__)

_ENDED = "ended"  # the transcript after one whose chat has none since
_REPORT_EVERY = 50  # scopes
_SEGMENT = re.compile(r"([a-z2-7]{16})\.\d{4}\.jsonl\Z")
_TRANSCRIPT = re.compile(r"[a-z0-9]{1,64}")
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


async def adopt_transcripts(home: Path, transcripts: SqlTranscripts, sessions: Sequence[SessionRow]) -> int:
    """Store the turns that are in files and not in the store; return their number. Idempotent; a kill interrupts it.

    No file is changed. Raises OSError and StoreUnavailable.
    """
    if await transcripts.is_adopted():
        return 0
    scopes = ["", *await asyncio.to_thread(list_scopes, home)]
    known = {row.key: row for row in sessions}
    count = 0
    for n, scope in enumerate(scopes, start=1):
        found = await asyncio.to_thread(_read_scope, scope_folder(home, scope) / "sessions", known)
        for key, turns in found.items():
            # A move that was interrupted has given the session to another scope, and may have left its files.
            owner = known[key].scope if key in known else scope
            count += await transcripts.adopt(owner, key, turns, in_files=owner == scope)
        if not n % _REPORT_EVERY:
            log.info("memory.adopting_transcripts", scopes=n, of=len(scopes), turns=count)
    await transcripts.mark_adopted()
    if count:
        log.info("memory.transcripts_adopted", scopes=len(scopes), turns=count)
    return count


def _read_scope(folder: Path, sessions: Mapping[SessionKey, SessionRow]) -> Mapping[SessionKey, Sequence[StoredTurn]]:
    """Return the turns of each session in *folder*, in order."""
    disk = Disk()
    found: dict[SessionKey, list[StoredTurn]] = {}
    for name, files in _find_transcripts(folder, disk).items():
        try:
            key = SessionKey.parse(name)
        except ValueError:
            log.warning("memory.transcript_without_chat", folder=str(folder))
            continue
        newest = files[-1]
        current = _ENDED if newest.is_archive else newest.transcript
        if key in sessions:
            current = sessions[key].transcript
        following = [*(each.transcript for each in files[1:]), current]
        turns = found.setdefault(key, [])
        for each, next_transcript in zip(files, following, strict=True):
            turns += _read_turns(each, folder, disk, key, next_transcript)
    return found


@dataclass(frozen=True, slots=True)
class _TranscriptFile:
    path: Path  # with a head; of several segments, the last
    head: Line
    is_archive: bool
    ending: str  # the turn that an archive's name has
    created: str
    changed: int  # nanoseconds

    @property
    def transcript(self) -> str:
        """The id in the head."""
        return str(self.head.get("transcript", ""))

    @property
    def order(self) -> tuple[bool, str, int]:
        """The place among the transcripts of a session: the current one is the last."""
        return not self.is_archive, self.created, self.changed


def _find_transcripts(folder: Path, disk: Disk) -> Mapping[str, Sequence[_TranscriptFile]]:
    """Return the transcripts in *folder* by session key, in order."""
    found: dict[str, _TranscriptFile] = {}
    segments: dict[str, Path] = {}  # the newest full one of each transcript
    for path in sorted(folder.glob("*.jsonl")):
        if segment := _SEGMENT.match(path.name):
            segments[segment[1]] = path
        else:
            each = _transcript_file(path, disk)
            found[each.transcript] = each
    for transcript, path in segments.items():
        if transcript not in found:  # a crash came before the next segment
            found[transcript] = _transcript_file(path, disk)
    by_key: dict[str, list[_TranscriptFile]] = {}
    for transcript, each in found.items():
        if not each.head:
            continue
        if _TRANSCRIPT.fullmatch(transcript) is None:  # it becomes a part of paths
            log.warning("memory.transcript_without_id", folder=str(folder))
        else:
            by_key.setdefault(str(each.head.get("key")), []).append(each)
    return {key: sorted(files, key=lambda each: each.order) for key, files in by_key.items()}


def _transcript_file(path: Path, disk: Disk) -> _TranscriptFile:
    head = read_head(disk, path)
    is_archive = bool(transcript_of_archive(path))
    ending = path.name.split(".")[1] if is_archive else ""
    return _TranscriptFile(path, head, is_archive, ending, str(head.get("created", "")), path.stat().st_mtime_ns)


def _read_turns(
    file: _TranscriptFile, folder: Path, disk: Disk, key: SessionKey, next_transcript: str
) -> Sequence[StoredTurn]:
    parsed = read_transcript(disk, file.path)
    if parsed.bad:
        save_corrupt(disk, folder / f"{file.transcript}.jsonl", parsed.bad)
    turns = [_to_turn(key, file.transcript, block) for block in parsed.blocks]
    if turns and next_transcript != file.transcript:
        # A pointer may have come behind the turn that ended the transcript.
        last = next((n for n, turn in enumerate(turns) if turn.turn == file.ending), -1)
        turns[last] = replace(turns[last], new_transcript=next_transcript)
    return turns


def _to_turn(key: SessionKey, transcript: str, block: TranscriptBlock) -> StoredTurn:
    end = block.lines[-1]
    at = parse_time(end.get("at")) or next(
        (at for line in reversed(block.lines) if (at := parse_time(line.get("timestamp")))), _LONG_AGO
    )
    inbox = end.get("inbox") if isinstance(end.get("inbox"), list) else []
    return StoredTurn(
        seq=0,
        turn=block.turn,
        key=key,
        transcript=transcript,
        from_index=block.from_index,
        to_index=block.to_index,
        at=at,
        outcome=str(end.get("outcome") or MessageOutcome.ANSWERED),
        inbox=tuple(int(each) for each in inbox or () if str(each).isdecimal()),
        body=b"".join(map(encode, block.lines)),
    )
