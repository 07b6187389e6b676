"""The models that can answer, and which one does in a chat: chosen by people, decided by the operator, or the usual."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from agent.llm.model_client import ModelClient
from gateway.events import SessionKey
from gateway.ports import PreferenceStore

_CHOSEN = "model"  # the name of the choice in `People`


class ModelCatalog:
    """Every model of one installation, by the name that people know it by. Owns their connections."""

    def __init__(
        self, usual: ModelClient, models: Mapping[str, ModelClient], *, name: str = "", choosable: Sequence[str] = ()
    ) -> None:
        """Use *usual*, called *name*, where no setting selects another of *models*.

        Users may choose only those in *choosable*.
        """
        self.usual = usual
        self.name = name or usual.name
        self.offered = tuple(choosable)
        self._models = dict(models)

    def every(self) -> tuple[ModelClient, ...]:
        """Return all of them, once each."""
        return tuple(dict.fromkeys((self.usual, *self._models.values())))

    def client(self, name: str) -> ModelClient | None:
        """Return the model called *name*, or None if it does not exist."""
        return self._models.get(name)

    def find(self, text: str) -> str:
        """Return the offered name that matches *text*, by name or model in any case; "" if none does."""
        lower = text.strip().lower()
        if lower in (found := {name.lower(): name for name in self.offered}):
            return found[lower]
        same = [name for name in self.offered if self._models[name].name.lower() == lower]
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


class ModelSelector:
    """Which model answers where. A choice holds for a chat and its threads, and goes before what was decided."""

    def __init__(self, models: ModelCatalog, people: PreferenceStore) -> None:
        self.models = models
        self._people = people

    def active_model(self, key: SessionKey, choice: str | None) -> ActiveModel:
        """Return the model that answers in *key*, where the operator's settings name *choice*; served from memory."""
        chosen = self._people.preferences(_subject(key)).get(_CHOSEN, "")
        client = self.models.client(chosen) if chosen in self.models.offered else None
        if client is not None:
            return ActiveModel(name=chosen, client=client, origin=ModelChoiceOrigin.CHOSEN)
        client = self.models.client(choice or "")
        if choice and client is not None:
            return ActiveModel(name=choice, client=client, origin=ModelChoiceOrigin.DECIDED, lost=chosen)
        return ActiveModel(name=self.models.name, client=self.models.usual, origin=ModelChoiceOrigin.USUAL, lost=chosen)

    async def choose(self, key: SessionKey, name: str) -> None:
        """Let *name*, one of those offered, answer in the chat of *key* from its next turn on; "" = as before."""
        if name and name not in self.models.offered:
            raise ValueError(f"{name} is not offered")
        await self._people.prefer(_subject(key), _CHOSEN, name)


def _subject(key: SessionKey) -> str:
    return str(key.parent)
