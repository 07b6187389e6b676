"""Durable jobs for messages that a user deleted in a chat.

The first job records the deletion, which blanks the message; `unindex` removes its files, and its words from the search
index. Another one, with traces of the message, finds the lines derived from it in documents, history and notes, once no
job is summarising the message. These lines are removed only after approval.

Derived lines are found by provenance: history entries of the message, versions, and the lines that they added. Words
are compared only afterwards, to select among the lines that a summary of many messages added. The message itself is
already removed from the disk: its words are known by their fingerprints, from which it cannot be reconstructed.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from agent.base import transcript_lines as build
from agent.base.disk import Disk
from agent.base.transcript_lines import FORGOTTEN, entry_id
from agent.memory.editing.memory_versions import remembering_turn
from agent.memory.editing.staged_changes import StagedChange, StagedChangeStore
from agent.memory.editing.text_operations import RemoveLines
from agent.memory.erasure.scope_files import blank_raw, owe_mirror, pay_mirror
from agent.memory.history.history_files import sentences
from agent.memory.jobs.job_runner import JobKind, JobPace, RetryJobLater
from agent.memory.storage.scope_documents import ScopeDocuments
from agent.memory.storage.session_file_writer import SessionFileWriter
from agent.memory.update.notes import QUOTED
from gateway.events import SessionKey, short_id
from gateway.ports.journal import InboxRow, Job, MessageOutcome, SessionRow, TurnRecord
from gateway.ports.memory import HISTORY_JSONL, RAW_JSONL, UNINDEX, DocumentChange, FileKind, HistoryEntry, StoredTurn
from gateway.text.json_lines import DIGEST, find_message
from gateway.text.message_text import one_line

if TYPE_CHECKING:
    from gateway.store.documents import SqlDocuments
    from gateway.store.files import SqlFiles
    from gateway.store.history import SqlHistory
    from gateway.store.jobs import SqlJobs
    from gateway.store.journal import SqlJournal
    from gateway.store.records import SqlTurnRecords
    from gateway.store.transcripts import SqlTranscripts

log = structlog.get_logger(__name__)

_MAX_CHANGES = 2_000  # searched
_MIN_WORDS = 3  # of a message with a content that can be recognised
_MAX_LINES = 20  # of one document in one approval question
_SESSION = "(session: "  # then the key and a bracket, at the end of a note's heading
_WORD = re.compile(r"\w{4,}")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]{2,}")  # scripts without spaces: use bigrams
_STEM = 6  # letters of a word that are compared: "zeppelins" equals "zeppelin"
DELETED = "deleted"
DELETION_JOBS = JobKind(name=DELETED, pace=JobPace.QUICK, aliases=("unlearn",))
UNINDEX_JOBS = JobKind(name=UNINDEX, pace=JobPace.LONG)
_BUSY_DELAY = timedelta(seconds=5)
_SUMMARY_DELAY = timedelta(seconds=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDeletionJobs:
    """Handlers of the jobs.

    *purge_index* removes from a scope's index what its sources no longer have; *person* returns the sender of a row;
    *writing* is held while files are written.
    """

    home: Path
    session_files: SessionFileWriter
    files: SqlFiles
    journal: SqlJournal
    records: SqlTurnRecords
    transcripts: SqlTranscripts
    jobs: SqlJobs
    documents: ScopeDocuments
    derived_data: DerivedDataFinder
    staging: StagedChangeStore
    purge_index: Callable[[str], Awaitable[None]]
    person: Callable[[InboxRow], str]
    writing: asyncio.Lock
    now: Callable[[], datetime]
    _disk: Disk = field(default_factory=Disk)

    async def run(self, job: Job) -> RetryJobLater | None:
        """Record a deletion, or stage the removal of what was derived from the message."""
        return await (self.unlearn(job) if "traces" in job.payload else self.delete(job))

    async def delete(self, job: Job) -> RetryJobLater | None:
        """Record the deletion, write the files without the message, and enqueue the jobs that find derived data."""
        key, mid = SessionKey.parse(str(job.payload["key"])), str(job.payload["mid"])
        session = await self.journal.session(key)
        scope, debt = session.scope or job.scope, f"message:{key}/{mid}"
        await owe_mirror(self.home, scope, self._disk, erasure=debt)
        if await self.journal.waiting_rows(key):  # the next turn may record the deletion; if not, a retry does
            return RetryJobLater(_BUSY_DELAY, "its chat is being answered", counts=False)
        traces = await self._traces(scope, key, mid)
        note = int(job.payload.get("note", 0))
        row = await self.records.pending_notes(key, note) if note else None
        if traces:
            payload = {
                "key": str(key),
                "mid": mid,
                "traces": [each.record() for each in traces],
                "person": self.person(row) if row is not None else "",
            }
            await self.jobs.put(
                Job(id=f"unlearn:{key}/{mid}", kind=DELETED, scope=scope, payload=payload, due_at=self.now())
            )
        if traces or row is not None:
            await self._record_deletion(session, scope, mid, note)
        if not await self.session_files.flush():
            return RetryJobLater(_BUSY_DELAY, "the files of conversations cannot be written", counts=False)
        await pay_mirror(self.home, scope, self._disk, erasure=debt)
        log.info("memory.message_deleted", key=str(key), lines=len(traces))
        return None

    async def unindex(self, job: Job) -> None:
        """Remove the files of deleted messages that no line refers to, and from the index what is in no turn."""
        digests = {str(each) for each in job.payload.get("files", ())}
        await remove_unreferenced(self.files, self.transcripts, job.scope, digests)
        await self.purge_index(job.scope)

    async def unlearn(self, job: Job) -> RetryJobLater | None:
        """Stage the removal of lines derived from a deleted message; blank copies of the message itself."""
        key = SessionKey.parse(str(job.payload["key"]))
        parsed = [DeletionTrace.read(each) for each in job.payload["traces"]]
        traces = [each for each in parsed if each is not None]
        for other in await self.jobs.pending_in(job.scope):
            if _may_remember(other, traces):
                return RetryJobLater(_SUMMARY_DELAY, "a summary of it is being made", counts=False)
        mid, person = str(job.payload["mid"]), str(job.payload.get("person", ""))
        await self.documents.notice(job.scope)
        async with self.writing:
            derived = await self.derived_data.find(job.scope, str(key), mid, traces)
            for document, lines in derived.items():
                change = StagedChange(
                    # Names differ in their first letters, because users type only these.
                    name=f"d{_name(str(key), mid, document)}",
                    why="deleted",
                    at=self.now(),
                    document=document,
                    operations=tuple(map(RemoveLines, lines)),
                    session=str(key),
                    person=person,
                )
                await self.staging.stage(job.scope, change)
        return None

    async def _traces(self, scope: str, key: SessionKey, mid: str) -> list[DeletionTrace]:
        """Return a trace of each occurrence of the message."""
        traces: list[DeletionTrace] = []
        after: tuple[str, int] | None = None
        while turns := await self.transcripts.scan(scope, keys=frozenset({key}), after=after):
            traces += await asyncio.to_thread(_find_traces, turns, mid)
            after = (str(key), turns[-1].seq)
        return traces

    async def _record_deletion(self, session: SessionRow, scope: str, mid: str, note: int) -> None:
        """Append the `forgotten` line, which blanks the message in the same transaction."""
        record = TurnRecord(
            turn=f"d{_name(str(session.key), mid)}",
            key=session.key,
            transcript=session.transcript,
            scope=scope,
            outcome=MessageOutcome.MERGED,
            lines=(build.forgotten_line(mid),),
            from_index=session.next_index,
            to_index=session.next_index,
            inbox=(),
            at=self.now(),
        )
        if note:
            await self.records.append_for(note, record)  # nothing where a turn has recorded the deletion
        else:
            await self.records.append(record)


async def remove_unreferenced(
    files: SqlFiles, transcripts: SqlTranscripts, scope: str, digests: Collection[str]
) -> None:
    """Remove those attachments of *scope* that no line refers to."""
    left = {digest for digest in digests if DIGEST.fullmatch(digest)}
    after: tuple[str, int] | None = None
    while left and (turns := await transcripts.scan(scope, after=after)):
        left -= {each for each in left if any(each.encode() in turn.body for turn in turns)}
        after = (str(turns[-1].key), turns[-1].seq)
    await files.remove(scope, FileKind.ATTACHMENT, names=left)


def _may_remember(job: Job, traces: Sequence[DeletionTrace]) -> bool:
    """Return True if the pending *job* may still write the content of a deleted message into memory."""
    for trace in traces:
        if job.kind == "remember" and job.payload.get("turn") == trace.turn:
            return job.payload.get("origin") != "untrusted"  # which needs approval anyway
        # Jobs about messages have the transcript in their payload, and most of them the range.
        if job.payload.get("transcript") == trace.transcript:
            start, end = job.payload.get("start", 0), job.payload.get("end", trace.i + 1)
            if int(start) <= trace.i < int(end):
                return True
    return False


def _find_traces(turns: Sequence[StoredTurn], mid: str) -> list[DeletionTrace]:
    found = ((turn, find_message(raw, {mid})) for turn in turns for raw in turn.body.splitlines())
    return [DeletionTrace.of(turn.transcript, *each) for turn, each in found if each is not None]


def _name(*parts: str) -> str:
    return short_id("\0".join(parts))


# -- data derived from a deleted message -----------------------------------------------------------


class DerivedDataFinder:
    """Searches a scope's history, changes and notes."""

    def __init__(self, changes: SqlDocuments, history: SqlHistory) -> None:
        self._changes = changes
        self._history = history
        self._disk = Disk()

    async def find(self, scope: str, key: str, mid: str, traces: Sequence[DeletionTrace]) -> dict[str, list[str]]:
        """Return, by document, the current lines that were derived from the message *mid*.

        Verbatim copies of the message are blanked: quotes in notes, and messages that could not be summarised.
        Raises OSError.
        """
        await blank_raw(self._history, scope, lambda line, said: line.get("session") == key and said.get("mid") == mid)
        await self._blank_quotes(scope, traces)
        words = frozenset(word for trace in traces for word in trace.words)
        entries = [each for each in await self._history.after(scope) if _is_derived(each, key, traces)]
        derived = await self._find_in_documents(scope, traces, entries, words)
        quotes = [sentence for entry in entries for sentence in quoting_lines(sentences(entry.content), words)]
        if quotes:
            derived[HISTORY_JSONL] = quotes[:_MAX_LINES]
        for name in await self._history.note_names(scope):
            text = (await self._history.note(scope, name) or b"").decode("utf-8", "replace")
            if lines := await asyncio.to_thread(_find_in_note, text, key, words):
                derived[name] = lines[:_MAX_LINES]
        return derived

    async def _blank_quotes(self, scope: str, traces: Sequence[DeletionTrace]) -> None:
        def change(name: str, body: bytes) -> bytes:
            if name in (HISTORY_JSONL, RAW_JSONL):
                return body
            before = body.decode("utf-8", "replace").splitlines(keepends=True)
            after = [
                f"user: {FORGOTTEN}\n" if any(trace.is_quoted(line) for trace in traces) else line for line in before
            ]
            return body if after == before else "".join(after).encode()

        await self._history.rewrite(scope, change)

    async def _find_in_documents(
        self, scope: str, traces: Sequence[DeletionTrace], entries: Sequence[HistoryEntry], words: frozenset[str]
    ) -> dict[str, list[str]]:
        derived: dict[str, list[str]] = {}
        turns = {trace.turn for trace in traces}
        names = {entry.entry for entry in entries}
        # A summary may use other words than the message; but deleting "ok" must not ask about every line.
        has_content = len(words) >= _MIN_WORDS or any(not trace.quote for trace in traces)
        for change in await self._changes.log(scope, limit=_MAX_CHANGES):
            is_remembered = remembering_turn(change) in turns
            if not is_remembered and not names & set(re.findall(r"\be[a-z2-7]{16}\b", change.why)):
                continue
            for name, (before, after) in (await self._changes.changed_texts(scope, change)).items():
                lines = await self._added_lines(scope, change, name, before, after)
                if not is_remembered:
                    lines = related_lines(lines, words) or (lines if has_content else [])
                known = derived.setdefault(name, [])
                known += [line for line in lines if line not in known]
        return {name: lines[:_MAX_LINES] for name, lines in derived.items() if lines}

    async def _added_lines(self, scope: str, change: DocumentChange, name: str, before: str, after: str) -> list[str]:
        """Return the current lines of a document that *change* added."""
        current = set((await self._changes.read(scope, name)).text.splitlines())
        old = set(before.splitlines())
        new = [line for line in after.splitlines() if line.strip() and line not in old and not line.startswith("#")]
        sources = [(line, await self._changes.source(scope, name, line)) for line in new if line in current]
        return [line for line, source in sources if source is not None and source.id == change.id]


