"""Names of workspace files, and the file names that stand for them on disk. Pure.

A name is what people and models read: parts between slashes, such as ``trips/Rome 2027.csv``. On disk each part is
quoted (`gateway.events.quote_file_name`). ``%u`` before the last part marks a file that holds untrusted text; quoting
never makes it, and a backup, a copy or a move keeps it. An operator's file keeps the name that it has.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from itertools import product
from urllib.parse import unquote

from gateway.errors import ToolFailed
from gateway.events import quote_file_name

MOST_LEVELS = 8
RECEIVED = "received"  # the folder of files that users sent; it exists in names alone
UNTRUSTED_MARK = "%u"
_LONGEST = 640  # characters of a whole name
_CUT = "%-"  # in a quoted name that was too long to be kept whole
_PLAIN = " \u200c\u200d"  # a space, and the joiners that some scripts and emoji need
_FORBIDDEN = "\\\ufffd"


class InvalidFileName(ToolFailed):
    """No workspace file can have this name; the text says why."""


def parse_name(name: str) -> tuple[str, ...]:
    """Return the parts of *name*. Raises InvalidFileName."""
    text = unicodedata.normalize("NFC", name[:_LONGEST])
    parts = tuple(" ".join(part.split()) for part in text.split("/"))
    if any(part in ("", ".", "..") for part in parts):
        raise InvalidFileName("a file name is relative, such as notes/rome.md: no slash at its ends, no `.` or `..`")
    if not all(map(_is_plain, parts)):
        raise InvalidFileName("a file name has no control characters, invisible characters or backslashes")
    if len(name) > _LONGEST or any(_CUT in quote_file_name(part) for part in parts):
        raise InvalidFileName("that file name is too long; choose a shorter one")
    if len(parts) > MOST_LEVELS:
        raise InvalidFileName(f"a file name has at most {MOST_LEVELS} parts between slashes")
    return parts


def _is_plain(part: str) -> bool:
    return all(
        character in _PLAIN or (character not in _FORBIDDEN and unicodedata.category(character)[0] not in "CZ")
        for character in part
    )


def disk_name(part: str, *, is_untrusted: bool = False) -> str:
    """Return the file name that a new file called *part* gets."""
    return f"{UNTRUSTED_MARK if is_untrusted else ''}{quote_file_name(part)}"


def shown_part(name: str) -> str:
    """Return the part that a folder's or a file's *name* on disk stands for."""
    part = unquote(name, errors="replace")
    return part if quote_file_name(part) == name else name


def is_marked(name: str) -> bool:
    """Return True if the file *name* on disk says that it holds untrusted text."""
    return name.startswith(UNTRUSTED_MARK)


def other_version(name: str) -> str:
    """Return the name on disk that the same file has with the opposite mark; only one of the two is read."""
    return name.removeprefix(UNTRUSTED_MARK) if is_marked(name) else f"{UNTRUSTED_MARK}{name}"


def shown_name(path: Sequence[str]) -> str:
    """Return the name of the file at *path*, its parts on disk."""
    return "/".join((*map(shown_part, path[:-1]), shown_part(path[-1].removeprefix(UNTRUSTED_MARK))))


def is_hidden(name: str) -> bool:
    """Return True for a name on disk that is not part of the workspace: its own, a system's, an unnameable one."""
    return name.startswith(".") or not _is_plain(name)


def disk_folders(parts: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the paths on disk that the folder *parts* may have: its own first, then as an operator names it."""
    return product(*(dict.fromkeys((quote_file_name(part), *_as_is(part))) for part in parts))


def disk_files(parts: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the paths on disk that the file *parts* may have. The marked one comes first: it is the safe one of two."""
    last = parts[-1]
    names = dict.fromkeys((disk_name(last, is_untrusted=True), disk_name(last), *_as_is(last)))
    return ((*folder, name) for folder in disk_folders(parts[:-1]) for name in names)


def _as_is(part: str) -> Iterator[str]:
    # Some systems store accents as characters of their own.
    for name in dict.fromkeys((part, unicodedata.normalize("NFD", part))):
        if not is_hidden(name) and not is_marked(name) and shown_part(name) == name:
            yield name
