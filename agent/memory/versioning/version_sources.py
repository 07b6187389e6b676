"""What a version came of: from its cause to the summary behind a line, and on to the message behind the summary."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agent.memory.documents.version_store import APPROVED, CONSOLIDATION, DREAM_CAUSE, DocumentVersion
from agent.memory.editing.entry_matching import extract_words
from agent.memory.history.history_log import HistoryEntry, HistoryLog
from agent.memory.messages.message_range import entry_id
from agent.memory.scopes import scope_folder, transcript_path
from agent.memory.storage.disk import Disk
from agent.memory.storage.segments import SegmentChain
from agent.memory.storage.transcript_lines import FORGOTTEN, parse_time, utc_now
from agent.memory.storage.transcript_reader import read_messages
from gateway.ports import DisplayedMessage, Line


def cause_of(version: DocumentVersion) -> str:
    """Return what a change came of, also where somebody's yes stood between; "" when only the yes is known."""
    if not version.why.startswith(APPROVED):
        return version.why
    name, _, cause = version.why.removeprefix(APPROVED).partition(" ")
    # What a consolidation may not do by itself waits under the name of its entry.
    return cause or (f"{CONSOLIDATION}{name}" if name.startswith("e") else "")


class VersionSources:
    """Follows one scope's causes. Blocks."""

    def __init__(self, home: Path, disk: Disk | None = None) -> None:
        self._home = home
        self._disk = disk or Disk()

    def entry(self, scope: str, version: DocumentVersion, line: str) -> HistoryEntry | None:
        """Return the summary that a change came with; of a Dream's several, the one that says most of *line*."""
        cause = cause_of(version)
        if cause.startswith(CONSOLIDATION):
            names = [cause.removeprefix(CONSOLIDATION)]
        elif cause.startswith(DREAM_CAUSE):
            names = cause.removeprefix(DREAM_CAUSE).split()[1:]
        else:
            return None
        history = HistoryLog(scope_folder(self._home, scope) / "memory", self._disk)
        found = [entry for entry in map(history.find, names) if entry is not None]
        return found[_closest([each.content for each in found], line)] if found else None

    def message(self, scope: str, entry: HistoryEntry, line: str) -> DisplayedMessage | None:
        """Return what somebody said that *entry* summarises: of all of it, what says most of *line*."""
        path = transcript_path(self._home, scope, entry.session) if entry.session else None
        transcript = self._transcript(path, entry) if path is not None else ""
        if path is None or not transcript:
            return None
        lines = read_messages(self._disk, path, transcript, entry.start, entry.end)
        spoken = [each for each in lines if each.get("role") == "user" and each.get("content") not in ("", FORGOTTEN)]
        return _shown(spoken[_closest([str(each.get("content")) for each in spoken], line)]) if spoken else None

    def _transcript(self, path: Path, entry: HistoryEntry) -> str:
        """Return which transcript the entry is of: its id tells, since it was made of that name."""
        archived = {each.name.split(".")[0] for each in path.parent.glob("*.*.jsonl")}
        names = {SegmentChain(self._disk, path).transcript, *archived}
        return next((name for name in sorted(names) if entry_id(name, entry.start, entry.end) == entry.entry), "")


def _closest(texts: Sequence[str], line: str) -> int:
    """Return which text has most words of *line*; the first of several, or of those that have none."""
    wanted = set(extract_words(line).carrying)
    shared = [len(wanted & set(extract_words(text).carrying)) for text in texts]
    return shared.index(max(shared))


def _shown(line: Line) -> DisplayedMessage:
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