def _find_in_note(text: str, key: str, words: frozenset[str]) -> list[str]:
    """Return the lines of a session note or a flush note that repeat the message."""
    found: list[str] = []
    section = ""
    is_transcribed = False
    for line in text.splitlines():
        if line.startswith("## "):
            _, mark, rest = line.rstrip().rpartition(_SESSION)
            section = rest[:-1] if mark and rest.endswith(")") else section
        elif line.strip() == f"- **Session**: {key}":
            section, is_transcribed = key, True
        elif section != key or not line.strip() or line.startswith(("# ", "<!--", "- **")):
            continue
        elif quoting_lines([line], words) or (not is_transcribed and related_lines([line], words)):
            found.append(line)
    return found


def _is_derived(entry: HistoryEntry, key: str, traces: Sequence[DeletionTrace]) -> bool:
    """Return True if *entry* summarises one of the lines; its id shows which transcript its indices belong to."""
    return entry.session == key and any(
        entry.start <= trace.i < entry.end and entry.entry == entry_id(trace.transcript, entry.start, entry.end)
        for trace in traces
    )


# -- the message that was deleted --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionTrace:
    """A transcript line of a deleted message. `i` is -1 for a command, which has no index."""

    transcript: str
    turn: str
    i: int
    words: tuple[str, ...] = ()  # fingerprints of its words; () if its text could not be read any more
    quote: str = ""  # fingerprint of the line by which a note quotes it

    @classmethod
    def of(cls, transcript: str, line: Mapping[str, Any], text: str) -> DeletionTrace:
        """Return the trace of *line* with the content *text*."""
        quoted = one_line(text, QUOTED)
        index = line.get("i")
        return cls(
            transcript=transcript,
            turn=str(line.get("turn", "")),
            i=index if isinstance(index, int) else -1,
            words=tuple(sorted(word_fingerprints(text))),
            quote=_fingerprint(f"user: {quoted}") if quoted else "",
        )

    @classmethod
    def read(cls, record: object) -> DeletionTrace | None:
        """Parse a trace in a job's payload; None if it is invalid."""
        if not isinstance(record, Mapping):
            return None
        try:
            return cls(**{**record, "words": tuple(record.get("words", ()))})
        except TypeError:
            return None

    def record(self) -> dict[str, Any]:
        """Return the trace for a job's payload."""
        return asdict(self)

    def is_quoted(self, line: str) -> bool:
        """Return True if *line* of a note quotes the message."""
        return bool(self.quote) and _fingerprint(line.strip()) == self.quote


