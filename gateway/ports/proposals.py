"""Changes of memory that wait for a person's yes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProposal:
    """A stored change. `body` is JSON, with the `session` and the `person` that are asked, where there are any."""

    name: str  # identifies it in its scope
    at: datetime
    expires_at: datetime
    body: Mapping[str, Any]
