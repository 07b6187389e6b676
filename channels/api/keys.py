"""Keys of the API. A key is a person, until it is revoked.

A key is 256 random bits; its SHA-256 is stored, with the person. Where several gateways share the store, a key is valid
at each of them, and revoked at all of them.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cachetools import LRUCache

from channels.kit.background import TokenBucket
from gateway.errors import StoreUnavailable, UserError
from gateway.net.addresses import network_of
from gateway.ports.channel import CACHED_NOTES

if TYPE_CHECKING:
    from gateway.store.records import SqlChannelState

# Clients expect "sk-", and our logs redact it by its shape.
PREFIX = "sk-parlour-"
MOST_KEYS = 200
LONGEST_KEY = 128  # characters of what a client sends
_NOTE = f"{CACHED_NOTES}key."
_JOINED = "joined."
_ID_LENGTH = 8
# Wrong keys of one network: so many at once, then one in so many seconds. Right ones have no limit: nobody guesses one,
# and somebody behind the same address may have an old one.
_WRONG_BURST, _WRONG_INTERVAL = 10, 6.0
_MOST_NETWORKS = 10_000


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A stored key. `id` is the beginning of its digest."""

    digest: str
    who: str
    created_at: datetime

    @property
    def id(self) -> str:
        """The name of the key in lists and commands."""
        return self.digest[:_ID_LENGTH]


class ApiKeys:
    """The keys of one channel, served from memory."""

    def __init__(
        self,
        state: SqlChannelState,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
        is_shared: bool = False,
    ) -> None:
        """Keep them in *state*; if it *is_shared*, other gateways add and remove some."""
        self._state = state
        self._now = now
        self._clock = clock
        self._is_shared = is_shared
        self._wrong: LRUCache[str, TokenBucket] = LRUCache(_MOST_NETWORKS)

    async def create(self, who: str) -> tuple[str, ApiKey]:
        """Return a new key of *who* and what is stored of it. Raises UserError if there are too many keys."""
        if len(self.all()) >= MOST_KEYS:
            raise UserError(f"there are {MOST_KEYS} keys already; revoke some with `parlour web revoke ID`")
        secret = f"{PREFIX}{secrets.token_urlsafe(32)}"
        key = ApiKey(_digest(secret), who, self._now())
        await self._state.save(_NOTE + key.digest, json.dumps([who, key.created_at.isoformat()]))
        return secret, key

    async def was_joined(self, who: str) -> bool:
        """Return True if the person *who* was joined with the user of the page once, also if they have left since."""
        return await self._state.load(f"{_JOINED}{who}") is not None

    async def note_joined(self, who: str) -> None:
        """Note it; revoking the keys of the person does not change it."""
        await self._state.save(f"{_JOINED}{who}", "1")

    async def find(self, secret: str) -> ApiKey | None:
        """Return the key that *secret* is; None for any other text."""
        if not secret.startswith(PREFIX) or len(secret) > LONGEST_KEY:
            return None
        digest = _digest(secret)
        if self._is_shared and _NOTE + digest not in self._state.cached():
            # It may be a moment old, and from another gateway: reading brings the notes in memory up to date.
            with suppress(StoreUnavailable):
                await self._state.load(_NOTE + digest)
        # Looked up by digest, so the time this takes says nothing about the keys that are stored.
        value = self._state.cached().get(_NOTE + digest)
        return None if value is None else _decode(digest, value)

    def counts(self, key: ApiKey) -> bool:
        """Return True unless *key* was revoked, here or at another gateway."""
        return _NOTE + key.digest in self._state.cached()

    def all(self) -> Sequence[ApiKey]:
        """Return every key, the oldest first."""
        notes = self._state.cached().items()
        found = [_decode(name.removeprefix(_NOTE), value) for name, value in notes if name.startswith(_NOTE)]
        return sorted(found, key=lambda each: (each.created_at, each.digest))

    async def revoke(self, text: str) -> Sequence[ApiKey]:
        """Revoke the key with the id *text*, or all keys of the person *text*; return them."""
        gone = [each for each in self.all() if text in (each.id, each.who)]
        for each in gone:
            await self._state.save(_NOTE + each.digest, None)
        return gone

    def count_wrong(self, address: str) -> float:
        """Count a wrong key from *address*; return the seconds until its network may try again, 0 if at once."""
        network = network_of(address)
        bucket = self._wrong.get(network)
        if bucket is None:
            bucket = self._wrong[network] = TokenBucket(_WRONG_BURST, _WRONG_INTERVAL, clock=self._clock)
        return bucket.try_acquire()


def _decode(digest: str, value: str) -> ApiKey:
    who, created_at = json.loads(value)
    return ApiKey(digest, who, datetime.fromisoformat(created_at))


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
