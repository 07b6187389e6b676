"""Take over documents, histories and conversations of an earlier release from their files, before any turn runs.

The same happens after `parlour accept-loss`: a lost store is filled from its mirror.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from agent.base.disk import Disk, read_text, save_corrupt
from agent.base.scopes import list_scopes, scope_folder
from agent.base.transcript_lines import TranscriptBlock, decode, encode, parse_time
from agent.memory.editing.document_commits import DocumentCommits, open_repo, read_change, walk
from agent.memory.history.history_files import REPLACED, cursor_of, free_name, read_files
from agent.memory.storage.scope_documents import BY_HAND, TRACKED
from agent.memory.storage.transcript_files import read_head, read_transcript, transcript_of_archive
from gateway.events import SessionKey
from gateway.ports.access import ScopeMove
from gateway.ports.journal import Line, MessageOutcome, SessionRow
from gateway.ports.memory import (
    DocumentChange,
    DocumentState,
    MarkKind,
    ScopeHistory,
    StoredNote,
    StoredTurn,
    document_file,
)
from gateway.text.json_lines import read_entry

if TYPE_CHECKING:
    from gateway.store.documents import SqlDocuments
    from gateway.store.history import SqlHistory
    from gateway.store.transcripts import SqlTranscripts

log = structlog.get_logger(__name__)

_MOVED = ".move"  # in a scope's `memory/`: the id of the move that has built the folder
_ENDED = "ended"  # the transcript after one whose chat has none since
_SEGMENT = re.compile(r"([a-z2-7]{16})\.\d{4}\.jsonl\Z")
_TRANSCRIPT = re.compile(r"[a-z0-9]{1,64}")
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH = "epoch.txt"
_LEFT = (_EPOCH, ".writing")  # files of earlier releases whose content is in the store then
_REPORT_EVERY = 50  # scopes


@dataclass(frozen=True, slots=True)
class _FoundDocuments:
    """The documents of a scope's folder, as every version had them, and the scope's epoch."""

    states: Sequence[DocumentState]
    epoch: str


async def adopt_documents(home: Path, documents: SqlDocuments, now: Callable[[], datetime]) -> int:
    """Store documents of scopes that the store has none of; return the number of their versions.

    The caller marks them as adopted. Idempotent; a kill interrupts it between two scopes. The mirror then writes the
    files again. Raises OSError and StoreUnavailable, and ValueError when the store does not return the versions that
    it was given.
    """
    disk, commits, count = Disk(), DocumentCommits(home), 0
    folders = await asyncio.to_thread(list_scopes, home)
    scopes = dict.fromkeys(["", *folders, *await documents.scopes()])
    for n, scope in enumerate(scopes, start=1):
        if (await documents.heads([scope]))[scope].number:
            count += await _compare_mirror(home, scope, documents, commits)
        else:
            found = await asyncio.to_thread(_read_scope, disk, scope_folder(home, scope), now)
            if found.epoch:
                await documents.set_epoch(scope, found.epoch)
            if found.states:
                await documents.replace({scope: found.states}, was={scope: 0})
                stored = await documents.states(scope)
                if [each.texts for each in stored] != [each.texts for each in found.states]:
                    raise ValueError(f"the versions of {scope or 'the home'} were not stored as they are")
                count += len(stored)
        await asyncio.to_thread(_remove_left, disk, scope_folder(home, scope) / "memory")
        if not n % _REPORT_EVERY:
            log.info("memory.adopting_documents", scopes=n, of=len(scopes), versions=count)
    if count:
        log.info("memory.documents_adopted", scopes=len(scopes), versions=count)
    return count


async def _compare_mirror(home: Path, scope: str, documents: SqlDocuments, commits: DocumentCommits) -> int:
    """Have the files of a store that was restored written; return the number of newer versions that it then has.

    Versions behind those of the store are stored. Files of others are merged, as edits are.
    """
    memory = scope_folder(home, scope) / "memory"
    newest, _ = await asyncio.to_thread(commits.newest, scope)
    stored = await documents.states(scope)
    files = await asyncio.to_thread(read_documents, Disk(), memory.parent)
    is_known = all(any(text == each.texts.get(name) for each in stored) for name, text in files.items())
    if await documents.find(scope, newest) is not None if newest else is_known:
        await documents.owe_files(scope)
        return 0
    log.warning("memory.mirror_is_newer", scope=scope)
    found = await asyncio.to_thread(_read_versions, memory)
    if found and [each.change.id for each in found[: len(stored)]] == [each.change.id for each in stored]:
        both = [*stored, *found[len(stored) :]]
        if await documents.replace({scope: both}, was={scope: stored[-1].change.number}):
            return len(both) - len(stored)
    await asyncio.to_thread(_forget_state, memory / ".mirror")
    return 0


def read_documents(disk: Disk, folder: Path) -> Mapping[str, str]:
    """Return the texts of a scope's documents as its files have them, without empty ones. Blocks."""
    files = {name: disk.load(folder / document_file(name)) for name in TRACKED}
    return {name: text for name, data in files.items() if (text := _text(data or b""))}


def _forget_state(folder: Path) -> None:
    if folder.exists():
        Disk().remove_folder(folder)


