"""Names of workspace files, as people and models read them: parts between slashes, such as ``trips/Rome 2027.csv``."""

from __future__ import annotations

import unicodedata

from gateway.errors import ToolFailed

MOST_LEVELS = 8
RECEIVED = "received"  # the folder of files that users sent; it exists in names alone
_LONGEST = 640  # characters of a whole name
_LONGEST_PART = 200  # bytes, so that every file system takes it from an export
_PLAIN = " \u200c\u200d"  # a space, and the joiners that some scripts and emoji need
_FORBIDDEN = "\\\ufffd"


class InvalidFileName(ToolFailed):
    """No workspace file can have this name; the text says why."""


def parse_name(name: str) -> str:
    """Return *name* in its one spelling: composed characters, no white space at the edges. Raises InvalidFileName."""
    text = unicodedata.normalize("NFC", name[:_LONGEST])
    parts = [" ".join(part.split()) for part in text.split("/")]
    if any(part in ("", ".", "..") for part in parts):
        raise InvalidFileName("a file name is relative, such as notes/rome.md: no slash at its ends, no `.` or `..`")
    if not all(map(_is_plain, parts)):
        raise InvalidFileName("a file name has no control characters, invisible characters or backslashes")
    if max(len(name), len(text)) > _LONGEST or any(len(part.encode()) > _LONGEST_PART for part in parts):
        raise InvalidFileName("that file name is too long; choose a shorter one")
    if len(parts) > MOST_LEVELS:
        raise InvalidFileName(f"a file name has at most {MOST_LEVELS} parts between slashes")
    return "/".join(parts)


def parse_own_name(name: str) -> str:
    """Do what `parse_name` does for a file that is to be changed; a received one is refused."""
    parsed = parse_name(name)
    if parsed.partition("/")[0] == RECEIVED:
        raise InvalidFileName(f"people sent the files in {RECEIVED}/, which cannot be changed; use another name")
    return parsed


def _is_plain(part: str) -> bool:
    return all(
        character in _PLAIN or (character not in _FORBIDDEN and unicodedata.category(character)[0] not in "CZ")
        for character in part
    )
