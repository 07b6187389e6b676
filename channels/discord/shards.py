"""Shards: the connections over which Discord divides a bot's servers, and what each of them keeps for itself."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.ports import ChannelState
from gateway.ports.workers import ConnectionClaims

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


@dataclass(eq=False, slots=True)
class _IdentifySlot:
    """A remainder: the shard that had it last, and until when it is taken, by the loop's clock."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    shard: int = -1
    free_at: float = 0.0
    release: asyncio.TimerHandle | None = None  # of the claim


class IdentifyLimit:
    """Discord's limit on new sessions: one every *pause* seconds for shards whose number has the same remainder.

    With *claims* it holds over all gateways that share them: a remainder is a claim, from before the connection until
    a pause after the IDENTIFY. No clocks are compared. The claim of a gateway that was killed is free at the takeover.
    """

    def __init__(self, pause: float = 5.0, claims: ConnectionClaims | None = None, bot: str = "") -> None:
        """Claim as `<channel>:<bot>`, which is *bot*."""
        self.max_concurrency = 1  # remainders, as Discord's `max_concurrency` says
        self._pause = pause
        self._claims = claims
        self._bot = bot
        self._slots: defaultdict[int, _IdentifySlot] = defaultdict(_IdentifySlot)

    async def wait(self, shard: int, *, is_repeated: bool = False) -> None:
        """Return when *shard* may begin a session; after a session that became invalid at the earliest in a pause.

        A caller that is cancelled takes no place.
        """
        loop, slot = asyncio.get_running_loop(), self._slots[shard % self.max_concurrency]
        async with slot.lock:
            if is_repeated:
                await asyncio.sleep(self._pause)
            while (left := slot.free_at - loop.time()) > 0:  # noqa: ASYNC110 - an IDENTIFY meanwhile puts it off
                await asyncio.sleep(left)
            if self._claims is not None:
                try:
                    await self._claims.acquire(self._claim_name(shard))
                except asyncio.CancelledError:
                    self._claims.release(self._claim_name(shard))
                    raise
            self._hold(slot, shard)

    async def begin(self, shard: int) -> None:
        """Note that *shard* identifies now; if the connection took longer than a pause, wait for another place."""
        slot = self._slots[shard % self.max_concurrency]
        if slot.shard == shard and slot.free_at > asyncio.get_running_loop().time():
            self._hold(slot, shard)
        else:
            await self.wait(shard)

    def _hold(self, slot: _IdentifySlot, shard: int) -> None:
        loop = asyncio.get_running_loop()
        slot.shard, slot.free_at = shard, loop.time() + self._pause
        if self._claims is not None:
            if slot.release is not None:
                slot.release.cancel()
            slot.release = loop.call_at(slot.free_at, self._claims.release, self._claim_name(shard))

    def _claim_name(self, shard: int) -> str:
        return f"{self._bot}/identify-{shard % self.max_concurrency}"


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
        await state.save(shard.note("session"), None)  # of the time before the last change
        await state.save(shard.note("account"), accounts)
        # Without a note the servers of a first session are not reported as new.
        own_guilds = json.dumps([guild for guild in guilds if shard.has(guild)]) if notes["guilds"] else None
        await state.save(shard.note("guilds"), own_guilds)
        # Chats are not stored with their servers: every shard has all, and skips those of others when it reads them.
        await state.save(shard.note("used"), json.dumps(used) if used else None)
        await state.save(shard.note("commands"), json.dumps(own_commands) if own_commands else None)
    await state.save(_TOTAL, str(total))
