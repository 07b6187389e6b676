"""The terminal's settings: only the common ones of every channel."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel

from gateway.ports.channel import PlatformTraits


class ConsoleSettings(BaseModel):
    """Settings of this platform alone; the gateway adds the common ones of every channel."""

    traits: ClassVar[PlatformTraits] = PlatformTraits(chat_is_person=True, is_local=True, saves_files=True)
