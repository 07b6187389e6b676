"""The growing text of a preview: it never shrinks, and ends when its message is full."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from gateway.events import MessagePart
from gateway.text import LengthUnit, PartSplitter, sanitize, width
from gateway.text.redaction import SecretRedactor

_NOTED_FROM = 8  # of a message a note takes no more than this part; beyond that much text budget for it is made sure of
_SMALLEST_BUDGET = 16  # units; a beginning shorter than this says nothing
_CLOSER = 8  # units for what closes a fence that is cut
# The beginning of a link shows words that its end takes away: where it leads, or all of it when it defines one.
_OPEN_LINK = re.compile(
    r"!?\[[^\[\]\n]*(?:\](?:\([^()\n]*)?)?\Z|^[ \t>*+.)0-9-]*\[[^\[\]\n]+\]:[^\n]*\Z|<[^<>\s]*\Z", re.MULTILINE
)


def beginning(
    source: str, line: str, render: Callable[[str], Sequence[MessagePart]], *, limit: int, unit: LengthUnit, least: int
) -> tuple[int, MessagePart] | None:
    """Return the end of the part with the beginning of *source* above *line*, and the part; None if nothing fits.

    The part holds the first *least* characters of sanitized *source* if they fit.
    """
    splitter = PartSplitter(source, unit)
    start = splitter.skip(0)
    budget, held = limit - width(f"\n\n{line}", unit), width(source[:least], unit) + _CLOSER
    while start < len(source) and budget >= _SMALLEST_BUDGET:
        cut = splitter.cut(start, budget, least)
        parts = render(f"{cut.text}\n\n{line}")
        if len(parts) == 1:
            return cut.end, parts[0]
        shorter = budget * 3 // 4  # a dialect can be longer than its Markdown
        budget = held if shorter < held < budget else shorter
    return None


class GrowingText:
    """One answer's. `shown` is the beginning of it, as Markdown, that the last part showed."""

    def __init__(
        self,
        render: Callable[[str], Sequence[MessagePart]],
        redactor: SecretRedactor,
        *,
        limit: int,
        unit: LengthUnit,
        note: str,
    ) -> None:
        """Format by *render* up to *limit* units; *note* announces that the answer continues."""
        self._render = render
        self._redactor = redactor
        self._limit = limit
        self._unit = unit
        self._note = note if width(note, unit) * _NOTED_FROM <= limit else "…"
        self._is_full = False
        self.shown = ""

    def grow(self, text: str) -> MessagePart | None:
        """Return the part of *text*, the full text so far, to show; None if nothing is new.

        A text that does not continue the shown one starts a new preview.
        """
        source = self._redactor.redact_growing(sanitize(text[: 2 * self._limit]))
        source = _OPEN_LINK.sub("", source)
        if not source.startswith(self.shown):
            if self.shown.startswith(source):
                return None  # a word at the end that may become a secret is waited for
            self.shown, self._is_full = "", False
        if self._is_full or not source.strip():
            return None
        parts = self._render(source)
        if len(parts) == 1 and self._leaves_space(source):
            self.shown = source
            return parts[0]
        self._is_full = bool(parts)
        return self._last(source) if parts else None

    def _leaves_space(self, source: str) -> bool:
        if width(source, self._unit) * _NOTED_FROM <= self._limit:
            return True
        return len(self._render(self._with_note(source))) == 1

    def _last(self, source: str) -> MessagePart | None:
        """Return as much of *source* as its message holds beside the note, and no less than is shown."""
        for text in (source, self.shown):
            found = beginning(text, self._note, self._render, limit=self._limit, unit=self._unit, least=len(self.shown))
            if found is not None and found[0] >= len(self.shown.rstrip()):
                self.shown = text[: max(found[0], len(self.shown))]
                return found[1]
        return None

    def _with_note(self, source: str) -> str:
        return f"{source}\n\n{self._note}"
