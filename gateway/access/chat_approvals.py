"""Places that we were added to: an owner is asked once whether we may answer there; until then we say nothing there.

A place that an entry lets in, or whose workspace one does, needs no question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from datetime import datetime
from typing import Any

import structlog

from gateway.access.note_store import DAY, PLACE, NoteStore, derive_notice_id, encode_note, format_time, parse_time
from gateway.access.pairing_service import FindOwner, Language, person_label, question
from gateway.admission import (
    AdmissionGrant,
    AdmissionPolicy,
    Admitted,
    AllowEntry,
    Decision,
    GroupPolicy,
    RejectionReason,
)
from gateway.events import ChatKind, InboundMessage, OutboundMessage
from gateway.i18n import translate
from gateway.ports.access import AccessChange
from gateway.ports.channel import MembershipChange, in_english
from gateway.text.text_units import safe_display_name

log = structlog.get_logger(__name__)

MOST_ASKED = 3  # per day and channel: any user can add the bot to a hundred groups
MOST_KEPT = 200  # undecided chats of one channel


@dataclass(slots=True, eq=False)
class ChatApprovals:
    """Takes note of where we are, and asks about it.

    *policies* are the channels' policies from the settings; *owner* finds the address of a channel's owner.

    *group_policy_of* returns the group policy of one chat, if it has its own.
    """

    notes: NoteStore
    policies: Mapping[str, AdmissionPolicy]
    _: KW_ONLY
    owner: FindOwner
    now: Callable[[], datetime]
    language: Language = in_english
    group_policy_of: Callable[[MembershipChange], str | None] = lambda _: None

    async def handle_membership(self, place: MembershipChange) -> None:
        """Ask an owner about a place that is new and not let in; forget one we have left. Raises StoreUnavailable."""
        note = f"{PLACE}{place.channel}:{place.entry}"
        async with self.notes.lock:
            value = self.notes.one(note)
            if place.is_gone:
                await self._leave(note, value)
            elif not self._is_open(place):
                await self._enter(note, value, place)

    def question_text(self, message: InboundMessage, decision: Decision) -> Decision:
        """Return *decision*, with the better reason where a stranger was refused because their place waits."""
        if isinstance(decision, Admitted) or decision.reason is not RejectionReason.STRANGER:
            return decision
        if message.chat_kind is not ChatKind.GROUP:
            return decision
        channel = message.key.channel
        entries = [f"chat:{message.key.parent.chat}", *([f"guild:{message.guild}"] if message.guild else [])]
        waiting = next((each for each in entries if self._waits(f"{PLACE}{channel}:{each}")), "")
        return replace(decision, reason=RejectionReason.PLACE_PENDING) if waiting else decision

    def _waits(self, note: str) -> bool:
        value = self.notes.one(note)
        return value is not None and not value.get("no") and not value["gone"]

    def _is_open(self, place: MembershipChange) -> bool:
        """Return True if no approval is needed: its members are admitted, or the group policy is off."""
        policy = self.policies.get(place.channel)
        if policy is None or policy.is_local:
            return True
        if GroupPolicy(self.group_policy_of(place) or policy.group_policy) is GroupPolicy.OFF:
            return True
        grants = {str(AllowEntry(AdmissionGrant.EVERYONE)), place.entry}
        grants |= {f"guild:{place.guild}"} if place.guild else set()
        grants |= {f"team:{place.team}"} if place.team else set()
        members = self.notes.access.members()
        is_decided = any((place.channel, who) in members for who in grants)
        return is_decided or not grants.isdisjoint(map(str, policy.entries))

    async def _leave(self, note: str, value: Mapping[str, Any] | None) -> None:
        if value is None:
            return
        # Kept for the rest of the day, so that removing and adding the bot does not ask again.
        is_fresh = self._asked_lately(value)
        await self.notes.write({note: encode_note({**value, "gone": True}) if is_fresh else ""})

    async def _enter(self, note: str, value: Mapping[str, Any] | None, place: MembershipChange) -> None:
        if value is not None and not value["gone"]:
            return  # the platform says it once more
        if value is not None and self._asked_lately(value):
            await self.notes.write({note: encode_note({**value, "gone": False})})
            return
        now = self.now()
        told = await self._question(note, place, now)
        by = place.by
        new = {
            "channel": place.channel,
            "who": place.entry,
            "name": safe_display_name(place.title),
            "by": by.id if by else "",
            "by_name": safe_display_name(by.name) if by else "",
            "at": format_time(now),
            "asked": format_time(now) if told else "",
            "gone": False,
        }
        await self.notes.access.change(
            AccessChange(notes={**self._too_many(place.channel), note: encode_note(new)}, notices=told)
        )
        log.info("places.waits", channel=place.channel, place=place.entry, asked=bool(told))

    def _asked_lately(self, value: Mapping[str, Any]) -> bool:
        return bool(value["asked"]) and self.now() - parse_time(value["asked"]) < DAY

    def _too_many(self, channel: str) -> dict[str, str]:
        of_block = sorted((value["at"], name) for name, value in self.notes.of(f"{PLACE}{channel}:"))
        return {name: "" for _, name in of_block[: max(0, len(of_block) - MOST_KEPT + 1)]}

    async def _question(self, note: str, place: MembershipChange, now: datetime) -> tuple[OutboundMessage, ...]:
        asked = sum(self._asked_lately(value) for _, value in self.notes.of(f"{PLACE}{place.channel}:"))
        at = await self.owner(place.channel) if asked < MOST_ASKED else None
        if at is None:
            return ()
        language, by = self.language(at.key), place.by
        where = person_label(place.entry, safe_display_name(place.title), language)
        if by is not None:
            who = person_label(by.id, safe_display_name(by.name), language)
            text = translate("unknown_senders.ask_place_by", language, who=who, place=where, channel=place.channel)
        else:
            text = translate("unknown_senders.ask_place", language, place=where, channel=place.channel)
        return (question(at, note, derive_notice_id(note, format_time(now)), text, language),)
