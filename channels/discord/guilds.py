"""The guilds the bot is in, stored so that a new one is distinguished from those that a session lists."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from channels.discord.shards import BotShard
from gateway.ports import ChannelState, Intake, MembershipChange
from gateway.text import sanitize
from gateway.text.text_units import safe_display_name

log = structlog.get_logger(__name__)

_NOTE = "guilds"  # the shard's note that holds their ids, as JSON


class DiscordGuilds:
    """The guilds of one shard. Those of the very first session are not reported as new.

    Discord does not name the user who added the bot. After downtime only the list of guilds is known.
    """

    def __init__(self, name: str, state: ChannelState, intake: Intake, shard: BotShard) -> None:
        self._name = name
        self._state = state
        self._intake = intake
        self._note = shard.note(_NOTE)
        self._known: dict[str, None] | None = None
        self._is_unsaved = False

    async def open(self) -> Sequence[str]:
        """Load the guilds of earlier sessions, which another worker may have had, and return them."""
        if not self._is_unsaved:
            self._known = None
        return list(await self._load() or ())

    async def update_all(self, guild_ids: Sequence[str], at: str) -> None:
        """Take a new session's list of the time *at*: the bot left guilds not in it. Raises StoreUnavailable."""
        known = await self._load()
        if known is None:
            # Saved with the read cursors; a restart before that finds the same.
            self._known, self._is_unsaved = dict.fromkeys(guild_ids), True
            return
        for guild_id in [each for each in known if each not in guild_ids]:
            await self.note_removal(guild_id, at)

    async def note_guild(self, guild: Mapping[str, Any]) -> None:
        """Take a guild that Discord announces: in a new session, after an outage, or after the bot was added."""
        guild_id, known = str(int(guild["id"])), await self._load()
        if known is None or guild_id in known:
            return
        change = MembershipChange(
            channel=self._name,
            id=f"place/{guild_id}/{guild.get('joined_at') or 'in'}",
            guild=guild_id,
            title=safe_display_name(sanitize(str(guild.get("name") or ""))),
        )
        await self._intake.membership_changed(change)  # before the note: a repetition has the same id
        await self._save({**known, guild_id: None})

    async def note_removal(self, guild_id: str, at: str) -> None:
        """Take that the bot was removed from a guild at the time *at*."""
        known = await self._load()
        if known is None or guild_id not in known:
            return
        await self._intake.membership_changed(
            MembershipChange(channel=self._name, id=f"place/{guild_id}/out/{at}", guild=guild_id, is_gone=True),
        )
        await self._save({each: None for each in known if each != guild_id})

    async def save(self) -> None:
        """Store the guilds of the first session if they are not stored; raises StoreUnavailable."""
        if self._is_unsaved and self._known is not None:
            await self._save(self._known)

    async def _load(self) -> dict[str, None] | None:
        if self._known is None:
            noted = await self._state.load(self._note)
            self._known = None if noted is None else dict.fromkeys(json.loads(noted))
        return self._known

    async def _save(self, names: dict[str, None]) -> None:
        await self._state.save(self._note, json.dumps(list(names)))
        self._known, self._is_unsaved = names, False
