"""Short ids that are the same each time: for files, jobs and versions that are made once, however often it is tried."""

from __future__ import annotations

from base64 import b32encode
from hashlib import sha256


def short_id(text: str, length: int = 16) -> str:
    """Return the first *length* base32 characters of the sha256 of *text*, in lower case."""
    return b32encode(sha256(text.encode("utf-8", "surrogatepass")).digest()).decode("ascii").lower()[:length]
