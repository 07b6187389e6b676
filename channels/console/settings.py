"""The terminal's settings: it has none of its own."""

from __future__ import annotations

from pydantic import BaseModel


class ConsoleSettings(BaseModel):
    """What only this kind of channel can be told; the common part of a block is added by the gateway."""
