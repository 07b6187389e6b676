"""The terminal's settings: it has none of its own."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel

from gateway.ports import PlatformTraits


class ConsoleSettings(BaseModel):
    """What only this kind of channel can be told; the common part of a block is added by the gateway."""

    traits: ClassVar[PlatformTraits] = PlatformTraits(chat_is_person=True, is_local=True, saves_files=True)
