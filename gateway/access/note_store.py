"""Notes about people beside the roster, as JSON by name, and the codes for owners and pairing."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from gateway.events import short_id
from gateway.ports.access import AccessChange

if TYPE_CHECKING:
    from gateway.store.access import SqlAccess


DAY = timedelta(days=1)
TOLD = "told:"  # told:<channel>:<sender>: the sender got the reply of the day, in a direct message
TOLD_HERE = "told-here:"  # told-here:<channel>:<sender>: the same, in a shared chat
PERSON = "pair:"  # pair:<hash of the code>: a pending unknown sender
PLACE = "place:"  # place:<channel>:<entry>: a place that we were added to
TRIES = "tries:"  # tries:<decider>: recent wrong codes
QUOTA = "quota:"  # quota:<channel>:<user>: the caps of one person
CLAIM_TRIES = "claim-tries:"  # claim-tries:<channel>:<sender>: recent wrong claim codes


def format_time(at: datetime) -> str:
    """Return a time as notes have it."""
    return at.astimezone(UTC).isoformat()


def parse_time(text: object) -> datetime:
    """Undo `format_time`."""
    return datetime.fromisoformat(str(text))


def encode_note(value: Mapping[str, Any]) -> str:
    """Return the text of a note."""
    return json.dumps(value, sort_keys=True)


def derive_notice_id(*parts: str) -> str:
    """Return an id for what is said beside any turn, ``d`` and 16 base32 characters; of the same parts the same."""
    return "d" + short_id("\0".join(parts))


def derive_reply_id(*parts: str) -> str:
    """Return the same, beginning with ``s``: an undelivered reply to an unknown sender raises no alert."""
    return "s" + short_id("\0".join(parts))


class NoteStore:
    """Notes by name and by prefix. Hold `lock` to read, decide and write back."""

    def __init__(self, access: SqlAccess) -> None:
        self.access = access
        self.lock = asyncio.Lock()

    def text(self, name: str) -> str:
        """Return the value of a note, or an empty string."""
        return self.access.notes().get(name, "")

    def one(self, name: str) -> Mapping[str, Any] | None:
        """Return a note, or None."""
        text = self.text(name)
        value: Mapping[str, Any] | None = json.loads(text) if text else None
        return value

    def of(self, prefix: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the notes whose names begin with *prefix*."""
        for name, text in list(self.access.notes().items()):
            if name.startswith(prefix):
                yield name, json.loads(text)

    def outdated(self, now: datetime) -> dict[str, str]:
        """Return the notes whose time is over, as changes that remove them."""
        timed = (each for prefix in (TOLD, TOLD_HERE, PERSON, TRIES, CLAIM_TRIES) for each in self.of(prefix))
        return {name: "" for name, value in timed if parse_time(value["until"]) <= now}

    async def write(self, notes: Mapping[str, str]) -> None:
        """Write notes; an empty value removes one."""
        await self.access.change(AccessChange(notes=notes))


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
