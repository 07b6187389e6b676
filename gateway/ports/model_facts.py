"""Facts about models, such as abilities that they lack, learned from their answers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

FACTS_EXPIRE = timedelta(days=30)  # what was learned is tried again then: providers change


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFact:
    """One fact. There is one of each name for a model; nothing in it is about a person."""

    model: str  # and the digest of its server's address (agent/llm/chat_model.py, `SupportsFacts`)
    name: str  # of an ability that it lacks, "window" or "calls_as_text"
    value: str = ""
    at: datetime  # when it was learned
