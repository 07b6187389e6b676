"""Login codes of the page, and the logins they create.

A code is valid once, for ten minutes. An invitation is a longer code that is valid for days. A login is a random token
in a cookie. All are notes of the channel's state: a
SHA-256 with a name and an expiry. That of a token cannot be used to log in. A code is short: a reader of the store
could find one by trial while it is valid. Where several gateways share the store, both are valid at each of them; wrong
tries are counted by each.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from gateway.errors import StoreUnavailable
from gateway.net.addresses import network_of
from gateway.ports.channel import CACHED_NOTES

if TYPE_CHECKING:
    from gateway.store.records import SqlChannelState


ALPHABET = "23456789ABCDEFGHJKMNPQRSTVWXYZ"  # nothing that is read as something else
CODE_LENGTH = 8
CODE_LIFE = timedelta(minutes=10)
INVITATION_LENGTH = 16  # as many guesses as there may be in a month find none
MOST_INVITATIONS = 100
LOGIN_LIFE = timedelta(days=30)
# Of one address. All together have no limit, which would only let many addresses shut out whoever has the code: where
# 10,000 of them guess for as long as ten codes are good, the chance that one is found is 1 in 100,000.
WRONG_TRIES = 5
_MOST_ADDRESSES = 100_000  # whose wrong tries are kept
WRONG_WINDOW = timedelta(minutes=1)
MOST_CODES = 10
MOST_LOGINS = 100
_LOGIN = f"{CACHED_NOTES}login."
_CODE = "code."
_INVITATION = "invitation."
_SEEN = "seen/"
_SEEN_EVERY = timedelta(minutes=5)
_OLD_NOTE = "logins"


class LoginOutcome(StrEnum):
    """The result of entering a login code."""

    WELCOME = "welcome"
    WRONG = "wrong"
    LOCKED = "locked"  # too many wrong tries: even the right code waits


@dataclass(frozen=True, slots=True)
class StoredLogin:
    """A browser that gave a good code, or a code that is out; *digest* is of its secret."""

    digest: str
    who: str
    until: datetime


@dataclass(frozen=True, slots=True)
class PageUser:
    """A user of the page: one who is logged in, was, or has an invitation."""

    who: str
    browsers: int = 0
    until: datetime | None = None  # the latest expiry of their logins
    seen_at: datetime | None = None  # when they last had a window, within five minutes
    invited_until: datetime | None = None  # the latest expiry of their unused invitations


class WebLogins:
    """The codes that are out, and the browsers that are in, at every gateway that shares the store."""

    def __init__(
        self,
        state: SqlChannelState,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        is_shared: bool = False,
    ) -> None:
        """Keep them in *state*; if it *is_shared*, other gateways add and remove some."""
        self._state = state
        self._is_shared = is_shared
        self._now = now
        self._tries: dict[str, list[datetime]] = {}  # wrong ones of the last minute, by network
        self.wrong = 0  # tries since the start, here
        self._has_old_note = True  # as far as is known
        self._writing = asyncio.Lock()
        self._seen: dict[str, datetime] = {}  # as noted here

    async def issue_code(self, who: str) -> str:
        """Return a new code for *who*, as people read it: ``ABCD-EFGH``."""
        return await self._issue(_CODE, who, CODE_LIFE, length=CODE_LENGTH, most=MOST_CODES)

    async def invite(self, who: str, life: timedelta) -> str:
        """Return a new invitation for *who*, a code of 16 letters that is valid once within *life*."""
        return await self._issue(_INVITATION, who, life, length=INVITATION_LENGTH, most=MOST_INVITATIONS)

    async def _issue(self, kind: str, who: str, life: timedelta, *, length: int, most: int) -> str:
        code = "".join(secrets.choice(ALPHABET) for _ in range(length))
        async with self._writing:
            known = await self._codes(kind)
            valid = sorted((each for each in known if each.until > self._now()), key=lambda each: each.until)
            for old in {*known} - {*valid[1 - most :]}:
                self._state.forget(kind + old.digest)
            new = StoredLogin(_digest(code), who, self._now() + life)
            await self._state.save(kind + new.digest, _encode(new))
        return "-".join(code[start : start + 4] for start in range(0, length, 4))

    async def enter(self, code: str, address: str = "") -> tuple[LoginOutcome, str]:
        """Take a code typed at *address*; return the outcome, and the new login's token when it is welcome."""
        network = network_of(address)
        if self._is_locked(network):
            return LoginOutcome.LOCKED, ""
        # Looked up by digest, so the time this takes says nothing about the codes that are out.
        typed = _normal(code)
        name = (_INVITATION if len(typed) == INVITATION_LENGTH else _CODE) + _digest(typed)
        stored = await self._state.take(name)
        found = _decode(name, stored) if stored is not None else None
        if found is None or found.until <= self._now():
            self._note_wrong(network)
            return LoginOutcome.WRONG, ""
        return LoginOutcome.WELCOME, await self._let_in(found.who)

    async def find(self, token: str) -> StoredLogin | None:
        """Return the login that *token* stands for, if it still counts."""
        return await self.find_digest(_digest(token)) if token else None

    async def find_digest(self, digest: str) -> StoredLogin | None:
        """Return the login with the digest of its token, if it still counts."""
        await self._split_old_note()
        if self._is_shared and not self.is_stored(digest):
            # It may be a moment old, and from another gateway: reading brings the notes in memory up to date.
            with suppress(StoreUnavailable):
                await self._state.load(_LOGIN + digest)
        login = self._login(digest)
        return login if login is not None and self.counts(login) else None

    def counts(self, login: StoredLogin) -> bool:
        """Return True while *login* is valid."""
        return self.is_stored(login.digest) and login.until > self._now()

    def is_stored(self, digest: str) -> bool:
        """Return True unless the login with *digest* was ended, here or at another gateway."""
        return _LOGIN + digest in self._state.cached()

    async def leave(self, login: StoredLogin) -> None:
        """End *login* for good."""
        if self.is_stored(login.digest):
            await self._state.save(_LOGIN + login.digest, None)

    def note_seen(self, who: str) -> None:
        """Note that *who* has a window now; it is stored within some seconds."""
        now = self._now()
        if now - self._seen.get(who, datetime.min.replace(tzinfo=UTC)) >= _SEEN_EVERY:
            self._seen[who] = now
            self._state.save_soon(_SEEN + who, now.isoformat())

    async def forget_seen(self, people: Collection[str] | None) -> None:
        """Forget when *people* had a window; `None` stands for all people. Raises StoreUnavailable."""
        for name in await self._state.all(_SEEN):
            if people is None or name.removeprefix(_SEEN) in people:
                self._seen.pop(name.removeprefix(_SEEN), None)
                await self._state.save(name, None)

    async def users(self) -> Sequence[PageUser]:
        """Return the users of the page by name. Raises StoreUnavailable."""
        await self._split_old_note()
        now, found = self._now(), dict[str, PageUser]()
        for name, at in (await self._state.all(_SEEN)).items():
            who = name.removeprefix(_SEEN)
            found[who] = PageUser(who, seen_at=datetime.fromisoformat(at))
        for login in self._logins():
            if login.until > now:
                user = found.get(login.who, PageUser(login.who))
                until = max(user.until or login.until, login.until)
                found[login.who] = replace(user, browsers=user.browsers + 1, until=until)
        for each in await self._codes(_INVITATION):
            if each.until > now:
                user = found.get(each.who, PageUser(each.who))
                found[each.who] = replace(user, invited_until=max(user.invited_until or each.until, each.until))
        return [found[who] for who in sorted(found)]

    async def end(self, who: str) -> Sequence[StoredLogin]:
        """End every login of *who*, and their unused codes and invitations; return the logins that were."""
        await self._split_old_note()
        async with self._writing:
            for kind in (_CODE, _INVITATION):
                for code in await self._codes(kind):
                    if code.who == who:
                        await self._state.save(kind + code.digest, None)
            ended = [login for login in self._logins() if login.who == who]
            for login in ended:
                await self._state.save(_LOGIN + login.digest, None)
        return ended

    async def _let_in(self, who: str) -> str:
        await self._split_old_note()
        token = secrets.token_urlsafe(32)
        async with self._writing:
            known = self._logins()
            valid = sorted((each for each in known if each.until > self._now()), key=lambda each: each.until)
            for old in {*known} - {*valid[1 - MOST_LOGINS :]}:
                await self._state.save(_LOGIN + old.digest, None)
            new = StoredLogin(_digest(token), who, self._now() + LOGIN_LIFE)
            await self._state.save(_LOGIN + new.digest, _encode(new))
        return token

    def _login(self, digest: str) -> StoredLogin | None:
        stored = self._state.cached().get(_LOGIN + digest)
        return None if stored is None else _decode(_LOGIN + digest, stored)

    def _logins(self) -> list[StoredLogin]:
        return [_decode(name, stored) for name, stored in self._state.cached().items() if name.startswith(_LOGIN)]

    async def _codes(self, kind: str) -> list[StoredLogin]:
        return [_decode(name, stored) for name, stored in (await self._state.all(kind)).items()]

    async def _split_old_note(self) -> None:
        """Split the note in which a version before 0.3 has stored all logins."""
        if not self._has_old_note:
            return
        async with self._writing:
            if self._has_old_note and (stored := await self._state.load(_OLD_NOTE)) is not None:
                for digest, (who, until) in json.loads(stored).items():
                    login = StoredLogin(digest, who, datetime.fromisoformat(until))
                    await self._state.save(_LOGIN + digest, _encode(login))
                await self._state.save(_OLD_NOTE, None)
            self._has_old_note = False

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


def _encode(login: StoredLogin) -> str:
    return json.dumps([login.who, login.until.isoformat()])


def _decode(name: str, value: str) -> StoredLogin:
    who, until = json.loads(value)
    return StoredLogin(name.rpartition(".")[2], who, datetime.fromisoformat(until))


def _normal(code: str) -> str:
    return "".join(letter for letter in code[:64].upper() if letter in ALPHABET)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
