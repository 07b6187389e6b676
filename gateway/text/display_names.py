"""Makes display names of users and chats safe to show to others. They are never used for decisions."""

from __future__ import annotations

import re
import unicodedata

LONGEST = 40  # characters
_SIGNS = re.compile(r"[\[\](){}<>`*_~|\\@#]")  # what a platform could take for a link, a call or a form


def safe_display_name(name: str, longest: int = LONGEST) -> str:
    """Return *name* as one line of at most *longest* characters without links, mentions or hidden characters."""
    flat = "".join(" " if unicodedata.category(each)[0] in "CZ" else each for each in name)
    return " ".join(_SIGNS.sub(" ", flat).split())[:longest].strip()
