"""`/forget`: erase words from the documents, summaries, notes and transcripts of a scope at once."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from difflib import get_close_matches
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

import structlog

from agent.base.scopes import scope_folder
from agent.base.transcript_lines import decode, kind_of
from agent.files.file_workspace import ScopeWorkspaces
from agent.memory.editing.staged_changes import clear_proposal
from agent.memory.erasure.scope_files import (
    ErasureStorage,
    clear_workspace_file,
    redact_history,
    remove_matching,
)
from agent.memory.erasure.word_match import (
    SHORTEST,
    ErasurePattern,
    clear_line,
    clear_value,
    is_erasable,
    matching_entries,
    matching_excerpt,
    without_entries,
    without_sentences,
    without_words,
)
from agent.memory.jobs.job_runner import JobErasure, JobKind
from agent.memory.search.tokenizer import is_unspaced, words
from agent.memory.storage.scope_documents import DocumentBusy
from gateway.events import OutboundMessage, PlatformAccount
from gateway.ports.journal import Job, Line, TurnCommit
from gateway.ports.memory import PURGE, FileKind, HistoryEntry, MarkKind, MemoryProposal

log = structlog.get_logger(__name__)

ASK_ERASURE = "ask_erasure"  # kind of the job that asks whether words are to be erased
DOCUMENTS = ("MEMORY.md", "USER.md", "SOUL.md")
_MOST_EXAMPLES = 5
_TRIES = 3  # of a compare-and-set
_MOST_WORDS = 20_000  # of a scope that are compared with a misspelled request
_MOST_NEAR = 4
_SAID = re.compile(rb'"role":"(?:user|assistant)","content":("(?:[^"\\]|\\.)*+")')
_NEARNESS = 0.75  # of two spellings, from 0 to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureRequester:
    """The requester of an erasure and their rights."""

    account: PlatformAccount  # the author of the lines that they may erase, and of the versions without them
    sender: str  # the platform's id
    may_all: bool  # an admin may erase other people's messages too


@dataclass(frozen=True, slots=True)
class ErasureRequest:
    """The request in the payload of an erasure's job."""

    pattern: ErasurePattern
    requester: ErasureRequester
    is_purge: bool
    turn: str  # in which it was asked for or approved
    change: str  # name of the staged change that asked for it, or ""

    @classmethod
    def of(cls, job: Job) -> ErasureRequest:
        """Read a job's payload."""
        payload: Mapping[str, Any] = job.payload
        pattern, is_purge = ErasurePattern(str(payload["words"]), str(payload.get("language", ""))), job.kind == PURGE
        requester = ErasureRequester(
            account=PlatformAccount.from_name(str(payload["person"])),
            sender=str(payload["sender"]),
            may_all=bool(payload["may_all"]),
        )
        return cls(
            pattern=pattern.deep if is_purge else pattern,
            requester=requester,
            is_purge=is_purge,
            turn=str(payload["turn"]),
            change=str(payload.get("staged", "")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WordErasureResult:
    """Number of cleared entries and messages, and of those that only an admin may clear."""

    remembered: int = 0
    summaries: int = 0
    messages: int = 0
    files: int = 0  # of the workspace
    others: int = 0  # entries that only an admin may clear
    planned: int = 0  # reminders, jobs and changes that wait for approval: what they have would be written later

    @property
    def total(self) -> int:
        """Number of cleared entries, messages and files."""
        return self.remembered + self.summaries + self.messages + self.files


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasurePreview:
    """Amounts that an erasure would clear now, and a few of the lines, shortened."""

    result: WordErasureResult
    examples: tuple[str, ...] = ()


class _Vocabulary:
    """Words of texts that may be spelled like those of a request."""

    def __init__(self, request_words: Sequence[str]) -> None:
        self._request_words = request_words
        self._words: set[str] = set()
        self._seen: set[str] = set()  # pieces of texts between blanks, most of which are seen again and again
        lengths = [_NEARNESS / (2 - _NEARNESS) * len(each) for each in request_words]
        self._shortest = max(SHORTEST, min(lengths, default=0.0))  # letters of a similar word

    @property
    def is_full(self) -> bool:
        """True if there are as many words as are compared."""
        return len(self._words) >= _MOST_WORDS

    def add(self, text: object) -> None:
        """Add the words of *text*."""
        if not isinstance(text, str) or self.is_full:
            return
        pieces = {each for each in text.split() if len(each) >= self._shortest} - self._seen
        if len(self._seen) > _MOST_WORDS:
            self._seen.clear()
        self._seen |= pieces
        found = words(" ".join(pieces)) if pieces else ()
        self._words.update(each for each in found if self._may_be_near(each) and not is_unspaced(each))

    def add_lines(self, lines: bytes) -> bool:
        """Add what people and the model say in *lines* of a transcript; return False once no more words are needed."""
        said = _SAID.findall(lines)
        self.add(" ".join(str(json.loads(each)) if b"\\" in each else each.decode("utf-8", "replace") for each in said))
        return not self.is_full

    def _may_be_near(self, word: str) -> bool:
        shortest, longest = _NEARNESS / (2 - _NEARNESS) * len(word), (2 - _NEARNESS) / _NEARNESS * len(word)
        return len(word) >= SHORTEST and any(shortest <= len(each) <= longest for each in self._request_words)

    def near_words(self) -> list[str]:
        """Return the most similar words."""
        near = (get_close_matches(each, self._words, n=2, cutoff=_NEARNESS) for each in self._request_words)
        return list(dict.fromkeys(each for found in near for each in found))[:_MOST_NEAR]


class WordEraser:
    """Erases words from one scope. Idempotent; a rerun completes an erasure that a crash interrupted."""

    def __init__(
        self,
        storage: ErasureStorage,
        workspaces: ScopeWorkspaces,
        forget_titles: Callable[[str, ErasurePattern], Awaitable[None]],
        kinds: Mapping[str, JobKind],
    ) -> None:
        """*forget_titles* erases words from the titles of conversations; *kinds* are those of jobs, by name."""
        self._storage = storage
        self._workspaces = workspaces
        self._forget_titles = forget_titles
        self._kinds = kinds

    async def forget(
        self,
        scope: str,
        pattern: ErasurePattern,
        requester: ErasureRequester,
        *,
        turn: str,
        whole: bool = False,
        page: str = "",
        spare: str = "",
        since: datetime | None = None,
    ) -> WordErasureResult:
        """Erase *pattern* from *scope*, within the requester's rights. Raises OSError.

        The messages of *turn*, the command itself, are kept. With *whole*, they are cleared too, and so are the files
        and quotes of matching messages. *page* is the new snapshot epoch, by default *turn*. The staged change *spare*,
        which asks for this erasure, is kept: after a crash it is approved again. Those that ask for another one, since
        the request (*since*), are kept for their answers.
        """
        await self._storage.session_files.flush()
        await self._storage.documents.notice(scope)
        async with self._storage.writing:
            remembered, others = await self._clear_documents(scope, pattern, requester)
            summaries = files = 0
            # Jobs before files: a pending job must not write the words again.
            planned = await self._clear_jobs(scope, pattern, requester)
            if requester.may_all:
                await self._forget_titles(scope, pattern)
                summaries = await self._clear_notes(scope, pattern)
                files = len(await self._clear_workspace(scope, pattern, whole=whole))
            planned += await self._storage.staging.erase(
                scope,
                pattern.deep.in_text,
                account=None if requester.may_all else requester.account,
                spare=spare,
                since=since,
            )
            messages = await self._clear_transcripts(scope, pattern, requester, "" if whole else turn, whole=whole)
            await self.request_new_snapshots(scope, page or turn)
        self._storage.reopen(scope)
        log.info("memory.forgotten", scope=scope, remembered=remembered, summaries=summaries, messages=messages)
        return WordErasureResult(
            remembered=remembered, summaries=summaries, messages=messages, files=files, others=others, planned=planned
        )

    async def preview(
        self, scope: str, pattern: ErasurePattern, requester: ErasureRequester, *, turn: str, whole: bool = False
    ) -> ErasurePreview:
        """Return the amounts that `forget` would clear now; change nothing. Raises OSError."""
        await self._storage.session_files.flush()
        remembered: list[str] = []
        others = 0
        for name in DOCUMENTS:
            text = (await self._storage.documents.read(scope, name)).text
            allowed = await self._removable_lines(scope, name, text, pattern, requester)
            removable = matching_entries(text, pattern, allowed.__contains__)
            others += len(matching_entries(text, pattern)) - len(removable)
            remembered += removable
        summaries: list[str] = []
        files: list[str] = []
        if requester.may_all:
            summaries = await self._matching_notes(scope, pattern)
            files = await self._clear_workspace(scope, pattern, whole=whole, is_preview=True)
        messages: list[str] = []
        count = 0
        is_allowed = _message_filter(requester, turn)

        def see(lines: bytes) -> bool:
            nonlocal count
            if pattern.may_be_in_lines(lines):
                for raw, may_match in pattern.select_lines(lines):
                    if may_match and is_erasable(raw, pattern, is_allowed):
                        count += 1
                        if len(messages) < _MOST_EXAMPLES:
                            messages.append(matching_excerpt(decode(raw), pattern))
                    elif not (may_match or requester.may_all) and b'"by"' in raw:
                        is_allowed(decode(raw) or {})  # answers are judged by the messages that were seen before
            return True

        await self._storage.transcripts.visit(scope, see)
        result = WordErasureResult(
            remembered=len(remembered), summaries=len(summaries), messages=count, files=len(files), others=others
        )
        examples = [*(matching_excerpt(each, pattern) for each in (*remembered, *summaries)), *messages, *files]
        chosen = [each for each in dict.fromkeys(examples) if each][:_MOST_EXAMPLES]
        return ErasurePreview(result=result, examples=tuple(chosen))

    async def near_words(self, scope: str, pattern: ErasurePattern) -> list[str]:
        """Return words of *scope* that are spelled like those of a request that matches nothing."""
        vocabulary = _Vocabulary(pattern.matcher.words)

        for name in DOCUMENTS:
            vocabulary.add((await self._storage.documents.read(scope, name)).text)
        for entry in await self._storage.history.after(scope):
            vocabulary.add(entry.content)
        await self._storage.transcripts.visit(scope, vocabulary.add_lines)
        return await asyncio.to_thread(vocabulary.near_words)

    async def _clear_workspace(
        self, scope: str, pattern: ErasurePattern, *, whole: bool, is_preview: bool = False
    ) -> list[str]:
        def clear(name: str, data: bytes) -> bytes | None:
            return clear_workspace_file(name, data, pattern, whole=whole)

        return await self._workspaces.of(scope).erase(clear, is_preview=is_preview)

    async def _matching_notes(self, scope: str, pattern: ErasurePattern) -> list[str]:
        contents = await self._storage.history.load(scope)
        texts = [note.body for note in contents.notes.values()]

        def find() -> list[str]:
            entries = [str((decode(raw) or {}).get("content", "")) for raw in contents.entries]
            found = [each for each in entries if without_sentences(each, pattern) != each]
            copies = _copies(scope_folder(self._storage.home, scope) / "memory")
            for text in (*texts, *(self._storage.disk.load(path) or b"" for path in copies)):
                found += matching_entries(text.decode("utf-8", "replace"), pattern)
            return found

        return await asyncio.to_thread(find)

    # -- places ------------------------------------------------------------------------------------

    async def _clear_documents(
        self, scope: str, pattern: ErasurePattern, requester: ErasureRequester
    ) -> tuple[int, int]:
        """Return the number of removed entries, and of matching entries that other people added."""
        removed = others = 0
        for name in DOCUMENTS:
            before, after = await self._clear_document(scope, name, pattern, requester)
            left = len(matching_entries(after, pattern))
            removed += len(matching_entries(before, pattern)) - left
            others += left
        return removed, others

    async def _clear_document(
        self, scope: str, name: str, pattern: ErasurePattern, requester: ErasureRequester
    ) -> tuple[str, str]:
        """Remove the entries of a document that the requester may remove; return its text before and after."""
        documents = self._storage.documents
        for _ in range(_TRIES):
            now = await documents.read(scope, name)
            allowed = await self._removable_lines(scope, name, now.text, pattern, requester)
            text, _ = await asyncio.to_thread(without_entries, now.text, pattern, allowed.__contains__)
            by = requester.account.name
            if text == now.text or await documents.write(scope, name, text, was=now.rev, why="forget", by=by):
                return now.text, text
        raise DocumentBusy(f"{name} is being written to all the time")

    async def _removable_lines(
        self, scope: str, name: str, text: str, pattern: ErasurePattern, requester: ErasureRequester
    ) -> frozenset[str]:
        """Return the lines that the requester may remove: all for an admin, else those they added."""
        lines = [line for line in text.splitlines() if line.strip()]
        if requester.may_all:
            return frozenset(lines)
        changes = self._storage.documents.changes
        sources = [(line, await changes.source(scope, name, line)) for line in lines if pattern.in_text(line)]
        author = requester.account.name
        return frozenset(line for line, source in sources if source is not None and source.by == author)

    async def _clear_jobs(self, scope: str, pattern: ErasurePattern, requester: ErasureRequester) -> int:
        """Clear the jobs of *scope*, and return the number of changed ones."""
        count = 0
        for job in await self._storage.jobs.pending_in(scope):
            cleared = clear_job(job, self._kinds.get(job.kind), pattern, requester)
            if cleared != job:
                await self._storage.jobs.advance(job, cleared)
                count += 1
        return count

    async def _clear_notes(self, scope: str, pattern: ErasurePattern) -> int:
        await self._storage.settle_history(scope)  # what a person has edited is set aside, and cleared there
        memory = (await self._storage.documents.read(scope, "MEMORY.md")).text
        changed = await redact_history(self._storage.history, scope, pattern, memory=memory)
        await self._storage.settle_history(scope)
        return changed + await asyncio.to_thread(self._clear_copies, scope, pattern)

    def _clear_copies(self, scope: str, pattern: ErasurePattern) -> int:
        folder = scope_folder(self._storage.home, scope) / "memory"
        changed = 0
        for path in _copies(folder):
            text = (self._storage.disk.load(path) or b"").decode("utf-8", "replace")
            cleared, count = without_entries(text, pattern)
            if count:
                self._storage.disk.replace(path, cleared.encode())
                changed += count
        for path in sorted(folder.glob("HISTORY.md.*")):
            text = (self._storage.disk.load(path) or b"").decode("utf-8", "replace")
            if (cleared := without_sentences(text, pattern)) != text:
                self._storage.disk.replace(path, cleared.encode())
        # Pending work, edited files and corrupt lines are removed as a whole.
        names = (".pending/*.json", "*.edited-*", "*.corrupt", "../sessions/*.corrupt")
        for path in [each for name in names for each in folder.glob(name)]:
            if pattern.in_text((self._storage.disk.load(path) or b"").decode("utf-8", "replace")):
                self._storage.disk.remove(path)
        return changed

    async def _clear_transcripts(
        self, scope: str, pattern: ErasurePattern, requester: ErasureRequester, turn: str, *, whole: bool
    ) -> int:
        """Clear matching messages, except those of *turn*, which record the request, and remove matching results."""
        is_allowed = _message_filter(requester, turn)

        def change(raw: bytes) -> bytes:
            return without_words(raw, pattern, is_allowed, whole=whole)

        await remove_matching(self._storage.files, scope, pattern, FileKind.RESULT)
        count = await self._storage.transcripts.rewrite(scope, change, may_change=pattern.may_be_in_lines)
        await self._storage.session_files.write_scope(scope)
        return count

    async def request_new_snapshots(self, scope: str, turn: str) -> None:
        """Have conversations of the scope take a new snapshot at their next turn, and an unfinished Dream begin again.

        The material of that Dream may have the erased words.
        """
        await self._storage.documents.changes.set_epoch(scope, turn)
        if unfinished := await self._storage.history.marks(scope, MarkKind.DREAM):
            await self._storage.history.write(scope, marks={MarkKind.DREAM: dict.fromkeys(unfinished)})


def _copies(folder: Path) -> list[Path]:
    """Return the copies of documents that two writers changed."""
    return sorted(folder.glob("[A-Z]*.conflict-*.md"))


def _message_filter(requester: ErasureRequester, turn: str) -> Callable[[Line], bool]:
    """Return a predicate for the lines that *requester* may clear, without those of *turn*."""
    is_erasable = may_clear(requester)

    def is_allowed(line: Line) -> bool:
        return is_erasable(line) and (not turn or line.get("turn") != turn)

    return is_allowed


def may_clear(requester: ErasureRequester) -> Callable[[Line], bool]:
    """Return a predicate for the transcript lines that *requester* may clear; it must see a file's lines in order."""
    turns: set[str] = set()

    def is_allowed(line: Line) -> bool:
        if requester.may_all:
            return True
        by = line.get("by")
        if isinstance(by, Mapping) and by.get("id") == requester.sender:
            turns.add(str(line.get("turn")))
            return True
        # The answers to the requester's messages, which follow them in the file.
        return kind_of(line) == "message" and line.get("role") != "user" and line.get("turn") in turns

    return is_allowed


_OWN_TEXTS = ("text", "result", "steps")  # of what a person set; other fields are not what was said


def clear_job(job: Job, kind: JobKind | None, pattern: ErasurePattern, requester: ErasureRequester) -> Job | None:
    """Return a job of *kind* without the words; None if nothing of it is left to do."""
    match JobErasure.NONE if kind is None else kind.erasure:
        case JobErasure.NONE:
            return job
        case JobErasure.OWN:
            is_allowed = requester.may_all or job.payload.get("person") == requester.account.name
            return None if is_allowed and pattern.in_any([job.payload.get(name) for name in _OWN_TEXTS]) else job
        case JobErasure.ANSWER if "answer" in job.payload:
            has_words = requester.may_all and pattern.in_any(job.payload)
            return replace(job, payload=_clear_payload(job.payload, pattern)) if has_words else job
        case _:
            return None if requester.may_all and pattern.in_any(job.payload) else job


def _clear_payload(payload: Mapping[str, Any], pattern: ErasurePattern) -> dict[str, Any]:
    """Return the payload of a consolidation job without the words."""
    answer = dict(payload["answer"])
    answer["history_entry"] = without_sentences(str(answer["history_entry"]), pattern)
    for name in ("base", "memory_update"):
        answer[name] = without_entries(str(answer.get(name, "")), pattern)[0]
    answer["operations"] = [each for each in answer.get("operations", ()) if not pattern.in_any(each)]
    return {**payload, "answer": answer}


V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class CommitFilter:
    """See `ErasedWords`. *kinds* are the kinds of jobs by their names."""

    kinds: Mapping[str, JobKind]

    def clear_commit(self, erasures: Sequence[Job], commit: TurnCommit) -> TurnCommit:
        """Return a commit without the words; that of an erasure's own turn is about none of them."""
        return _apply(erasures, self._clear_commit, commit)

    def clear_job(self, erasures: Sequence[Job], job: Job) -> Job | None:
        """Return a job without the words."""
        cleared: Job | None = job
        for request in map(ErasureRequest.of, erasures):
            cleared = self._clear_job(request, cleared)
        return cleared

    def clear_texts(
        self, erasures: Sequence[Job], texts: Mapping[str, str], before: Mapping[str, str], by: str
    ) -> Mapping[str, str]:
        """Return texts of documents without the lines that the requester may erase."""

        def clear(request: ErasureRequest, texts: Mapping[str, str]) -> Mapping[str, str]:
            if not request.requester.may_all and request.requester.account.name != by:
                return texts
            return {name: _clear_text(request, text, before.get(name, "")) for name, text in texts.items()}

        return _apply(erasures, clear, texts)

    def clear_entry(self, erasures: Sequence[Job], entry: HistoryEntry) -> HistoryEntry:
        """Return a history entry without the words."""

        def clear(request: ErasureRequest, entry: HistoryEntry) -> HistoryEntry:
            if not request.requester.may_all:
                return entry
            return replace(entry, content=without_sentences(entry.content, request.pattern))

        return _apply(erasures, clear, entry)

    def clear_messages(self, erasures: Sequence[Job], messages: Sequence[Any]) -> Sequence[Any]:
        """Return messages without the words."""
        return _apply(erasures, _clear_lines, messages)

    def clear_file(self, erasures: Sequence[Job], kind: FileKind, name: str, data: bytes) -> bytes | None:
        """Return a file as the passes of the erasures would leave it."""
        cleared: bytes | None = data
        for request in map(ErasureRequest.of, erasures):
            if cleared is not None and kind is FileKind.RESULT:
                cleared = None if request.pattern.in_bytes(cleared) else cleared
            elif cleared is not None and request.requester.may_all:
                cleared = clear_workspace_file(name, cleared, request.pattern, whole=request.is_purge)
        return cleared

    def clear_proposal(self, erasures: Sequence[Job], proposal: MemoryProposal) -> MemoryProposal | None:
        """Return a proposal without the words; a question about another erasure stays."""
        cleared: MemoryProposal | None = proposal
        for request in map(ErasureRequest.of, erasures):
            account = None if request.requester.may_all else request.requester.account
            if cleared is not None and cleared.name != request.change:
                matches = request.pattern.deep.in_text
                cleared = clear_proposal(cleared, matches, account=account, spares_erasures=True)
        return cleared

    # -- parts -------------------------------------------------------------------------------------

    def _clear_commit(self, request: ErasureRequest, commit: TurnCommit) -> TurnCommit:
        record = commit.record
        if record.turn == request.turn:
            return commit
        cleared = [self._clear_job(request, each) for each in commit.jobs]
        advances = [replace(each, next=self._clear_job(request, each.next)) for each in commit.advances]
        outbound = commit.outbound
        if request.requester.may_all:
            outbound = tuple(_clear_message(request, each) for each in outbound)
        # Without one of its texts, a snapshot is taken again by the next turn.
        blobs = {digest: text for digest, text in record.blobs.items() if not request.pattern.in_text(text)}
        return replace(
            commit,
            record=replace(record, lines=tuple(_clear_lines(request, record.lines)), blobs=blobs),
            outbound=outbound,
            parts=(),  # they have the words of before
            jobs=tuple(each for each in cleared if each is not None),
            advances=tuple(advances),
        )

    def _clear_job(self, request: ErasureRequest, job: Job | None) -> Job | None:
        if job is None:
            return None
        return clear_job(job, self.kinds.get(job.kind), request.pattern, request.requester)


def _apply(erasures: Sequence[Job], clear: Callable[[ErasureRequest, V], V], value: V) -> V:
    return reduce(lambda value, request: clear(request, value), map(ErasureRequest.of, erasures), value)


def _clear_lines(request: ErasureRequest, lines: Sequence[Any]) -> Sequence[Any]:
    is_allowed = may_clear(request.requester)
    return [clear_line(each, request.pattern, is_allowed, whole=request.is_purge) for each in lines]


def _clear_message(request: ErasureRequest, message: OutboundMessage) -> OutboundMessage:
    pattern = request.pattern
    return replace(
        message,
        text=clear_value(message.text, pattern),
        attachments=tuple(
            each for each in message.attachments if not pattern.in_any([each.name, each.caption, each.question])
        ),
        sources=tuple(each for each in message.sources if not pattern.in_any([each.title, each.url])),
        links=None if message.links is None else tuple(each for each in message.links if not pattern.in_text(each)),
    )


def _clear_text(request: ErasureRequest, text: str, before: str) -> str:
    old = frozenset(before.splitlines())
    return without_entries(text, request.pattern, lambda line: request.requester.may_all or line not in old)[0]
