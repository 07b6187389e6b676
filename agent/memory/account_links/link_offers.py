"""Offers to link two accounts: a code that is valid once and for ten minutes, and the agreement of both accounts.

Only hashes of codes are stored. Offers survive a restart; every step is idempotent.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from agent.base.transcript_lines import format_time, parse_time
from agent.memory.account_links.account_linker import LINK, UNLINK
from gateway.events import PlatformAccount, SessionKey
from gateway.ports.access import LinkedAccount
from gateway.ports.journal import Job

if TYPE_CHECKING:
    from gateway.store.account_links import SqlAccountLinks


VALIDITY = timedelta(minutes=10)
MAX_ATTEMPTS = 5
LOCKOUT = timedelta(hours=1)
_LETTERS = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"  # without letters that look alike
_LENGTH = 8
_OFFER, _TRY = "offer:", "try:"
_SALT = b"parlour link"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkParty:
    """One side of an offer: an account, its display name, and the chat for its approval question."""

    account: PlatformAccount
    label: str
    key: SessionKey


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOffer:
    """An offer; `taker` is set once another account has entered the code."""

    name: str
    asker: LinkParty
    until: datetime
    taker: LinkParty | None = None
    agreed: tuple[PlatformAccount, ...] = ()

    def other(self, account: PlatformAccount) -> LinkParty | None:
        """Return the other side."""
        return self.taker if account == self.asker.account else self.asker

    @property
    def is_agreed(self) -> bool:
        """True if both sides have agreed."""
        return self.taker is not None and {self.asker.account, self.taker.account} == set(self.agreed)


@dataclass(frozen=True, slots=True)
class LinkLocked:
    """Too many wrong codes; further codes are refused for some minutes."""

    minutes: int


class LinkRefusal(Enum):
    """Why a code is not redeemed."""

    UNKNOWN = auto()  # no valid offer has it
    SAME_PERSON = auto()  # both accounts are one person already


class AccountLinkService:
    """Services of `/link` and `/unlink`."""

    def __init__(
        self, links: SqlAccountLinks, *, together: Sequence[PlatformAccount] = (), now: Callable[[], datetime]
    ) -> None:
        """*together* are the accounts that are always one person and leave another person only together."""
        self._links = links
        self._together = together
        self._now = now
        self._lock = asyncio.Lock()  # around reading, changing and writing an offer

    def person(self, account: PlatformAccount) -> str:
        """Return the person that an account belongs to."""
        return self._links.person(account)

    def accounts(self, person: str) -> tuple[LinkedAccount, ...]:
        """Return the accounts of a person with several, the one that is the person's id first."""
        return self._links.accounts(person)

    def separable(self, person: str) -> Sequence[PlatformAccount]:
        """Return the accounts that `/unlink` can separate from *person*: of several that leave together, the first."""
        names = {each.name for each in self._together}
        found = [each.account for each in self._links.accounts(person) if each.account.name != person]
        fixed = [each for each in found if each.name in names]
        passed_over = fixed if person in names else fixed[1:]
        return [each for each in found if each not in passed_over]

    async def offer(self, asker: LinkParty) -> str:
        """Create an offer and return its code; an earlier code of the same account expires."""
        code = "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))
        name = await _name_of(code)
        async with self._lock:
            for each in await self._offers():
                if each.asker.account == asker.account and each.taker is None:
                    await self._drop(each)
            await self._put(LinkOffer(name=name, asker=asker, until=self._now() + VALIDITY))
        return code

    async def redeem(self, code: str, taker: LinkParty) -> LinkOffer | LinkLocked | LinkRefusal:
        """Enter a code for *taker*; return its offer, or the reason for refusing it."""
        name = await _name_of(code)
        async with self._lock:
            minutes = await self._lockout_minutes(taker.account)
            if minutes:
                return LinkLocked(minutes)
            offer = next((each for each in await self._offers() if each.name == name), None)
            if offer is None or (offer.taker is not None and offer.taker.account != taker.account):
                await self._note_wrong(taker.account)
                return LinkRefusal.UNKNOWN
            persons = {self._links.person(each.account) for each in (taker, offer.asker)}
            if len(persons) == 1:
                return LinkRefusal.SAME_PERSON
            if offer.taker is None:
                offer = replace(offer, taker=taker, until=self._now() + VALIDITY)
                await self._put(offer)
            return offer

    async def revoke(self, code: str) -> bool:
        """Delete the offer of a code that others have seen; return False for an unknown code."""
        name = await _name_of(code)
        async with self._lock:
            offers = [each for each in await self._offers() if each.name == name]
            for each in offers:
                await self._drop(each)
            return bool(offers)

    async def agree(self, account: PlatformAccount) -> LinkOffer | None:
        """Record the agreement of *account*; return its open offer, or None."""
        async with self._lock:
            offer = await self._open_offer(account)
            if offer is None or account in offer.agreed:
                return offer
            offer = replace(offer, agreed=(*offer.agreed, account))
            await self._put(offer)
            return offer

    async def refuse(self, account: PlatformAccount) -> LinkOffer | None:
        """Delete and return the open offer of *account*, or None."""
        async with self._lock:
            offer = await self._open_offer(account)
            if offer is not None and not offer.is_agreed:
                await self._drop(offer)
                return offer
            return None

    def link_job(self, offer: LinkOffer) -> Job:
        """Return the job that links the two accounts; an offer always gives the same job."""
        assert offer.taker is not None  # noqa: S101 - both agreed
        accounts = [offer.asker.account.name, offer.taker.account.name]
        return Job(id=f"link:{offer.name}", kind=LINK, scope="", payload={"accounts": accounts}, due_at=self._now())

    async def unlink_job(self, account: PlatformAccount, turn: str) -> Job:
        """Return the job that unlinks *account* and those that leave with it; offers that they took are deleted."""
        leaving = self._together if account in self._together else (account,)
        async with self._lock:
            for each in await self._offers():
                if set(leaving) & set(each.agreed):
                    await self._drop(each)
        companions = [each.name for each in leaving if each != account]
        payload = {"account": account.name, "companions": companions}
        return Job(id=f"unlink:{turn}", kind=UNLINK, scope="", payload=payload, due_at=self._now())

    # -- private; the caller holds the lock --------------------------------------------------------

    async def _open_offer(self, account: PlatformAccount) -> LinkOffer | None:
        """Return the newest offer with a taker that *account* is a side of."""
        offers = [
            each
            for each in await self._offers()
            if each.taker is not None and account in (each.asker.account, each.taker.account)
        ]
        return max(offers, key=lambda each: each.until, default=None)

    async def _offers(self) -> list[LinkOffer]:
        """Return the valid offers; delete expired ones."""
        offers = []
        for name, value in (await self._links.notes()).items():
            if name.startswith(_OFFER):
                offer = _from_json(name, json.loads(value))
                if offer.until > self._now():
                    offers.append(offer)
                else:
                    await self._links.note(name, "", was=value)
        return offers

    async def _put(self, offer: LinkOffer) -> None:
        before = (await self._links.notes()).get(offer.name, "")
        await self._links.note(offer.name, json.dumps(_to_json(offer)), was=before)

    async def _drop(self, offer: LinkOffer) -> None:
        before = (await self._links.notes()).get(offer.name, "")
        await self._links.note(offer.name, "", was=before)

    async def _lockout_minutes(self, account: PlatformAccount) -> int:
        """Return the minutes until *account* may enter a code again, 0 if it may now."""
        _, count, until = await self._attempts(account)
        left = until - self._now()
        return int(left.total_seconds() // 60) + 1 if count >= MAX_ATTEMPTS and left > timedelta(0) else 0

    async def _note_wrong(self, account: PlatformAccount) -> None:
        value, count, until = await self._attempts(account)
        count = count + 1 if until > self._now() else 1
        attempts = {"count": count, "until": format_time(self._now() + LOCKOUT)}
        await self._links.note(f"{_TRY}{account.name}", json.dumps(attempts), was=value)

    async def _attempts(self, account: PlatformAccount) -> tuple[str, int, datetime]:
        """Return the stored note, the number of wrong codes, and the end of the lockout."""
        value = (await self._links.notes()).get(f"{_TRY}{account.name}", "")
        attempts = json.loads(value) if value else {}
        return value, int(attempts.get("count", 0)), parse_time(attempts.get("until")) or self._now()


async def _name_of(code: str) -> str:
    """Return the name of an offer's note: a slow hash of its code, so that a stolen journal reveals no code."""
    plain = "".join(code.upper().split()).encode("utf-8", "replace")
    digest = await asyncio.to_thread(hashlib.scrypt, plain, salt=_SALT, n=2**12, r=8, p=1, dklen=20)
    return f"{_OFFER}{digest.hex()}"


def _to_json(offer: LinkOffer) -> dict[str, Any]:
    def side(party: LinkParty) -> dict[str, str]:
        return {"identity": party.account.name, "label": party.label, "key": str(party.key)}

    return {
        "asker": side(offer.asker),
        "taker": side(offer.taker) if offer.taker else None,
        "until": format_time(offer.until),
        "agreed": [each.name for each in offer.agreed],
    }


def _from_json(name: str, fields: Mapping[str, Any]) -> LinkOffer:
    def side(party: Mapping[str, str]) -> LinkParty:
        account = PlatformAccount.from_name(party["identity"])
        return LinkParty(account=account, label=party["label"], key=SessionKey.parse(party["key"]))

    until = parse_time(fields["until"])
    assert until is not None  # noqa: S101 - we wrote it
    return LinkOffer(
        name=name,
        asker=side(fields["asker"]),
        taker=side(fields["taker"]) if fields["taker"] else None,
        until=until,
        agreed=tuple(map(PlatformAccount.from_name, fields["agreed"])),
    )
