"""Service behind `/memory`: show the documents, the changes, and undo one; find the messages that a line comes from."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from agent.base.transcript_lines import FORGOTTEN, decode_lines, entry_id, parse_time, utc_now
from agent.memory.editing.memory_entries import extract_words
from agent.memory.editing.three_way_merge import revert_change
from agent.memory.history.history_files import keys_of_all_lines
from agent.memory.storage.messages import messages_between
from agent.memory.storage.scope_documents import (
    APPROVED,
    CONSOLIDATION,
    DREAM_CAUSE,
    ScopeDocuments,
    change_diff,
    line_fingerprint,
)
from agent.memory.storage.stored_sessions import order_messages
from gateway.events import SessionKey
from gateway.ports.channel import DisplayedMessage
from gateway.ports.journal import Line
from gateway.ports.memory import DocumentChange, HistoryEntry, TextChange

if TYPE_CHECKING:
    from gateway.store.history import SqlHistory
    from gateway.store.journal import SqlJournal
    from gateway.store.transcripts import SqlTranscripts

# Then the turn and a place in it: the cause of a fact that a person asked to remember, and of an edit they asked for.
_REQUESTS = ("remember:", "edit:")
_MIN_PATTERN = 3  # characters
_MAX_ATTEMPTS = 3
_NOTE = re.compile(r"\d{4}-\d{2}-\d{2}(-[\w-]+)?", re.ASCII)
UNDO = "undo "  # then the version's name, and the turn that asked for it, if any
_LOOK_BACK = 50  # changes in which our own is looked for after a crash


@dataclass(frozen=True, slots=True, kw_only=True)
class LineOrigin:
    """A remembered line and its origin."""

    line: str
    name: str  # of the document
    change: DocumentChange
    message: DisplayedMessage | None = None  # the message that the line was derived from, if it can be found
    entry: HistoryEntry | None = None  # the summary that the line was derived from


class UndoResult(Enum):
    """How an undo ended."""

    DONE = auto()  # by a new version
    CONFLICT = auto()  # later changes depend on this one; nothing was undone
    UNKNOWN = auto()  # no version has that name, or several versions have it


class MemoryService:
    """Services of the memory commands; the scope comes from the event."""

    def __init__(
        self,
        history: SqlHistory,
        documents: ScopeDocuments,
        journal: SqlJournal,
        transcripts: SqlTranscripts,
    ) -> None:
        self._history = history
        self._sources = VersionSources(history, transcripts)
        self._documents = documents
        self._changes = documents.changes
        self._journal = journal
        self._transcripts = transcripts

    async def displayed_documents(self, scope: str) -> dict[str, str]:
        """Return the texts of USER.md and MEMORY.md, without empty ones."""
        await self._documents.notice(scope)
        texts = {name: (await self._documents.read(scope, name)).text.strip() for name in ("USER.md", "MEMORY.md")}
        return {name: text for name, text in texts.items() if text}

    async def log(
        self, scope: str, *, limit: int = 10, select: Callable[[DocumentChange], bool] | None = None
    ) -> list[DocumentChange]:
        """Return the newest changes, newest first; only those for which *select* returns True, if it is given."""
        await self._documents.notice(scope)
        changes = await self._changes.log(scope, limit=limit if select is None else 1_000)
        return [each for each in changes if select is None or select(each)][:limit]

    async def diffs(self, scope: str, changes: Sequence[DocumentChange]) -> list[str]:
        """Return the diff of each of *changes*."""
        return [await change_diff(self._changes, scope, each) for each in changes]

    async def history(self, scope: str) -> Sequence[HistoryEntry]:
        """Return the entries of the history, the oldest first."""
        return await self._history.after(scope)

    async def list_notes(self, scope: str) -> list[str]:
        """Return the names of the dated notes, the newest first."""
        stems = [name.removesuffix(".md") for name in await self._history.note_names(scope)]
        return [stem for stem in stems[::-1] if _NOTE.fullmatch(stem)]

    async def read_note(self, scope: str, name: str) -> str | None:
        """Return the text of the dated note called *name*; None if it does not exist."""
        stem = name.removesuffix(".md")
        body = await self._history.note(scope, f"{stem}.md") if _NOTE.fullmatch(stem) else None
        return None if body is None else body.decode("utf-8", "replace").strip()

    async def keys_of(self, scope: str, line: str) -> str:
        """Return the keys by which a remembered *line* is found too, "" if it has none."""
        return (await keys_of_all_lines(self._history, scope)).get(line_fingerprint(line), "")

    async def diff(self, scope: str, sha: str = "") -> tuple[DocumentChange, str] | None:
        """Return a version (default: the newest) and its diff; None if it does not exist."""
        await self._documents.notice(scope)
        if not sha:
            newest = await self.log(scope, limit=1)
            sha = newest[0].id if newest else ""
        change = await self._documents.find(scope, sha) if sha else None
        return (change, await change_diff(self._changes, scope, change)) if change is not None else None

    async def why(self, scope: str, text: str, *, limit: int = 3) -> list[LineOrigin]:
        """Return the origins of the first *limit* remembered lines that contain *text*."""
        pattern = " ".join(text.casefold().split())
        if len(pattern) < _MIN_PATTERN:
            return []
        await self._documents.notice(scope)
        origins: list[LineOrigin] = []
        for name in ("MEMORY.md", "USER.md", "SOUL.md"):
            for line in (await self._documents.read(scope, name)).text.splitlines():
                if len(origins) == limit:
                    return origins
                if pattern in " ".join(line.casefold().split()) and not line.startswith("#"):
                    change = await self._changes.source(scope, name, line)
                    if change is not None:
                        origins.append(await self._origin(scope, name, line.strip(), change))
        return origins

    async def _origin(self, scope: str, name: str, line: str, change: DocumentChange) -> LineOrigin:
        entry = await self._sources.entry(scope, change, line)
        if entry is not None:
            message = await self._sources.message(scope, entry, line)
        else:
            message = await self._remembering_message(scope, change)
        return LineOrigin(line=line, name=name, change=change, message=message, entry=entry)

    async def undo(self, scope: str, id_: str, *, by: str, turn: str = "") -> UndoResult:
        """Revert a change in all of its documents, or in none of them; later changes stay.

        A repeated *turn* finds what it has undone.
        """
        await self._documents.notice(scope)
        for _ in range(_MAX_ATTEMPTS):
            # Another change, or an erasure of the texts that are read here, gives the scope another number.
            number = (await self._changes.heads([scope]))[scope].number
            change = await self._documents.find(scope, id_)
            if change is None:
                return UndoResult.UNKNOWN
            why = f"{UNDO}{change.short} {turn}".rstrip()
            later = await self._changes.log(scope, limit=_LOOK_BACK, since=change.number) if turn else ()
            if any(each.why == why for each in later):
                return UndoResult.DONE
            reverted: dict[str, TextChange] = {}
            for name, (before, after) in (await self._changes.changed_texts(scope, change)).items():
                now = await self._documents.read(scope, name)
                text = await asyncio.to_thread(revert_change, before, after, now.text)
                if text is None:
                    return UndoResult.CONFLICT
                reverted[name] = TextChange(now.rev, text)
            if await self._documents.change(scope, reverted, why=why, by=by, undoes=change.id, after=number):
                return UndoResult.DONE
        return UndoResult.CONFLICT

    async def _remembering_message(self, scope: str, change: DocumentChange) -> DisplayedMessage | None:
        """Return the user's message in the turn that asked to remember something."""
        turn = remembering_turn(change)
        trace = await self._journal.trace(turn) if turn else None
        if trace is None:
            return None
        stored = await self._transcripts.find(scope, trace.key, trace.turn)
        messages = order_messages([(stored.turn, decode_lines(stored.body))], ()) if stored is not None else []
        return next((each for each in messages if each.role == "user"), None)


