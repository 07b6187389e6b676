"""The servers we are in: durably known, so that one we were added to is told from those that a new session lists."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from gateway.ports import ChannelState, Intake, MembershipChange
from gateway.text import sanitize
from gateway.text.display_names import safe_display_name

log = structlog.get_logger(__name__)

_NOTE = "guilds"  # the note that holds their ids, as JSON


class DiscordGuilds:
    """The servers of one block. The first session ever finds the ones we are in already: nobody added us just now.

    Discord does not say who added us, and says nothing of what happened while we were away but the list at its end.
    """

    def __init__(self, name: str, state: ChannelState, intake: Intake) -> None:
        self._name = name
        self._state = state
        self._intake = intake
        self._known: dict[str, None] | None = None
        self._is_unsaved = False

    async def list(self, idents: Sequence[str], at: str) -> None:
        """Take a new session's list, said *at* a time: we left what is not in it. Raises StoreUnavailable."""
        known = await self._load()
        if known is None:
            # Soon enough, with the marks: until then a start would find the same.
            self._known, self._is_unsaved = dict.fromkeys(idents), True
            return
        for ident in [each for each in known if each not in idents]:
            await self.note_removal(ident, at)

    async def note_guild(self, guild: Mapping[str, Any]) -> None:
        """Take what Discord tells of a server: at the start of a session, after an outage, or since we were added."""
        ident, known = str(int(guild["id"])), await self._load()
        if known is None or ident in known:
            return
        place = MembershipChange(
            channel=self._name,
            id=f"place/{ident}/{guild.get('joined_at') or 'in'}",
            guild=ident,
            title=safe_display_name(sanitize(str(guild.get("name") or ""))),
        )
        await self._intake.membership_changed(place)  # first: what is told twice has one id
        await self._save({**known, ident: None})

    async def note_removal(self, ident: str, at: str) -> None:
        """Take that we are gone from a server, said *at* a time."""
        known = await self._load()
        if known is None or ident not in known:
            return
        await self._intake.membership_changed(
            MembershipChange(channel=self._name, id=f"place/{ident}/out/{at}", guild=ident, is_gone=True),
        )
        await self._save({each: None for each in known if each != ident})

    async def save(self) -> None:
        """Write what the first session found, if it is not written yet; raises StoreUnavailable."""
        if self._is_unsaved and self._known is not None:
            await self._save(self._known)

    async def _load(self) -> dict[str, None] | None:
        if self._known is None:
            noted = await self._state.load(_NOTE)
            self._known = None if noted is None else dict.fromkeys(json.loads(noted))
        return self._known

    async def _save(self, known: dict[str, None]) -> None:
        await self._state.save(_NOTE, json.dumps(list(known)))
        self._known, self._is_unsaved = known, False
