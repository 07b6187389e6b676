"""Login codes of the page, and the logins they create.

A code is kept only in memory and is valid once, for ten minutes. A login is a random token in a cookie; the channel's
state holds its SHA-256 and expiry, so that the stored state cannot be used to log in.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from gateway.net.addresses import network_of
from gateway.ports import ChannelState

ALPHABET = "23456789ABCDEFGHJKMNPQRSTVWXYZ"  # nothing that is read as something else
CODE_LENGTH = 8
CODE_LIFE = timedelta(minutes=10)
LOGIN_LIFE = timedelta(days=30)
# Of one address. All together have no limit, which would only let many addresses shut out whoever has the code: where
# 10,000 of them guess for as long as ten codes are good, the chance that one is found is 1 in 100,000.
WRONG_TRIES = 5
_MOST_ADDRESSES = 100_000  # whose wrong tries are kept
WRONG_WINDOW = timedelta(minutes=1)
MOST_CODES = 10
MOST_LOGINS = 100
NOTE = "logins"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}\Z")


class LoginOutcome(StrEnum):
    """The result of entering a login code."""

    WELCOME = "welcome"
    WRONG = "wrong"
    LOCKED = "locked"  # too many wrong tries: even the right code waits


@dataclass(frozen=True, slots=True)
class StoredLogin:
    """A browser that gave a good code."""

    digest: str
    who: str
    until: datetime


@dataclass(frozen=True, slots=True)
class ActiveLogin:
    """A user who is logged in."""

    who: str
    browsers: int
    until: datetime


def is_name(text: str) -> bool:
    """Return True if *text* is a valid user name: lower-case letters, digits and signs that fit a session key."""
    return _NAME.match(text) is not None


class WebLogins:
    """The codes that are out, and the browsers that are in."""

    def __init__(self, state: ChannelState, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._state = state
        self._now = now
        self._codes: dict[str, tuple[str, datetime]] = {}  # sha256 -> who, until
        self._tries: dict[str, list[datetime]] = {}  # wrong ones of the last minute, by network
        self.wrong = 0  # tries since the start
        self._logins: dict[str, StoredLogin] | None = None
        self._writing = asyncio.Lock()

    def issue_code(self, who: str) -> str:
        """Return a new code for *who*, as people read it: ``ABCD-EFGH``."""
        self._drop_old_codes()
        while len(self._codes) >= MOST_CODES:
            del self._codes[next(iter(self._codes))]
        code = "".join(secrets.choice(ALPHABET) for _ in range(CODE_LENGTH))
        self._codes[_digest(code)] = (who, self._now() + CODE_LIFE)
        return f"{code[:4]}-{code[4:]}"

    async def enter(self, code: str, address: str = "") -> tuple[LoginOutcome, str]:
        """Take a code typed at *address*; return the outcome, and the new login's token when it is welcome."""
        network = network_of(address)
        if self._is_locked(network):
            return LoginOutcome.LOCKED, ""
        self._drop_old_codes()
        # Looked up by digest, so the time this takes says nothing about the codes that are out.
        found = self._codes.pop(_digest(_normal(code)), None)
        if found is None:
            self._note_wrong(network)
            return LoginOutcome.WRONG, ""
        return LoginOutcome.WELCOME, await self._let_in(found[0])

    async def find(self, token: str) -> StoredLogin | None:
        """Return the login that *token* stands for, if it still counts."""
        if not token:
            return None
        login = (await self._load()).get(_digest(token))
        return login if login is not None and login.until > self._now() else None

    def counts(self, login: StoredLogin) -> bool:
        """Return True while *login* is valid."""
        return bool(self._logins and login.digest in self._logins) and login.until > self._now()

    async def leave(self, login: StoredLogin) -> None:
        """End *login* for good."""
        async with self._writing:
            logins = dict(await self._load())
            if logins.pop(login.digest, None) is not None:
                await self._save(logins)

    async def active_logins(self) -> Sequence[ActiveLogin]:
        """Return the users who are logged in, each with the number of browsers and the latest expiry."""
        now, found = self._now(), dict[str, ActiveLogin]()
        for login in (await self._load()).values():
            if login.until > now:
                before = found.get(login.who, ActiveLogin(login.who, 0, login.until))
                found[login.who] = ActiveLogin(login.who, before.browsers + 1, max(before.until, login.until))
        return [found[who] for who in sorted(found)]

    async def end(self, who: str) -> Sequence[StoredLogin]:
        """End every login of *who*, and every code that is out for them; return the logins that were."""
        self._codes = {digest: entry for digest, entry in self._codes.items() if entry[0] != who}
        async with self._writing:
            logins = await self._load()
            ended = [login for login in logins.values() if login.who == who]
            if ended:
                await self._save({digest: login for digest, login in logins.items() if login.who != who})
        return ended

    async def _let_in(self, who: str) -> str:
        token = secrets.token_urlsafe(32)
        async with self._writing:
            now = self._now()
            kept = [login for login in (await self._load()).values() if login.until > now]
            new = StoredLogin(_digest(token), who, now + LOGIN_LIFE)
            await self._save({login.digest: login for login in [*kept, new][-MOST_LOGINS:]})
        return token

    async def _load(self) -> dict[str, StoredLogin]:
        if self._logins is None:
            stored = json.loads(await self._state.load(NOTE) or "{}")
            if self._logins is None:  # or somebody came in, or was put out, while this was read
                self._logins = {
                    digest: StoredLogin(digest, who, datetime.fromisoformat(until))
                    for digest, (who, until) in stored.items()
                }
        return self._logins

    async def _save(self, logins: dict[str, StoredLogin]) -> None:
        stored = {login.digest: (login.who, login.until.isoformat()) for login in logins.values()}
        await self._state.save(NOTE, json.dumps(stored))
        self._logins = logins

    def _is_locked(self, network: str) -> bool:
        horizon = self._now() - WRONG_WINDOW
        tries = [at for at in self._tries.pop(network, ()) if at > horizon]
        if tries:
            self._tries[network] = tries  # behind those that were silent for longer
        return len(tries) >= WRONG_TRIES

    def _note_wrong(self, network: str) -> None:
        self.wrong += 1
        self._tries.setdefault(network, []).append(self._now())
        if len(self._tries) > _MOST_ADDRESSES:
            del self._tries[next(iter(self._tries))]

    def _drop_old_codes(self) -> None:
        now = self._now()
        self._codes = {digest: entry for digest, entry in self._codes.items() if entry[1] > now}


def _normal(code: str) -> str:
    return "".join(letter for letter in code[:64].upper() if letter in ALPHABET)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
