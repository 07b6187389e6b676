"""The platforms of the matrix, each with its people, as the test process sees them."""

from __future__ import annotations

from collections.abc import Mapping

from tests.faults.platforms.discord import DiscordSide
from tests.faults.platforms.port import PlatformSide as PlatformSide
from tests.faults.platforms.port import SceneOptions as SceneOptions
from tests.faults.platforms.port import SeenMessage as SeenMessage
from tests.faults.platforms.relay import RelaySide as RelaySide
from tests.faults.platforms.slack import SlackSide
from tests.faults.platforms.telegram import TelegramSide

PLATFORMS = ("telegram", "slack", "discord")
_STAGES: Mapping[str, type[PlatformSide]] = {
    "relay": RelaySide,
    "telegram": TelegramSide,
    "slack": SlackSide,
    "discord": DiscordSide,
}


def stage_of(platform: str, scene: SceneOptions) -> PlatformSide:
    """Return a platform in its first state."""
    return _STAGES[platform](scene)
