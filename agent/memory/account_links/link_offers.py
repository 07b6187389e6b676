"""Offers to be linked: a code that is good once and for ten minutes, and a yes of both who would be one person then.

Codes are kept hashed. Everything survives a restart; doing any step twice is doing it once.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from agent.memory.account_links.account_linker import LINK, UNLINK
from agent.memory.storage.transcript_lines import format_time, parse_time
from gateway.events import SessionKey
from gateway.ports import AccountLinkStore, Job, LinkedAccount

GOOD_FOR = timedelta(minutes=10)
TRIES = 5
LOCKED_FOR = timedelta(hours=1)
_LETTERS = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"  # none that are taken for one another
_LENGTH = 8
_OFFER, _TRY = "offer:", "try:"
_SALT = b"parlour link"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkParty:
    """One side of an offer: an account, what people call it, and the chat it can be asked in."""

    identity: str
    label: str
    key: SessionKey


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOffer:
    """An offer as it stands. It is taken once somebody typed its code."""

    name: str
    asker: LinkParty
    until: datetime
    taker: LinkParty | None = None
    agreed: tuple[str, ...] = ()  # identities

    def other(self, identity: str) -> LinkParty | None:
        """Return the other side."""
        return self.taker if identity == self.asker.identity else self.asker

    @property
    def is_agreed(self) -> bool:
        """Both said yes."""
        return self.taker is not None and {self.asker.identity, self.taker.identity} == set(self.agreed)


@dataclass(frozen=True, slots=True)
class LinkLocked:
    """Too many wrong codes; nothing is looked at for a while."""

    minutes: int


@dataclass(frozen=True, slots=True)
class UnknownLinkCode:
    """No offer has this code (any more)."""


@dataclass(frozen=True, slots=True)
class AlreadySamePerson:
    """The code is the typer's own, or the two are one person already."""


