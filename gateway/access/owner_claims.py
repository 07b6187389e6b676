"""Owner claims: a code that the operator prints before the bot has an owner, good once and for 15 minutes.

The user who sends it in a direct chat becomes the owner. The code is checked before admission and never stored, so
that no row, transcript or model sees it. A wrong code is answered like any other message of its sender. In a shared
chat the code is revoked, because every member can read it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import structlog

from gateway.access.access_roster import AccessRoster, entry_change
from gateway.access.note_store import (
    CLAIM_TRIES,
    NoteStore,
    encode_note,
    format_code,
    format_time,
    hash_code,
    hashes_match,
    new_code,
    new_salt,
    parse_code,
    parse_time,
)
from gateway.access.pairing_service import Language
from gateway.admission import Admitted, Decision, RejectionReason
from gateway.events import ChatKind, InboundKind, InboundMessage, OutboundKind, OutboundMessage, turn_id
from gateway.i18n import translate
from gateway.ports.access import CODE, AccessChange, AccessStatus, DecisionActor
from gateway.ports.channel import IntakeResult, IntakeVerdict

log = structlog.get_logger(__name__)

GOOD_FOR = timedelta(minutes=15)
TRIES = 5  # wrong ones of one sender
LOCKED_FOR = timedelta(hours=1)
# Wrong ones of all senders; then the code is good no more. As many hit one of 40 bits with a chance of 1 in 10^8, and
# nobody sends them by accident: fewer would let anybody with some accounts end the operator's code.
MOST_WRONG = 10_000

_CODE = "claim"
_UNHEARD = frozenset({RejectionReason.SELF, RejectionReason.BOT, RejectionReason.NOBODY, RejectionReason.BLOCKED})


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedClaimCode:
    """A code as it is shown to the operator, once."""

    code: str
    until: datetime


class OwnerClaims:
    """Gives codes out and takes them; a pre-admission handler of the intake."""

    def __init__(self, roster: AccessRoster, *, now: Callable[[], datetime], language: Language) -> None:
        self._roster = roster
        self._access = roster.access
        self._notes = NoteStore(roster.access)
        self._now = now
        self._language = language
        self.wrong: Counter[str] = Counter()  # wrong codes since the start, by channel
        self._lock = asyncio.Lock()  # a code is read, judged and written back by one at a time

    async def issue(self) -> IssuedClaimCode | None:
        """Return a new code, an earlier one is good no more; None while there is an owner."""
        code, salt, until = new_code(), new_salt(), self._now() + GOOD_FOR
        digest = await hash_code(code, salt)
        async with self._lock:
            if self._roster.has_owner():
                return None
            claim = {"hash": digest, "salt": salt, "until": format_time(until), "wrong": 0, "spent": False}
            gone = self._notes.outdated(self._now())
            await self._access.change(AccessChange(notes={**gone, _CODE: json.dumps(claim)}))
        log.info("owner.code_issued", until=format_time(until))
        return IssuedClaimCode(code=format_code(code), until=until)

    async def intercept(self, message: InboundMessage, decision: Decision) -> IntakeResult | None:
        """Make the sender of a valid code the owner, and keep the message from admission."""
        code = self._code_of(message, decision)
        if not code:
            return None
        async with self._lock:
            claim = self._valid_claim()
            if claim is None:
                return None
            if message.chat_kind is not ChatKind.DIRECT:
                return await self._revoke_public(code, message, claim)
            is_locked = self._tries(message) >= TRIES
            if is_locked and not isinstance(decision, Admitted):
                return None
            if not hashes_match(await hash_code(code, claim["salt"]), claim["hash"]):
                await self._note_wrong(message, claim)
                return None
            if not (is_locked or claim["spent"]):
                await self._take(message, claim)
        # Also for a second use and for too many tries: no row is stored and no reply is sent.
        return IntakeResult(verdict=IntakeVerdict.REJECTED, reason="code")

    # -- inside ----------------------------------------------------------------------------------------

    def _code_of(self, message: InboundMessage, decision: Decision) -> str:
        """Return the code that the whole of a message is; "" costs nothing, which is nearly always."""
        if _CODE not in self._access.notes():
            return ""
        is_said = message.kind in (InboundKind.MESSAGE, InboundKind.COMMAND) and not message.is_forwarded
        if not is_said or message.attachments or message.mentioned:  # a name may look like a code
            return ""
        if not isinstance(decision, Admitted) and decision.reason in _UNHEARD:
            return ""
        return parse_code(message.text)

    def _valid_claim(self) -> dict[str, Any] | None:
        """Return the stored claim of a code that has not expired."""
        value = self._access.notes().get(_CODE)
        claim: dict[str, Any] = json.loads(value) if value else {}
        is_good = bool(claim) and self._now() < parse_time(claim["until"]) and claim["wrong"] < MOST_WRONG
        return claim if is_good else None

    async def _revoke_public(self, code: str, message: InboundMessage, claim: Mapping[str, Any]) -> IntakeResult | None:
        """Revoke a code sent to a shared chat. Other text there is ignored and counts as no wrong try."""
        if not hashes_match(await hash_code(code, claim["salt"]), claim["hash"]):
            return None
        if not claim["spent"]:
            told = replace(
                self._notice(message, "people.owner_code_seen"),
                chat_kind=message.chat_kind,
                visible_to=message.sender.id,
                reply_to=message.message_id,
            )
            await self._access.change(
                AccessChange(notes={_CODE: json.dumps({**claim, "spent": True})}, notices=(told,))
            )
            log.warning("owner.code_seen", channel=message.key.channel, sender=message.sender.id)
        return IntakeResult(verdict=IntakeVerdict.REJECTED, reason="code")

    async def _take(self, message: InboundMessage, claim: Mapping[str, Any]) -> None:
        channel, user = message.key.channel, message.sender.id
        if self._roster.policies[channel].is_here(user):
            await self._access.change(AccessChange(notices=(self._notice(message, "people.owner_here"),)))
            return
        if self._roster.has_owner():  # the settings named one since
            return
        decider = DecisionActor(by=CODE, where=str(message.key), id=_id(message))
        done = await self._access.change(
            entry_change(
                AccessStatus.OWNER,
                message.sender.name,
                decider.to_entry("owner claim", f"{channel}:{user}", self._now()),
                spends=(_CODE, self._access.notes()[_CODE]),
                notes={_CODE: json.dumps({**claim, "spent": True})},
                notices=(self._notice(message, "people.owner_now"),),
            )
        )
        log.info("owner.claimed", channel=channel, user=user, is_done=done)

    def _notice(self, message: InboundMessage, name: str) -> OutboundMessage:
        text = translate(name, self._language(message.key))
        return OutboundMessage(id=f"{_id(message)}.1", key=message.key, text=text, kind=OutboundKind.NOTICE)

    def _tries(self, message: InboundMessage) -> int:
        """Return the number of recent wrong tries of the sender."""
        note = self._notes.one(_tries_note(message))
        return int(note["count"]) if note is not None and parse_time(note["until"]) > self._now() else 0

    async def _note_wrong(self, message: InboundMessage, claim: Mapping[str, Any]) -> None:
        if claim["spent"]:
            return
        count = {"count": self._tries(message) + 1, "until": format_time(self._now() + LOCKED_FOR)}
        wrong = claim["wrong"] + 1
        notes = {_tries_note(message): encode_note(count), _CODE: json.dumps({**claim, "wrong": wrong})}
        await self._access.change(AccessChange(notes=notes))
        self.wrong[message.key.channel] += 1
        log.warning(
            "owner.wrong_code", channel=message.key.channel, sender=message.sender.id, is_over=wrong >= MOST_WRONG
        )


def _tries_note(message: InboundMessage) -> str:
    return f"{CLAIM_TRIES}{message.key.channel}:{message.sender.id}"


def _id(message: InboundMessage) -> str:
    """Return an id of what is done about *message* beside any turn."""
    return f"d{turn_id(message)[1:]}"
