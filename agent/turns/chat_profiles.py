"""Chat profiles: which model answers a chat, with which tools, persona and window; and the models to choose from."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from agent.llm.model_client import ModelClient
from agent.skills import SkillLibrary
from agent.tools.rights import OperatorRights
from agent.tools.tool import SkillTool, Tool
from agent.tools.toolbox import Toolbox
from gateway.errors import ModelAbility, StoreUnavailable
from gateway.events import SessionKey
from gateway.ports.access import ChatOverride

if TYPE_CHECKING:
    from gateway.store.records import SqlPreferences


_GUILD = "guild"  # name of a chat's preference


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatProfile:
    """How one chat is answered. A snapshot holds model, tools and persona: changing one starts a new snapshot."""

    name: str = ""  # of the operator's profile that applies; "" = none
    chosen_name: str = ""  # of the profile chosen by /as, which may be offered no longer
    active: ActiveModel
    toolbox: Toolbox
    persona: str = ""  # replaces SOUL.md; "" = the files decide
    memory_window: int | None = None  # messages in the prompt; None = the default
    effort: str = ""  # how long the model thinks before an answer; "" = as the provider has it
    has_chosen_effort: bool = False  # by /effort, in this chat

    @property
    def model(self) -> ModelClient:
        """The model that answers."""
        return self.active.client

    @property
    def has_chosen_name(self) -> bool:
        """True if the profile that applies was chosen here."""
        return bool(self.name) and self.name == self.chosen_name

    @property
    def lost_name(self) -> str:
        """The profile that was chosen here and is offered no longer, or ""."""
        return "" if self.name == self.chosen_name else self.chosen_name

    def remove_tool(self, tool: str) -> ChatProfile:
        """Return the profile without one of its tools, where there is nothing for it to do."""
        return replace(self, toolbox=self.toolbox.only(None, deny=(tool,)))


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveSetting:
    """One setting of a chat as /settings shows it; never a secret."""

    name: str  # as in the settings file
    value: str
    said_by: str  # "everywhere", "block", "chosen" (by /model, /as …), a chat selector, or "profiles.NAME"


class ChatProfiles:
    """The profile of every chat, served from memory.

    Messages name their guild. It is stored where settings depend on it, because background jobs have no message.
    """

    def __init__(
        self,
        models: ModelCatalog,
        toolbox: Toolbox,
        people: SqlPreferences,
        overrides: Callable[[SessionKey, str], ChatOverride],
        *,
        has_guilds: bool,
        deferred: Callable[[], Mapping[str, Tool]] = dict,
        skills: SkillLibrary,
        rights: Mapping[str, OperatorRights] | None = None,
        choosable: Sequence[str] = (),
    ) -> None:
        """*overrides* returns the settings of a chat in a guild; *has_guilds* is True if any depend on the guild.

        *deferred* returns the tools of services: the same mapping until they change. *rights* are the operator's.
        *choosable* are the names of the profiles that /as may choose.
        """
        self.offered = tuple(choosable)
        self.skills = skills
        self.models = models
        self._installed = toolbox
        self._deferred = deferred
        self._rights = rights or {}
        self._latest: tuple[Mapping[str, Tool], SkillTool | None, Toolbox] = ({}, None, toolbox)
        self._people = people
        self._overrides = overrides
        self._has_guilds = has_guilds

    @property
    def toolbox(self) -> Toolbox:
        """The tools of a chat that has no settings."""
        deferred, skills = self._deferred(), self.skills.tool
        if not deferred and skills is None:
            return self._installed
        if self._latest[0] is not deferred or self._latest[1] is not skills:
            self._latest = (deferred, skills, self._installed.extended(deferred.values(), skills, self._rights))
        return self._latest[2]

    async def note(self, key: SessionKey, guild: str) -> None:
        """Store which guild the chat is in, once. If the store is down, the next turn tries again."""
        if self._has_guilds and guild and stored_guild(self._people, key) != guild:
            with suppress(StoreUnavailable):
                await self._people.prefer(str(key.parent), _GUILD, guild)

    def of(self, key: SessionKey, guild: str = "") -> ChatProfile:
        """Return the profile of *key*; without *guild* the stored one is used."""
        return self.apply(key, self._overrides(key, guild))

    def apply(self, key: SessionKey, overrides: ChatOverride) -> ChatProfile:
        """Return the profile of *key* with *overrides*, the operator's settings for it.

        A model without tools has none: its prompt must not promise what it cannot do.
        """
        active = self.active_model(key, overrides.model)
        has_tools = not active.client.lacks(ModelAbility.TOOLS)
        choices = self._people.preferences(_subject(key))
        chosen = choices.get(_EFFORT, "")
        return ChatProfile(
            name=overrides.profile or "",
            chosen_name=choices.get(_PROFILE, ""),
            active=active,
            effort=chosen or overrides.effort or self.models.efforts.get(active.name, ""),
            has_chosen_effort=bool(chosen),
            toolbox=self.toolbox.only(overrides.allow, overrides.deny) if has_tools else self.toolbox.only(()),
            persona=overrides.soul or "",
            memory_window=overrides.memory_window,
        )

    def active_model(self, key: SessionKey, choice: str | None) -> ActiveModel:
        """Return the model that answers in *key*, where the operator's settings name *choice*; served from memory.

        A choice in the chat holds for its threads too, and goes before the operator's.
        """
        models, chosen = self.models, self._people.preferences(_subject(key)).get(_CHOSEN, "")
        client = models.clients.get(chosen) if chosen in models.offered else None
        if client is not None:
            return ActiveModel(name=chosen, client=client, origin=ModelChoiceOrigin.CHOSEN)
        client = models.clients.get(choice or "")
        if choice and client is not None:
            return ActiveModel(name=choice, client=client, origin=ModelChoiceOrigin.DECIDED, lost=chosen)
        return ActiveModel(name=models.name, client=models.usual, origin=ModelChoiceOrigin.USUAL, lost=chosen)

    async def choose_model(self, key: SessionKey, name: str) -> None:
        """Let *name*, one of those offered, answer in the chat of *key* from its next turn on; "" = as before."""
        if name and name not in self.models.offered:
            raise ValueError(f"{name} is not offered")
        await self._people.prefer(_subject(key), _CHOSEN, name)

    async def choose_profile(self, key: SessionKey, name: str) -> None:
        """Let the profile *name*, one of those offered, apply in the chat of *key* from its next turn on; "" = none."""
        if name and name not in self.offered:
            raise ValueError(f"{name} is not offered")
        await self._people.prefer(_subject(key), _PROFILE, name)

    async def choose_effort(self, key: SessionKey, effort: str) -> None:
        """Let the model of the chat of *key* think so long from its next turn on; "" = as before."""
        await self._people.prefer(_subject(key), _EFFORT, effort)


def stored_guild(people: SqlPreferences, key: SessionKey) -> str:
    """Return the guild stored for a chat; empty if none is."""
    return people.preferences(str(key.parent)).get(_GUILD, "")


def resolve_overrides(people: SqlPreferences, chats: ChatSettingsLookup) -> Callable[[SessionKey, str], ChatOverride]:
    """Return the function that gives the settings of a chat in a guild, by what *chats* and people's choices say.

    *chats* is called with the chat, its guild and the profile chosen there, each "" where it is absent. A guild that is
    not known is the stored one: a job that no message started does not carry it.
    """

    def overrides_of(key: SessionKey, guild: str) -> ChatOverride:
        choices = people.preferences(_subject(key))
        return chats(key, guild or choices.get(_GUILD, ""), choices.get(_PROFILE, ""))

    return overrides_of


ChatSettingsLookup = Callable[[SessionKey, str, str], ChatOverride]
_CHOSEN = "model"  # the names of choices
_EFFORT = "effort"
_PROFILE = "profile"


class ModelCatalog:
    """Every model of one installation, by the name that people know it by. Owns their connections."""

    def __init__(
        self,
        usual: ModelClient,
        models: Mapping[str, ModelClient],
        *,
        name: str = "",
        choosable: Sequence[str] = (),
        efforts: Mapping[str, str] | None = None,
    ) -> None:
        """Use *usual*, called *name*, where no setting selects another of *models*.

        Users may choose only those in *choosable*. *efforts* are the settings' for models by name; "" and none mean
        the provider's default.
        """
        self.usual = usual
        self.name = name or usual.name
        self.offered = tuple(choosable)
        self.clients = dict(models)
        self.efforts = dict(efforts or {})

    def every(self) -> tuple[ModelClient, ...]:
        """Return all of them, once each."""
        return tuple(dict.fromkeys((self.usual, *self.clients.values())))

    def find(self, text: str) -> str:
        """Return the offered name that matches *text*, by name or model in any case; "" if none does."""
        lower = text.strip().lower()
        if lower in (found := {name.lower(): name for name in self.offered}):
            return found[lower]
        same = [name for name in self.offered if self.clients[name].name.lower() == lower]
        return same[0] if len(same) == 1 else ""

    def near(self, name: str) -> str:
        """Return the offered name that *name* looks like, or ""."""
        return next(iter(difflib.get_close_matches(name.strip().lower(), self.offered, n=1)), "")

    async def close(self) -> None:
        """Close every model."""
        for client in self.every():
            await client.close()


class ModelChoiceOrigin(StrEnum):
    """The setting that selected the model."""

    CHOSEN = "chosen"  # by /model, in this chat
    DECIDED = "decided"  # by the operator, for this place
    USUAL = "usual"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveModel:
    """Which model answers in a chat."""

    name: str  # as people know it
    client: ModelClient
    origin: ModelChoiceOrigin
    lost: str = ""  # what was chosen here, and is no model to choose any more


def _subject(key: SessionKey) -> str:
    return str(key.parent)
