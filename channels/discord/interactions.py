"""Native commands and presses that wait for their answer: Discord holds a place for it, for fifteen minutes.

The token of that place is noted durably once the command's row is, so that a restart in between answers there too.
Editing the place is repeatable; what is for everybody is an ordinary message, which has its send key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog

from channels.discord import codec
from channels.discord.api import DiscordApi
from gateway.errors import OutcomeUnknown, SendFailed, SendRefused
from gateway.events import ChatKind, InboundKind, InboundMessage, MessagePart, turn_id
from gateway.ports import ChannelState

log = structlog.get_logger(__name__)

_LASTS = timedelta(minutes=14, seconds=45)  # of the fifteen minutes that Discord gives
_NOTE = "interactions"
_FIRST = ".1"


@dataclass(frozen=True, slots=True)
class PendingResponse:
    """Where "is thinking" stands, until it is replaced; or the message whose button was *pressed*."""

    id: str
    token: str
    is_shared: bool  # in a shared chat: then only the sender sees it
    is_press: bool = False
    rows: str = "[]"  # of a press: the buttons that stay when it is settled, as JSON


class DiscordInteractions:
    """The places that are held for the turns of one block."""

    def __init__(self, name: str, state: ChannelState, rest: DiscordApi, now: Callable[[], datetime]) -> None:
        self._name = name
        self._state = state
        self._rest = rest
        self._now = now
        self._places: dict[str, PendingResponse] = {}  # turn -> place

    async def open(self) -> None:
        """Read what an earlier run noted."""
        noted = json.loads(await self._state.load(_NOTE) or "{}")
        self._places = {turn: PendingResponse(**place) for turn, place in noted.items()}

    async def take(self, payload: Mapping[str, Any], message: InboundMessage) -> None:
        """Have Discord hold a place for the answer to *message*, whose row is committed; raises StoreUnavailable."""
        is_press = message.kind is InboundKind.BUTTON
        self._places[turn_id(message)] = place = PendingResponse(
            str(int(payload["id"])),
            str(payload["token"]),
            message.chat_kind is not ChatKind.DIRECT,
            is_press,
            json.dumps(codec.remaining_rows(payload)) if is_press else "[]",
        )
        await self._save()
        try:
            await self._rest.respond(place.id, place.token, codec.initial_response(message))
        except SendRefused as error:
            # Too late, or told before: an event that came twice must not take the place from the first.
            log.info("discord.interaction_not_held", channel=self._name, reason=str(error))
        except SendFailed as error:
            log.info("discord.interaction_unsure", channel=self._name, reason=str(error))

    async def tell(self, payload: Mapping[str, Any], line: str) -> None:
        """Show *line* to the sender alone, at once."""
        await self._rest.respond(str(int(payload["id"])), str(payload["token"]), codec.final_response(line))

    async def put(self, part: MessagePart, text: str) -> str:
        """Put a part where its command waits for it; "" when none does, or no more. Raises SendFailed."""
        place = self._held(part)
        if place is None or not _takes(place, part):
            return ""
        try:
            if part.id.endswith(_FIRST) and not place.is_press:
                return await self._rest.edit_original(place.token, text, codec.render_buttons(part.choices))
            return await self._rest.follow_up(place.token, text) if place.is_shared else ""
        except SendRefused as error:
            log.info("discord.interaction_ended", channel=self._name, reason=str(error))
            await self._drop(part.turn)
            return ""

    async def clear(self, part: MessagePart) -> None:
        """Take away what the answer ends: "is thinking", where everybody is answered, or buttons. Raises SendFailed."""
        place = self._held(part)
        if place is not None and place.is_press:
            await self._drop(part.turn)
            if part.settles:
                await self._rest.redraw_original(place.token, json.loads(place.rows))
        elif place is not None and place.is_shared and not part.visible_to:
            await self._drop(part.turn)
            await self._rest.delete_original(place.token)

    def is_here(self, part: MessagePart) -> bool:
        """Say whether *part* belongs into a place that is held; raise OutcomeUnknown where a repeat could double it."""
        place = self._held(part)
        if place is None or not _takes(place, part):
            return False
        if place.is_press or not part.id.endswith(_FIRST):
            raise OutcomeUnknown("a follow-up cannot be asked for")
        return True

    def _held(self, part: MessagePart) -> PendingResponse | None:
        place = self._places.get(part.turn)
        is_good = place is not None and self._now() - codec.moment_of(place.id) < _LASTS
        return place if is_good else None

    async def _drop(self, turn: str) -> None:
        if self._places.pop(turn, None) is not None:
            await self._save()

    async def _save(self) -> None:
        now = self._now()
        self._places = {turn: place for turn, place in self._places.items() if now - codec.moment_of(place.id) < _LASTS}
        kept = {turn: asdict(place) for turn, place in self._places.items()}
        await self._state.save(_NOTE, json.dumps(kept) if kept else None)


def _takes(place: PendingResponse, part: MessagePart) -> bool:
    """Say whether *part* belongs into *place*: not what everybody sees; of a press, only what one person alone does."""
    return bool(part.visible_to) if place.is_shared else not place.is_press