# -- the origin of a version -----------------------------------------------------------------------


def cause_of(version: DocumentChange) -> str:
    """Return the cause of a change, for an approved change that of the staged change; "" if it is not known."""
    if not version.why.startswith(APPROVED):
        return version.why
    name, _, cause = version.why.removeprefix(APPROVED).partition(" ")
    # A staged change of a consolidation has the name of its history entry.
    return cause or (f"{CONSOLIDATION}{name}" if name.startswith("e") else "")


def remembering_turn(version: DocumentChange) -> str:
    """Return the turn that asked for the change, "" for other causes."""
    cause = cause_of(version)
    return cause.partition(":")[2].split(".")[0] if cause.startswith(_REQUESTS) else ""


class VersionSources:
    """Finds the history entries and messages that versions were derived from."""

    def __init__(self, history: SqlHistory, transcripts: SqlTranscripts) -> None:
        self._history = history
        self._transcripts = transcripts

    async def entry(self, scope: str, version: DocumentChange, line: str) -> HistoryEntry | None:
        """Return the history entry that caused *version*; of several (Dream), the one most similar to *line*."""
        cause = cause_of(version)
        if cause.startswith(CONSOLIDATION):
            names = [cause.removeprefix(CONSOLIDATION)]
        elif cause.startswith(DREAM_CAUSE):
            names = cause.removeprefix(DREAM_CAUSE).split()[1:]
        else:
            return None
        found = [await self._history.find(scope, name) for name in names]
        entries = [entry for entry in found if entry is not None]
        if exact := [entry for entry in entries if line_fingerprint(line) in entry.sources]:
            return exact[-1]
        return entries[_closest([each.content for each in entries], line)] if entries else None

    async def message(self, scope: str, entry: HistoryEntry, line: str) -> DisplayedMessage | None:
        """Return the message that *line* comes from; if *entry* does not name it, the most similar of the user's."""
        try:
            key = SessionKey.parse(entry.session)
        except ValueError:
            return None
        # The id of an entry is derived from the transcript that it summarises.
        names = sorted(await self._transcripts.transcripts(scope, key))
        transcript = next((name for name in names if entry_id(name, entry.start, entry.end) == entry.entry), "")
        if not transcript:
            return None
        stored = await self._transcripts.messages(scope, key, transcript, entry.start, entry.end)
        lines = await asyncio.to_thread(messages_between, stored, entry.start, entry.end)
        from_users = [
            each for each in lines if each.get("role") == "user" and each.get("content") not in ("", FORGOTTEN)
        ]
        if not from_users:
            return None
        source = entry.sources.get(line_fingerprint(line))
        for each in from_users:
            if each.get("i") == source:
                return _to_displayed(each)
        return _to_displayed(from_users[_closest([str(each.get("content")) for each in from_users], line)])


def _closest(texts: Sequence[str], line: str) -> int:
    """Return the index of the text that shares most words with *line*, the first of several."""
    words = set(extract_words(line).carrying)
    shared = [len(words & set(extract_words(text).carrying)) for text in texts]
    return shared.index(max(shared))


def _to_displayed(line: Line) -> DisplayedMessage:
    by = line.get("by")
    return DisplayedMessage(
        id=f"{line.get('turn')}/{line.get('i')}",
        turn=str(line.get("turn", "")),
        role="user",
        text=str(line.get("content", "")),
        at=parse_time(line.get("timestamp")) or utc_now(),
        name=str(by.get("name") or "") if isinstance(by, dict) else "",
        message_id=str(line.get("mid") or ""),
    )