class AccountLinkService:
    """What `/link` and `/unlink` ask."""

    def __init__(self, links: AccountLinkStore, *, now: Callable[[], datetime]) -> None:
        self._links = links
        self._now = now
        self._lock = asyncio.Lock()  # an offer is read, judged and written back by one at a time

    def person(self, account: str) -> str:
        """Return the person whom an account belongs to."""
        return self._links.person(account)

    def accounts(self, person: str) -> tuple[LinkedAccount, ...]:
        """Return the accounts of somebody who has several, the one that names them first."""
        return self._links.accounts(person)

    async def offer(self, asker: LinkParty) -> str:
        """Return a new code; an earlier one of the same account is good no more."""
        code = "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))
        name = await _name_of(code)
        async with self._lock:
            for each in await self._offers():
                if each.asker.identity == asker.identity and each.taker is None:
                    await self._drop(each)
            await self._put(LinkOffer(name=name, asker=asker, until=self._now() + GOOD_FOR))
        return code

    async def take(self, code: str, taker: LinkParty) -> LinkOffer | LinkLocked | UnknownLinkCode | AlreadySamePerson:
        """Take up the offer of this code, if there is one and *taker* may still try."""
        name = await _name_of(code)
        async with self._lock:
            minutes = await self._locked(taker.identity)
            if minutes:
                return LinkLocked(minutes)
            offer = next((each for each in await self._offers() if each.name == name), None)
            if offer is None or (offer.taker is not None and offer.taker.identity != taker.identity):
                await self._note_wrong(taker.identity)
                return UnknownLinkCode()
            if self._links.person(taker.identity) == self._links.person(offer.asker.identity):
                return AlreadySamePerson()
            if offer.taker is None:
                offer = replace(offer, taker=taker, until=self._now() + GOOD_FOR)
                await self._put(offer)
            return offer

    async def burn(self, code: str) -> bool:
        """Take an offer back whose code others have seen; say whether there was one."""
        name = await _name_of(code)
        async with self._lock:
            found = [each for each in await self._offers() if each.name == name]
            for each in found:
                await self._drop(each)
            return bool(found)

    async def agree(self, identity: str) -> LinkOffer | None:
        """Say yes for *identity* to the offer that waits for it; None when none does."""
        async with self._lock:
            offer = await self._waiting(identity)
            if offer is None or identity in offer.agreed:
                return offer
            offer = replace(offer, agreed=(*offer.agreed, identity))
            await self._put(offer)
            return offer

    async def refuse(self, identity: str) -> LinkOffer | None:
        """Say no; the offer is gone. Returns it, None when none waited."""
        async with self._lock:
            offer = await self._waiting(identity)
            if offer is not None and not offer.is_agreed:
                await self._drop(offer)
                return offer
            return None

    def linking(self, offer: LinkOffer) -> Job:
        """Return the job that makes the two one person; the same one however often they said yes."""
        assert offer.taker is not None  # noqa: S101 - both agreed
        accounts = [offer.asker.identity, offer.taker.identity]
        return Job(id=f"link:{offer.name}", kind=LINK, scope="", payload={"accounts": accounts}, due_at=self._now())

    async def unlinking(self, account: str, turn: str) -> Job:
        """Return the job that makes *account* a person of its own again; what was agreed to about it is void."""
        async with self._lock:
            for each in await self._offers():
                if account in each.agreed:
                    await self._drop(each)
        return Job(id=f"unlink:{turn}", kind=UNLINK, scope="", payload={"account": account}, due_at=self._now())

    # -- inside, under the lock --------------------------------------------------------------------

    async def _waiting(self, identity: str) -> LinkOffer | None:
        """Return the newest offer that was taken and is about *identity*."""
        found = [
            each
            for each in await self._offers()
            if each.taker is not None and identity in (each.asker.identity, each.taker.identity)
        ]
        return max(found, key=lambda each: each.until, default=None)

    async def _offers(self) -> list[LinkOffer]:
        """Return the offers that are still good; others are taken away."""
        found = []
        for name, value in (await self._links.notes()).items():
            if name.startswith(_OFFER):
                offer = _read(name, json.loads(value))
                if offer.until > self._now():
                    found.append(offer)
                else:
                    await self._links.note(name, "", was=value)
        return found

    async def _put(self, offer: LinkOffer) -> None:
        before = (await self._links.notes()).get(offer.name, "")
        await self._links.note(offer.name, json.dumps(_written(offer)), was=before)

    async def _drop(self, offer: LinkOffer) -> None:
        before = (await self._links.notes()).get(offer.name, "")
        await self._links.note(offer.name, "", was=before)

    async def _locked(self, identity: str) -> int:
        """Return for how many minutes *identity* may not try; 0 when it may."""
        _, count, until = await self._tries(identity)
        left = until - self._now()
        return int(left.total_seconds() // 60) + 1 if count >= TRIES and left > timedelta(0) else 0

    async def _note_wrong(self, identity: str) -> None:
        value, count, until = await self._tries(identity)
        count = count + 1 if until > self._now() else 1
        tries = {"count": count, "until": format_time(self._now() + LOCKED_FOR)}
        await self._links.note(f"{_TRY}{identity}", json.dumps(tries), was=value)

    async def _tries(self, identity: str) -> tuple[str, int, datetime]:
        value = (await self._links.notes()).get(f"{_TRY}{identity}", "")
        tries = json.loads(value) if value else {}
        return value, int(tries.get("count", 0)), parse_time(tries.get("until")) or self._now()


async def _name_of(code: str) -> str:
    """Return the note that an offer with this code has: a slow hash, so that a stolen journal tells no code."""
    plain = "".join(code.upper().split()).encode("utf-8", "replace")
    digest = await asyncio.to_thread(hashlib.scrypt, plain, salt=_SALT, n=2**12, r=8, p=1, dklen=20)
    return f"{_OFFER}{digest.hex()}"


def _written(offer: LinkOffer) -> dict[str, Any]:
    def side(account: LinkParty) -> dict[str, str]:
        return {"identity": account.identity, "label": account.label, "key": str(account.key)}

    return {
        "asker": side(offer.asker),
        "taker": side(offer.taker) if offer.taker else None,
        "until": format_time(offer.until),
        "agreed": list(offer.agreed),
    }


def _read(name: str, stored: Mapping[str, Any]) -> LinkOffer:
    def side(account: Mapping[str, str]) -> LinkParty:
        return LinkParty(identity=account["identity"], label=account["label"], key=SessionKey.parse(account["key"]))

    until = parse_time(stored["until"])
    assert until is not None  # noqa: S101 - we wrote it
    return LinkOffer(
        name=name,
        asker=side(stored["asker"]),
        taker=side(stored["taker"]) if stored["taker"] else None,
        until=until,
        agreed=tuple(stored["agreed"]),
    )