def _read_scope(disk: Disk, folder: Path, now: Callable[[], datetime]) -> _FoundDocuments:
    """Return every version of a scope's documents, the oldest first, and behind them the files if they differ."""
    states = _read_versions(folder / "memory")
    newest = states[-1].texts if states else {}
    texts = read_documents(disk, folder)
    if texts != newest:
        change = DocumentChange(id=secrets.token_hex(4), number=0, at=now(), why=BY_HAND)
        states.append(DocumentState(change=change, texts=texts))
    return _FoundDocuments(states, _text(disk.load(folder / "memory" / _EPOCH) or b"").strip())


def _read_versions(memory: Path) -> list[DocumentState]:
    repository, gone = memory / ".git", memory / ".git.old"
    if not repository.exists() and gone.exists():  # a crash came between two renames
        repository = gone
    if not repository.exists():
        return []
    states: list[DocumentState] = []
    with open_repo(repository, make=False) as repo:
        for version in walk(repo):
            change = read_change(version, version.sha)
            texts = {name: text for name, data in version.texts.items() if name in TRACKED and (text := _text(data))}
            states.append(DocumentState(change=change, texts=texts))
    return states[::-1]


def _text(data: bytes) -> str:
    return read_text(data).replace("\0", "\ufffd")


def _remove_left(disk: Disk, memory: Path) -> None:
    for name in _LEFT:
        disk.remove(memory / name)


# -- histories -------------------------------------------------------------------------------------


async def adopt_histories(home: Path, history: SqlHistory, moves: Sequence[ScopeMove]) -> int:
    """Store the history in the files of every scope; return the number of scopes that have one.

    Idempotent; a kill interrupts it.

    *moves* are those that were interrupted: where one has merged two folders, the files of its source are left out.
    The files stay, as those that are printed from the rows. Raises OSError and StoreUnavailable.
    """
    if await history.is_adopted():
        return 0
    disk, count = Disk(), 0
    scopes = ["", *await asyncio.to_thread(list_scopes, home)]
    for scope in scopes:
        folder = scope_folder(home, scope) / "memory"
        done = [each for each in moves if each.source == scope and each.kind != "unlink"]
        if any([await asyncio.to_thread(_is_merged, home, disk, each) for each in done]):
            continue
        contents = await asyncio.to_thread(read_files, folder, disk) if folder.is_dir() else ScopeHistory()
        if contents != ScopeHistory():
            count += await _store(history, scope, contents)
            await asyncio.to_thread(_remove_replaced, folder, disk)
    await history.mark_adopted()
    if count:
        log.info("memory.histories_adopted", scopes=len(scopes), with_history=count)
    return count


async def _store(history: SqlHistory, scope: str, contents: ScopeHistory) -> bool:
    """Store what the files of a scope have and the store lacks; return False if that is nothing."""
    while not await history.adopt(scope, contents):
        stored = await history.load(scope)
        both, missing = add_missing(stored, contents)
        if not missing or await history.replace({scope: both}, was={scope: stored}):
            return bool(missing)
    return True


def add_missing(before: ScopeHistory, files: ScopeHistory) -> tuple[ScopeHistory, int]:
    """Return *before* with all that it lacks of *files*, and the number of entries, raw messages and notes.

    Entries are compared by id, those without one by cursor and content. Nothing is replaced: an entry
    whose cursor is taken gets another one; of a note that has grown since, the longer text is taken.
    """
    known, offered = (set(map(_identity, each.entries)) for each in (before, files))
    new = [raw for raw in files.entries if _identity(raw) not in known]
    taken = set(map(cursor_of, before.entries))
    last = max(before.cursor, files.cursor)
    entries = [*before.entries]
    for raw in new:
        is_free = cursor_of(raw) not in taken
        last += not is_free
        entries.append(raw if is_free else encode({**(decode(raw) or {}), "cursor": last}))
    raws = [raw for raw in files.raws if raw not in before.raws]
    notes, missing = dict(before.notes), len(new) + len(raws)
    for name, note in files.notes.items():
        there = notes.get(name, StoredNote(body=b""))
        if not there.body.startswith(note.body):
            notes[name if note.body.startswith(there.body) else free_name(name, notes)] = note
            missing += 1
    has_all = known <= offered  # an older store: what Dream has processed since is in the documents
    both = ScopeHistory(
        entries=tuple(sorted(entries, key=cursor_of)),
        raws=(*before.raws, *raws),
        notes=notes,
        marks={kind: {**files.marks.get(kind, {}), **before.marks.get(kind, {})} for kind in MarkKind},
        cursor=last,
        dream_cursor=max(before.dream_cursor, files.dream_cursor if has_all else 0),
    )
    return both, missing


def _identity(raw: bytes) -> tuple[str, int, bytes]:
    entry = read_entry(raw)
    if entry is not None and entry.entry:
        return entry.entry, 0, b""
    return "", cursor_of(raw), raw


def _is_merged(home: Path, disk: Disk, move: ScopeMove) -> bool:
    return disk.load(scope_folder(home, move.target) / "memory" / _MOVED) == move.id.encode()


def _remove_replaced(folder: Path, disk: Disk) -> None:
    for path in sorted(folder.glob(REPLACED)):
        disk.remove(path)


# -- transcripts -----------------------------------------------------------------------------------


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
        found = await asyncio.to_thread(_read_conversations, scope_folder(home, scope) / "sessions", known)
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


def _read_conversations(
    folder: Path, sessions: Mapping[SessionKey, SessionRow]
) -> Mapping[SessionKey, Sequence[StoredTurn]]:
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
