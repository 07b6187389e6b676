"""Chat profiles: which model answers a chat, with which tools, persona and window."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from agent.llm.model_catalog import ActiveModel, ModelSelector
from agent.llm.model_client import ModelClient
from agent.tools.toolbox import Toolbox
from gateway.errors import StoreUnavailable
from gateway.events import SessionKey
from gateway.ports import ChatOverride, PreferenceStore

_GUILD = "guild"  # name of a chat's preference


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatProfile:
    """How one chat is answered. A snapshot holds model, tools and persona: changing one starts a new snapshot."""

    active: ActiveModel
    toolbox: Toolbox
    persona: str = ""  # replaces SOUL.md; "" = the files decide
    memory_window: int | None = None  # messages in the prompt; None = the default

    @property
    def model(self) -> ModelClient:
        """The model that answers."""
        return self.active.client


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveSetting:
    """One setting of a chat as /settings shows it; never a secret."""

    name: str  # as in the settings file
    value: str
    said_by: str  # "everywhere", "block", "chosen" (by /model, /language …), or the chat selector in the settings


class ChatProfiles:
    """The profile of every chat, served from memory.

    Messages name their guild. It is stored where settings depend on it, because background jobs have no message.
    """

    def __init__(
        self,
        models: ModelSelector,
        toolbox: Toolbox,
        people: PreferenceStore,
        overrides: Callable[[SessionKey, str], ChatOverride],
        *,
        has_guilds: bool,
    ) -> None:
        """*overrides* returns the settings of a chat in a guild; *has_guilds* is True if any depend on the guild."""
        self.models = models
        self._toolbox = toolbox
        self._people = people
        self._overrides = overrides
        self._has_guilds = has_guilds

    async def note(self, key: SessionKey, guild: str) -> None:
        """Store which guild the chat is in, once. If the store is down, the next turn tries again."""
        if self._has_guilds and guild and stored_guild(self._people, key) != guild:
            with suppress(StoreUnavailable):
                await self._people.prefer(str(key.parent), _GUILD, guild)

    def of(self, key: SessionKey, guild: str = "") -> ChatProfile:
        """Return the profile of *key*; without *guild* the stored one is used."""
        if self._has_guilds and not guild:
            guild = stored_guild(self._people, key)
        return self.apply(key, self._overrides(key, guild))

    def apply(self, key: SessionKey, overrides: ChatOverride) -> ChatProfile:
        """Return the profile of *key* with *overrides*, the operator's settings for it."""
        return ChatProfile(
            active=self.models.active_model(key, overrides.model),
            toolbox=self._toolbox.only(overrides.allow, overrides.deny),
            persona=overrides.soul or "",
            memory_window=overrides.memory_window,
        )


def stored_guild(people: PreferenceStore, key: SessionKey) -> str:
    """Return the guild stored for a chat; empty if none is."""
    return people.preferences(str(key.parent)).get(_GUILD, "")
