"""Codes that people type: how they are made, read out of a message, and kept so that a stolen journal tells none."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets

LETTERS = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"  # none that are taken for one another
LENGTH = 8

_TYPED = re.compile(rf"\s*([{LETTERS}]{{4}})[\s\-\u2010-\u2015]?([{LETTERS}]{{4}})\s*\Z", re.IGNORECASE)


def new_code() -> str:
    """Return a fresh code of 8 characters, without the dash that it is shown with: 40 bits of chance, all but a few."""
    return "".join(secrets.choice(LETTERS) for _ in range(LENGTH))


def format_code(code: str) -> str:
    """Return *code* as people read and type it: ``ABCD-EFGH``."""
    return f"{code[:4]}-{code[4:]}"


def parse_code(text: str) -> str:
    """Return the code that *text* wholly is, "" for anything else. Case, a dash and blanks around do not matter."""
    found = _TYPED.match(text)
    return f"{found[1]}{found[2]}".upper() if found else ""


async def hash_code(code: str, salt: str) -> str:
    """Return the stored form of a code: a slow hash, computed off the event loop."""
    made = await asyncio.to_thread(hashlib.scrypt, code.encode(), salt=bytes.fromhex(salt), n=2**12, r=8, p=1, dklen=32)
    return made.hex()


def new_salt() -> str:
    """Return a salt for one code."""
    return secrets.token_hex(16)


def hashes_match(one: str, other: str) -> bool:
    """Compare two hashes in a time that tells nothing."""
    return hmac.compare_digest(one.encode(), other.encode())
