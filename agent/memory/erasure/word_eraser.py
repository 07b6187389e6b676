"""/forget: the words are gone from what is remembered, summarised, noted and said in a scope, from this moment on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import structlog

from agent.memory.documents.file_documents import EPOCH, VersionedDocuments
from agent.memory.documents.version_store import VersionStore
from agent.memory.erasure.word_match import ErasurePattern, without_entries, without_sentences, without_words
from agent.memory.history.history_log import redact_history
from agent.memory.jobs.memory_jobs import REMEMBER
from agent.memory.prompt.due_jobs import APPLY, FLUSHED
from agent.memory.scopes import scope_folder
from agent.memory.storage.disk import Disk
from agent.memory.storage.transcript_lines import kind_of
from gateway.ports import JobQueue, Line

log = structlog.get_logger(__name__)

DOCUMENTS = ("MEMORY.md", "USER.md", "SOUL.md")
_TRIES = 5
_NOTES = "[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*.md"
_JOBS = frozenset({REMEMBER, APPLY, FLUSHED})


class RedactableTranscripts(Protocol):
    """Who owns the transcript files."""

    async def redact(self, folder: Path, change: Callable[[bytes], bytes]) -> int:
        """Put every line of the folder's transcripts through *change*; return how many changed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureRequester:
    """Who wants it forgotten, and how much they may decide here."""

    person: str
    sender: str  # the platform's id
    may_all: bool  # an admin: also what others said


@dataclass(frozen=True, slots=True, kw_only=True)
class WordErasureResult:
    """How much is gone, and how much stays because somebody else said it."""

    remembered: int = 0
    summaries: int = 0
    messages: int = 0
    others: int = 0  # places that only an admin may clear

    @property
    def total(self) -> int:
        """How many places were cleared."""
        return self.remembered + self.summaries + self.messages


