"""Quotas of single people: usage caps that an owner set for one person, stored as notes beside the roster."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from gateway.access.note_store import QUOTA, encode_note
from gateway.events import PlatformAccount
from gateway.ports.access import NO_QUOTA, AccessStore, PersonQuota

T = TypeVar("T", int, float)


class PersonQuotas:
    """Quotas by person, served from memory; `gateway.access.access_control` changes them.

    Each is a note under the account that it was set for, without its team. All gateways of a database read the notes
    again when one of them changes a note (ADR 86).
    """

    def __init__(self, access: AccessStore) -> None:
        self._access = access

    def of(self, accounts: Iterable[PlatformAccount]) -> PersonQuota:
        """Return the quota of the person with *accounts*. Of several, set before a link, the strictest caps apply."""
        notes = self._access.notes()
        names = dict.fromkeys(_note_of(each) for each in accounts)
        found = [_parse(notes[name])[1] for name in names if name in notes]
        if not found:
            return NO_QUOTA
        return PersonQuota(
            turns=_strictest(q.turns for q in found),
            tokens=_strictest(q.tokens for q in found),
            usd=_strictest(q.usd for q in found),
        )

    def by_name(self) -> Mapping[str, PersonQuota]:
        """Return all quotas by the "channel:user_id" that they were set for."""
        notes = self._access.notes().items()
        return dict(sorted(_parse(text) for name, text in notes if name.startswith(QUOTA)))

    @staticmethod
    def notes_that_set(quota: PersonQuota, whom: str, accounts: Sequence[PlatformAccount]) -> Mapping[str, str]:
        """Return the notes to write for a person, the named account first; an empty *quota* removes all of them."""
        notes = {_note_of(each): "" for each in accounts}
        if quota:
            note = {"whom": whom, "turns": quota.turns, "tokens": quota.tokens, "usd": quota.usd}
            notes[_note_of(accounts[0])] = encode_note(note)
        return notes


def _note_of(account: PlatformAccount) -> str:
    return f"{QUOTA}{account.user}"


def _parse(text: str) -> tuple[str, PersonQuota]:
    note = json.loads(text)
    return note["whom"], PersonQuota(turns=note["turns"], tokens=note["tokens"], usd=note.get("usd"))


def _strictest(limits: Iterable[T | None]) -> T | None:
    given = [each for each in limits if each is not None]
    return min(given, key=lambda limit: limit or float("inf"), default=None)
