"""Names of files as they may be shown: one line, no path, nothing that a prompt or a platform could misread."""

from __future__ import annotations

import unicodedata

NAME_LENGTH = 80
_UNSAFE = frozenset("[]<>{}()\"'`|*?:\\/%~$&;=!^\ufffe")
_ENDING = 12  # characters of an ending that survive the cut
_BY_KIND = {"image": "image", "voice": "voice", "audio": "audio", "video": "video"}


def safe_name(name: str, kind: str = "document") -> str:
    """Return *name* made safe: its last part, at most 80 characters, no controls, brackets, quotes or leading dots.

    A name with nothing left is replaced by its kind. Idempotent.
    """
    last = name.replace("\\", "/").rstrip("/ ").rpartition("/")[2]
    plain = "".join(_plain(sign) for sign in unicodedata.normalize("NFC", last))
    flat = " ".join(plain.split()).strip(". -")
    if len(flat) > NAME_LENGTH:
        stem, dot, ending = flat.rpartition(".")
        kept = f".{ending}" if dot and 0 < len(ending) <= _ENDING else ""
        flat = (stem if kept else flat)[: NAME_LENGTH - len(kept)].rstrip(". -") + kept
    return flat or _BY_KIND.get(kind, "document")


def _plain(character: str) -> str:
    if character in _UNSAFE:
        return ""
    return " " if unicodedata.category(character)[0] in "CZ" else character


def extension(name: str) -> str:
    """Return the file name's extension in lower case, without the dot; "" without one."""
    stem, dot, last = name.rpartition(".")
    return last.lower() if dot and stem else ""


def format_size(size: int) -> str:
    """Return a size as people say it: ``812 bytes``, ``12 KB``, ``3.4 MB``."""
    if size < 1_000:
        return f"{size} bytes"
    if size < 1_000_000:
        return f"{size / 1_000:.0f} KB"
    return f"{size / 1_000_000:.1f} MB"
