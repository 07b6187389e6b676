"""How platforms count, where a text may be cut, and what can be sent at all."""

from __future__ import annotations

import re
from enum import StrEnum

import regex

_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_CLUSTER = regex.compile(r"\X")
_SLICE = 128  # characters looked at in one go
# Between two characters that have no part in clusters there is always a boundary (UAX 29, GB999).
_LAST_PAIR = regex.compile(r"(?r)\p{GCB=Other}{2}")


class LengthUnit(StrEnum):
    """The unit of a platform's limit. The value is stored in `ChannelCapabilities.unit`."""

    CHARACTERS = "characters"  # code points: Slack, Discord
    UTF16 = "utf16"  # Telegram
    BYTES = "bytes"  # of UTF-8


WIDEST = {LengthUnit.CHARACTERS: 1, LengthUnit.UTF16: 2, LengthUnit.BYTES: 4}  # units of the widest code point


def sanitize(text: str) -> str:
    r"""Return *text* as every platform takes it.

    Line ends become "\n", control characters other than tab and newline go, two halves of a
    surrogate pair become their character, and a lone half becomes U+FFFD.
    """
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if _SURROGATE.search(text):
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return _CONTROL.sub("", text)


def width(text: str, unit: LengthUnit) -> int:
    """Count *text* in *unit*."""
    if unit is LengthUnit.CHARACTERS or text.isascii():
        return len(text)
    if unit is LengthUnit.UTF16:
        return len(text.encode("utf-16-le", "surrogatepass")) // 2
    return len(text.encode("utf-8", "surrogatepass"))


def fit_index(text: str, start: int, limit: int, unit: LengthUnit) -> int:
    """Return the greatest index so that sanitized *text* from *start* up to it has at most *limit* units."""
    window = text[start : start + max(limit, 0)]
    if unit is LengthUnit.CHARACTERS or window.isascii():
        return start + len(window)
    encoding, size = ("utf-16-le", 2 * limit) if unit is LengthUnit.UTF16 else ("utf-8", limit)
    return start + len(window.encode(encoding)[:size].decode(encoding, "ignore"))


def grapheme_boundary(text: str, start: int, end: int) -> int:
    """Return the last end of a grapheme cluster in (*start*, *end*], or *start*.

    *start* counts as a boundary. Costs no more than the distance back to two ordinary characters.
    """
    if end >= len(text) or end <= start or text[end - 1] == "\n":
        return min(end, len(text))
    pair = _LAST_PAIR.search(text, start, end + 1)
    found: int = pair.start() + 1 if pair else start
    # In slices, since the library looks back over a whole run of flags for every single one.
    size = _SLICE
    while found < end:
        ends = [found + cluster.end() for cluster in _CLUSTER.finditer(text[found : min(found + size, end + 1)])]
        if found + size > end:
            # Whether a cluster ends at `end` depends on nothing beyond the character that stands there.
            return max((place for place in ends if place <= end), default=found)
        # The last one may go on in the next slice.
        size = _SLICE if len(ends) > 1 else 2 * size
        found = ends[-2] if len(ends) > 1 else found
    return found
