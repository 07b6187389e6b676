"""Words that are being erased, taken out of what is about to be stored.

A turn that began before its scope was erased may write the words that it has read. If they were stored, the next turn
of its chat would read them, and so on: in a chat where messages wait, an erasure would run after them for ever. So
whatever is stored passes the words of every erasure that is not done (gateway/store/erased_words.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, TypeVar

from agent.memory.editing.staged_change_store import clear_proposal
from agent.memory.erasure.scope_files import clear_workspace_file
from agent.memory.erasure.word_eraser import ErasureRequest, clear_job, may_clear
from agent.memory.erasure.word_match import (
    clear_line,
    clear_value,
    without_entries,
    without_sentences,
)
from agent.memory.jobs.job_kinds import JobKind
from gateway.events import OutboundMessage
from gateway.ports.journal import Job, TurnCommit
from gateway.ports.memory import FileKind, HistoryEntry, MemoryProposal

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
