"""Names of files, made safe to save under: what came from a model or a stranger names no other place."""

from __future__ import annotations

import re

_LONGEST = 100
# Controls would end a header or move a cursor; direction marks show "exe.png" for what is "gnp.exe".
_NEVER = re.compile('[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff<>:"/\\\\|?*]+')


def safe_file_name(name: str) -> str:
    """Return *name* as one file is called in any folder: no path, no hidden file, nothing a terminal would obey."""
    plain = " ".join(_NEVER.sub(" ", name).split()).strip(". ")
    stem, dot, ending = plain.rpartition(".")
    if dot and len(ending) <= 16 and len(plain) > _LONGEST:
        return f"{stem[: _LONGEST - len(ending) - 1].rstrip('. ')}.{ending}"
    return plain[:_LONGEST].rstrip(". ") or "file"
