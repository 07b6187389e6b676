"""Native commands and presses that wait for their response, for which Discord gives fifteen minutes.

The response token is stored once the command is durable, so that a restart responds there too, and so does a worker to
which the command did not come. Editing the response is idempotent. An answer for the whole chat is an ordinary message
with a send key.
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

_LIFETIME = timedelta(minutes=14, seconds=45)  # of fifteen minutes
_PREFIX = "interaction/"  # of one note for each turn
_FIRST = ".1"  # suffix of a turn's first part


@dataclass(frozen=True, slots=True)
class PendingResponse:
    """A response that shows "is thinking" until it is replaced, or the message whose button was pressed."""

    id: str
    token: str
    is_shared: bool  # in a shared chat, where only the sender sees it
    is_press: bool = False
    rows: str = "[]"  # of a press: the buttons that stay once it is settled, as JSON


class DiscordInteractions:
    """The pending responses of one channel, by turn."""

    def __init__(
        self, name: str, state: ChannelState, api: DiscordApi, now: Callable[[], datetime], *, is_shared: bool
    ) -> None:
        """Keep the notes in *state*; if it *is_shared*, other workers add and remove some."""
        self._name = name
        self._is_shared = is_shared
        self._state = state
        self._api = api
        self._now = now
        self._pending: dict[str, PendingResponse] = {}  # by turn

    async def open(self) -> None:
        """Load the pending responses of an earlier run."""
        for note, text in (await self._state.all(_PREFIX)).items():
            self._pending[note.removeprefix(_PREFIX)] = PendingResponse(**json.loads(text))
        self._forget_expired()

    async def defer(self, payload: Mapping[str, Any], message: InboundMessage) -> None:
        """Defer the response to *message*, which is durable; raises StoreUnavailable."""
        is_press = message.kind is InboundKind.BUTTON
        self._forget_expired()
        turn = turn_id(message)
        self._pending[turn] = pending = PendingResponse(
            str(int(payload["id"])),
            str(payload["token"]),
            message.chat_kind is not ChatKind.DIRECT,
            is_press,
            json.dumps(codec.remaining_rows(payload)) if is_press else "[]",
        )
        await self._state.save(_PREFIX + turn, json.dumps(asdict(pending)))
        try:
            await self._api.respond(pending.id, pending.token, codec.initial_response(message))
        except SendRefused as error:
            # Too late, or a repeated event: it must not replace the first response.
            log.info("discord.interaction_not_held", channel=self._name, reason=str(error))
        except SendFailed as error:
            log.info("discord.interaction_unsure", channel=self._name, reason=str(error))

    async def respond_once(self, payload: Mapping[str, Any], line: str) -> None:
        """Respond with *line*, which only the sender sees."""
        await self._api.respond(str(int(payload["id"])), str(payload["token"]), codec.final_response(line))

    async def send(self, part: MessagePart, text: str) -> str:
        """Send a part as the response to its command; return "" if none is pending. Raises SendFailed."""
        pending = await self._pending_of(part)
        if pending is None or not _takes(pending, part):
            return ""
        try:
            if part.id.endswith(_FIRST) and not pending.is_press:
                return await self._api.edit_original(pending.token, text, codec.render_buttons(part.choices))
            return await self._api.follow_up(pending.token, text) if pending.is_shared else ""
        except SendRefused as error:
            log.info("discord.interaction_ended", channel=self._name, reason=str(error))
            await self._drop(part.turn)
            return ""

    async def clear(self, part: MessagePart) -> None:
        """Remove "is thinking" after an answer for the whole chat, or a settled press's buttons. Raises SendFailed."""
        pending = await self._pending_of(part)
        if pending is not None and pending.is_press:
            await self._drop(part.turn)
            if part.settles:
                await self._api.redraw_original(pending.token, json.loads(pending.rows))
        elif pending is not None and pending.is_shared and not part.visible_to:
            await self._drop(part.turn)
            await self._api.delete_original(pending.token)

    async def is_pending(self, part: MessagePart) -> bool:
        """Return True if *part* belongs into a pending response; raise OutcomeUnknown if a retry could double it."""
        pending = await self._pending_of(part)
        if pending is None or not _takes(pending, part):
            return False
        if pending.is_press or not part.id.endswith(_FIRST):
            raise OutcomeUnknown("a follow-up cannot be asked for")
        return True

    async def _pending_of(self, part: MessagePart) -> PendingResponse | None:
        if self._is_shared:
            text = await self._state.load(_PREFIX + part.turn)
            pending = PendingResponse(**json.loads(text)) if text is not None else None
        else:
            pending = self._pending.get(part.turn)
        return pending if pending is not None and self._is_valid(pending) else None

    async def _drop(self, turn: str) -> None:
        if self._pending.pop(turn, None) is not None or self._is_shared:
            await self._state.save(_PREFIX + turn, None)

    def _forget_expired(self) -> None:
        for turn in [turn for turn, pending in self._pending.items() if not self._is_valid(pending)]:
            del self._pending[turn]
            self._state.forget(_PREFIX + turn)

    def _is_valid(self, pending: PendingResponse) -> bool:
        return self._now() - codec.moment_of(pending.id) < _LIFETIME


def _takes(pending: PendingResponse, part: MessagePart) -> bool:
    """Return True if *part* belongs into *pending*: a private part, or in a direct chat the answer to a command."""
    return bool(part.visible_to) if pending.is_shared else not pending.is_press
