"""Pairing requests and owner codes, and the decisions about them: one transaction each, with an audit entry.

Codes are stored hashed. Requests survive a restart, and decisions repeated after a crash are idempotent.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import structlog

from gateway.access.access_control import AccessRoster, entry_change
from gateway.admission import Admitted, Decision, RejectionReason
from gateway.chat_locales import ChatLocales
from gateway.events import (
    ChatKind,
    InboundKind,
    InboundMessage,
    MessageButton,
    OutboundKind,
    OutboundMessage,
    SessionKey,
    turn_id,
)
from gateway.i18n import translate
from gateway.ports.access import (
    CODE,
    AccessChange,
    AccessStatus,
    DecisionActor,
    PairingDecision,
    PairingRefused,
    PairingRequest,
)
from gateway.ports.channel import IntakeResult, IntakeVerdict
from gateway.ports.journal import AuditEntry
from gateway.store.access import (
    CLAIM_TRIES,
    PERSON,
    PLACE,
    TOLD,
    TOLD_HERE,
    TRIES,
    NoteStore,
    derive_notice_id,
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

log = structlog.get_logger(__name__)

GOOD_FOR = timedelta(hours=1)
MOST_WAITING = 3  # people of one channel block
MOST_TRIES = 5  # wrong codes of one sender
LOCKED_FOR = timedelta(hours=1)
YES, NO = "pair yes", "pair no"  # in the audit

_SALT = b"parlour pair".hex()
_REF = 12  # characters
_LOOKED_BACK = 50  # audit lines among which an earlier attempt of a turn is looked for


async def note_of(code: str) -> str:
    """Return the name of the note for *code*: a slow hash, so that a stolen journal reveals no code."""
    return f"{PERSON}{await hash_code(code, _SALT)}"


def ref_of(note: str) -> str:
    """Return the reference of a note in a button."""
    return hashlib.sha256(note.encode("utf-8", "surrogatepass")).hexdigest()[:_REF]


@dataclass(frozen=True, slots=True)
class OwnerAddress:
    """Address of an owner: a direct chat, or any address where *visible_to* alone can read."""

    key: SessionKey
    visible_to: str = ""

    def is_in(self, chats: Collection[SessionKey]) -> bool:
        """Return True if this is one of *chats* itself, where the owner reads everything."""
        return not self.visible_to and self.key in chats


# Returns the address of an owner who decides about a channel; None if no owner has a chat.
FindOwner: TypeAlias = Callable[[str], Awaitable[OwnerAddress | None]]


def question(at: OwnerAddress, note: str, ident_: str, text: str, language: str) -> OutboundMessage:
    """Return the message that asks an owner about *note*; two of one *ident_* are one."""
    return OutboundMessage(
        id=f"{ident_}.1",
        key=at.key,
        text=text,
        kind=OutboundKind.NOTICE,
        visible_to=at.visible_to,
        choices=confirm_buttons(ref_of(note), language),
    )


def confirm_buttons(ref: str, language: str) -> tuple[MessageButton, ...]:
    """Return the buttons below a question."""
    return (
        MessageButton(label=translate("unknown_senders.yes", language), command=f"/pair yes {ref}"),
        MessageButton(label=translate("unknown_senders.no", language), command=f"/pair no {ref}"),
    )


def person_label(who: str, name: str, language: str) -> str:
    """Return an account as owners see it: as inline code, which no platform turns into a link or call."""
    key = "unknown_senders.person" if name else "unknown_senders.person_unnamed"
    return translate(key, language, id=who, name=name)


@dataclass(frozen=True, slots=True)
class _PendingRequest:
    note: str
    text: str
    request: PairingRequest

    @property
    def names(self) -> tuple[str, str]:
        """How a decision names it, besides its code."""
        return (self.request.ref, f"{self.request.channel}:{self.request.who}")


@dataclass(slots=True, eq=False)
class PairingService:
    """The pending requests, over the roster's notes."""

    roster: AccessRoster
    notes: NoteStore
    _: KW_ONLY
    now: Callable[[], datetime]
    locales: ChatLocales

    def pending_requests(self) -> Sequence[PairingRequest]:
        """Return the pending accounts and chats, the longest waiting first."""
        return [each.request for each in self._find_pending()]

    async def decide(self, request: str, decider: DecisionActor, *, is_yes: bool) -> PairingDecision:
        """Decide about the request with this code or `ref`, or of this "channel:who". Raises PairingRefused.

        Repeated wrong codes lock the decider out. Another attempt of the same turn returns the decision of the first.
        """
        code = parse_code(request)
        note = await note_of(code) if code else ""
        async with self.notes.lock:
            minutes, tries = self._tries(decider) if code else (0, 0)
            if minutes:
                raise PairingRefused(
                    f"too many wrong codes: codes are not accepted for {minutes} minutes; use channel:id instead"
                    " (`parlour people pending` lists the requests)",
                    minutes,
                )
            pending = next((each for each in self._find_pending() if request in each.names or note == each.note), None)
            if pending is not None:
                return await self._decide(pending, decider, is_yes=is_yes)
            if earlier := await self._earlier(decider):
                return earlier
            if code:
                count = {"count": tries + 1, "until": format_time(self.now() + LOCKED_FOR)}
                await self.notes.write({f"{TRIES}{decider.by}": encode_note(count)})
        raise _not_pending(request)

    async def forget(self, users: Collection[tuple[str, str]]) -> None:
        """Delete the requests of these (channel, user id) and the record of replies to them."""
        async with self.notes.lock:
            gone = {f"{prefix}{channel}:{user}" for prefix in (TOLD, TOLD_HERE) for channel, user in users}
            gone |= {name for name, value in self.notes.of(PERSON) if (value["channel"], value["who"]) in users}
            known = [name for name in gone if self.notes.text(name)]
            if known:
                await self.notes.write(dict.fromkeys(known, ""))

    # -- under the lock ------------------------------------------------------------------------

    def _find_pending(self) -> list[_PendingRequest]:
        members, now = self.notes.access.members(), self.now()
        pending = []
        for prefix in (PERSON, PLACE):
            for note, value in self.notes.of(prefix):
                request = _request(note, value)
                is_good = request.until is None or request.until > now
                # Accounts decided in another way are no longer pending.
                is_open = not value.get("no") and not value.get("gone")
                who = (request.channel, request.who)
                if (
                    is_good
                    and is_open
                    and who not in members
                    and (request.is_place or not self.roster.is_blocked(*who))
                ):
                    pending.append(_PendingRequest(note, self.notes.text(note), request))
        return sorted(pending, key=lambda each: (each.request.at, each.note))

    def _tries(self, decider: DecisionActor) -> tuple[int, int]:
        """Return for how many minutes *decider* may not try, and how often they tried in vain."""
        value = self.notes.one(f"{TRIES}{decider.by}")
        left = parse_time(value["until"]) - self.now() if value else timedelta(0)
        if value is None or left <= timedelta(0):
            return 0, 0
        tries = int(value["count"])
        return (math.ceil(left / timedelta(minutes=1)) if tries >= MOST_TRIES else 0), tries

    async def _earlier(self, decider: DecisionActor) -> PairingDecision | None:
        """Return the decision of an earlier attempt of the same turn, after a crash before its answer."""
        for line in await self.notes.access.audit(about=decider.by, limit=_LOOKED_BACK):
            if line.id == decider.id and line.what in (YES, NO):
                return PairingDecision(_remembered(line), line.what == YES)
        return None

    async def _decide(self, pending: _PendingRequest, decider: DecisionActor, *, is_yes: bool) -> PairingDecision:
        request = pending.request
        line = decider.to_entry(YES if is_yes else NO, f"{request.channel}:{request.who}", self.now())
        change = self._let_in(pending, line) if is_yes else self._keep_out(pending, line)
        if not await self.notes.access.change(change):
            if earlier := await self._earlier(decider):
                return earlier
            raise _not_pending(pending.request.ref)
        log.info("pairing.decided", channel=request.channel, who=request.who, by=decider.by, yes=is_yes)
        return PairingDecision(request, is_yes)

    def _let_in(self, pending: _PendingRequest, line: AuditEntry) -> AccessChange:
        request = pending.request
        standing = AccessStatus.ALLOWED if request.is_place else AccessStatus.PAIRED
        told: tuple[OutboundMessage, ...] = ()
        if not request.is_place:
            key = SessionKey.parse((self.notes.one(pending.note) or {})["key"])
            told = (
                OutboundMessage(
                    id=f"{derive_notice_id('welcome', pending.note)}.1",
                    key=key,
                    text=translate("unknown_senders.welcome", self.locales.language(key)),
                    kind=OutboundKind.NOTICE,
                ),
            )
        return entry_change(standing, request.name, line, spends=(pending.note, pending.text), notices=told)

    def _keep_out(self, pending: _PendingRequest, line: AuditEntry) -> AccessChange:
        if not pending.request.is_place:
            return AccessChange(line=line, spends=(pending.note, pending.text))
        value = {**(self.notes.one(pending.note) or {}), "no": True}
        return AccessChange(line=line, notes={pending.note: encode_note(value)})


