"""What came of a message, by provenance: from its place in a transcript to entries, versions, and their lines.

Words are the second look, never the first: they choose among the lines that a summary of fifty messages brought.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from agent.memory.documents.file_documents import document_path
from agent.memory.documents.version_store import DocumentVersion, VersionStore
from agent.memory.history.history_log import HISTORY_JSONL, LOCK, HistoryEntry, HistoryLog, blank_raw
from agent.memory.history.plain_files import is_plain_file, sentences
from agent.memory.messages.message_range import entry_id
from agent.memory.scopes import scope_folder
from agent.memory.storage.disk import Disk, read_text
from agent.memory.storage.transcript_lines import FORGOTTEN
from agent.memory.versioning.deletion_traces import DeletionTrace, quoting_lines, related
from agent.memory.versioning.version_sources import cause_of

_REMEMBER = "remember:"  # then the turn: the cause of what somebody asked to have kept
_LOOKED_THROUGH = 2_000  # versions
_TELLING = 3  # words of a message that says something
_MOST = 20  # lines of one document that one question is about
_SESSION = re.compile(r"\(session: (?P<key>.*)\)\s*\Z")


class DerivedDataFinder:
    """Reads one scope's history, versions and notes. Blocks."""

    def __init__(self, home: Path, versions: VersionStore, disk: Disk | None = None) -> None:
        self._home = home
        self._versions = versions
        self._disk = disk or Disk()

    def find(self, scope: str, key: str, mid: str, traces: Sequence[DeletionTrace]) -> dict[str, list[str]]:
        """Return, by document, the lines that came of the message *mid* and stand there still.

        Copies of the message itself that stand in no transcript are cleared at once: a note quotes what was said, and
        messages that no summary could be made of are kept as they were. Raises OSError.
        """
        folder = scope_folder(self._home, scope) / "memory"
        blank_raw(folder, self._disk, key, mid)
        notes = [path for path in sorted(folder.glob("[0-9]*.md")) if is_plain_file(path.name)]
        for path in notes:
            self._blank_quotes(path, traces)
        words = frozenset(word for trace in traces for word in trace.words)
        entries = [each for each in HistoryLog(folder, self._disk).after(0) if _holds(each, key, traces)]
        found = self._in_documents(scope, traces, entries, words)
        said = [sentence for entry in entries for sentence in quoting_lines(sentences(entry.content), words)]
        if said:
            found[HISTORY_JSONL] = said[:_MOST]
        for path in notes:
            if lines := self._in_note(path, key, words):
                found[path.name] = lines[:_MOST]
        return found

    def _blank_quotes(self, path: Path, traces: Sequence[DeletionTrace]) -> None:
        with self._disk.lock(path.parent / LOCK):
            before = (self._disk.load(path) or b"").decode("utf-8", "replace").splitlines(keepends=True)
            after = [
                f"user: {FORGOTTEN}\n" if any(trace.is_quoted(line) for trace in traces) else line for line in before
            ]
            if after != before:
                self._disk.replace(path, "".join(after).encode())

    def _in_documents(
        self, scope: str, traces: Sequence[DeletionTrace], entries: Sequence[HistoryEntry], words: frozenset[str]
    ) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        turns = {trace.turn for trace in traces}
        names = {entry.entry for entry in entries}
        # Other words may say the same; but who deletes "ok" is not asked about everything.
        may_be_any = len(words) >= _TELLING or any(not trace.quote for trace in traces)
        for version in self._versions.log(scope, limit=_LOOKED_THROUGH):
            is_asked_for = _turn_of(version) in turns
            if not is_asked_for and not names & set(re.findall(r"\be[a-z2-7]{16}\b", version.why)):
                continue
            for name in version.names:
                lines = self._brought(scope, version, name)
                if not is_asked_for:
                    lines = related(lines, words) or (lines if may_be_any else [])
                known = found.setdefault(name, [])
                known += [line for line in lines if line not in known]
        return {name: lines[:_MOST] for name, lines in found.items() if lines}

    def _brought(self, scope: str, version: DocumentVersion, name: str) -> list[str]:
        """Return the lines that *version* brought into a document and that stand there because of it."""
        after = self._versions.texts(scope, version.sha).get(name, b"")
        before = (self._versions.documents_before(scope, version.sha) or {}).get(name, b"")
        now = read_text(self._disk.load(document_path(self._home, scope, name)) or b"").splitlines()
        known = set(read_text(before).splitlines())
        new = [line for line in read_text(after).splitlines() if line.strip() and line not in known]
        return [
            line
            for line in new
            if line in now
            and not line.startswith("#")
            and (source := self._versions.source(scope, name, line)) is not None
            and source.sha == version.sha
        ]

    def _in_note(self, path: Path, key: str, words: frozenset[str]) -> list[str]:
        """Return the lines of a note, or of a flushed day, that say what the message said."""
        found: list[str] = []
        section = ""
        transcribed = False
        for line in read_text(self._disk.load(path) or b"").splitlines():
            if line.startswith("## "):
                match = _SESSION.search(line)
                section = match["key"] if match else section
            elif line.strip() == f"- **Session**: {key}":
                section, transcribed = key, True
            elif section != key or not line.strip() or line.startswith(("# ", "<!--", "- **")):
                continue
            elif quoting_lines([line], words) or (not transcribed and related([line], words)):
                found.append(line)
        return found


def _holds(entry: HistoryEntry, key: str, traces: Sequence[DeletionTrace]) -> bool:
    """Say whether *entry* was made of one of the lines; its id tells of which transcript, since each counts anew."""
    return entry.session == key and any(
        entry.start <= trace.i < entry.end and entry.entry == entry_id(trace.transcript, entry.start, entry.end)
        for trace in traces
    )


def _turn_of(version: DocumentVersion) -> str:
    cause = cause_of(version)
    return cause.removeprefix(_REMEMBER).split(".")[0] if cause.startswith(_REMEMBER) else ""
