"""The caps, built from the settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime

from gateway.access.refusal_log import RefusalLog
from gateway.access.usage_caps import CapLimits, UsageCapTracker
from gateway.admission import Admitted
from gateway.app.channels import Judge
from gateway.events import InboundMessage
from gateway.ports import AccountLinkStore, MetricsRecorder
from gateway.settings import Settings
from gateway.settings.chat_overrides import ChatOverrides


def open_caps(
    settings: Settings,
    chats: ChatOverrides,
    judge: Judge,
    links: AccountLinkStore,
    *,
    meter: MetricsRecorder,
    refusals: RefusalLog,
    now: Callable[[], datetime],
) -> UsageCapTracker:
    """Build what counts: *chats* are the caps of places; *judge* says who is named, and notes nothing."""
    caps = settings.caps

    def limits(message: InboundMessage) -> CapLimits:
        here = chats.of(message.key, message.guild).caps
        # What a chat's cap counts is the chat with all its threads, so a thread has no such cap of its own.
        chat = chats.of(message.key.parent, message.guild).caps
        return CapLimits(
            person_turns=_first(here.person_turns_per_10_min, caps.person_turns_per_10_min),
            person_tokens=_first(here.person_tokens_per_day, caps.person_tokens_per_day),
            chat_turns=_first(chat.chat_turns_per_10_min, caps.chat_turns_per_10_min),
            chat_tokens=_first(chat.chat_tokens_per_day, caps.chat_tokens_per_day),
            house_tokens=caps.tokens_per_day,
        )

    def is_named(message: InboundMessage) -> bool:
        decision = judge(replace(message, is_addressed=True))
        return isinstance(decision, Admitted) and decision.is_named

    def accounts(account: str) -> Sequence[str]:
        return [each.identity for each in links.accounts(links.person(account))] or [account]

    return UsageCapTracker(
        limits=limits,
        is_named=is_named,
        accounts=accounts,
        zone=settings.timezone,
        now=now,
        meter=meter,
        refusals=refusals,
    )


def _first(here: int | None, everywhere: int | None) -> int | None:
    return everywhere if here is None else here
