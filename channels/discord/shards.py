"""Shards: the connections over which Discord divides a bot's servers, and what each of them keeps for itself."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.ports import ChannelState

_TOTAL = "shards"  # the note that holds the number of shards; without one it is 1


@dataclass(frozen=True, slots=True)
class BotShard:
    """One of *total* shards (docs.discord.com/developers/events/gateway, sharding)."""

    number: int = 0
    total: int = 1

    def has(self, guild: str) -> bool:
        """Return True if events of *guild* come over this shard; those of direct messages ("") come over the first."""
        return (int(guild or 0) >> 22) % self.total == self.number

    def note(self, name: str) -> str:
        """Return the name of this shard's own note *name*; a shard of another total has another."""
        return name if self.total == 1 else f"shard/{self.number}-{self.total}/{name}"


def list_shards(total: int) -> Sequence[BotShard]:
    """Return the *total* shards of a bot."""
    return [BotShard(number, total) for number in range(total)]


class IdentifyLimit:
    """Discord's limit on new sessions: one every *pause* seconds for shards whose number has the same remainder."""

    def __init__(self, pause: float = 5.0) -> None:
        self.max_concurrency = 1  # remainders, as Discord's `max_concurrency` says
        self._pause = pause
        self._free_at: defaultdict[int, float] = defaultdict(float)  # by the loop's clock
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def wait(self, shard: int, *, is_repeated: bool = False) -> None:
        """Return when *shard* may begin a session; after a session that became invalid at the earliest in a pause.

        A caller that is cancelled takes no place. Processes do not know of each other: Discord answers a session that
        began too early as an invalid one.
        """
        loop, bucket = asyncio.get_running_loop(), shard % self.max_concurrency
        async with self._locks[bucket]:
            least = self._pause if is_repeated else 0.0
            await asyncio.sleep(max(self._free_at[bucket] - loop.time(), least))
            self._free_at[bucket] = loop.time() + self._pause


async def carry_notes(state: ChannelState, total: int) -> None:
    """Hand the notes of shards of another number on to those of *total*, once. Raises StoreUnavailable.

    Each new shard reads on from the oldest cursor. Safe to repeat, also by several processes: older cursors only cost
    repeated reads, which the journal recognises.
    """
    before = int(await state.load(_TOTAL) or 1)
    if before == total:
        return
    notes = {
        name: [note for shard in list_shards(before) if (note := await state.load(shard.note(name))) is not None]
        for name in ("account", "guilds", "used", "commands")
    }
    accounts = min(notes["account"], key=int, default=None)
    guilds = [guild for note in notes["guilds"] for guild in json.loads(note)]
    used = [chat for note in notes["used"] for chat in json.loads(note)]
    commands = {place: mark for note in notes["commands"] for place, mark in json.loads(note).items()}
    for shard in list_shards(total):
        own_commands = {place: mark for place, mark in commands.items() if shard.has(place)}
        await state.save(shard.note("account"), accounts)
        # Without a note the servers of a first session are not reported as new.
        own_guilds = json.dumps([guild for guild in guilds if shard.has(guild)]) if notes["guilds"] else None
        await state.save(shard.note("guilds"), own_guilds)
        # Chats are not stored with their servers: every shard has all, and skips those of others when it reads them.
        await state.save(shard.note("used"), json.dumps(used) if used else None)
        await state.save(shard.note("commands"), json.dumps(own_commands) if own_commands else None)
    await state.save(_TOTAL, str(total))
