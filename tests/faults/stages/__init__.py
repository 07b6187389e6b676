"""The platforms of the matrix, each with its people, as the test process sees them."""

from __future__ import annotations

from collections.abc import Mapping

from tests.faults.stages.discord import DiscordStage
from tests.faults.stages.port import Scene as Scene
from tests.faults.stages.port import Seen as Seen
from tests.faults.stages.port import Stage as Stage
from tests.faults.stages.relay import RelayStage as RelayStage
from tests.faults.stages.slack import SlackStage
from tests.faults.stages.telegram import TelegramStage

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
