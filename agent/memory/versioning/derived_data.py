"""Find the data derived from a deleted message by provenance: its history entries, versions, and the lines they added.

Words are compared only afterwards, to select among the lines that a summary of many messages added. The message itself
is already removed from the disk: its words are known by their fingerprints, from which it cannot be reconstructed.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from agent.memory.history.history_redaction import blank_raw, sentences
from agent.memory.messages.message_range import entry_id
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import FORGOTTEN
from agent.memory.update.session_note_writer import QUOTED
from agent.memory.versioning.version_sources import remembering_turn
from agent.one_line import one_line
from gateway.ports.memory import HISTORY_JSONL, RAW_JSONL, DocumentChange, HistoryEntry

if TYPE_CHECKING:
    from gateway.store.documents import SqlDocuments
    from gateway.store.history import SqlHistory


_MAX_CHANGES = 2_000  # searched
_MIN_WORDS = 3  # of a message with a content that can be recognised
_MAX_LINES = 20  # of one document in one approval question
_SESSION = "(session: "  # then the key and a bracket, at the end of a note's heading
_WORD = re.compile(r"\w{4,}")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]{2,}")  # scripts without spaces: use bigrams
_STEM = 6  # letters of a word that are compared: "zeppelins" equals "zeppelin"


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