class WordEraser:
    """Clears words out of one scope. Doing it twice is doing it once; a crash in the middle is made good by a rerun."""

    def __init__(
        self,
        home: Path,
        *,
        documents: VersionedDocuments,
        versions: VersionStore,
        transcripts: RedactableTranscripts,
        jobs: JobQueue,
        writing: asyncio.Lock,
        reopen: Callable[[str], None],
        disk: Disk | None = None,
    ) -> None:
        """Hold *writing* meanwhile; *reopen* lets go of every open conversation of a scope."""
        self._home = home
        self._documents = documents
        self._versions = versions
        self._transcripts = transcripts
        self._jobs = jobs
        self._writing = writing
        self._reopen = reopen
        self._disk = disk or Disk()

    async def forget(
        self,
        scope: str,
        wanted: ErasurePattern,
        asker: ErasureRequester,
        *,
        turn: str,
        whole: bool = False,
        page: str = "",
    ) -> WordErasureResult:
        """Clear *wanted* from *scope*, as far as *asker* may. Raises OSError when the disk will not have it.

        *whole*: the command that asks for it, and what came with the words (files, quotes), go too. *page* names the
        page that is turned, by default *turn*.
        """
        async with self._writing:
            remembered, others = await self._clear_documents(scope, wanted, asker)
            summaries = 0
            if asker.may_all:
                # Jobs before files: what is applied later must not bring it back.
                await self._clear_jobs(scope, wanted)
                summaries = await asyncio.to_thread(self._clear_notes, scope, wanted)
            messages = await self._clear_transcripts(scope, wanted, asker, "" if whole else turn, whole=whole)
            await self.request_new_snapshots(scope, page or turn)
        self._reopen(scope)
        log.info("memory.forgotten", scope=scope, remembered=remembered, summaries=summaries, messages=messages)
        return WordErasureResult(remembered=remembered, summaries=summaries, messages=messages, others=others)

    # -- places ------------------------------------------------------------------------------------

    async def _clear_documents(self, scope: str, wanted: ErasurePattern, asker: ErasureRequester) -> tuple[int, int]:
        """Return how many entries went, and how many stay because somebody else had them kept."""
        gone = others = 0
        for name in DOCUMENTS:
            for _ in range(_TRIES):
                document = await self._documents.read(scope, name)
                mine = await asyncio.to_thread(self._mine, scope, name, document.text, wanted, asker)
                text, count = without_entries(document.text, wanted, mine.__contains__)
                written = not count or await self._documents.write(
                    scope, name, text, was=document.rev, why="forget", by=asker.person
                )
                if written:
                    gone += count
                    others += without_entries(text, wanted)[1]
                    break
            else:
                raise OSError(f"{name} is being written to all the time")
        return gone, others

    def _mine(
        self, scope: str, name: str, text: str, wanted: ErasurePattern, asker: ErasureRequester
    ) -> frozenset[str]:
        """Return the lines that the asker may take out: all for an admin, else those they had kept themselves."""
        lines = [line for line in text.splitlines() if line.strip()]
        if asker.may_all:
            return frozenset(lines)
        found = ((line, self._versions.source(scope, name, line)) for line in lines if wanted.in_text(line))
        return frozenset(line for line, version in found if version is not None and version.by == asker.person)

    async def _clear_jobs(self, scope: str, wanted: ErasurePattern) -> None:
        for job in await self._jobs.pending_in(scope):
            if job.kind in _JOBS and wanted.in_any(job.payload):
                await self._jobs.finish(job)
                if job.kind == APPLY:
                    await self._jobs.put(replace(job, payload=_without(job.payload, wanted)))

    def _clear_notes(self, scope: str, wanted: ErasurePattern) -> int:
        folder = scope_folder(self._home, scope) / "memory"
        changed = redact_history(folder, self._disk, lambda text: without_sentences(text, wanted))
        for note in (*sorted(folder.glob(_NOTES)), *sorted(folder.glob("[A-Z]*.conflict-*.md"))):
            text = (self._disk.load(note) or b"").decode("utf-8", "replace")
            left, gone = without_entries(text, wanted)
            if gone:
                self._disk.replace(note, left.encode())
                changed += gone
        # What waits for a yes or for its application, and bytes that were set aside: nobody misses a part of them.
        kept_apart = (".staged/*.json", ".pending/*.json", "*.corrupt", "../sessions/*.corrupt")
        for aside in [path for pattern in kept_apart for path in folder.glob(pattern)]:
            if wanted.in_text((self._disk.load(aside) or b"").decode("utf-8", "replace")):
                self._disk.remove(aside)
        return changed

    async def _clear_transcripts(
        self, scope: str, wanted: ErasurePattern, asker: ErasureRequester, turn: str, *, whole: bool
    ) -> int:
        """Blank what was said, but for *turn*: the command that asks for it is the record of the asking."""
        theirs = may_clear(asker)

        def may(line: Line) -> bool:
            return (not turn or line.get("turn") != turn) and theirs(line)

        def change(raw: bytes) -> bytes:
            return without_words(raw, wanted, may, whole=whole)

        return await self._transcripts.redact(scope_folder(self._home, scope) / "sessions", change)

    async def request_new_snapshots(self, scope: str, turn: str) -> None:
        """Make every conversation of the scope take a new snapshot at its next turn."""
        for _ in range(_TRIES):
            document = await self._documents.read(scope, EPOCH)
            if document.text.strip() == turn:
                return
            if await self._documents.write(scope, EPOCH, f"{turn}\n", was=document.rev, why="forget"):
                return


def may_clear(asker: ErasureRequester) -> Callable[[Line], bool]:
    """Return what says of transcript lines, in the order of their file, whether *asker* may have them cleared."""
    mine: set[str] = set()

    def may(line: Line) -> bool:
        if asker.may_all:
            return True
        by = line.get("by")
        if isinstance(by, Mapping) and by.get("id") == asker.sender:
            mine.add(str(line.get("turn")))
            return True
        # The answer to what they said themselves; it stands behind it in the file.
        return kind_of(line) == "message" and line.get("role") != "user" and line.get("turn") in mine

    return may


def _without(payload: Mapping[str, Any], wanted: ErasurePattern) -> dict[str, Any]:
    """Return a stored answer without the words."""
    answer = dict(payload["answer"])
    answer["history_entry"] = without_sentences(str(answer["history_entry"]), wanted)
    for name in ("base", "memory_update"):
        answer[name] = without_entries(str(answer[name]), wanted)[0]
    return {**payload, "answer": answer}
