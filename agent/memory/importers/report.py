"""What an import says it did, or would do: a line for each thing it came across."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReportItem:
    """A line of the report."""

    what: str  # memory, voice, history, note, conversation, left
    source: str
    target: str = ""  # a file of the home, or the chat that goes on
    new: int = 0  # statements, lines, entries or messages that are taken
    known: int = 0  # of them, what was taken before or stands there already
    bad: int = 0  # lines that cannot be read; they are kept beside
    unsummarised: int = 0  # messages taken that no summary of theirs holds
    why: str = ""  # what there is to say about it
