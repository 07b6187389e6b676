"""Find the origin of a version: the summary that a line was derived from, and the message that was summarised."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agent.memory.documents.document_changes import APPROVED, CONSOLIDATION, DREAM_CAUSE
from agent.memory.editing.entry_matching import extract_words
from agent.memory.history.line_keys import line_fingerprint
from agent.memory.messages.message_range import entry_id
from agent.memory.messages.message_reader import messages_between
from agent.memory.storage.transcript_lines import FORGOTTEN, parse_time, utc_now
from gateway.events import SessionKey
from gateway.ports.conversations import DisplayedMessage
from gateway.ports.journal import Line
from gateway.ports.memory import DocumentChange, HistoryEntry

if TYPE_CHECKING:
    from gateway.store.history import SqlHistory
    from gateway.store.transcripts import SqlTranscripts


# Then the turn and a place in it: the cause of a fact that a person asked to remember, and of an edit they asked for.
_REQUESTS = ("remember:", "edit:")


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
