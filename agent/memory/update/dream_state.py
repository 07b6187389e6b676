"""Progress of an unfinished Dream. Every answer is stored before it is used, so that none is paid for twice."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from agent.attachments.file_facts import UNTRUSTED
from agent.memory.documents.document_changes import DREAM_CAUSE
from agent.memory.editing.document_edits import DocumentEdit, read_edit
from gateway.events import short_id
from gateway.ports.memory import HistoryEntry, MarkKind
from gateway.text.json_lines import decode_line

if TYPE_CHECKING:
    from gateway.store.history import SqlHistory


DREAM = "dream"  # the kind of its jobs
_NAME = "run"


@dataclass(frozen=True, slots=True, kw_only=True)
class DreamPass:
    """Both phases over entries that are trusted alike: words of strangers are never in a prompt with others."""

    is_untrusted: bool = False
    analysis: str = ""  # phase one's answers, page by page
    studied: int = 0  # pages
    answers: tuple[tuple[DocumentEdit, ...], ...] = ()  # phase two's, one by one
    is_done: bool = False
    tokens_in: int = 0
    tokens_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DreamRun:
    """One Dream over the entries behind *after* up to *to*."""

    after: int
    to: int
    epoch: str  # of the scope at the start: after an erasure the run starts again
    base: Mapping[str, str]  # the documents as the model was shown them
    entries: tuple[str, ...] = ()  # names of the entries: merging scopes renumbers the history
    passes: tuple[DreamPass, ...] = field(default=())

    def with_pass(self, n: int, dream_pass: DreamPass) -> DreamRun:
        """Return the run with its *n*th sitting as far as it has come."""
        return replace(self, passes=(*self.passes[:n], dream_pass, *self.passes[n + 1 :]))

    def cause(self, entries: Sequence[HistoryEntry]) -> str:
        """Return the cause of the run's version: the cursors and ids of the entries."""
        return " ".join([f"{DREAM_CAUSE}{self.after + 1}-{self.to}", *(each.entry for each in entries if each.entry)])

    def name(self, *parts: str) -> str:
        """Return a name for something of this run, the same every time."""
        said = json.dumps([self.after, self.to, self.epoch, *parts])
        return f"d{short_id(said)}"


def start_run(after: int, epoch: str, base: Mapping[str, str], entries: Sequence[HistoryEntry]) -> DreamRun:
    """Return the run over *entries*: a sitting for those that are trusted, and one for those that are not."""
    kinds = sorted({is_untrusted(each) for each in entries})
    passes = tuple(DreamPass(is_untrusted=kind) for kind in kinds)
    return DreamRun(
        after=after,
        to=entries[-1].cursor,
        epoch=epoch,
        base=dict(base),
        entries=names_of(entries),
        passes=passes,
    )


def names_of(entries: Sequence[HistoryEntry]) -> tuple[str, ...]:
    """Return names that identify these entries."""
    return tuple(f"{each.cursor} {each.entry}" for each in entries)


def is_untrusted(entry: HistoryEntry) -> bool:
    """Return True if the entry contains content written by third parties."""
    return entry.origin == UNTRUSTED


async def load_run(history: SqlHistory, scope: str) -> DreamRun | None:
    """Return the stored run, or None; a run that cannot be read is dropped, which costs its model calls."""
    text = (await history.marks(scope, MarkKind.DREAM)).get(_NAME)
    record = decode_line(text.encode()) if text is not None else None
    try:
        return _read(record) if record is not None else None
    except (TypeError, ValueError, KeyError, AttributeError):
        return None


async def save_run(history: SqlHistory, scope: str, run: DreamRun) -> None:
    """Store the run of *scope* durably."""
    answers = [[[edit.record() for edit in answer] for answer in each.answers] for each in run.passes]
    passes = [asdict(replace(each, answers=())) for each in run.passes]
    passes = [{**each, "answers": edits} for each, edits in zip(passes, answers, strict=True)]
    line = {"v": 1, **asdict(replace(run, passes=())), "passes": passes}
    await history.write(scope, marks={MarkKind.DREAM: {_NAME: json.dumps(line)}})


async def drop_run(history: SqlHistory, scope: str) -> None:
    """Let the run of *scope* go."""
    if await history.marks(scope, MarkKind.DREAM):
        await history.write(scope, marks={MarkKind.DREAM: {_NAME: None}})


def _read(record: Mapping[str, Any]) -> DreamRun:
    passes = []
    for each in record["passes"]:
        answers = tuple(tuple(filter(None, map(read_edit, answer))) for answer in each["answers"])
        passes.append(DreamPass(**{**each, "answers": answers}))
    fields = {name: value for name, value in record.items() if name != "v"}
    run = DreamRun(**{**fields, "entries": tuple(record["entries"]), "passes": tuple(passes)})
    if not isinstance(run.after, int) or not isinstance(run.to, int):
        raise TypeError("cursors are numbers")
    return run
