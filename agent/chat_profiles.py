"""What a chat's settings make of a turn: who thinks, with which tools, in whose voice."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from agent.llm.model_catalog import ModelSelector
from agent.llm.model_client import ModelClient
from agent.tools.toolbox import Toolbox
from gateway.errors import StoreUnavailable
from gateway.events import SessionKey
from gateway.ports import PreferenceStore

_GUILD = "guild"  # the name of a note in `People`


class ChatOverrideView(Protocol):
    """What the operator decided for a chat, as far as turns are concerned; None = nothing."""

    @property
    def soul(self) -> str | None:
        """The voice, instead of any SOUL.md."""
        ...

    @property
    def allow(self) -> Collection[str] | None:
        """The tools there are."""
        ...

    @property
    def deny(self) -> Collection[str]:
        """The tools there are not, allowed or no."""
        ...

    @property
    def memory_window(self) -> int | None:
        """Messages in the prompt."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatProfile:
    """How one chat is answered. Model, tools and voice are its snapshot's: another one begins a new snapshot."""

    model: ModelClient
    toolbox: Toolbox
    soul: str = ""  # instead of any SOUL.md; "" = what stands in the files


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveSetting:
    """One setting of a chat, as people are shown it. Nothing secret is in it."""

    name: str  # as in the settings file
    value: str
    said_by: str  # "everywhere", "block", "chosen" (here, by people), or the place that the operator decided it for


class ChatProfiles:
    """How every chat is answered; served from memory.

    Which guild a chat is in is known from its messages, and noted where it matters: what we do there by ourselves has
    no message.
    """

    def __init__(
        self,
        models: ModelSelector,
        toolbox: Toolbox,
        people: PreferenceStore,
        decided: Callable[[SessionKey, str], ChatOverrideView],
        *,
        has_guilds: bool,
    ) -> None:
        """*decided* is what the operator said for a chat of a guild; *has_guilds*: whether it matters which one."""
        self.models = models
        self._toolbox = toolbox
        self._people = people
        self._decided = decided
        self._has_guilds = has_guilds

    async def note(self, key: SessionKey, guild: str) -> None:
        """Learn which guild the chat is in; costs a write once. While the store is down it waits for the next turn."""
        if self._has_guilds and guild and self._noted(key) != guild:
            with suppress(StoreUnavailable):
                await self._people.prefer(str(key.parent), _GUILD, guild)

    def of(self, key: SessionKey, guild: str = "") -> ChatProfile:
        """Return how *key* is answered now; *guild* where a message tells it."""
        guild = guild or self._noted(key)
        decided = self._decided(key, guild)
        return ChatProfile(
            model=self.models.active_model(key, guild).client,
            toolbox=self._toolbox.only(decided.allow, decided.deny),
            soul=decided.soul or "",
        )

    def window(self, key: SessionKey, guild: str = "") -> int | None:
        """Return how many messages the chat's prompt has; None = as everywhere."""
        return self._decided(key, guild or self._noted(key)).memory_window

    def _noted(self, key: SessionKey) -> str:
        return noted_guild(self._people, key) if self._has_guilds else ""


def noted_guild(people: PreferenceStore, key: SessionKey) -> str:
    """Return the guild that a chat was seen in, where guilds matter; "" where nobody has."""
    return people.preferences(str(key.parent)).get(_GUILD, "")