def word_fingerprints(text: str) -> frozenset[str]:
    """Return the fingerprints of the words of *text* that have four letters or more."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return frozenset(_fingerprint(stem) for stem in _stems(folded))


def related_lines(lines: Sequence[str], words: Iterable[str]) -> list[str]:
    """Return the lines that share a word with a message; *words* are the fingerprints of the message.

    Words that are in many of the lines do not count.
    """
    words = frozenset(words)
    shared = [word_fingerprints(line) & words for line in lines]
    counts = Counter(word for each in shared for word in each)
    limit = max(2, len(lines) // 4)
    return [line for line, each in zip(lines, shared, strict=True) if any(counts[word] <= limit for word in each)]


def quoting_lines(lines: Iterable[str], words: Iterable[str]) -> list[str]:
    """Return the lines that have at least half of a message's *words* (fingerprints)."""
    words = frozenset(words)
    return [line for line in lines if words and 2 * len(word_fingerprints(line) & words) >= len(words)]


def _stems(folded: str) -> Iterator[str]:
    for word in _WORD.findall(_UNSPACED.sub(" ", folded)):
        yield word[:_STEM]
    for text in _UNSPACED.findall(folded):
        yield from (text[n : n + 2] for n in range(len(text) - 1))


def _fingerprint(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