def _not_pending(request: str) -> PairingRefused:
    if parse_code(request):
        return PairingRefused("no request has that code: it was already decided, expired after an hour, or is mistyped")
    return PairingRefused(f"no request of {request!r} is pending; `parlour people pending` lists all requests")


def _request(note: str, value: Mapping[str, Any]) -> PairingRequest:
    return PairingRequest(
        ref=ref_of(note),
        channel=value["channel"],
        who=value["who"],
        name=value["name"],
        at=parse_time(value["at"]),
        until=parse_time(value["until"]) if "until" in value else None,
        is_place=note.startswith(PLACE),
        by=value.get("by", ""),
        by_name=value.get("by_name", ""),
    )


def _remembered(line: AuditEntry) -> PairingRequest:
    channel, _, who = line.whom.partition(":")
    is_place = who.startswith(("chat:", "guild:"))
    return PairingRequest(ref="", channel=channel, who=who, name="", at=line.at, is_place=is_place)


OWNER_CODE_GOOD_FOR = timedelta(minutes=15)
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
    """Codes that make their senders owners, while there is no owner; a pre-admission handler of the intake.

    The operator prints a code, which is good once and for 15 minutes. It is checked before admission and never stored,
    so that no row, transcript or model sees it. A wrong code is answered like any other message of its sender. In a
    shared chat the code is revoked, because every member can read it.
    """

    def __init__(self, roster: AccessRoster, *, now: Callable[[], datetime], locales: ChatLocales) -> None:
        self._roster = roster
        self._access = roster.access
        self._notes = NoteStore(roster.access)
        self._now = now
        self._locales = locales
        self.wrong: Counter[str] = Counter()  # wrong codes since the start, by channel
        self._lock = asyncio.Lock()  # a code is read, judged and written back by one at a time

    async def issue(self) -> IssuedClaimCode | None:
        """Return a new code, an earlier one is good no more; None while there is an owner."""
        code, salt, until = new_code(), new_salt(), self._now() + OWNER_CODE_GOOD_FOR
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
            is_locked = self._tries(message) >= MOST_TRIES
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
        text = translate(name, self._locales.language(message.key))
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
