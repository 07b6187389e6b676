"""Facts about models, such as abilities that they lack, learned from their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

FACTS_EXPIRE = timedelta(days=30)  # what was learned is tried again then: providers change


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFact:
    """One fact. There is one of each name for a model; nothing in it is about a person."""

    model: str  # and the digest of its server's address (agent/llm/chat_model.py, `SupportsFacts`)
    name: str  # of an ability that it lacks, "window" or "calls_as_text"
    value: str = ""
    at: datetime  # when it was learned


class ModelFactStore(Protocol):
    """Facts of all gateways on one database."""

    def facts(self) -> Mapping[tuple[str, str], ModelFact]:
        """Return every stored fact by model and name, those of the past too. Served from memory."""

    async def change(self, put: Sequence[ModelFact], remove: Sequence[tuple[str, str]] = ()) -> None:
        """Store *put* and remove others by model and name, in one transaction. Raises StoreUnavailable."""
