"""Names that platforms give people and places, fit to be read by somebody else. They never decide anything."""

from __future__ import annotations

import re
import unicodedata

LONGEST = 40  # characters
_SIGNS = re.compile(r"[\[\](){}<>`*_~|\\@#]")  # what a platform could take for a link, a call or a form


def safe_display_name(name: str, longest: int = LONGEST) -> str:
    """Return *name* as one line that is no link, calls nobody, hides nothing and is at most *longest* characters."""
    flat = "".join(" " if unicodedata.category(each)[0] in "CZ" else each for each in name)
    return " ".join(_SIGNS.sub(" ", flat).split())[:longest].strip()
