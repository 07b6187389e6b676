"""The platforms of the matrix, each with its people, as the test process sees them."""

from __future__ import annotations

from collections.abc import Mapping

from tests.faults.platforms.discord import DiscordStage
from tests.faults.platforms.port import Scene as Scene
from tests.faults.platforms.port import Seen as Seen
from tests.faults.platforms.port import Stage as Stage
from tests.faults.platforms.relay import RelayStage as RelayStage
from tests.faults.platforms.slack import SlackStage
from tests.faults.platforms.telegram import TelegramStage

PLATFORMS = ("telegram", "slack", "discord")
_STAGES: Mapping[str, type[Stage]] = {
    "relay": RelayStage,
    "telegram": TelegramStage,
    "slack": SlackStage,
    "discord": DiscordStage,
}


def stage_of(platform: str, scene: Scene) -> Stage:
    """Return a platform in its first state."""
    return _STAGES[platform](scene)
